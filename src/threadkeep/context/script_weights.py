"""What each kind of writing costs in tokens: the calibrated figures behind `tokens.estimate`.

A text is measured in UTF-8, where the first byte of a character tells its script. `kinds` maps each byte to a letter
for its kind, `LETTERS` and `DIGITS` to runs; the weights are tokens per occurrence of a pattern. They were fitted to
`o200k_base` over texts in more than fifty languages, code, JSON, numbers and base64, with the aim
to be rather over than under.
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

ENGLISH = (b"th", b"Th", b"ing", b"ould", b" of ", b" to ", b" you", b"igh", b" wh", b"sh", b"ed ", b"ly ")
"""What is frequent in English and rare elsewhere: other languages in the same letters cost more tokens a word."""

WORD = 0.071
DIGIT_RUN = 1.551
FOREIGN_LETTER = 0.052
FOREIGN_FOUR_LETTERS = 0.165

PLAIN_KINDS: tuple[tuple[bytes, float], ...] = (
    (b"a", 0.222),
    (b"aaaa", 0.0),
    (b"aaaaaaaa", 0.0),
    (b"A", 0.307),
    (b"Aa", 0.011),
    (b"aA", 0.748),
    (b"AA", 0.505),
    (b"0", 0.27),
    (b".", 0.291),
    (b"..", 0.0),
    (b"a.", 0.484),
    (b" .", 1.077),
    (b"n", 0.0),
    (b"n ", 0.539),
    (b"  ", 0.022),
)
"""Tokens per pattern of kinds that any text may have."""

SCRIPT_KINDS: tuple[tuple[bytes, float], ...] = (
    (b"p", 0.612),
    (b"l", 1.395),
    (b"g", 0.505),
    (b"r", 0.202),
    (b" r", 0.972),
    (b"m", 0.432),
    (b"h", 0.524),
    (b"b", 0.417),
    (b"I", 0.499),
    (b"v", 0.691),
    (b"q", 0.918),
    (b"k", 0.748),
    (b"z", 0.934),
    (b"K", 0.625),
    (b" K", 0.628),
    (b"f", 0.51),
    (b"e", 1.428),
    (b"x", 0.816),
)
"""Tokens per pattern of kinds that only texts beyond ASCII have."""

SCRIPT_BYTES: tuple[tuple[bytes, float], ...] = (
    (b"\xc3", -0.468),  # accents of western Europe are cheaper than others
    ("і".encode(), 0.939),  # Ukrainian
    ("ї".encode(), 0.939),
    ("є".encode(), 0.939),
    ("ј".encode(), 2.63),  # Serbian
    (b"\xe0\xa4", -0.062),  # Devanagari
    (b"\xe0\xa5", -0.062),
    (b"\xe0\xa6", -0.031),  # Bengali
    (b"\xe0\xa7", -0.031),
    (b"\xe0\xae", -0.078),  # Tamil
    (b"\xe0\xaf", -0.078),
    (b"\xe0\xb8", -0.013),  # Thai
    (b"\xe0\xb9", -0.013),
    (b"\xe1\x83", -0.296),  # Georgian
    (b"\xe1\xba", -0.49),  # Vietnamese
    (b"\xe1\xbb", -0.49),
    (b"\xe3\x80", -0.54),  # the punctuation of Chinese and Japanese
)
"""What single scripts cost more or less than the kind that their first byte tells."""
