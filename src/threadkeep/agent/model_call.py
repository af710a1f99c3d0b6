"""The data of a model call: its inputs, the session's cached messages, and the messages to send or exclude."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from langchain_core.messages import BaseMessage, SystemMessage

from threadkeep.agent.conversion import add_to_digest, id_of, is_plain, is_utterance, to_langchain
from threadkeep.agent.extras import Extra
from threadkeep.context.manifest import Entry, LeftOut, Section, StablePrefix
from threadkeep.context.tokens import TokenCounter
from threadkeep.context.trim import Plan
from threadkeep.context.window import Exclusion, ExclusionReason, join_ranges
from threadkeep.history.recollection import Recollection
from threadkeep.records import Message, Summary

if TYPE_CHECKING:
    from _hashlib import HASH


@dataclass(frozen=True)
class Call:
    """The inputs of a model call except the earlier turns.

    - `messages`: the run's own messages, including the `question`.
    - `budget`: the maximum number of tokens, measured by `counter`.
    - `max_messages`: the maximum number of messages of earlier turns.
    - `forgotten`, `superseded`: messages of the state that are not sent: they precede a reset, or are superseded.
    - `question_as_stored`: True if the transcript has the question with the same text.
    - `shared`: if less than `budget`, extra sections get shares of this number of tokens.
    """

    messages: Sequence[BaseMessage]
    question: Sequence[BaseMessage]
    system: SystemMessage | None
    counter: TokenCounter
    budget: int
    max_messages: int | None = None
    forgotten: Sequence[BaseMessage] = ()
    superseded: Sequence[BaseMessage] = ()
    question_as_stored: bool = True
    provider: str | None = None
    shared: int | None = None


class Piece(NamedTuple):
    """A message that may be sent, its section of the context, and the id with which it is stored.

    If `mark` is True, the message is a placeholder. It is sent only if the message before it is sent.
    """

    message: BaseMessage
    section: Section
    id: str | None
    mark: bool = False


class KeptWindow:
    """The earlier messages of a session, converted for model calls and cached. It only grows.

    Only a `plain` window can be sent as a whole: its messages have just a role, a text and an id, and its questions
    have answers.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self.counter = counter
        self.plain = True
        self.rows: list[Message] = []
        self.rows_by_id: dict[str | None, Message] = {}
        self.messages: list[BaseMessage] = []
        self.entries: list[Entry] = []
        self.sums = [0]
        self.answered_runs: set[str | None] = set()
        self._digest: tuple[bytes, HASH, int] | None = None

    def extend(self, rows: Sequence[Message]) -> bool:
        """Add the new rows. Return False if `rows` does not continue the cached rows."""
        count = len(self.rows)
        if len(rows) < count or (count and (rows[0] is not self.rows[0] or rows[count - 1] is not self.rows[-1])):
            return False
        for row in rows[count:]:
            message = to_langchain(row)
            tokens = self.counter(row.content)
            before = self.rows[-1] if self.rows else None
            if row.role == "assistant":
                self.answered_runs.add(row.run_id)
            answered = before is None or row.role != "user" or self.has_answer(before, row)
            plain = row.original is None and row.seq is not None and bool(row.content.strip()) and is_plain(message)
            self.plain = self.plain and plain and answered
            self.rows.append(row)
            if row.id:
                self.rows_by_id[row.id] = row
            self.messages.append(message)
            self.entries.append(Entry("window", tokens, "transcript", seq=row.seq, id=id_of(message)))
            self.sums.append(self.sums[-1] + tokens)
        return bool(rows)

    def digest(self, front: HASH, count: int) -> HASH:
        """Return a copy of the digest `front` to which the first `count` cached messages are added."""
        key = front.digest()
        state, done = front.copy(), 0
        if self._digest is not None and self._digest[0] == key and self._digest[2] <= count:
            _, state, done = self._digest
        for message in self.messages[done:count]:
            add_to_digest(state, message)
        self._digest = key, state, count
        return state.copy()

    def has_answer(self, asked: Message, following: Message | None) -> bool:
        """Return True unless the run of the question `asked` ended without an answer. `following`: the next message."""
        if asked.role != "user" or asked.run_id is None or asked.run_id in self.answered_runs:
            return True
        return following is not None and following.run_id == asked.run_id


@dataclass
class Draft:
    """The messages chosen for a model call, before the extra sections (such as quotes) are searched and inserted.

    - `chosen`: the indexes of the `pieces` to send and to exclude, and the new sizes of cut pieces.
    - `window`: if the cached window is sent as a whole, the number of its messages (they are not in `pieces`); else 0.
    - `rooms`: the number of tokens reserved for each section that is searched later.
    - `unsendable`: messages that no provider accepts.
    - `summaries`: the summaries that are sent.
    """

    call: Call
    pieces: tuple[Piece, ...]
    chosen: Plan
    unsendable: Sequence[tuple[BaseMessage, ExclusionReason]] = ()
    rooms: Mapping[Section, int] = field(default_factory=dict)
    extras: tuple[Extra, ...] = ()
    summaries: tuple[Summary, ...] = ()
    window: int = 0

    @property
    def reserved(self) -> int:
        """The number of tokens reserved for extras (facts, passages, quotes), found already or searched later."""
        return sum(self.rooms.values()) + sum([extra.entry.tokens for extra in self.extras])


@dataclass(frozen=True)
class Assembled:
    """The messages of a model call, their manifest entries, and the excluded messages with the reasons.

    - `texts`: maps the digests in the entries to the messages' JSON.
    - `begin_seq`: the `seq` of the first message that later turns send, if this turn changed it.
    - `marks`: the number of messages that were added only for this call.
    - `texts_only`: True if no message has media.
    """

    system: SystemMessage | None
    messages: tuple[BaseMessage, ...]
    entries: tuple[Entry, ...]
    tokens: int
    excluded: tuple[Exclusion, ...]
    left_out: tuple[LeftOut, ...]
    dropped: int
    prefix: StablePrefix
    digest: str
    begin_seq: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    marks: int = 0
    texts_only: bool = True

    @property
    def chat(self) -> list[BaseMessage]:
        """The messages of the earlier turns (window) and the input, without the other sections."""
        entries = self.entries[len(self.entries) - len(self.messages) :]
        sent = zip(self.messages, entries, strict=True)
        return [message for message, entry in sent if entry.section in ("window", "input")]


_SINGLE: Final[tuple[ExclusionReason, ...]] = ("folded", "superseded")
"""The reasons for excluding single messages; the messages before and after them are sent."""

type Rows = Mapping[str | None, Message]
"""Stored messages that were read for a call, by id."""


def exclusions(
    draft: Draft, rows: Rows, recollection: Recollection
) -> tuple[tuple[Exclusion, ...], tuple[LeftOut, ...], int]:
    """Return the excluded messages: ranges of `seq` in the transcript, and messages that only the state has.

    The third value is the number of earlier messages since the last reset that are neither sent nor part of a sent
    summary.
    """
    read, call = recollection.messages, draft.call
    out_of_state = draft.unsendable or draft.chosen.excluded or call.forgotten or call.superseded
    out_of_session = recollection.excluded or recollection.dropped or recollection.begin
    out_of_session = out_of_session or recollection.end != len(read) + 1
    if not out_of_state and not out_of_session and (not read or read[0].seq == 1):
        # In most calls, no message is excluded.
        return (), (), 0
    pieces = [(draft.pieces[index], reason) for index, reason in draft.chosen.excluded]
    out = [(id_of(message), reason) for message, reason in draft.unsendable]
    out += [(id_of(piece.message), reason) for piece, reason in pieces if not piece.mark]
    others = tuple(_left_out(call, out, rows)) if out or call.forgotten or call.superseded else ()
    earlier = tuple(_before(recollection.end, recollection.excluded))
    reasons = _not_read(recollection, max(recollection.begin, 1, *(gap.last_seq + 1 for gap in earlier)))
    for message_id, reason in out:
        row = rows.get(message_id)
        if row is not None and row.seq is not None:
            reasons.setdefault(row.seq, reason)
    earlier = tuple(replace(gap, reason="over_budget") if _unsummarised(gap, draft) else gap for gap in earlier)
    ranges = (*earlier, *join_ranges(Exclusion(seq, seq, reasons[seq]) for seq in sorted(reasons)))
    # Do not count messages that were not read from the transcript, but are sent because the state has them.
    window = [piece for piece in draft.pieces if piece.section == "window" and piece.id not in rows]
    again = len([piece for piece in window if is_utterance(piece.message)])
    gaps = [gap for gap in recollection.excluded if _unsummarised(gap, draft)]
    unsummarised = sum([gap.last_seq - gap.first_seq + 1 for gap in gaps])
    cut_off = len([piece for piece, _ in pieces if not piece.mark and piece.section != "earlier_steps"])
    return ranges, others, max(recollection.dropped - again, 0) + cut_off + unsummarised


def _not_read(recollection: Recollection, low: int) -> dict[int, ExclusionReason]:
    """Map each `seq` that is not in the window, from `low` up to the question (not included), to the reason."""
    messages, end = recollection.messages, recollection.end
    single = any(gap.reason in _SINGLE for gap in recollection.excluded)
    if not single and end is not None and end - low == len(messages) and (not messages or messages[0].seq == low):
        return {}
    folded = _excluded_seqs(recollection, "folded")
    superseded = _excluded_seqs(recollection, "superseded")
    read = folded.union(superseded, (row.seq for row in messages if row.seq is not None))
    high = end or max(read, default=0) + 1
    # All other messages in this range are notes of the system, which are never in a window.
    reasons: dict[int, ExclusionReason] = dict.fromkeys(set(range(low, high)) - read, "role")
    reasons |= dict.fromkeys(folded, "folded")
    return reasons | dict.fromkeys(superseded, "superseded")


def _excluded_seqs(recollection: Recollection, reason: ExclusionReason) -> set[int]:
    """Return the `seq` values of messages that precede the question and were excluded for this reason."""
    gaps = (gap for gap in recollection.excluded if gap.reason == reason)
    end = recollection.end
    return {seq for gap in gaps for seq in range(gap.first_seq, gap.last_seq + 1) if end is None or seq < end}


def _left_out(call: Call, out: Sequence[tuple[str | None, ExclusionReason]], rows: Rows) -> Iterator[LeftOut]:
    """Yield the excluded messages that only the state has. Adjacent messages with one reason form a range."""
    placed = {key for key, row in rows.items() if row.seq is not None}
    reasons = dict(out)
    state_ids = [key for message in call.messages if not isinstance(message, SystemMessage) and (key := id_of(message))]
    state: list[tuple[str | None, ExclusionReason | None]] = [(id_of(message), "reset") for message in call.forgotten]
    state += [(id_of(message), "superseded") for message in call.superseded]
    state += [(key, reasons.get(key)) for key in state_ids]
    for reason, grouped in groupby(state, key=itemgetter(1)):
        ids = [key for key, _ in grouped]
        if reason is not None and (reason in ("reset", "superseded") or not placed.issuperset(ids)):
            yield LeftOut(ids[0], reason, ids[-1] if len(ids) > 1 else None, len(ids))
    named = placed.union(state_ids)
    unnamed = Counter(reason for key, reason in out if key is None)
    yield from (LeftOut(None, reason, count=count) for reason, count in unnamed.items())
    yield from (LeftOut(key, reason) for key, reason in out if key is not None and key not in named)


def _before(end: int | None, gaps: Iterable[Exclusion]) -> Iterator[Exclusion]:
    """Yield the excluded ranges before the question (`end` is its `seq`). Skip ranges whose reason is in `_SINGLE`."""
    for gap in gaps:
        if gap.reason not in _SINGLE and (end is None or gap.first_seq < end):
            yield gap if end is None else Exclusion(gap.first_seq, min(gap.last_seq, end - 1), gap.reason)


def _unsummarised(gap: Exclusion, draft: Draft) -> bool:
    """Return True if a range was excluded as summarised, but no sent summary covers it."""
    if gap.reason != "summarised":
        return False
    return not any(one.first_seq <= gap.first_seq and gap.last_seq <= one.last_seq for one in draft.summaries)
