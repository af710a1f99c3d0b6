"""Reads of a session for windows and for model calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from threadkeep.context.folding import fold_repeats
from threadkeep.context.manifest import Exclusion, Window
from threadkeep.context.tokens import TokenCounter
from threadkeep.context.window import Extent, Limits, WindowChooser, with_superseded
from threadkeep.records import Message, Summary
from threadkeep.store.codec import message_of
from threadkeep.store.contexts import Contexts, ContextState, state_of
from threadkeep.store.driver import Row
from threadkeep.store.transcripts import END, Recent, Transcripts

PAGE_ROWS = 200


@dataclass(frozen=True)
class ReadPast:
    """The state and the newest messages of a session, read when a question was stored.

    `rows` are the newest messages with the question, newest first; at most `limit` were read.
    """

    profile: str
    state: ContextState
    rows: tuple[Message, ...]
    borders: tuple[int, ...]
    limit: int

    @classmethod
    def of(cls, profile: str, limit: int, state: Sequence[Row], recent: Sequence[Row]) -> ReadPast | None:
        """Return the past in the rows of both statements; None if there is none."""
        if not recent:
            return None
        rows = tuple([message_of(row) for row in recent])
        return cls(profile, state_of(state), rows, tuple(map(int, recent[0][-5:-1])), limit)

    def recent(self, limit: int, before: int, begin: int) -> Recent | None:
        """Return the rows for a window; None if too few were read."""
        earlier = [one for one in self.rows if (one.seq or 0) < before]
        found = [one for one in earlier if (one.seq or 0) >= begin][:limit]
        whole = len(self.rows) < self.limit or len(found) == limit or len(found) < len(earlier)
        if not whole or (found and all(one.role != "user" for one in found)):
            return None
        reset_seq, archived_seq, deleted_seq, revision = self.borders
        return Recent(tuple(found), reset_seq, None, archived_seq, deleted_seq, revision)


@dataclass(frozen=True)
class Past:
    """The parameters of a recollection: the turns before a message, within limits.

    `profile` names the kind of agent whose windows share an anchor; without one the window slides. `known_ids` are
    messages that the caller has as well: the result names those that a reset hides, and those that were superseded. An
    unknown `before_id` (it may wait to be written itself) hides nothing. A caller that knows its `seq` passes
    `before_seq`, and in `questions` how many messages up to there are the current questions, so that they are not part
    of the past.
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
    """The past for a model call: messages oldest first, summaries of earlier ones, and the exclusions.

    `begin` is the first `seq` that the window may hold (after the anchor and the summaries); `begun` is true if an
    earlier call or a summary has set it; `overflowing` is true if more messages have come since than the window holds.
    `failed` is true if reading failed. `forgotten` are known messages from before the last reset, `superseded` those
    that were superseded. `question_seq` is the `seq` of the message that ends this past, None if it has none yet;
    `questions` is as in `Past`. `revision` is the session's.
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

    @property
    def end(self) -> int | None:
        """The `seq` where the question begins, which ends the past; None if it is not known yet."""
        return None if self.question_seq is None else self.question_seq - self.questions + 1

    def without_failures(self) -> Recollection:
        """Return this without failed messages.

        A model repeats the apologies that it reads, and a refused question has no text.
        """
        failed = [one for one in self.messages if one.status == "failed"]
        if not failed:
            return self
        gaps = [Exclusion(one.seq, one.seq, "failed") for one in failed if one.seq is not None]
        kept = tuple(one for one in self.messages if one not in failed)
        return replace(self, messages=kept, excluded=(*self.excluded, *gaps))

    def with_folds(self, counter: TokenCounter) -> Recollection:
        """Return this with repeated exchanges shown once, with a count; `folded` are their `seq` values."""
        found = fold_repeats(self.messages, counter=counter)
        gaps = [Exclusion(fold.left_out[0], fold.left_out[-1], "folded") for fold in found.folds if fold.left_out]
        return replace(
            self,
            messages=found.messages,
            excluded=(*self.excluded, *gaps),
            folded=frozenset(fold.seq for fold in found.folds if fold.seq is not None),
        )


class WindowReader:
    """A reader of one session's windows; it reads no more rows than they need."""

    def __init__(self, session_id: str, transcripts: Transcripts, contexts: Contexts, *, user_id: str | None) -> None:
        self._session_id = session_id
        self._transcripts = transcripts
        self._contexts = contexts
        self._user_id = user_id

    async def window(
        self, limits: Limits, before: int = END, *, begin: int = 0, before_question: bool = False
    ) -> Window:
        """Return the window before a `seq`; messages before `begin` are ignored.

        With `before_question` the window ends before the newest user message, so no message of the window is cut.
        """
        window, _ = await self._read(limits, before, begin=begin, before_question=before_question)
        return window

    async def _read(
        self, limits: Limits, before: int, *, begin: int, before_question: bool, read: ReadPast | None = None
    ) -> tuple[Window, int]:
        """Return the window and the revision of the session."""
        # If nothing fits, one row is enough to report what is excluded.
        page_rows = 1 if limits.nothing else min(limits.max_messages or PAGE_ROWS, PAGE_ROWS)
        known = None if read is None else read.recent(page_rows, before, begin)
        recent = await self._recent(page_rows, before, begin) if known is None else known
        chooser = WindowChooser(limits, newest_user=recent.newest_user, before_question=before_question)
        chooser.add(recent.messages)
        rows = recent.messages
        while chooser.wants_more and len(rows) == page_rows:
            rows = (await self._recent(page_rows, rows[-1].seq or 0, begin)).messages
            chooser.add(rows)
        first_seq = max(begin, recent.deleted_seq + 1)
        window = chooser.window(Extent(first_seq, reset_seq=recent.reset_seq, archived_seq=recent.archived_seq))
        if recent.revision:
            # No further back than rows were read: reads stay bounded.
            oldest = rows[-1].seq or 0 if len(rows) == page_rows else 0
            after = max(oldest, first_seq - 1, recent.reset_seq, recent.archived_seq)
            ranges = await self._transcripts.superseded(self._session_id, after=after, before=before)
            window = with_superseded(window, ranges)
        return window, recent.revision

    async def recollect(self, past: Past) -> tuple[Window, Recollection]:
        """Return the window before a message, and its recollection.

        Raises:
            StoreError: the database does not answer.
        """
        read = past.read if past.read is not None and past.read.profile == (past.profile or "") else None
        user_id, profile = self._user_id, past.profile or ""
        state = await self._contexts.state(self._session_id, profile, user_id=user_id) if read is None else read.state
        question_seq = past.before_seq or await self._place_of(past.before_id)
        covered, gaps = _before_window(state)
        anchor = state.anchor_seq if past.profile else 0
        begin = max(anchor, covered + 1)
        before_question = past.before_id is not None
        before = END if question_seq is None else question_seq - past.questions + 1
        window, revision = await self._read(
            past.limits, before, begin=begin, before_question=before_question, read=read
        )
        dropped = window.manifest.dropped
        if covered + 1 < begin:
            gaps.append(Exclusion(covered + 1, begin - 1, "before_anchor"))
            dropped += begin - 1 - covered
        overflow = [gap for gap in window.manifest.excluded if gap.first_seq >= begin]
        return window, Recollection(
            window.messages,
            dropped=dropped,
            forgotten=await self._forgotten(state.reset_seq, past.known_ids),
            summaries=state.summaries,
            begin=begin if begin > 1 else 0,
            begun=anchor > max(state.reset_seq, state.archived_seq) or bool(state.summaries),
            overflowing=any(gap.reason != "superseded" for gap in overflow),
            excluded=(*gaps, *overflow),
            question_seq=question_seq,
            questions=past.questions,
            superseded=await self._superseded(past.known_ids) if revision else frozenset(),
            revision=state.revision,
        )

    async def _superseded(self, known_ids: Collection[str]) -> frozenset[str]:
        """Return the superseded ones among some messages."""
        found = await self._transcripts.with_ids(self._session_id, known_ids) if known_ids else []
        return frozenset(str(message.id) for message in found if message.superseded_at is not None)

    async def _place_of(self, message_id: str | None) -> int | None:
        message = await self._transcripts.find(self._session_id, message_id) if message_id else None
        return message.seq if message else None

    async def _recent(self, limit: int, before: int, begin: int) -> Recent:
        return await self._transcripts.recent(
            self._session_id, limit=limit, before=before, after=max(begin - 1, 0), user_id=self._user_id
        )

    async def _forgotten(self, reset_seq: int, known_ids: Collection[str]) -> frozenset[str]:
        """Return the known messages on the newest page before the last reset."""
        if not (reset_seq and known_ids):
            return frozenset()
        page = await self._transcripts.newest(self._session_id, limit=PAGE_ROWS, before=reset_seq + 1)
        return frozenset(message.id for message in page.messages if message.id and message.id in known_ids)


def _before_window(state: ContextState) -> tuple[int, list[Exclusion]]:
    """Return the last `seq` that no window may include, and the reason for each range up to it.

    Deleted messages are not listed. Archived messages are in no window, but a summary may cover them.
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
    return last, gaps
