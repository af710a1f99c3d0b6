"""The checks of a session that many processes wrote to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Part(NamedTuple):
    """A message of a turn: its writer, the number of the turn, and the position of the message in the turn."""

    writer: str
    number: int
    part: int

    @property
    def id(self) -> str:
        """The message's id, the same at every try."""
        return f"{self.writer}/{self.number}/{self.part}"

    @classmethod
    def of(cls, message_id: str) -> Part:
        """Return the part that has an id."""
        writer, number, part = message_id.split("/")
        return cls(writer, int(number), int(part))


@dataclass(frozen=True)
class Acknowledged:
    """A turn that a writer received a receipt for, and its positions."""

    writer: str
    number: int
    first_seq: int
    last_seq: int


@dataclass(frozen=True)
class History:
    """The stored messages in order, the acknowledged turns, and the number of messages of a turn."""

    stored: Sequence[tuple[int, Part]]
    acknowledged: Sequence[Acknowledged]
    parts: int


def faults(history: History) -> list[str]:
    """Return a sentence for each broken guarantee; none if the history is correct."""
    return [
        *_numbered_without_gaps(history),
        *_exactly_once(history),
        *_whole_turns(history),
        *_nothing_acknowledged_is_lost(history),
        *_order_of_each_writer(history),
    ]


def _numbered_without_gaps(history: History) -> Iterator[str]:
    for place, (seq, part) in enumerate(history.stored, start=1):
        if seq != place:
            yield f"{part.id} stands at {seq}, where {place} is expected"
            return


def _exactly_once(history: History) -> Iterator[str]:
    seen: set[Part] = set()
    for seq, part in history.stored:
        if part in seen:
            yield f"{part.id} is stored again at {seq}"
        seen.add(part)


def _whole_turns(history: History) -> Iterator[str]:
    for writer, number, places in _turns(history.stored):
        parts = [part for _, part in places]
        seqs = [seq for seq, _ in places]
        if parts != list(range(history.parts)) or seqs != list(range(seqs[0], seqs[0] + len(seqs))):
            yield f"turn {number} of {writer} is torn: parts {parts} at {seqs}"


def _nothing_acknowledged_is_lost(history: History) -> Iterator[str]:
    places = {(writer, number): [seq for seq, _ in found] for writer, number, found in _turns(history.stored)}
    for turn in history.acknowledged:
        found = places.get((turn.writer, turn.number))
        if found is None:
            yield f"turn {turn.number} of {turn.writer} was acknowledged and is not stored"
        elif (found[0], found[-1]) != (turn.first_seq, turn.last_seq):
            yield f"turn {turn.number} of {turn.writer} was acknowledged at {turn.first_seq} and stands at {found[0]}"


def _order_of_each_writer(history: History) -> Iterator[str]:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for _, part in history.stored:
        if part.part == 0:
            numbers[part.writer].append(part.number)
    for writer, written in numbers.items():
        for before, after in pairwise(written):
            if after <= before:
                yield f"turn {after} of {writer} stands behind its turn {before}"


def _turns(stored: Iterable[tuple[int, Part]]) -> Iterator[tuple[str, int, list[tuple[int, int]]]]:
    turns: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for seq, part in stored:
        turns[part.writer, part.number].append((seq, part.part))
    for (writer, number), places in turns.items():
        yield writer, number, places
