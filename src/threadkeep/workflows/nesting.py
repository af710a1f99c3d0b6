"""Nesting of workflows: cycles and depth, in time linear in the number of calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

type Way = tuple[str, ...]
type Children = Mapping[str, Sequence[str]]

_MOST_DRAWN = 8


def circles(children: Children) -> Iterator[Way]:
    """Yield cycles of workflows that run each other, each as a path from a workflow back to itself.

    Not every cycle is listed: removing one call from each listed cycle leaves no cycle.
    """
    seen: set[str] = set()
    for first in children:
        way, waiting = [first], [iter(_known(children, first))]
        while waiting and first not in seen:
            child = next(waiting[-1], None)
            if child is None:
                seen.add(way.pop())
                waiting.pop()
            elif child in way:
                yield (*way[way.index(child) :], child)
            elif child not in seen:
                way.append(child)
                waiting.append(iter(_known(children, child)))


def deepest_ways(children: Children) -> dict[str, Way]:
    """Return the longest path down from each workflow; the workflows must have no cycles."""
    found: dict[str, Way] = {}
    for first in children:
        waiting = [first]
        while waiting:
            name = waiting[-1]
            below = _known(children, name)
            unknown = [child for child in below if child not in found]
            waiting += unknown
            if not unknown:
                found[name] = (name, *max((found[child] for child in below), key=len, default=()))
                waiting.pop()
    return found


def drawn(way: Way) -> str:
    """Return a path with arrows; of a long path, its beginning and its end."""
    shown = way if len(way) <= _MOST_DRAWN else (*way[: _MOST_DRAWN - 2], "…", way[-1])
    return " → ".join(shown)


def _known(children: Children, name: str) -> list[str]:
    return [child for child in children.get(name, ()) if child in children]
