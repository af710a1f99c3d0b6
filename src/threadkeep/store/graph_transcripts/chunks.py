"""Arithmetic of positions: the chunk of a message, and ranges of superseded messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

type Ranges = tuple[tuple[int, int], ...]
"""Ranges of `seq`, both ends included, in order and disjoint."""

CHUNK_SIZE = 200
"""The default number of messages in a chunk: a balance of writes per turn and reads per window."""

_KEY_DIGITS = 6


@dataclass(frozen=True)
class Stretch:
    """A range of `seq`, both ends included, inside one chunk."""

    chunk: int
    first_seq: int
    last_seq: int

    @property
    def places(self) -> tuple[int, int]:
        """The first and the last `seq`."""
        return self.first_seq, self.last_seq


def chunk_key(chunk: int) -> str:
    """Return the key of a chunk by its number, from 0: `chunk:000021` is the twenty-second."""
    return f"chunk:{chunk:0{_KEY_DIGITS}d}"


def chunk_of(seq: int, size: int) -> int:
    """Return the number of the chunk that contains a message.

    Raises:
        ValueError: there is no such `seq`, or no such chunk.
    """
    if seq < 1 or size < 1:
        raise ValueError("places and the sizes of chunks begin at 1")
    return (seq - 1) // size


def first_of(chunk: int, size: int) -> int:
    """Return the first `seq` of a chunk."""
    return chunk * size + 1


def stretches(first_seq: int, last_seq: int, size: int, *, newest_first: bool = False) -> Iterator[Stretch]:
    """Yield a range of `seq`, split at the boundaries of chunks; nothing for an empty range."""
    if last_seq < first_seq:
        return
    chunks = range(chunk_of(first_seq, size), chunk_of(last_seq, size) + 1)
    for chunk in reversed(chunks) if newest_first else chunks:
        yield Stretch(chunk, max(first_seq, first_of(chunk, size)), min(last_seq, (chunk + 1) * size))


def ranges_of(places: Iterable[int]) -> Ranges:
    """Return `seq` values as ranges."""
    found: list[tuple[int, int]] = []
    for seq in sorted(set(places)):
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return tuple(found)


def joined(first: Ranges, second: Ranges) -> Ranges:
    """Return the union of two sets of ranges."""
    found: list[tuple[int, int]] = []
    for low, high in sorted((*first, *second)):
        if found and found[-1][1] >= low - 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def clipped(ranges: Sequence[tuple[int, int]], first_seq: int, last_seq: int) -> Ranges:
    """Return the part of the ranges between two `seq` values, both included."""
    cut = ((max(low, first_seq), min(high, last_seq)) for low, high in ranges)
    return tuple((low, high) for low, high in cut if low <= high)


def size_of(ranges: Ranges) -> int:
    """Return the number of `seq` values in the ranges."""
    return sum(high - low + 1 for low, high in ranges)


def places_down(high: int, low: int, without: Ranges) -> Iterator[int]:
    """Yield the `seq` values from `high` down to `low`, both included, that are in none of the ranges."""
    for first, last in (*reversed(without), (low - 1, low - 1)):
        yield from range(high, max(last, low - 1), -1)
        high = min(high, first - 1)
