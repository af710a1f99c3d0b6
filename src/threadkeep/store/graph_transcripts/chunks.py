"""The arithmetic of chunks: which messages of a conversation lie in which one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

CHUNK_SIZE = 200
"""How many messages a chunk holds when nobody says: what a turn rewrites against how much a window reads."""

_KEY_DIGITS = 6


@dataclass(frozen=True)
class Stretch:
    """Places that follow each other, both ends included, all in one chunk."""

    chunk: int
    first_seq: int
    last_seq: int


def chunk_key(chunk: int) -> str:
    """The key of a chunk by its number, from 0: `chunk:000021` is the twenty-second."""
    return f"chunk:{chunk:0{_KEY_DIGITS}d}"


def chunk_of(seq: int, size: int) -> int:
    """The number of the chunk in which a message lies.

    Raises:
        ValueError: there is no such place, or no such chunk.
    """
    if seq < 1 or size < 1:
        raise ValueError("places and the sizes of chunks begin at 1")
    return (seq - 1) // size


def first_of(chunk: int, size: int) -> int:
    """The first place of a chunk."""
    return chunk * size + 1


def stretches(first_seq: int, last_seq: int, size: int) -> list[Stretch]:
    """The places from one to another cut at the borders of chunks, in order; none where they end before they begin."""
    found: list[Stretch] = []
    seq = first_seq
    while seq <= last_seq:
        chunk = chunk_of(seq, size)
        end = min(last_seq, (chunk + 1) * size)
        found.append(Stretch(chunk, seq, end))
        seq = end + 1
    return found
