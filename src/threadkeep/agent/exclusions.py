"""The messages that a model call leaves out, with reasons: positions of the transcript, messages of the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Final

from langchain_core.messages import BaseMessage, SystemMessage

from threadkeep.agent.conversion import id_of, is_utterance
from threadkeep.agent.model_call import Call, Draft
from threadkeep.context.manifest import LeftOut
from threadkeep.context.window import Exclusion, ExclusionReason
from threadkeep.history.recollection import Recollection
from threadkeep.records import Message

_SINGLE: Final[tuple[ExclusionReason, ...]] = ("folded", "superseded")
"""The reasons that apply to single messages between others."""

type Rows = Mapping[str | None, Message]
"""Stored messages that were read for a call, by id."""


def exclusions(
    draft: Draft, rows: Rows, recollection: Recollection
) -> tuple[tuple[Exclusion, ...], tuple[LeftOut, ...]]:
    """Return the excluded positions of the transcript, in order, and the excluded messages of the run's state."""
    if _nothing_is_out(draft, recollection):
        return (), ()
    out = [(id_of(message), reason) for message, reason in _out(draft)]
    others = tuple(_stretches(draft.call, out, rows)) if out or draft.call.forgotten or draft.call.superseded else ()
    earlier = tuple(_before(recollection.end, recollection.excluded))
    places = _not_read(recollection, max(recollection.begin, 1, *(gap.last_seq + 1 for gap in earlier)))
    for message_id, reason in out:
        row = rows.get(message_id)
        if row is not None and row.seq is not None:
            places.setdefault(row.seq, reason)
    earlier = tuple(_without_summary(gap) if _unsummarised(gap, draft) else gap for gap in earlier)
    return (*earlier, *_ranges(places)), others


def _nothing_is_out(draft: Draft, recollection: Recollection) -> bool:
    """Return True if a call has all messages of its session and of the run's state, as most calls do."""
    if draft.unsendable or draft.chosen.excluded or draft.call.forgotten or draft.call.superseded:
        return False
    rows, end = recollection.messages, recollection.end
    if recollection.excluded or recollection.begin or end is None or end - 1 != len(rows):
        return False
    return not rows or rows[0].seq == 1


def _not_read(recollection: Recollection, low: int) -> dict[int, ExclusionReason]:
    """Return the positions from `low` to the question that are not among the messages, with the reasons."""
    messages, end = recollection.messages, recollection.end
    single = any(gap.reason in _SINGLE for gap in recollection.excluded)
    if not single and end is not None and end - low == len(messages) and (not messages or messages[0].seq == low):
        return {}
    folded = _places(recollection, "folded")
    superseded = _places(recollection, "superseded")
    read = folded.union(superseded, (row.seq for row in messages if row.seq is not None))
    high = end or max(read, default=0) + 1
    # Unread positions before the question are notes of the system, which no window contains.
    places: dict[int, ExclusionReason] = dict.fromkeys(set(range(low, high)) - read, "role")
    places |= dict.fromkeys(folded, "folded")
    return places | dict.fromkeys(superseded, "superseded")


def dropped(draft: Draft, rows: Rows, recollection: Recollection) -> int:
    """Count the earlier messages since the last reset that are neither sent nor covered by a sent summary."""
    # Messages of the state that the window excludes are in both counts, so subtract them once.
    window = [piece for piece in draft.pieces if piece.section == "window" and piece.id not in rows]
    again = len([piece for piece in window if is_utterance(piece.message)])
    gaps = [gap for gap in recollection.excluded if _unsummarised(gap, draft)]
    unsummarised = sum([gap.last_seq - gap.first_seq + 1 for gap in gaps])
    pieces = [draft.pieces[index] for index, _ in draft.chosen.excluded]
    out = len([piece for piece in pieces if not piece.mark and piece.section != "earlier_steps"])
    return max(recollection.dropped - again, 0) + out + unsummarised


def _out(draft: Draft) -> Iterator[tuple[BaseMessage, ExclusionReason]]:
    yield from draft.unsendable
    for index, reason in draft.chosen.excluded:
        if not draft.pieces[index].mark:
            yield draft.pieces[index].message, reason


def _places(recollection: Recollection, reason: ExclusionReason) -> set[int]:
    """Return the positions before the question that are excluded for a reason that applies to single messages."""
    gaps = (gap for gap in recollection.excluded if gap.reason == reason)
    end = recollection.end
    return {seq for gap in gaps for seq in range(gap.first_seq, gap.last_seq + 1) if end is None or seq < end}


def _stretches(call: Call, out: Sequence[tuple[str | None, ExclusionReason]], rows: Rows) -> Iterator[LeftOut]:
    """Yield excluded messages that are not in the transcript: ranges of the state, then messages without an id.

    Transcript messages between them are counted in their range, so that steps and text of a turn form one range.
    """
    placed = {key for key, row in rows.items() if row.seq is not None}
    reasons = dict(out)
    talk = [key for message in call.messages if not isinstance(message, SystemMessage) and (key := id_of(message))]
    state: list[tuple[str | None, ExclusionReason | None]] = [(id_of(message), "reset") for message in call.forgotten]
    state += [(id_of(message), "superseded") for message in call.superseded]
    state += [(key, reasons.get(key)) for key in talk]
    for reason, grouped in groupby(state, key=itemgetter(1)):
        ids = [key for key, _ in grouped]
        if reason is not None and (reason in ("reset", "superseded") or not placed.issuperset(ids)):
            yield LeftOut(ids[0], reason, ids[-1] if len(ids) > 1 else None, len(ids))
    named = placed.union(talk)
    unnamed = Counter(reason for key, reason in out if key is None)
    yield from (LeftOut(None, reason, count=count) for reason, count in unnamed.items())
    yield from (LeftOut(key, reason) for key, reason in out if key is not None and key not in named)


def _before(end: int | None, gaps: Iterable[Exclusion]) -> Iterator[Exclusion]:
    """Yield the excluded ranges before the question; a later reset does not exclude earlier messages."""
    for gap in gaps:
        if gap.reason not in _SINGLE and (end is None or gap.first_seq < end):
            yield gap if end is None else replace(gap, last_seq=min(gap.last_seq, end - 1))


def _unsummarised(gap: Exclusion, draft: Draft) -> bool:
    """Return True if the summary of this range is not sent."""
    if gap.reason != "summarised":
        return False
    return not any(one.first_seq <= gap.first_seq and gap.last_seq <= one.last_seq for one in draft.summaries)


def _without_summary(gap: Exclusion) -> Exclusion:
    """Return the exclusion of messages that have a summary which does not fit."""
    return replace(gap, reason="over_budget")


def _ranges(places: Mapping[int, ExclusionReason]) -> list[Exclusion]:
    ranges: list[Exclusion] = []
    for seq in sorted(places):
        last = ranges[-1] if ranges else None
        if last is not None and last.last_seq == seq - 1 and last.reason == places[seq]:
            ranges[-1] = Exclusion(last.first_seq, seq, last.reason)
        else:
            ranges.append(Exclusion(seq, seq, places[seq]))
    return ranges
