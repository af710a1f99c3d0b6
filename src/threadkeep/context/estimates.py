"""Token counters: estimates, which need no tokenizer, and exact counters for OpenAI's encodings.

An estimate is the sum of the costs of a text's characters, corrected for frequent sequences: `tion` makes a word
cheaper in every language that uses it. `python -m bench.fit_tokens` fits the costs and writes `token_costs.json`.
Estimates are more often too high than too low.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from importlib.resources import files
from importlib.util import find_spec, module_from_spec
from typing import Any, Literal, Protocol, get_args

from threadkeep.errors import InvalidInput

type Encoding = Literal["o200k", "cl100k"]
"""`o200k` belongs to gpt-4o and later models, `cl100k` to gpt-4 and gpt-3.5."""

type Family = Literal[
    "o200k", "cl100k", "claude2", "claude3", "claude47", "llama2", "llama3", "gemma3", "qwen3", "deepseek"
]
"""The tokenizer families with a fitted estimate. `claude47` is Claude since Opus 4.7; Gemini uses `gemma3`."""

FAMILIES: tuple[Family, ...] = get_args(Family.__value__)
"""The tokenizer families, in the same order as their costs in `token_costs.json`."""


class _Vocabulary(Protocol):
    def count(self, text: str, /) -> int:
        """Return the number of tokens of a text without lone surrogates; special tokens count as plain text."""


@dataclass(frozen=True, slots=True)
class ExactCounter:
    """A token counter with the exact results of an OpenAI encoding. It accepts lone surrogates as well."""

    name: Encoding
    vocabulary: _Vocabulary = field(repr=False, compare=False)

    def __call__(self, text: str, /) -> int:
        """Return the number of tokens of this text."""
        try:
            return self.vocabulary.count(text)
        except UnicodeEncodeError:
            return self.vocabulary.count(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def exact_counter(encoding: Encoding) -> ExactCounter:
    """Return the exact counter of an encoding.

    Raises:
        InvalidInput: the extra `tokens` is not installed.
    """
    if (counter := installed_counter(encoding)) is None:
        raise InvalidInput(
            f"The token counter {encoding!r} needs the extra `tokens`: pip install 'threadkeep[tokens]', "
            "or choose the counter 'estimate'."
        )
    return counter


@cache
def installed_counter(encoding: Encoding) -> ExactCounter | None:
    """Return an encoding's exact counter, or None if the extra `tokens` is not installed."""
    try:
        package = find_spec("bpe_openai")
        # Avoid the package's own `get_encoding`, which rejects texts of a million characters or 200,000 tokens.
        bindings = _bindings(*(package.submodule_search_locations or ()) if package else ())
        return ExactCounter(encoding, bindings.tokenizer_for_encoding(f"{encoding}_base"))
    except (ImportError, AttributeError, ValueError):  # the package is not installed, or has other contents
        return None


@cache
def _bindings(*folders: str) -> Any:
    """Return the compiled part of bpe-openai. Importing its Python part too would take a second and 60 MB."""
    spec = PathFinder.find_spec("bpe_openai._bindings", folders)
    if spec is None or spec.loader is None:
        raise ImportError("bpe-openai has no compiled part.")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


type Pattern = tuple[bytes, tuple[float, ...]]
"""A sequence of characters or of letters of `KINDS`, and its cost for each of `FAMILIES`."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """Character sequences with their costs in tokens, for one script or for all scripts.

    kinds: sequences of byte kinds, which are letters (see `KINDS`). A script's first entry is for its lead bytes.
    text: sequences of characters.
    capitals: sequences in a text that was translated with the table `CAPITALS`.
    runs: a word, and a group of up to three digits; only in the patterns for all scripts.
    """

    kinds: tuple[Pattern, ...]
    text: tuple[Pattern, ...] = ()
    capitals: tuple[Pattern, ...] = ()
    runs: tuple[Pattern, ...] = ()


@cache
def patterns_by_script() -> dict[str, Patterns]:
    """Map each script, by its letter in `KINDS`, to its character sequences with their costs; "" means any script."""
    found = json.loads(files("threadkeep.context").joinpath("token_costs.json").read_text(encoding="utf-8"))
    return {key: _patterns(groups) for key, groups in ({"": found} | found["scripts"]).items()}


def _patterns(groups: dict[str, list[tuple[str, *tuple[float, ...]]]]) -> Patterns:
    return Patterns(
        *(
            tuple((_pattern_bytes(text), tuple(costs)) for text, *costs in groups.get(name, ()))
            for name in ("kinds", "text", "capitals", "runs")
        )
    )


def _pattern_bytes(text: str) -> bytes:
    """Return the bytes of a character sequence, which may be written in hexadecimal, as in `hex:efbc`."""
    return bytes.fromhex(text.removeprefix("hex:")) if text.startswith("hex:") else text.encode()


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
    ("c", 0x80, 0xBF),  # continuation bytes
    ("p", 0xC2, 0xC2),  # « » ° and similar
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
"""A translation table that maps each byte of UTF-8 to a letter for its kind, such as `a` for small Latin letters."""
LETTERS = bytes(97 if chr(kind) in "aAlgrmhbIvc" else 32 for kind in KINDS)
"""A translation table that maps letters to `a` and everything else to a space."""

DIGITS = bytes(48 if chr(kind) == "0" else 32 for kind in KINDS)
"""A translation table that maps digits to `0` and everything else to a space."""

CAPITALS = _table(".", ("n", 0x0A, 0x0D), (" ", 0x20, 0x20), ("D", 0xD0, 0xD0), ("u", 0x90, 0xAF))
"""A translation table that maps the two bytes of each capital Cyrillic letter to `D` and `u`."""


def framed(text: str) -> bytes:
    """Return the text as UTF-8, framed by a space and the byte 0xFF, which UTF-8 never contains."""
    return b" " + text.encode("utf-8", "surrogatepass") + b"\xff"


def digit_groups(data: bytes) -> int:
    """Count the groups of up to three digits in the numbers of a text that `framed` returned."""
    groups = data.translate(DIGITS).replace(b"000", b"3")
    return groups.count(b"3") + groups.count(b" 0") + groups.count(b"30")


_IN_OTHER_SCRIPTS = b"grmhbIvkzKfe"  # letters of `KINDS`; `v` includes Latin letters with two marks (Vietnamese)
_IN_NO_OTHER_SCRIPT = bytes(byte for byte in range(256) if KINDS[byte] not in _IN_OTHER_SCRIPTS)


def other_scripts(text: str) -> int:
    """Return how many thousandths of a text's tokens are in scripts other than Latin, approximately.

    The result is computed from characters: each character of such a script counts twice. Counting tokens is slower.
    """
    if text.isascii():
        return 0
    characters = len(text.encode("utf-8", "surrogatepass").translate(None, _IN_NO_OTHER_SCRIPT))
    return 2_000 * characters // (len(text) + characters)


_BYTES = tuple(range(256))


@dataclass(frozen=True, slots=True)
class Counted:
    """Sequences of more than two bytes, and the cost of each in tokens. Shorter ones are in `TokenCosts.pairs`."""

    patterns: tuple[bytes, ...]
    costs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ScriptCosts:
    """The costs in tokens of one script's byte sequences. Its characters begin with a byte of kind `lead` (`KINDS`)."""

    lead: bytes
    kinds: Counted
    text: Counted
    capitals: Counted


@dataclass(frozen=True, slots=True)
class TokenCosts:
    """Token costs of byte sequences in one tokenizer family. `pairs`: the cost of each byte pair, by 16-bit number."""

    pairs: list[float]
    digit_group: float
    kinds: Counted
    text: Counted
    scripts: tuple[ScriptCosts, ...]


@cache
def token_costs(family: Family) -> TokenCosts:
    """Return the costs in tokens of all byte sequences for a tokenizer family, such as `llama3`."""
    column = FAMILIES.index(family)
    all_texts, *scripts = patterns_by_script().values()
    words, digit_group = (costs[column] for _, costs in all_texts.runs)
    return TokenCosts(
        pairs=_pairs(column, words),
        digit_group=digit_group,
        kinds=_counted(all_texts.kinds, column),
        text=_counted(all_texts.text, column),
        scripts=tuple(
            ScriptCosts(
                script.kinds[0][0],
                *(_counted(group, column) for group in (script.kinds, script.text, script.capitals)),
            )
            for script in scripts
        ),
    )


def _counted(patterns: Iterable[Pattern], column: int) -> Counted:
    longer = [pattern for pattern in patterns if len(pattern[0]) > 2]
    return Counted(tuple(pattern[0] for pattern in longer), tuple(pattern[1][column] for pattern in longer))


def _pairs(column: int, word: float) -> list[float]:
    low, high = (1, 256) if sys.byteorder == "little" else (256, 1)
    table = [0.0] * 65_536
    for firsts, seconds, cost in _costs_of_pairs(column, word):
        for first in firsts:
            for second in seconds:
                table[first * low + second * high] += cost
    return table


def _costs_of_pairs(column: int, word: float) -> Iterator[tuple[Iterable[int], Iterable[int], float]]:
    letters = [byte for byte in _BYTES if chr(LETTERS[byte]) == "a"]
    yield [byte for byte in _BYTES if byte not in letters], letters, word
    scripts = patterns_by_script().values()
    for of_kind, groups in (
        (True, [script.kinds for script in scripts]),
        (False, [script.text for script in scripts]),
    ):
        for pattern in (pattern for group in groups for pattern in group):
            found = [_bytes_of(part, of_kind) for part in pattern[0]]
            if len(found) <= 2:
                yield found[0], found[1] if len(found) == 2 else _BYTES, pattern[1][column]


def _bytes_of(part: int, of_kind: bool) -> Iterable[int]:
    return [byte for byte in _BYTES if KINDS[byte] == part] if of_kind else (part,)


class TokenCounter(Protocol):
    """A token counter: any function that returns an integer for a text.

    It must be deterministic, return 0 for an empty text and never a negative number. It need not be monotonic or
    additive.
    """

    def __call__(self, text: str, /) -> int:
        """Return the number of tokens of this text."""


_MOST_CHARACTERS = 10  # per token, so an estimate is at least a tenth of the characters, even for repetitive text


def chars4(text: str) -> int:
    """Return a quarter of the number of characters: a fair estimate for English, but far too low for Chinese."""
    return len(text) // 4


def estimate(text: str) -> int:
    """Return the default estimate, for all languages, without a network and in linear time.

    It is calibrated against the tokenizer of OpenAI's current models, and is more often too high than too low. It is at
    least 1 for a text that is not empty.
    """
    return _estimate(text, "o200k")


def estimate_cl100k(text: str) -> int:
    """Return the estimate for gpt-4 and gpt-3.5, which may need three times the tokens of newer models."""
    return _estimate(text, "cl100k")


@dataclass(frozen=True, slots=True)
class FamilyEstimate:
    """A counter that estimates tokens as one tokenizer family, such as `llama3`, would count them."""

    family: Family

    @property
    def name(self) -> str:
        """The counter's name, such as `estimate_llama3`."""
        return f"estimate_{self.family}"

    def __call__(self, text: str, /) -> int:
        """Return the number of tokens of this text."""
        return _estimate(text, self.family)


def _estimate(text: str, family: Family) -> int:
    if not text:
        return 0
    costs = token_costs(family)
    data = framed(text)
    view, cost_of = memoryview(data), costs.pairs.__getitem__
    even, odd = view[: len(data) & ~1].cast("H"), view[1 : len(data) - 1 + len(data) % 2].cast("H")
    tokens = sum(map(cost_of, even)) + sum(map(cost_of, odd)) + _cost_of(data, costs.text)
    kinds = data.translate(KINDS)
    tokens += _cost_of(kinds, costs.kinds)
    if b"0" in kinds:
        tokens += costs.digit_group * digit_groups(data)
    if not text.isascii():
        tokens += _cost_of_scripts(data, kinds, costs)
    return max(1, len(text) // _MOST_CHARACTERS, round(tokens))


def _cost_of_scripts(data: bytes, kinds: bytes, costs: TokenCosts) -> float:
    tokens = 0.0
    for script in costs.scripts:
        if script.lead in kinds:
            tokens += _cost_of(kinds, script.kinds) + _cost_of(data, script.text)
            if script.capitals.patterns:
                tokens += _cost_of(data.translate(CAPITALS), script.capitals)
    return tokens


def _cost_of(data: bytes, counted: Counted) -> float:
    return math.sumprod(counted.costs, map(data.count, counted.patterns))
