"""What is read of a session for a window, and for a model call that happens in any case."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from threadkeep.context.folding import fold_repeats
from threadkeep.context.manifest import Exclusion, Window
from threadkeep.context.tokens import TokenCounter
from threadkeep.context.window import Extent, Limits, WindowChooser
from threadkeep.records import Message, Summary
from threadkeep.store.contexts import Contexts, ContextState
from threadkeep.store.transcripts import END, Recent, Transcripts

PAGE_ROWS = 200


@dataclass(frozen=True)
class Past:
    """What a recollection is asked for: the turns before a message, within limits.

    `profile` names the kind of agent whose windows share an anchor; without one the window slides. `known_ids` are of
    messages that the caller has besides: it is told which of them a reset took away. An unknown `before_id` (it may
    wait to be written itself) hides nothing; a caller who knows its place says so with `before_seq`, and with
    `questions` how many messages up to there are asked now, so that they are none of the past.
    """

    limits: Limits = Limits(20, 4000)
    before_id: str | None = None
    before_seq: int | None = None
    questions: int = 1
    known_ids: Collection[str] = ()
    profile: str | None = None


@dataclass(frozen=True)
class Recollection:
    """What a model call gets of the past: messages oldest first, summaries of what came before, and what is left out.

    `begin` is the first place that the window may hold (after the anchor and what is summarised); `begun` whether an
    earlier call, or a summary, has set it; `overflowing` whether more than the messages has come since. `failed` says
    that reading did. `forgotten` are those of the caller's messages that are from before the last reset. `question_seq`
    is the place of the message before which all this is, None if it has none yet; `questions` is as in `Past`.
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

    @property
    def end(self) -> int | None:
        """Where the question begins, which is the end of the past; None if it has no place yet."""
        return None if self.question_seq is None else self.question_seq - self.questions + 1

    def with_folds(self, counter: TokenCounter) -> Recollection:
        """Exchanges that repeat word for word shown once, with their count; `folded` are the places that say it."""
        found = fold_repeats(self.messages, counter=counter)
        gaps = [Exclusion(fold.left_out[0], fold.left_out[-1], "folded") for fold in found.folds if fold.left_out]
        return replace(
            self,
            messages=found.messages,
            excluded=(*self.excluded, *gaps),
            folded=frozenset(fold.seq for fold in found.folds if fold.seq is not None),
        )


class WindowReader:
    """Reads windows of one session, and no more rows than they take."""

    def __init__(self, session_id: str, transcripts: Transcripts, contexts: Contexts, *, user_id: str | None) -> None:
        self._session_id = session_id
        self._transcripts = transcripts
        self._contexts = contexts
        self._user_id = user_id

    async def window(
        self, limits: Limits, before: int = END, *, begin: int = 0, before_question: bool = False
    ) -> Window:
        """The window before a place; what is before the place `begin` is as if it were not stored.

        `before_question` says that it stands before a question, which is the newest user message then: nothing of the
        window is cut.
        """
        # Where nothing fits, one row tells what is out.
        page_rows = 1 if limits.nothing else min(limits.max_messages or PAGE_ROWS, PAGE_ROWS)
        recent = await self._recent(page_rows, before, begin)
        chooser = WindowChooser(limits, newest_user=recent.newest_user, before_question=before_question)
        chooser.add(recent.messages)
        rows = recent.messages
        while chooser.wants_more and len(rows) == page_rows:
            rows = (await self._recent(page_rows, rows[-1].seq or 0, begin)).messages
            chooser.add(rows)
        first_seq = max(begin, recent.deleted_seq + 1)
        return chooser.window(Extent(first_seq, reset_seq=recent.reset_seq, archived_seq=recent.archived_seq))

    async def recollect(self, past: Past) -> tuple[Window, Recollection]:
        """What the session has before a message, and its window alone.

        Raises:
            StoreError: the database does not answer.
        """
        state = await self._contexts.state(self._session_id, past.profile or "", user_id=self._user_id)
        question_seq = past.before_seq or await self._place_of(past.before_id)
        covered, gaps = _before_window(state)
        anchor = state.anchor_seq if past.profile else 0
        begin = max(anchor, covered + 1)
        before_question = past.before_id is not None
        before = END if question_seq is None else question_seq - past.questions + 1
        window = await self.window(past.limits, before, begin=begin, before_question=before_question)
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
            overflowing=bool(overflow),
            excluded=(*gaps, *overflow),
            question_seq=question_seq,
            questions=past.questions,
        )

    async def _place_of(self, message_id: str | None) -> int | None:
        message = await self._transcripts.find(self._session_id, message_id) if message_id else None
        return message.seq if message else None

    async def _recent(self, limit: int, before: int, begin: int) -> Recent:
        return await self._transcripts.recent(
            self._session_id, limit=limit, before=before, after=max(begin - 1, 0), user_id=self._user_id
        )

    async def _forgotten(self, reset_seq: int, known_ids: Collection[str]) -> frozenset[str]:
        """Which of some messages were said before the last reset: those of its newest page, which tells the border."""
        if not (reset_seq and known_ids):
            return frozenset()
        page = await self._transcripts.newest(self._session_id, limit=PAGE_ROWS, before=reset_seq + 1)
        return frozenset(message.id for message in page.messages if message.id and message.id in known_ids)


def _before_window(state: ContextState) -> tuple[int, list[Exclusion]]:
    """Where the window may begin at the earliest (that place is out), and why each place before it is out.

    What is deleted is not there to be out. What is archived is in no window, but a summary may stand for it.
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
