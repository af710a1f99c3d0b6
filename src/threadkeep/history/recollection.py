"""The reading of a session's newest messages within limits: as a window, or as the history for a model call.

The rows that this process has read are cached. Stored messages never change, so cached rows stay valid while the marks
of their session (reset, archiving, revision and so on) are unchanged. For a model call, one statement reads the marks
and all later rows, so changes by other processes are noticed at once.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from threadkeep.context.folding import fold_repeats
from threadkeep.context.tokens import TokenCounter
from threadkeep.context.window import Exclusion, Extent, Limits, Window, WindowChooser, WindowManifest, with_superseded
from threadkeep.records import Message, Summary, dump_json
from threadkeep.store.codec import message_of
from threadkeep.store.contexts import Contexts, ContextState, state_of
from threadkeep.store.driver import Row, Statement
from threadkeep.store.tables import TableTranscripts, marks_in
from threadkeep.store.transcripts import END, Marks, Recent, Transcripts

PAGE_ROWS = 200
_REACH_ROWS = 10_000
_STATUS = attrgetter("status")
_SPARE_ROWS: Final = 200
_MESSAGE_BYTES: Final = 3_000  # the Python objects of a message, without its text


@dataclass(frozen=True)
class ReadPast:
    """A session's newest messages, and the state that says where its window begins, read in one round trip.

    `rows` is None if there are no messages, if cached messages have changed, or if only the state was read.
    """

    profile: str
    state: ContextState
    rows: SessionRows | None


@dataclass(frozen=True)
class Past:
    """The parameters of `recollect`, which reads the messages before a question, within limits.

    Attributes:
        before_id: the history ends before this message. If it is not stored (its write may be pending), all messages
            are history.
        before_seq: the `seq` of this message, if known.
        questions: the number of questions to answer now, which are not history; `before_id` is the last of them.
        known_ids: the ids of messages that the caller has. The result names those that are superseded, and those that
            are among the newest 200 messages before the last reset.
        profile: the name of the agents whose windows begin at the same stored message, the anchor. Without a profile,
            the window has no anchor and slides.
    """

    limits: Limits = Limits(20, 4000)
    before_id: str | None = None
    before_seq: int | None = None
    questions: int = 1
    known_ids: Collection[str] = ()
    profile: str | None = None
    read: ReadPast | None = None


@dataclass(frozen=True)
class Recollection:
    """The history for a model call: messages, oldest first, summaries of earlier messages, and what was left out.

    Attributes:
        begin: the first `seq` that the window may include: the anchor (see `Past`) or, if that is higher, the `seq`
            after the deleted, reset, archived and summarised messages. It is 0 if nothing comes before the window.
        begun: true if an earlier call or a summary has set `begin`.
        overflowing: true if not all messages from `begin` on fit.
        failed: true if the read failed.
        forgotten, superseded: the `known_ids` of `Past` that are among the newest 200 messages before the last reset,
            and those that are superseded.
        question_seq: the `seq` of the message `before_id` in `Past`, or None if that message is not stored yet.
        questions, revision: the `questions` of `Past`, and the revision of the session.
        folded: the `seq` of each question that is shown with a count of its repetitions.
        derived: the values derived from the messages, which are shared with the cached `SessionRows`.
    """

    messages: tuple[Message, ...]
    dropped: int = 0
    failed: bool = False
    forgotten: frozenset[str] = frozenset()
    summaries: tuple[Summary, ...] = ()
    begin: int = 0
    begun: bool = False
    overflowing: bool = False
    excluded: tuple[Exclusion, ...] = ()
    question_seq: int | None = None
    questions: int = 1
    folded: frozenset[int] = frozenset()
    superseded: frozenset[str] = frozenset()
    revision: int = 0
    derived: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    @property
    def end(self) -> int | None:
        """The `seq` of the first question to answer now, at which the history ends; None if it is unknown."""
        return None if self.question_seq is None else self.question_seq - self.questions + 1

    def without_failures(self) -> Recollection:
        """Return a copy without failed messages, because a model would repeat the apologies in them."""
        if "failed" not in map(_STATUS, self.messages):
            return self
        failed = [one for one in self.messages if one.status == "failed"]
        gaps = [Exclusion(one.seq, one.seq, "failed") for one in failed if one.seq is not None]
        kept = tuple(one for one in self.messages if one not in failed)
        return replace(self, messages=kept, excluded=(*self.excluded, *gaps))

    def with_folds(self, counter: TokenCounter) -> Recollection:
        """Return a copy that shows a repeated question and answer once, with a count."""
        found = fold_repeats(self.messages, counter=counter)
        gaps = [Exclusion(fold.left_out[0], fold.left_out[-1], "folded") for fold in found.folds if fold.left_out]
        return replace(
            self,
            messages=found.messages,
            excluded=(*self.excluded, *gaps),
            folded=frozenset(fold.seq for fold in found.folds if fold.seq is not None),
        )


@dataclass(eq=False)
class WindowReader:
    """A reader of one session's windows (the newest messages within limits), which reads only the needed rows."""

    session_id: str
    transcripts: Transcripts
    contexts: Contexts
    user_id: str | None
    cache: SessionCache

    async def window(self, limits: Limits, before: int = END) -> Window:
        """Return the window: the newest messages with a `seq` below `before` that fit the limits."""
        # If no message may be included, one row is enough to report what is left out.
        page_rows = 1 if limits.nothing else min(limits.max_messages or PAGE_ROWS, PAGE_ROWS)
        window, _, _ = await self._read(_Pages(self._recent), limits, before, page_rows=page_rows)
        return window

    async def _read(
        self, pages: _Pages, limits: Limits, before: int, *, page_rows: int, before_question: bool = False
    ) -> tuple[Window, Recent, SessionRows | None]:
        """Return the window, the newest page of rows that was read, and the rows to cache, if any."""
        recent = await pages.older(page_rows, before)
        chooser = WindowChooser(limits, newest_user=recent.newest_user, before_question=before_question)
        chooser.add(recent.messages)
        rows = recent.messages
        while chooser.wants_more and len(rows) == page_rows:
            rows = (await pages.older(page_rows, rows[-1].seq or 0)).messages
            chooser.add(rows)
        first_seq = max(pages.begin, recent.deleted_seq + 1)
        window = chooser.window(Extent(first_seq, reset_seq=recent.reset_seq, archived_seq=recent.archived_seq))
        known = pages.known
        if recent.revision:
            # Read only the superseded ranges after the oldest row, because a session may have very many of them.
            oldest = rows[-1].seq or 0 if len(rows) == page_rows else 0
            after = max(oldest, first_seq - 1, recent.reset_seq, recent.archived_seq)
            if known is not None:
                known = await self._with_superseded(known, after)
                ranges = known.superseded_between(after, before)
            else:
                ranges = await self.transcripts.superseded(self.session_id, after=after, before=before)
            window = with_superseded(window, ranges)
        return window, recent, known

    async def _with_superseded(self, known: SessionRows, after: int) -> SessionRows:
        if known.superseded is not None and known.superseded[0] <= after:
            return known
        ranges = await self.transcripts.superseded(self.session_id, after=after, before=END)
        return replace(known, superseded=(after, tuple(ranges)))

    def recollect_cached(self, past: Past) -> Recollection | None:
        """Return the history for a model call without reading the database; None if the database must be read.

        This is possible if `past.read` has the whole history, it fits the limits, and no message was reset or changed.
        """
        read, before = past.read, (past.before_seq or 0) - past.questions + 1
        if past.before_id is None or not past.before_seq or read is None or read.profile != (past.profile or ""):
            return None
        known, state = read.rows, read.state
        if known is None or known.first_seq >= before or known.marks.reset_seq or known.marks.revision:
            return None
        begin, begun, dropped, gaps = _before_window(state, past.profile)
        if (messages := _whole(known, begin, before, past.limits)) is None:
            return None
        self.cache.put(self.session_id, known, window=len(messages))
        return Recollection(
            messages,
            dropped=dropped,
            summaries=state.summaries,
            begin=begin if begin > 1 else 0,
            begun=begun,
            excluded=tuple(gaps),
            question_seq=past.before_seq,
            questions=past.questions,
            revision=state.revision,
            derived=known.derived,
        )

    async def recollect(self, past: Past) -> tuple[WindowManifest | None, Recollection]:
        """Return the manifest of the window (None if it has all messages), and the history for a model call."""
        question_seq = past.before_seq or await self._seq_of(past.before_id)
        before = END if question_seq is None else question_seq - past.questions + 1
        page_rows = min(past.limits.max_messages or PAGE_ROWS, PAGE_ROWS)
        read = await self._read_past(past, page_rows)
        state = read.state
        begin, begun, dropped, gaps = _before_window(state, past.profile)
        known = read.rows if read.rows is not None and read.rows.first_seq < before else None
        asked, manifest, overflow = past.before_id is not None, None, []
        if asked and known is not None and (found := _whole(known, begin, before, past.limits)) is not None:
            messages, revision = found, known.marks.revision
            if revision:
                after = max(begin - 1, known.marks.deleted_seq)
                known = await self._with_superseded(known, after)
                overflow = [Exclusion(*ends, "superseded") for ends in known.superseded_between(after, before)]
        else:
            pages = _Pages(self._recent, begin, known)
            window, recent, known = await self._read(
                pages, past.limits, before, page_rows=page_rows, before_question=asked
            )
            messages, manifest, revision = window.messages, window.manifest, recent.revision
            dropped += manifest.dropped
            overflow = [gap for gap in manifest.excluded if gap.first_seq >= begin]
        # A reset may have happened after the state was read, so use the reset that was read with the rows.
        reset_seq = state.reset_seq if known is None else known.marks.reset_seq
        if known is not None:
            if reset_seq and known.forgotten is None:
                known = replace(known, forgotten=await self._ids_before(reset_seq))
            self.cache.put(self.session_id, known, window=len(messages))
        return manifest, Recollection(
            messages,
            dropped=dropped,
            forgotten=await self._forgotten(reset_seq, past.known_ids, known) if reset_seq else frozenset(),
            summaries=state.summaries,
            begin=begin if begin > 1 else 0,
            begun=begun,
            overflowing=bool([gap for gap in overflow if gap.reason != "superseded"]),
            excluded=(*gaps, *overflow),
            question_seq=question_seq,
            questions=past.questions,
            superseded=await self._superseded(past.known_ids, known) if revision else frozenset(),
            revision=state.revision,
            derived={} if known is None else known.derived,
        )

    def statements(
        self, tables: TableTranscripts, profile: str, limit: int, known: SessionRows | None
    ) -> list[Statement]:
        """Return the SQL statements that read the state and up to `limit` rows, from the last cached row on."""
        after = 0 if known is None else known.last_seq - 1
        return [
            self.contexts.state_statement(self.session_id, profile, user_id=self.user_id),
            tables.recent_statement(self.session_id, limit=limit, after=after, user_id=self.user_id),
        ]

    async def _read_past(self, past: Past, page_rows: int) -> ReadPast:
        """Return the messages and the state from which a window is computed. Read only rows that are not cached."""
        profile = past.profile or ""
        if past.read is not None and past.read.profile == profile and past.read.rows is not None:
            return past.read
        tables = self.transcripts
        if not isinstance(tables, TableTranscripts) or past.before_id is None:
            return ReadPast(profile, await self.contexts.state(self.session_id, profile, user_id=self.user_id), None)
        limit = page_rows + past.questions
        known = self.cache.get(self.session_id)
        state, found = await tables.read(self.statements(tables, profile, limit, known))
        rows = rows_of(found, limit, known)
        if rows is None and known is not None:
            self.cache.forget(self.session_id)
            state, found = await tables.read(self.statements(tables, profile, limit, None))
            rows = rows_of(found, limit)
        return ReadPast(profile, state_of(state), rows)

    async def _superseded(self, known_ids: Collection[str], known: SessionRows | None) -> frozenset[str]:
        """Return the ids among `known_ids` whose messages were superseded."""
        active = set() if known is None else {message.id for message in known.messages}
        asked = [known_id for known_id in known_ids if known_id not in active]
        found = await self.transcripts.with_ids(self.session_id, asked) if asked else []
        return frozenset(str(message.id) for message in found if message.superseded_at is not None)

    async def _seq_of(self, message_id: str | None) -> int | None:
        message = await self.transcripts.find(self.session_id, message_id) if message_id else None
        return message.seq if message else None

    async def _recent(self, limit: int, before: int, begin: int) -> Recent:
        return await self.transcripts.recent(
            self.session_id, limit=limit, before=before, after=max(begin - 1, 0), user_id=self.user_id
        )

    async def _forgotten(self, reset_seq: int, known_ids: Collection[str], known: SessionRows | None) -> frozenset[str]:
        """Return the ids in `known_ids` that belong to the newest 200 messages before the last reset."""
        if not known_ids:
            return frozenset()
        before = known.forgotten if known is not None else None
        return (before if before is not None else await self._ids_before(reset_seq)).intersection(known_ids)

    async def _ids_before(self, reset_seq: int) -> frozenset[str]:
        """Return the ids of the newest 200 messages before the last reset."""
        page = await self.transcripts.newest(self.session_id, limit=PAGE_ROWS, before=reset_seq + 1)
        return frozenset(message.id for message in page.messages if message.id)


@dataclass(eq=False)
class _Pages:
    """The rows of a session in pages, newest first; the cached rows in `known` are not read again.

    If the session was reset, archived or otherwise changed after it was cached, `known` becomes None.
    """

    read: Callable[[int, int, int], Awaitable[Recent]]
    begin: int = 0
    known: SessionRows | None = None

    async def older(self, limit: int, before: int) -> Recent:
        """Return the newest `limit` rows whose `seq` is below `before`, newest first."""
        known = self.known
        if known is None:
            return await self.read(limit, before, self.begin)
        newest = known.between(self.begin, before)[::-1][:limit]
        if len(newest) < limit and known.first_seq > self.begin:
            older = await self.read(limit - len(newest), min(before, known.first_seq), self.begin)
            newest += older.messages
            if older.messages and older.marks != known.marks:
                self.known = None
            else:
                whole = len(newest) < limit
                self.known = known.with_older(older.messages, self.begin if whole else newest[-1].seq or 0)
        marks = known.marks
        return Recent(newest, marks.reset_seq, None, marks.archived_seq, marks.deleted_seq, marks.revision, marks)


def _whole(known: SessionRows, begin: int, before: int, limits: Limits) -> tuple[Message, ...] | None:
    """Return the cached messages from `begin` to `before`; None unless all are cached and fit."""
    if limits.nothing or limits.counter is None or known.first_seq > begin:
        return None
    if max(known.marks.reset_seq, known.marks.archived_seq) >= max(begin, 1):
        return None
    most = None if limits.max_messages is None else limits.max_messages - 1
    found = known.counted(begin, before, most, limits.counter)
    if found is None or (limits.max_tokens is not None and found[1] > limits.max_tokens):
        return None
    return found[0] or None


def _before_window(state: ContextState, profile: str | None) -> tuple[int, bool, int, list[Exclusion]]:
    """Return `begin`, `begun`, `dropped` and `excluded` of a `Recollection` that has all messages from `begin` on.

    `dropped` counts the messages between the anchor and the last deleted, reset, archived or summarised message.
    """
    gaps: list[Exclusion] = []
    last = state.deleted_seq
    if state.reset_seq > last:
        gaps.append(Exclusion(last + 1, state.reset_seq, "reset"))
        last = state.reset_seq
    for summary in state.summaries:
        if last + 1 < summary.first_seq:
            gaps.append(Exclusion(last + 1, summary.first_seq - 1, "archived"))
        gaps.append(Exclusion(summary.first_seq, summary.last_seq, "summarised"))
        last = max(last, summary.last_seq)
    if last < state.archived_seq:
        gaps.append(Exclusion(last + 1, state.archived_seq, "archived"))
        last = state.archived_seq
    anchor = state.anchor_seq if profile else 0
    begin = max(anchor, last + 1)
    if last + 1 < begin:
        gaps.append(Exclusion(last + 1, begin - 1, "before_anchor"))
    begun = anchor > max(state.reset_seq, state.archived_seq) or bool(state.summaries)
    return begin, begun, begin - 1 - last, gaps


async def question_of(transcripts: Transcripts, session_id: str, run: str | None) -> Message | None:
    """Return the question with the message or run id `run`, or the newest question if `run` is None.

    Return None if there is no such question. Unless `run` is a message id, the search begins with the newest message
    and stops after about 10,000 active messages.
    """
    if run is not None and (message := await transcripts.find(session_id, run)) is not None:
        return message if message.role == "user" else None
    before, looked, spoke = END, 0, False
    while looked < _REACH_ROWS:
        page = await transcripts.newest(session_id, limit=PAGE_ROWS, before=before)
        for message in reversed(page.messages):
            if message.role == "user" and (spoke or run in (None, message.run_id)):
                return message
            if message.role != "user" and run is not None and message.run_id == run:
                if message.answers is not None and (asked := await transcripts.find(session_id, message.answers)):
                    return asked
                spoke = True
        looked += len(page.messages)
        if page.next_before is None:
            return None
        before = page.next_before
    return None


@dataclass(frozen=True)
class SessionRows:
    """The newest active messages of users and assistants in a session, oldest first.

    The rows are complete from `first_seq` on; 0 means since the last reset or archiving. `superseded` (None until read)
    is a pair: a `seq`, and the ranges of superseded messages after it. `forgotten` (None until read) has the ids of the
    newest messages before the last reset. `derived` has objects that callers computed from the messages for a model
    call; they are valid while the `marks` are unchanged.
    """

    marks: Marks
    messages: tuple[Message, ...]
    first_seq: int
    superseded: tuple[int, Sequence[tuple[int, int]]] | None = None
    forgotten: frozenset[str] | None = None
    derived: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    @property
    def last_seq(self) -> int:
        """The `seq` of the newest message."""
        return self.messages[-1].seq or 0

    def between(self, begin: int, before: int) -> tuple[Message, ...]:
        """Return the messages whose `seq` is at least `begin` and less than `before`."""
        return self.messages[_index(self.messages, begin) : _index(self.messages, before)]

    def counted(
        self, begin: int, before: int, most: int | None, counter: TokenCounter
    ) -> tuple[tuple[Message, ...], int] | None:
        """Return the result of `between` and its tokens, or None if it has more than `most` messages."""
        start = _index(self.messages, begin)
        end = max(start, _index(self.messages, before))
        if most is not None and end - start > most:
            return None
        found = self.derived.get("sums")
        if not isinstance(found, _TokenSums) or found.counter != counter or found.first is not self.messages[0]:
            found = self.derived["sums"] = _TokenSums(counter, self.messages[0])
        for message in self.messages[len(found.sums) - 1 : end]:
            found.sums.append(found.sums[-1] + counter(message.content))
        return self.messages[start:end], found.sums[end] - found.sums[start]

    def with_older(self, older: Sequence[Message], first_seq: int) -> SessionRows:
        """Return a copy that begins with `older` (passed newest first), and is complete from `first_seq` on."""
        return replace(self, messages=(*reversed(older), *self.messages), first_seq=first_seq)

    def superseded_between(self, after: int, before: int) -> list[tuple[int, int]]:
        """Return the ranges of superseded messages between two `seq` values, both excluded."""
        _, ranges = self.superseded or (0, ())
        inside = [(first, last) for first, last in ranges if first < before and last > after]
        return [(max(first, after + 1), min(last, before - 1)) for first, last in inside]

    def newest(self, count: int) -> SessionRows:
        """Return a copy with only the newest `count` messages."""
        if len(self.messages) <= count:
            return self
        kept = self.messages[-count:]
        return replace(self, messages=kept, first_seq=kept[0].seq or 0)


@dataclass(eq=False)
class _TokenSums:
    """Running sums of the tokens of messages from `first` on, so that each message is counted once."""

    counter: TokenCounter
    first: Message
    sums: list[int] = field(default_factory=lambda: [0])


def rows_of(found: Sequence[Row], limit: int, known: SessionRows | None = None) -> SessionRows | None:
    """Append the rows that the statement `recent` has found (newest first) to the cached rows in `known`.

    The statement must begin with the newest cached row. If its limit has cut it off before this row, return only the
    found rows. Return None if there are no rows, or if the cached rows are no longer valid.
    """
    if not found:
        return None
    marks = marks_in(found[0])
    messages = tuple([message_of(row) for row in reversed(found)])
    if known is not None and messages[0].seq == known.last_seq:
        if messages[0] != known.messages[-1] or marks != known.marks:
            return None
        every = known.messages + messages[1:]
        return SessionRows(known.marks, every, known.first_seq, known.superseded, known.forgotten, known.derived)
    if len(found) == limit:
        return SessionRows(marks, messages, messages[0].seq or 0)
    return SessionRows(marks, messages, 0) if known is None else None


class SessionCache:
    """A cache of the rows of the last used sessions, up to `most_bytes`; 0 turns the cache off.

    `bytes` is the estimated size of all entries.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.bytes = 0
        self._entries: OrderedDict[str, tuple[SessionRows, int]] = OrderedDict()

    def get(self, session_id: str) -> SessionRows | None:
        """Return the cached rows of a session, or None if the session is not in the cache."""
        found = self._entries.get(session_id)
        if found is None:
            return None
        self._entries.move_to_end(session_id)
        return found[0]

    def put(self, session_id: str, rows: SessionRows, *, window: int) -> None:
        """Cache a session's rows, or only the newest rows if there are far more than `window`.

        If the cache is full, drop the sessions that were not used for the longest time.
        """
        if len(rows.messages) > 4 * window + _SPARE_ROWS:
            rows = rows.newest(2 * window + _SPARE_ROWS)
        known, size = self._entries.pop(session_id, (None, 0))
        self.bytes -= size
        # Do not measure the rows again that are cached already.
        measured = 0 if known is None else len(known.messages)
        if known is None or len(rows.messages) < measured or rows.messages[0] is not known.messages[0]:
            measured = size = 0
        size += sum(map(_size_of, rows.messages[measured:]))
        self._entries[session_id] = rows, size
        self.bytes += size
        while self.bytes > self._most_bytes:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.bytes -= dropped

    def forget(self, session_id: str) -> None:
        """Drop the cached rows of a session."""
        found = self._entries.pop(session_id, None)
        if found is not None:
            self.bytes -= found[1]


def _index(messages: Sequence[Message], seq: int) -> int:
    """Return the position in `messages` of the first message with at least this `seq`."""
    if not messages or seq <= (messages[0].seq or 0):
        return 0
    if seq >= (last := messages[-1].seq or 0):
        return len(messages) - (seq == last)
    return bisect_left(messages, seq, key=attrgetter("seq"))


def _size_of(message: Message) -> int:
    """Return the estimated bytes of a message, with the objects that are derived from it."""
    size = _MESSAGE_BYTES + sys.getsizeof(message.content)
    for extra in (message.original, message.metadata):
        size += 4 * len(dump_json(extra)) if extra else 0
    return size
