"""The occurrences of each pattern of the token estimates in a text: slow and simple, for fitting their weights."""

from __future__ import annotations

from collections import Counter

from threadkeep.context.estimates import (
    CAPITALS,
    KINDS,
    LETTERS,
    Pattern,
    digit_groups,
    framed,
    patterns_by_script,
)


def all_patterns() -> list[Pattern]:
    """Return all patterns in the order of the file with their weights."""
    scripts = patterns_by_script().values()
    return [
        pattern
        for script in scripts
        for group in (script.runs, script.kinds, script.text, script.capitals)
        for pattern in group
    ]


def pattern_counts(text: str) -> list[int]:
    """Return the occurrences of each pattern in that order; patterns of one or two bytes may overlap."""
    data = framed(text)
    of_kinds, of_text, of_capitals = _Occurrences(data.translate(KINDS)), _Occurrences(data), data.translate(CAPITALS)
    counts = [data.translate(LETTERS).count(b" a"), digit_groups(data)]
    for script in patterns_by_script().values():
        counts += map(of_kinds.count, script.kinds)
        counts += map(of_text.count, script.text)
        counts += [of_capitals.count(pattern[0]) for pattern in script.capitals]
    return counts


class _Occurrences:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._short = Counter(data[place : place + 2] for place in range(len(data) - 1))
        self._short += Counter(data[place : place + 1] for place in range(len(data) - 1))

    def count(self, pattern: Pattern) -> int:
        sought = pattern[0]
        return self._short[sought] if len(sought) <= 2 else self._data.count(sought)
