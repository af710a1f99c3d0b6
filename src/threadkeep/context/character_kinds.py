"""The kinds of characters that the estimates of tokens tell apart.

A text is looked at in UTF-8, where the first byte of a character tells its script; a table maps each byte to a letter
for its kind.
"""

from __future__ import annotations


def _table(default: str, *kinds: tuple[str, int, int]) -> bytes:
    table = bytearray(default.encode() * 256)
    for letter, first, last in kinds:
        table[first : last + 1] = letter.encode() * (last + 1 - first)
    return bytes(table)


KINDS = _table(
    "x",  # combining marks, phonetic letters
    (".", 0x00, 0x7F),
    ("t", 0x09, 0x09),
    ("n", 0x0A, 0x0D),
    (" ", 0x20, 0x20),
    ("0", 0x30, 0x39),
    ("A", 0x41, 0x5A),
    ("_", 0x5F, 0x5F),
    ("a", 0x61, 0x7A),
    ("c", 0x80, 0xBF),  # the further bytes of a character
    ("p", 0xC2, 0xC2),  # « » ° and the like
    ("l", 0xC3, 0xC9),  # accented Latin
    ("g", 0xCE, 0xCF),  # Greek
    ("r", 0xD0, 0xD3),  # Cyrillic
    ("m", 0xD4, 0xD6),  # Armenian
    ("h", 0xD7, 0xD7),  # Hebrew
    ("b", 0xD8, 0xDB),  # Arabic
    ("I", 0xE0, 0xE0),  # the scripts of India, Thai, Lao
    ("v", 0xE1, 0xE1),  # Vietnamese, Georgian, Khmer, Burmese
    ("q", 0xE2, 0xE2),  # quotation marks, dashes, symbols
    ("k", 0xE3, 0xE3),  # kana and the punctuation of Chinese and Japanese
    ("z", 0xE4, 0xE9),  # han
    ("K", 0xEA, 0xED),  # hangul
    ("f", 0xEF, 0xEF),  # full-width forms
    ("e", 0xF0, 0xF4),  # emoji
)
LETTERS = bytes(97 if chr(kind) in "aAlgrmhbIvc" else 32 for kind in KINDS)
"""Letters as `a`, all else as a space."""

DIGITS = bytes(48 if chr(kind) == "0" else 32 for kind in KINDS)
"""Digits as `0`, all else as a space."""

CAPITALS = _table(".", ("n", 0x0A, 0x0D), (" ", 0x20, 0x20), ("D", 0xD0, 0xD0), ("u", 0x90, 0xAF))
"""Capital Cyrillic letters as `Du`."""


def framed(text: str) -> bytes:
    """The text in UTF-8, between a space and a byte that no text has."""
    return b" " + text.encode("utf-8", "surrogatepass") + b"\xff"


def digit_groups(data: bytes) -> int:
    """How many groups of at most three digits there are: tokenizers take them so."""
    groups = data.translate(DIGITS).replace(b"000", b"3")
    return groups.count(b"3") + groups.count(b" 0") + groups.count(b"30")
