"""Which workflows run which: the circles among them, and how deep they go. Each call is looked at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

type Way = tuple[str, ...]
type Children = Mapping[str, Sequence[str]]

_MOST_DRAWN = 8


def circles(children: Children) -> Iterator[Way]:
    """Circles of workflows that run each other, each from a workflow back to itself; none if there are none.

    Not all that could be gone: without one call of each of these nothing is left that goes round.
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
    """For each workflow the longest way down from it; of workflows without circles."""
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
    """A way with arrows; of a long one its beginning and its end."""
    shown = way if len(way) <= _MOST_DRAWN else (*way[: _MOST_DRAWN - 2], "…", way[-1])
    return " → ".join(shown)


def _known(children: Children, name: str) -> list[str]:
    return [child for child in children.get(name, ()) if child in children]
