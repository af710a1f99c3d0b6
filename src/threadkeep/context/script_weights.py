"""What each kind of writing costs in tokens: the calibrated figures behind `tokens.estimate`.

A text is measured in UTF-8, where the first byte of a character tells its script. `kinds` maps each byte to a letter for
its kind, `LETTERS` and `DIGITS` to runs; the weights are tokens per occurrence of a pattern. They were fitted to
`o200k_base` over own and generated texts in more than fifty languages, code, JSON, numbers and base64, with the aim to
be rather over than under.
"""

from __future__ import annotations


def _table(default: str, *kinds: tuple[str, int, int]) -> bytes:
    table = bytearray(default.encode() * 256)
    for letter, first, last in kinds:
        table[first : last + 1] = letter.encode() * (last + 1 - first)
    return bytes(table)


KINDS = _table(
    "x",
    (".", 0x00, 0x7F),
    ("n", 0x09, 0x0D),
    (" ", 0x20, 0x20),
    ("0", 0x30, 0x39),
    ("A", 0x41, 0x5A),
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
DIGITS = bytes(48 if chr(kind) == "0" else 32 for kind in KINDS)

ENGLISH = (b"th", b"ing", b"ould", b" of ", b" you", b"igh", b" wh", b"sh")
"""What is frequent in English and rare elsewhere: other languages in the same letters cost more tokens a word."""

WORD = 0.0
DIGIT_RUN = 0.0
FOREIGN_LETTER = 0.0
FOREIGN_FOUR_LETTERS = 0.0

PLAIN_KINDS: tuple[tuple[bytes, float], ...] = (
    (b"a", 0.0),
    (b"aaaa", 0.0),
    (b"aaaaaaaa", 0.0),
    (b"A", 0.0),
    (b"Aa", 0.0),
    (b"aA", 0.0),
    (b"AA", 0.0),
    (b"0", 0.0),
    (b".", 0.0),
    (b"..", 0.0),
    (b"a.", 0.0),
    (b" .", 0.0),
    (b"n", 0.0),
    (b"n ", 0.0),
    (b"  ", 0.0),
)
"""Tokens per pattern of kinds that any text may have."""

SCRIPT_KINDS: tuple[tuple[bytes, float], ...] = (
    (b"p", 0.0),
    (b"l", 0.0),
    (b"g", 0.0),
    (b"r", 0.0),
    (b" r", 0.0),
    (b"m", 0.0),
    (b"h", 0.0),
    (b"b", 0.0),
    (b"I", 0.0),
    (b"v", 0.0),
    (b"q", 0.0),
    (b"k", 0.0),
    (b"z", 0.0),
    (b"K", 0.0),
    (b" K", 0.0),
    (b"f", 0.0),
    (b"e", 0.0),
    (b"x", 0.0),
)
"""Tokens per pattern of kinds that only texts beyond ASCII have."""

SCRIPT_BYTES: tuple[tuple[bytes, float], ...] = (
    (b"\xc3", 0.0),  # accents of western Europe are cheaper than others
    ("і".encode(), 0.0),  # Ukrainian
    ("ї".encode(), 0.0),
    ("є".encode(), 0.0),
    ("ј".encode(), 0.0),  # Serbian
    (b"\xe0\xa4", 0.0),  # Devanagari
    (b"\xe0\xa5", 0.0),
    (b"\xe0\xa6", 0.0),  # Bengali
    (b"\xe0\xa7", 0.0),
    (b"\xe0\xae", 0.0),  # Tamil
    (b"\xe0\xaf", 0.0),
    (b"\xe0\xb8", 0.0),  # Thai
    (b"\xe0\xb9", 0.0),
    (b"\xe1\x83", 0.0),  # Georgian
    (b"\xe1\xba", 0.0),  # Vietnamese
    (b"\xe1\xbb", 0.0),
    (b"\xe3\x80", 0.0),  # the punctuation of Chinese and Japanese
)
"""What single scripts cost more or less than the kind that their first byte tells."""
