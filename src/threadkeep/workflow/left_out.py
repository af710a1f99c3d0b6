"""What a model call was not sent, and why: ranges of the transcript, and messages of the run's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from threadkeep.context.manifest import Exclusion, ExclusionReason, LeftOut
from threadkeep.context.trim import Plan
from threadkeep.history.recollection import Recollection
from threadkeep.records import Message
from threadkeep.workflow.conversion import id_of, is_utterance
from threadkeep.workflow.model_call import Piece

type Rows = Mapping[str | None, Message]
"""Stored messages that were read for a call, by their ids."""


def exclusions(
    pieces: Sequence[Piece], chosen: Plan, rows: Rows, recollection: Recollection
) -> tuple[tuple[Exclusion, ...], tuple[LeftOut, ...]]:
    """Every place of the transcript that is out, in order, and what else of the run's state is."""
    places: dict[int, ExclusionReason] = {}
    others: list[LeftOut] = []
    for index, reason in chosen.excluded:
        message_id = id_of(pieces[index].message)
        row = rows.get(message_id)
        if row is not None and row.seq is not None:
            places[row.seq] = reason
        else:
            others.append(LeftOut(message_id, reason))
    told = [range(gap.first_seq, gap.last_seq + 1) for gap in recollection.excluded]
    between = (place for place in _between(rows.values()) if not any(place in gap for gap in told))
    places |= dict.fromkeys(between, "role")
    return (*recollection.excluded, *_ranges(places)), tuple(others)


def dropped(pieces: Sequence[Piece], chosen: Plan, rows: Rows, recollection: Recollection) -> int:
    """How many earlier messages are out since the last reset, those that a summary stands for not counted."""
    # A checkpoint's earlier turns that the window left out were counted there, and again if they are left out here.
    again = sum(
        1
        for piece in pieces
        if piece.section == "window" and is_utterance(piece.message) and id_of(piece.message) not in rows
    )
    return max(recollection.dropped - again, 0) + len(chosen.excluded)


def _between(rows: Iterable[Message]) -> list[int]:
    """The places between rows that were read: notes of the system, which are in no window."""
    seqs = sorted(row.seq for row in rows if row.seq is not None)
    return [place for low, high in pairwise(seqs) for place in range(low + 1, high)]


def _ranges(places: Mapping[int, ExclusionReason]) -> list[Exclusion]:
    ranges: list[Exclusion] = []
    for seq in sorted(places):
        last = ranges[-1] if ranges else None
        if last is not None and last.last_seq == seq - 1 and last.reason == places[seq]:
            ranges[-1] = Exclusion(last.first_seq, seq, last.reason)
        else:
            ranges.append(Exclusion(seq, seq, places[seq]))
    return ranges
