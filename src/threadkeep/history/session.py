"""One keyed conversation: what a channel, an API caller or an agent holds to read and write it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from threadkeep.context.manifest import Window
from threadkeep.context.tokens import TokenCounter, counter_named
from threadkeep.context.window import Limits
from threadkeep.errors import InvalidInput, QuestionGone, SessionNotFound, StoreClosed, StoreError, WrongUser
from threadkeep.history.keys import check_key
from threadkeep.history.recollection import Past, Recollection, WindowReader
from threadkeep.history.session_events import SessionEvents
from threadkeep.observe import Observer, Outcome
from threadkeep.records import Json, Message, Page, Receipt, SessionInfo, Turn
from threadkeep.store.contexts import Contexts
from threadkeep.store.transcripts import END, SessionChanges, Transcripts

if TYPE_CHECKING:
    from threadkeep.history.pending import PendingTurns

LONGEST_PAGE = 10_000
PATIENCE_SECONDS = 5.0
PATIENCE_SECONDS_IN_AN_OUTAGE = 0.5


class Session:
    """A session by its id; making one reads nothing.

    With a `user_id` only that user's session is there: reads of another's find nothing, and writes raise `WrongUser`.
    The user who is named at a session's first turn owns it.
    """

    def __init__(
        self,
        session_id: str,
        transcripts: Transcripts,
        pending: PendingTurns,
        *,
        contexts: Contexts,
        user_id: str | None,
        observer: Observer,
        forget: Callable[[str], object],
    ) -> None:
        check_key(session_id)
        if user_id is not None and (
            not isinstance(user_id, str) or not 0 < len(user_id) <= 512 or not user_id.isprintable()
        ):
            raise InvalidInput("A user_id is text of 1 to 512 printable characters, or None.")
        self.session_id = session_id
        self.user_id = user_id
        self._transcripts = transcripts
        self._pending = pending
        self._forget = forget
        self._windows = WindowReader(session_id, transcripts, contexts, user_id=user_id)
        self._events = SessionEvents(observer, transcripts.backend, session_id)

    def __repr__(self) -> str:
        return f"Session({self.session_id!r})"

    async def append(self, messages: Sequence[Message]) -> Receipt:
        """Store the messages as one turn, whole or not at all; durable when this returns.

        Messages with an id that the session already has are left out and named in the receipt.

        Raises:
            InvalidMessage: a message cannot be stored; nothing was.
            WrongUser: the session is another user's.
            StoreUnavailable: the database did not take it; trying again with the same ids is safe.
        """
        turn = self.turn(messages)
        started = time.perf_counter()
        try:
            receipt = await self._transcripts.append(turn)
        except StoreError as error:
            self._events.written(started, "error")
            self._events.write_failed(error, "error")
            raise
        self._events.written(started, "ok")
        return receipt

    async def record(self, messages: Sequence[Message], *, answers: str | None = None) -> Receipt | None:
        """Store the messages, or keep them on disk until the database takes them: None says that they wait.

        For those who answer people and cannot stop for a broken database; see `threadkeep.history.pending`. With
        `answers` they are stored only while the session has the message with that id.

        Raises:
            InvalidMessage, WrongUser: as for `append`; waiting would not help.
            QuestionGone: what they answer was deleted, mostly with its session.
        """
        started = time.perf_counter()
        try:
            receipt = await self._pending.record(replace(self.turn(messages), answers=answers))
        except QuestionGone:
            self._events.discarded()
            raise
        self._events.written(started, "ok" if receipt else "fallback")
        return receipt

    def turn(self, messages: Sequence[Message]) -> Turn:
        """The messages as a turn of this session."""
        return Turn(self.session_id, tuple(messages), self.user_id)

    async def tail(self, limit: int) -> list[Message]:
        """The newest `limit` messages, oldest first."""
        return list((await self.page(limit=limit)).messages)

    async def page(self, before: int | None = None, limit: int = 50) -> Page:
        """The newest `limit` messages before the `seq` of `before` (None: before nothing), oldest first."""
        if not 0 <= limit <= LONGEST_PAGE:
            raise InvalidInput(f"A page has 0 to {LONGEST_PAGE} messages; ask for more with `before`.")
        async with self._reading():
            return await self._transcripts.newest(
                self.session_id, limit=limit, before=END if before is None else before, user_id=self.user_id
            )

    def waiting(self) -> tuple[Message, ...]:
        """What this process could not write yet, in order; with a `user_id`, only what was said as that user."""
        return tuple(message for turn in self._waiting_turns() for message in turn.messages)

    def waiting_answer(self, message_id: str) -> Message | None:
        """The complete answer to a message that this process could not write yet; the message may be stored or not."""
        for turn in self._waiting_turns():
            for message in turn.messages:
                if turn.answers == message_id and message.role == "assistant" and message.status == "complete":
                    return message
        return None

    def _waiting_turns(self) -> Iterator[Turn]:
        for entry in self._pending.entries:
            turn = entry.turn
            if turn.session_id == self.session_id and not entry.refused and self.user_id in (None, turn.user_id):
                yield turn

    @asynccontextmanager
    async def patience(self, seconds: float = PATIENCE_SECONDS) -> AsyncIterator[None]:
        """Wait for the database as long as somebody who answers people may, and not long once it is known to fail.

        Raises:
            TimeoutError: it did not answer in time. Whoever waits next is told so sooner.
        """
        limit = min(seconds, PATIENCE_SECONDS_IN_AN_OUTAGE) if self._pending.database_fails else seconds
        try:
            async with asyncio.timeout(limit):
                yield
        except (StoreError, TimeoutError):
            self._pending.database_fails = True
            raise

    async def find(self, message_id: str) -> Message | None:
        """The message with an id, stored or waiting to be; None when the session has none."""
        for message in self.waiting():
            if message.id == message_id:
                return message
        if self.user_id is not None and await self._info() is None:
            return None
        async with self._reading():
            return await self._transcripts.find(self.session_id, message_id)

    async def at(self, places: Collection[int]) -> list[Message]:
        """The messages with these `seq`, in order; those that are there."""
        if self.user_id is not None and await self._info() is None:
            return []
        async with self._reading():
            return await self._transcripts.at(self.session_id, places)

    async def answer_to(self, question: Message) -> Message | None:
        """The assistant's newest message of the run that a message began, None before there is one."""
        for message in reversed(self.waiting()):
            if message.role == "assistant" and message.run_id is not None and message.run_id == question.run_id:
                return message
        if question.seq is None or question.run_id is None:
            return None
        async with self._reading():
            return await self._transcripts.answer(self.session_id, after=question.seq, run_id=question.run_id)

    async def window(
        self,
        max_messages: int | None = 20,
        max_tokens: int | None = 4000,
        *,
        counter: TokenCounter | str | None = None,
        before: int | None = None,
    ) -> Window:
        """The newest user and assistant messages since the last reset that fit, oldest first.

        Args:
            max_messages: at most so many; 0 means none, None means no such limit.
            max_tokens: at most so many tokens; 0 means none, None means no such limit.
            counter: what counts (a name like "chars4", or a function of a text); by default the counts taken when the
                messages were stored.
            before: only messages before this `seq`.
        """
        limits = Limits(max_messages, max_tokens, counter_named(counter) if isinstance(counter, str) else counter)
        async with self._reading():
            window = await self._windows.window(limits, END if before is None else before)
        self._events.truncated(window.manifest)
        return window

    async def recall(self, past: Past | None = None) -> Recollection:
        """What was said before a message, for a model call that happens in any case.

        Where the database does not answer in time, the agent goes on with what this process still has (the turns that
        wait to be written), and the failure is told.
        """
        past = past or Past()
        if past.limits.nothing:
            return Recollection(())
        # Taken before reading: what is written meanwhile is then in both, and not in neither.
        waiting = list(takewhile(lambda message: message.id != past.before_id, self.waiting()))
        found = Recollection((), failed=True)
        try:
            async with self.patience(), self._reading("fallback"):
                window, found = await self._windows.recollect(past)
            self._events.truncated(window.manifest)
        except StoreClosed:
            raise
        except StoreError:
            pass  # told where it was raised
        except TimeoutError as error:
            self._events.read_failed(error, "fallback")
        there = {message.id for message in found.messages}
        return replace(found, messages=(*found.messages, *(message for message in waiting if message.id not in there)))

    def tell_write_failed(self, error: Exception) -> None:
        """Tell that something beside the transcript could not be written."""
        self._events.write_failed(error, "fallback")

    async def check_owner(self) -> None:
        """Raise `WrongUser` when the session is there and belongs to another user."""
        if self.user_id is None or await self._info() is not None:
            return
        async with self._reading():
            if await self._transcripts.session(self.session_id) is not None:
                raise WrongUser(self.session_id)

    async def count(self) -> int:
        """How many messages the session has; 0 for one that is not there."""
        info = await self._info()
        return info.message_count if info else 0

    async def info(self) -> SessionInfo:
        """What is known of the session.

        Raises:
            SessionNotFound: there is no such session, or not for this user.
        """
        if info := await self._info():
            return info
        raise SessionNotFound(self.session_id)

    async def update(
        self,
        *,
        title: str | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Json] | None = None,
        active: bool | None = None,
    ) -> SessionInfo:
        """Change what is known of the session; None leaves a field as it is.

        Raises:
            SessionNotFound: there is no such session, or not for this user.
        """
        await self.info()
        await self._transcripts.change(self.session_id, SessionChanges(title, tags, metadata, active))
        return await self.info()

    async def reset(self) -> None:
        """Let later windows start after what is there now; the transcript stays.

        What waits to be written is written first, so that it is before the reset. Resetting a session that is not
        there does nothing.
        """
        await self._pending.deliver(self.session_id)
        await self._transcripts.reset(self.session_id, user_id=self.user_id)

    async def delete(self) -> bool:
        """Delete the session with all its messages; False when it was not there (or not this user's)."""
        if self.user_id is not None and await self._info() is None:
            return False
        async with self._pending.withheld(self.session_id):
            was_there = await self._transcripts.delete(self.session_id)
        self._forget(self.session_id)
        return was_there

    async def _info(self) -> SessionInfo | None:
        async with self._reading():
            return await self._transcripts.session(self.session_id, user_id=self.user_id)

    @asynccontextmanager
    async def _reading(self, on_failure: Outcome = "error") -> AsyncIterator[None]:
        """Time a read, and tell how it went."""
        started = time.perf_counter()
        try:
            yield
        except (StoreError, asyncio.CancelledError) as error:
            self._events.read(started, on_failure)
            if isinstance(error, StoreError):
                self._events.read_failed(error, on_failure)
            raise
        self._events.read(started, "ok")
