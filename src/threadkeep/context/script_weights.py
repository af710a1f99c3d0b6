"""Token costs of character patterns: the calibrated data of the estimates.

Each line is a pattern and its tokens per occurrence in the tokenizers `o200k` and `cl100k`; an estimate is their
sum. A letter has its average cost, and frequent sequences correct it: `tion` makes a word cheaper in every language
that has it. Fitted by `python -m bench.fit_tokens`, rather too high than too low; `estimates` has the kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

type Pattern = tuple[str | bytes, float, float]
"""Characters or kinds of them, and the tokens per occurrence in the tokenizers `o200k` and `cl100k`."""


@dataclass(frozen=True, slots=True)
class Script:
    """The patterns for texts with this script: kinds, characters, and positions of capitals.

    The first kind is the kind of the script's characters.
    """

    kinds: tuple[Pattern, ...]
    text: tuple[Pattern, ...] = ()
    capitals: tuple[Pattern, ...] = ()


def as_bytes(pattern: Pattern) -> bytes:
    """Return the bytes to search for."""
    return pattern[0] if isinstance(pattern[0], bytes) else pattern[0].encode()


RUNS: tuple[Pattern, ...] = (
    ("words", 0.219, 0.232),
    ("groups of three digits", 1.782, 1.736),
)
KINDS: tuple[Pattern, ...] = (
    ("a", 0.224, 0.265),
    ("A", 0.105, 0.048),
    (".", 0.393, 0.408),
    ("Aa", 0.436, 0.661),
    ("aA", 1.514, 1.677),
    ("AA", 0.305, 0.361),
    (" .", 0.744, 0.641),
    ("a.", 0.157, -0.057),
    ("n", 0.706, 0.672),
    ("  ", 0.062, 0.062),
    ("A0", 0.469, 0.603),
    ("aAa", -1.485, -2.113),
    ("an", 1.195, 0.954),
    ("A.", 0.651, 0.498),
    ("...n", -1.170, -1.471),
    ("nA", -1.064, -1.059),
    (".0", -0.268, -0.214),
    ("nn", -0.994, -1.428),
)
TEXT: tuple[Pattern, ...] = (
    ("wa ", -0.391, 0.779),
    ("tion", -1.121, -1.458),
    ("uk", 1.289, 2.165),
    ("ik", 0.788, 1.471),
    ("*", -0.217, -0.268),
    ("a ", 0.617, 0.809),
    ("%", 0.978, 0.921),
    ("\t\t", 0.562, 0.505),
    ("ze", 0.836, 1.192),
    ("...", -1.066, -1.089),
    ("ect", -1.077, -1.690),
    ("aa", 1.496, 2.650),
    ("####", -2.345, -2.350),
    ("--", -0.358, -0.381),
    ("nt", -0.594, -0.773),
    (", ", 0.704, 0.799),
    ("<", 0.495, 0.462),
    (";", 0.614, 0.605),
    ("ko", 1.038, 1.693),
    ("ed ", -0.494, -1.078),
    ("ort", -0.874, -1.085),
    (" j", 0.977, 1.548),
    ("the", -0.285, -0.895),
    ("|", 0.749, 0.643),
    ("rde", -0.986, -0.872),
    (" re", -0.484, -0.723),
    ("&", 1.003, 0.989),
    ("==", -0.267, -0.282),
    (" para", -1.568, -1.956),
    ("e co", -1.406, -1.496),
    ("i ", 0.470, 1.071),
    ("ant", 0.854, 1.431),
    ("ic", -0.710, -0.581),
    ("ru", 0.654, 0.872),
    ("->", 1.046, 1.026),
    ("ing", -0.402, -0.763),
    ("ns", -0.575, -0.476),
    ("nc", -0.595, -0.797),
    ("sz", 1.997, 1.686),
    ("ess", -0.560, -0.995),
    ("e m", 0.832, 0.715),
    ("\\", 1.530, 1.307),
    ("ou", -0.411, -0.700),
    ("z ", 0.976, 1.175),
    ("p ", 1.136, 1.029),
    ("per", -0.586, -1.139),
    ("pl", -0.269, -0.496),
    (" o ", 0.704, 1.288),
    ("u ", 0.624, 0.708),
    ("ll", 0.181, -0.163),
    ("at", -0.108, -0.349),
)
SCRIPTS: dict[str, Script] = {
    "p": Script(  # « » ° and the like
        kinds=(("p", 0.969, 1.008),),
    ),
    "l": Script(  # accented Latin
        kinds=(
            ("l", 0.805, 1.357),
            ("alcn", 1.958, 2.365),
            ("nAlc", 2.545, 2.723),
        ),
        text=(
            ("ł", 1.342, 0.449),
            ("î", 2.523, 1.142),
            ("š", 2.133, 2.273),
            ("ø", 1.900, 2.893),
            ("ã", -1.189, -1.171),
            ("ş", -0.395, 0.315),
            ("å", 1.466, 0.992),
            ("ș", 2.250, 1.188),
            ("õ", -0.318, -1.567),
            ("ý", 1.108, 2.002),
            ("ē", 2.173, 2.806),
            ("ś", 0.836, -0.688),
            ("ö", 0.814, 1.160),
            ("è", 0.469, 0.443),
            ("ú", 0.173, 0.737),
        ),
    ),
    "g": Script(  # Greek
        kinds=(("g", 0.424, 1.111),),
    ),
    "r": Script(  # Cyrillic
        kinds=(
            ("r", 0.186, 0.347),
            (" r", 0.473, 1.016),
            (".r", 2.490, 1.404),
        ),
        text=(
            (b"\xd2", 0.630, 4.317),
            (b"\xd3", 1.559, 4.779),
            ("і", 1.236, 2.312),
            ("ј", 3.460, 4.267),
            ("ў", 2.979, 5.678),
            ("ени", -0.863, -1.494),
            ("ль", -0.829, -2.290),
            ("ї", 2.138, 3.617),
            ("ъ", 2.328, 0.358),
            ("ны", 1.047, 0.576),
            ("њ", 3.401, 4.071),
            ("те ", 0.627, 0.353),
        ),
        capitals=(
            ("DuDu", 0.598, 0.985),
            ("nDu", 1.322, 1.472),
            (" Du", 1.243, 1.222),
        ),
    ),
    "m": Script(  # Armenian
        kinds=(("m", 0.381, 2.363),),
    ),
    "h": Script(  # Hebrew
        kinds=(("h", 0.502, 1.234),),
    ),
    "b": Script(  # Arabic
        kinds=(("b", 0.133, 0.290),),
        text=(
            (b"\xd8", 0.251, 0.480),
            (b"\xd9", 0.286, 0.733),
            (b"\xda", 0.724, 1.232),
            (b"\xdb", 0.585, 1.423),
            (" الع", 1.768, 0.410),
            ("م ا", -1.418, 0.298),
            ("رة ", -1.479, -0.866),
            ("ر ا", -0.942, 0.155),
            ("الب", 1.027, 1.611),
            ("ان", -0.969, -0.690),
            ("ًا", 0.781, 3.111),
        ),
    ),
    "I": Script(  # the scripts of India, Thai, Lao
        kinds=(("I", 0.162, 0.422),),
        text=(
            (b"\xe0\xa4", 0.211, 0.743),  # Devanagari
            (b"\xe0\xa5", 0.290, 1.306),
            (b"\xe0\xa6", 0.189, 0.825),  # Bengali
            (b"\xe0\xa7", 0.551, 1.967),
            (b"\xe0\xa8", 0.511, 1.486),  # Gurmukhi
            (b"\xe0\xa9", 0.586, 2.439),
            (b"\xe0\xaa", 0.255, 1.376),  # Gujarati
            (b"\xe0\xab", 0.431, 2.718),
            (b"\xe0\xac", 0.887, 2.160),  # Oriya
            (b"\xe0\xad", 1.761, 4.931),
            (b"\xe0\xae", 0.251, 1.022),  # Tamil
            (b"\xe0\xaf", 0.187, 1.561),
            (b"\xe0\xb0", 0.313, 1.411),  # Telugu
            (b"\xe0\xb1", 0.481, 2.565),
            (b"\xe0\xb2", 0.306, 1.318),  # Kannada
            (b"\xe0\xb3", 0.288, 2.920),
            (b"\xe0\xb4", 0.186, 1.253),  # Malayalam
            (b"\xe0\xb5", 0.417, 2.095),
            (b"\xe0\xb6", 0.478, 1.805),  # Sinhala
            (b"\xe0\xb7", 0.498, 1.990),
            (b"\xe0\xb8", 0.261, 0.486),  # Thai
            (b"\xe0\xb9", 0.404, 1.016),
            (b"\xe0\xba", 1.317, 1.447),  # Lao
            (b"\xe0\xbb", 4.350, 4.132),
            (b"\xe0\xbc", 2.868, 3.570),  # Tibetan
            (b"\xe0\xbd", 1.196, 1.376),
            (" और ", 1.309, 1.639),
            ("े ह", -1.931, -1.217),
            ("แล้ว", 3.307, 2.460),
            (" तक ", 1.522, 3.100),
            ("या ", -1.145, -0.177),
        ),
    ),
    "v": Script(  # Vietnamese, Georgian, Khmer, Burmese
        kinds=(("v", 2.010, 2.825),),
        text=(
            (b"\xe1\x80", -1.393, -0.548),
            (b"\xe1\x81", -0.927, 0.426),
            (b"\xe1\x83", -1.641, -0.532),
            (b"\xe1\x9e", -1.265, -0.717),
            (b"\xe1\x9f", -1.805, -1.609),
            (b"\xe1\xba", -1.821, -1.122),
            (b"\xe1\xbb", -1.756, -1.825),
        ),
    ),
    "q": Script(  # quotation marks, dashes, symbols
        kinds=(("q", 1.548, 1.904),),
        text=(
            (b"\xe2\x82", -0.833, -0.603),
            (b"\xe2\x80", -1.377, -1.541),
            (b"\xe2\x86", 4.282, 3.147),
            (b"\xe2\x94", -0.616, -1.244),
            (b"\xe2\x9c", -0.477, 0.909),
        ),
    ),
    "k": Script(  # kana and the punctuation of Chinese and Japanese
        kinds=(("k", 0.543, 0.841),),
        text=(
            (b"\xe3\x80", 0.865, 0.243),
            ("あり", -3.689, -3.260),
            ("では", 3.702, 6.285),
            ("ー", -0.400, 0.054),
            ("され", -2.964, -2.189),
            ("てくださ", -1.073, -4.340),
        ),
    ),
    "z": Script(  # han
        kinds=(
            ("z", 0.730, 1.153),
            ("zccn", -0.136, -0.881),
        ),
        text=(
            ("我们的", -8.133, -9.504),
            ("显示", -2.222, -6.123),
            ("为什么", -5.758, -6.770),
            ("文件", -0.959, -3.219),
            ("设置", -4.459, -7.611),
        ),
    ),
    "K": Script(  # hangul
        kinds=(
            ("K", 0.413, 0.868),
            (" K", 0.824, 1.211),
        ),
        text=(
            ("세요", 6.193, 3.718),
            (" 사용", -2.514, -5.667),
            ("습니다", -2.560, -5.241),
            ("이 없", -3.631, -2.576),
            (" 있는", -3.743, -2.572),
        ),
    ),
    "f": Script(  # full-width forms
        kinds=(("f", 1.114, 2.361),),
        text=(
            ("；", -3.509, -7.930),
            (b"\xef\xbc", -0.604, -1.516),
        ),
    ),
    "e": Script(  # emoji
        kinds=(("e", 5.237, 5.771),),
        text=((b"\xf0\x9f", -3.151, -3.069),),
    ),
    "x": Script(  # combining marks, phonetic letters
        kinds=(("x", 2.006, 2.781),),
    ),
}
"""The patterns by the kind of a character's first byte."""
