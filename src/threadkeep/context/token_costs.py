"""The costs of patterns, arranged so that a text's are added up in few linear passes.

Patterns of one or two bytes, most of them, become one table of the cost of each pair of neighbouring bytes; longer ones
are counted, those of a script only in texts that have it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from threadkeep.context import script_weights as weights
from threadkeep.context.character_kinds import KINDS, LETTERS
from threadkeep.context.exact_tokens import Encoding
from threadkeep.context.patterns import Pattern, Script, as_bytes

_BYTES = tuple(range(256))


@dataclass(frozen=True, slots=True)
class Counted:
    """Patterns that are counted, and what each costs."""

    patterns: tuple[bytes, ...]
    costs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ScriptCosts:
    """The longer patterns of one script."""

    lead: bytes
    kinds: Counted
    text: Counted
    capitals: Counted


@dataclass(frozen=True, slots=True)
class TokenCosts:
    """All costs of one tokenizer. Pairs are indexed by two bytes as a number of this machine."""

    pairs: list[float]
    digit_group: float
    kinds: Counted
    text: Counted
    scripts: tuple[ScriptCosts, ...]


@cache
def token_costs(encoding: Encoding) -> TokenCosts:
    """The costs for the tokenizer of an encoding."""
    column = 1 if encoding == "o200k" else 2
    words, digit_group = (float(pattern[column]) for pattern in weights.RUNS)
    return TokenCosts(
        pairs=_pairs(column, words),
        digit_group=digit_group,
        kinds=_counted(weights.KINDS, column),
        text=_counted(weights.TEXT, column),
        scripts=tuple(_script(script, column) for script in weights.SCRIPTS.values()),
    )


def _script(script: Script, column: int) -> ScriptCosts:
    groups = (script.kinds, script.text, script.capitals)
    return ScriptCosts(as_bytes(script.kinds[0]), *(_counted(group, column) for group in groups))


def _counted(patterns: Iterable[Pattern], column: int) -> Counted:
    longer = [pattern for pattern in patterns if len(as_bytes(pattern)) > 2]
    return Counted(tuple(map(as_bytes, longer)), tuple(float(pattern[column]) for pattern in longer))


def _pairs(column: int, word: float) -> list[float]:
    table = [0.0] * 65_536
    for firsts, seconds, cost in _costs_of_pairs(column, word):
        for first in firsts:
            for second in seconds:
                table[_index(first, second)] += cost
    return table


def _costs_of_pairs(column: int, word: float) -> Iterator[tuple[Iterable[int], Iterable[int], float]]:
    letters = [byte for byte in _BYTES if chr(LETTERS[byte]) == "a"]
    yield [byte for byte in _BYTES if byte not in letters], letters, word
    scripts = weights.SCRIPTS.values()
    for of_kind, groups in (
        (True, [weights.KINDS, *(script.kinds for script in scripts)]),
        (False, [weights.TEXT, *(script.text for script in scripts)]),
    ):
        for pattern in (pattern for group in groups for pattern in group):
            found = [_bytes_of(part, of_kind) for part in as_bytes(pattern)]
            if len(found) <= 2:
                yield found[0], found[1] if len(found) == 2 else _BYTES, float(pattern[column])


def _bytes_of(part: int, of_kind: bool) -> Iterable[int]:
    return [byte for byte in _BYTES if KINDS[byte] == part] if of_kind else (part,)


def _index(first: int, second: int) -> int:
    return first | second << 8 if sys.byteorder == "little" else first << 8 | second
