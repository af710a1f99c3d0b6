"""Sessions: conversations with a key, which channels, API callers and agents read and write."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypedDict

from langchain_core.utils.uuid import uuid7

from threadkeep.context.tokens import TokenCounter, counter_named
from threadkeep.context.window import Limits, Window
from threadkeep.errors import (
    InvalidInput,
    InvalidMessage,
    MessageNotFound,
    MessageSuperseded,
    QuestionGone,
    SessionDamaged,
    SessionNotFound,
    StoreClosed,
    StoreError,
    StoreUnavailable,
    WrongUser,
)
from threadkeep.history.keys import check_session_id
from threadkeep.history.recollection import (
    Past,
    ReadPast,
    Recollection,
    SessionCache,
    WindowReader,
    question_of,
    rows_of,
)
from threadkeep.history.session_events import ReportedRead, SessionEvents
from threadkeep.observe import Observer, StoreRead, StoreWrite
from threadkeep.records import Json, Message, Page, Receipt, SessionInfo, Turn, View
from threadkeep.records.messages import session_html
from threadkeep.records.sessions import check_argument, check_each, check_user_id
from threadkeep.store.contexts import state_of
from threadkeep.store.driver import Joined, Row, TurnRefused
from threadkeep.store.tables import TableTranscripts
from threadkeep.store.transcripts import END, Branching, SessionChanges, Superseded, Superseding

if TYPE_CHECKING:
    from langchain_core.messages import AnyMessage

    from threadkeep.history.memory_parts import Backend
    from threadkeep.history.pending import Join

LONGEST_PAGE = 10_000
_TIMEOUT_SECONDS = 5.0


class AgentInput(TypedDict):
    """The input of an agent or a graph, in LangChain's and LangGraph's format."""

    messages: list[AnyMessage | dict[str, Any]]


@dataclass(frozen=True)
class BegunTurn:
    """The result of `begin_joined`: the stored question, the rows of the statements in `joined`, and the history."""

    question: tuple[Message, ...]
    receipt: Receipt
    rows: Sequence[list[Row]]
    past: ReadPast | None


async def in_time[T](
    session: Session, work: Awaitable[T], report: Callable[[Exception], object] | None = None
) -> T | None:
    """Return the result of database work; after a failure or `Session.timeout`, call `report` and return None.

    Raises:
        StoreClosed: the memory is closed.
    """
    try:
        async with session.timeout():
            return await work
    except StoreClosed:
        raise
    except (StoreError, TimeoutError) as error:
        if report is not None:
            report(error)
        return None


class Session:
    """A session: the conversation under one id. Creating the object reads nothing.

    If `user_id` is given, only this user's session is visible. If another user or no one owns the session, reads find
    nothing, and storing or superseding messages raises `WrongUser`. The user of the first turn becomes the owner.
    """

    def __init__(
        self,
        session_id: str,
        backend: Backend,
        *,
        user_id: str | None,
        observer: Observer,
        cache: SessionCache,
        workspace: str | None = None,
    ) -> None:
        check_session_id(session_id)
        if user_id is not None:
            check_user_id(user_id)
        if workspace is not None:
            check_argument("A workspace", workspace, str)
        self.session_id = session_id
        self.user_id = user_id
        self.workspace = workspace
        self.parent: tuple[str, str] | None = None
        """The session and the agent, if this is an agent's own conversation below a session."""
        self._backend = backend
        self._transcripts = backend.transcripts
        self._pending = backend.pending
        self._cache = cache
        self._windows = WindowReader(session_id, self._transcripts, backend.contexts, user_id, cache)
        self._events = SessionEvents(observer, self._transcripts.backend, session_id)

    def __repr__(self) -> str:
        return f"Session({self.session_id!r})"

    def _repr_html_(self) -> str:
        """Return the HTML for notebooks, without reading the session."""
        return session_html(self.session_id, self.user_id, note="Read it with: await session.tail(10)")

    async def append(self, messages: Sequence[Message]) -> Receipt:
        """Store the messages as one turn, atomically; they are durable when this method returns.

        Messages with an id that the session already has are skipped and named in the receipt.

        Raises:
            InvalidMessage: a message cannot be stored; nothing was stored.
            WrongUser: the session belongs to another user.
            StoreUnavailable: the database is not available; a retry with the same ids is safe.
        """
        turn = self.turn(messages)
        with self._events.writing():
            return await self._transcripts.append(turn)

    async def record(
        self,
        messages: Sequence[Message],
        *,
        answers: str | None = None,
        told: bool = False,
        completes: str | None = None,
    ) -> Receipt | None:
        """Store the messages; if the database is not available, keep them on disk and return None.

        Use this method if the caller must continue without a database. If `answers` is given, the session must still
        have the question with this id. Pass `told=True` if a caller gets the answer as soon as this method returns.
        The answer supersedes the partial answer with the id `completes`.

        Raises:
            InvalidMessage, WrongUser: as for `append`; the write is not retried.
            QuestionGone: the question was deleted, usually with its session.
            TurnInMemoryOnly, StoreClosed: as for `PendingTurns.record`.
        """
        started = time.perf_counter()
        try:
            turn = self.turn(messages, answers=answers, told=told)
            receipt = await self._pending.record(replace(turn, completes=completes))
        except QuestionGone:
            self._events.discarded()
            raise
        self._events.ended(StoreWrite, started, "ok" if receipt else "fallback")
        return receipt

    async def record_joined(
        self, messages: Sequence[Message], join: Join | Joined, *, answers: str | None = None, told: bool = False
    ) -> tuple[Receipt, Sequence[list[Row]]] | None:
        """Store messages and execute the caller's statements in one transaction; see `PendingTurns.record_joined`."""
        started = time.perf_counter()
        stored = await self._pending.record_joined(self.turn(messages, answers=answers, told=told), join)
        if stored is not None:
            self._events.ended(StoreWrite, started, "ok")
        return stored

    async def begin_joined(
        self, messages: Sequence[Message], joined: Joined, *, profile: str, limit: int
    ) -> BegunTurn | None:
        """Store messages, execute the caller's statements, and read the history for a model call, in one transaction.

        Return None if this fails, or if messages are in a LangGraph store. At most `limit` messages of the history are
        read. For `profile`, see `Past`.
        """
        tables = self._transcripts
        if not isinstance(tables, TableTranscripts):
            return None
        known, limit = self._cache.get(self.session_id), limit + len(messages)
        reads = self._windows.statements(tables, profile, limit, known)
        whole = joined._replace(after=[*joined.after, *reads])
        stored = await self.record_joined(messages, whole)
        if stored is None:
            return None
        receipt, rows = stored
        past = ReadPast(profile, state_of(rows[-2]), rows_of(rows[-1], limit, known))
        return BegunTurn(tuple(messages), receipt, rows[:-2], past)

    def turn(self, messages: Sequence[Message], *, answers: str | None = None, told: bool = False) -> Turn:
        """Return the messages as a turn of this session; nothing is stored. See `record` for `answers` and `told`.

        Raises:
            InvalidMessage: `messages` are not `Message` objects, or `answers` is not text.
        """
        given = tuple(messages) if isinstance(messages, Iterable) else (None,)
        if [one for one in given if not isinstance(one, Message)]:
            raise InvalidMessage("A turn is a list of Message objects; make each with Message(role=…, content=…).")
        if answers is not None and not isinstance(answers, str):
            raise InvalidMessage(f"answers is the id of a message or None, not {type(answers).__name__}.")
        return Turn(
            self.session_id, given, self.user_id, answers, bool(told), workspace=self.workspace, parent=self.parent
        )

    async def tail(self, limit: int, *, view: View = "active") -> list[Message]:
        """Return the newest `limit` messages, oldest first."""
        return list((await self.page(limit=limit, view=view)).messages)

    async def page(self, before: int | None = None, limit: int = 50, *, view: View = "active") -> Page:
        """Return the newest `limit` messages before the `seq` `before`, oldest first.

        `limit` is at most 10,000. The `active` view leaves out superseded messages; the `history` view includes them.
        """
        _check_view(view)
        check_argument("limit", limit, int, required=True)
        if not 0 <= limit <= LONGEST_PAGE:
            raise InvalidInput(f"A page has 0 to {LONGEST_PAGE} messages; use `before` to get more.")
        async with ReportedRead(self._events):
            return await self._transcripts.newest(
                self.session_id, limit=limit, before=_end(before), user_id=self.user_id, view=view
            )

    def waiting(self) -> tuple[Message, ...]:
        """Return the session's messages that this process has yet to write, in order; with a user, only this user's."""
        turns = self._pending.turns_of(self.session_id)
        return tuple([one for turn in turns if self.user_id in (None, turn.user_id) for one in turn.messages])

    async def deliver(self) -> bool:
        """Try to write the session's turns that wait in this process; return True if none are left."""
        return await self._pending.deliver(self.session_id)

    @asynccontextmanager
    async def timeout(self, seconds: float = _TIMEOUT_SECONDS) -> AsyncIterator[None]:
        """Limit the block to `seconds`, by default 5, or to less while the database is known to fail.

        Raises:
            TimeoutError: the database did not answer in time; later calls wait only briefly.
        """
        limit = min(seconds, self._pending.wait_seconds) if self._pending.database_fails else seconds
        try:
            async with asyncio.timeout(limit):
                yield
        except SessionDamaged:
            raise  # a damaged session does not indicate an outage
        except (StoreError, TimeoutError):
            self._pending.database_fails = True
            raise

    async def find(self, message_id: str) -> Message | None:
        """Return the message with this id, even if it is superseded or not written yet; None if there is none."""
        check_argument("message_id", message_id, str, required=True)
        for message in self.waiting():
            if message.id == message_id:
                return message
        return await self._if_visible(lambda: self._transcripts.find(self.session_id, message_id), None)

    async def at(self, seqs: Collection[int]) -> list[Message]:
        """Return the messages with these `seq` values, even if superseded, in order."""
        check_each("seqs", seqs, int)
        return await self._if_visible(lambda: self._transcripts.at(self.session_id, seqs), [])

    async def superseded(self) -> list[tuple[int, int]]:
        """Return the `seq` ranges of superseded messages in order; both ends are included."""
        return await self._if_visible(lambda: self._transcripts.superseded(self.session_id), [])

    async def answers_to(self, question: Message) -> list[Message]:
        """Return the complete answers to a message in order, pending answers last; one per author and `ordinal`."""
        check_argument("question", question, Message, required=True)
        waiting = [one for one in self.waiting() if one.answers == question.id and one.status == "complete"]
        if question.seq is None:
            return waiting
        stored: list[Message] = await self._if_visible(
            lambda: self._transcripts.answers_to(self.session_id, question), []
        )
        # Leave out messages that nodes of workflows added: they name no question, and their id is `<run id>:<node>`.
        stored = [one for one in stored if one.answers is not None or not str(one.id).startswith(f"{one.run_id}:")]
        known = {key for one in stored for key in _keys(one)}
        return [*stored, *(one for one in waiting if known.isdisjoint(_keys(one)))]

    async def tell(self, message_id: str) -> Message | None:
        """Record that a caller receives the newest version of an answer. Return this version, if there is one."""
        check_argument("message_id", message_id, str, required=True)
        waiting = next((message for message in self.waiting() if message.id == message_id), None)
        if waiting is not None:
            return await self._pending.tell(waiting)
        if self.user_id is not None and await self._info() is None:
            return None
        return await self._transcripts.tell(self.session_id, message_id)

    async def window(
        self,
        max_messages: int | None = 20,
        max_tokens: int | None = 4000,
        *,
        counter: TokenCounter | str | None = None,
        before: int | None = None,
    ) -> Window:
        """Return the newest user and assistant messages since the last reset, within the limits, oldest first.

        Args:
            max_messages: the maximum number of messages; 0 means none, None means no limit.
            max_tokens: the maximum number of tokens; 0 means none, None means no limit.
            counter: a token counter (a name like "chars4", or a function of a text); by default the counts that were
                stored with the messages.
            before: only messages before this `seq`.
        """
        limits = Limits(max_messages, max_tokens, counter_named(counter) if isinstance(counter, str) else counter)
        async with ReportedRead(self._events):
            window = await self._windows.window(limits, _end(before))
        self._events.truncated(window.manifest)
        return window

    async def recall(self, past: Past | None = None) -> Recollection:
        """Return the history before a question, for a model call that must not fail.

        If the database does not answer in time, this is reported, and the result has only messages that are pending in
        this process. Only `StoreClosed` and `InvalidInput` are raised.
        """
        past = past or Past()
        if not isinstance(past, Past):
            raise InvalidInput(f"past is of the type Past or None, not {type(past).__name__}; see `window`.")
        if past.limits.nothing:
            return Recollection(())
        # Copy the pending messages first: one that is stored during the read would otherwise be in neither list.
        waiting = list(takewhile(lambda message: message.id != past.before_id, self.waiting()))
        started = time.perf_counter()
        if (found := self._windows.recollect_cached(past)) is not None:
            self._events.ended(StoreRead, started, "ok")
        try:
            if found is None:
                async with self.timeout(), ReportedRead(self._events, "fallback"):
                    manifest, found = await self._windows.recollect(past)
                if manifest is not None:
                    self._events.truncated(manifest)
        except StoreClosed:
            raise
        except StoreError:
            pass  # this was already reported
        except TimeoutError as error:
            self._events.read_failed(error, "fallback")
        found = found or Recollection((), failed=True)
        return _with_waiting(found, waiting) if waiting else found

    def report_write_failed(self, error: Exception) -> None:
        """Report that data of a turn other than its messages were lost; the write is not retried."""
        self._events.write_failed(error, "error")

    async def check_owner(self) -> None:
        """Raise `WrongUser` if the session exists and belongs to another user."""
        if self.user_id is None or await self._info() is not None:
            return
        async with ReportedRead(self._events):
            info = await self._transcripts.session(self.session_id)
        # The first read found no session of this user, but the user may have created one since then.
        if info is not None and info.user_id != self.user_id:
            raise WrongUser(self.session_id)

    async def count(self, *, view: View = "active") -> int:
        """Return the number of messages, or 0 if there is no session. The view `history` includes superseded ones."""
        _check_view(view)
        info = await self._info()
        if info is None:
            return 0
        return info.message_count if view == "active" else info.last_seq - info.deleted_seq

    async def info(self) -> SessionInfo:
        """Return the metadata of the session.

        Raises:
            SessionNotFound: the session does not exist, or belongs to another user.
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
        """Change fields of the session, and return its new metadata; a field that is None stays unchanged.

        Raises:
            SessionNotFound: the session does not exist, or belongs to another user.
        """
        await self.info()
        await self._transcripts.change(self.session_id, SessionChanges(title, tags, metadata, active))
        return await self.info()

    async def reset(self, *, run_id: str | None = None) -> None:
        """Let later windows begin after the existing messages; the transcript keeps these messages.

        Pending turns are written first, so that they precede the reset. Nothing is reset if the session does not exist,
        or if `run_id` names a run that is not being executed.
        """
        await self.deliver()
        await self._transcripts.reset(self.session_id, user_id=self.user_id, run_id=run_id)

    async def take_back(self, n: int = 1) -> list[Message]:
        """Supersede the newest `n` (1 to 10,000) active messages and return them, oldest first.

        The messages stay in the `history` view with their `seq`. Concurrent calls supersede different messages.

        Raises:
            InvalidInput: `n` is not a whole number from 1 to 10,000.
            WrongUser: the session belongs to another user.
            StoreUnavailable: the database is not available; nothing was changed.
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= LONGEST_PAGE:
            raise InvalidInput(f"Take back 1 to {LONGEST_PAGE} messages at once.")
        return list((await self._supersede(Superseding(self.session_id, newest=n))).messages)

    async def take_back_turn(self, question_id: str) -> int:
        """Supersede a question, its answers and the later messages of its run; return how many were superseded.

        Return 0 if the question does not exist, or is superseded already.

        Raises:
            WrongUser: the session belongs to another user.
            StoreUnavailable: the database is not available; nothing was changed.
        """
        check_argument("question_id", question_id, str, required=True)
        superseding = Superseding(self.session_id, message_id=question_id, scope="run")
        with contextlib.suppress(MessageNotFound, MessageSuperseded):
            return (await self._supersede(superseding)).count
        return 0

    async def edit(self, message_id: str, text: str, *, new_id: str | None = None) -> Message:
        """Supersede an active message and all messages after it; store and return a new version of the message.

        The new version keeps role, author, metadata and, if it is an answer, its question. Its id is `new_id`, by
        default a new id. Repeating the call with the same `new_id` changes nothing.

        Raises:
            MessageNotFound: the session has no such message.
            MessageSuperseded: the message is already superseded.
            InvalidMessage: the text cannot be stored, or another message has the `new_id`.
            WrongUser: the session belongs to another user.
            StoreUnavailable: the database is not available.
        """
        if not isinstance(text, str) or not text:
            raise InvalidMessage("The new version of a message needs a text; take the message back to remove it.")
        check_argument("message_id", message_id, str, required=True)
        await self._deliver_all()
        message = await self._transcripts.find(self.session_id, message_id)
        if message is None:
            await self.check_owner()
            raise MessageNotFound(self.session_id, message_id)
        new = message.with_fields(
            id=str(uuid7()) if new_id is None else new_id,
            content=text,
            seq=None,
            tokens=None,
            original=None,
            sent_at=None,
            created_at=None,
            superseded_at=None,
            superseded_by=None,
        )
        superseding = Superseding(self.session_id, message_id=message_id, scope="from", by=new)
        stored = (await self._supersede(superseding)).by
        return new if stored is None else stored

    async def question(self, run: str | None = None) -> Message:
        """Return the question whose message id or run id is `run`, or the newest question if `run` is None.

        Raises:
            MessageNotFound: the session has no such question.
            WrongUser: the session belongs to another user.
            StoreUnavailable: the database does not answer.
        """
        check_argument("run", run, str)
        await self._deliver_all()
        await self.check_owner()
        async with ReportedRead(self._events):
            question = await question_of(self._transcripts, self.session_id, run)
        if question is None or question.id is None:
            raise MessageNotFound(self.session_id, run, "message or run")
        return question

    async def regenerate(self, run: str | None = None, *, upto: int | None = None) -> AgentInput:
        """Supersede everything after a question, and return the agent input to answer it again.

        Args:
            run: the id of a run that answered the question, or the question's own id; None for the newest question.
            upto: the `seq` of the newest message that the caller has seen; later ones are not superseded. So concurrent
                calls return the same input, and do not supersede each other's new answer.

        Call the agent with the result: `await agent.ainvoke(await session.regenerate(run_id), config)`. The question
        keeps its id, and the new answer belongs to it.

        Raises:
            MessageNotFound: the session has no such question.
            MessageSuperseded: the question itself is superseded.
            WrongUser: the session belongs to another user.
            StoreUnavailable: the database is not available; nothing was changed.
        """
        end = _end(upto, "upto")
        question = await self.question(run)
        await self._supersede(Superseding(self.session_id, message_id=question.id, scope="after", upto=end))
        return {"messages": [{"role": question.role, "content": question.content, "id": str(question.id)}]}

    async def branch(self, at: int | None = None, *, session_id: str | None = None) -> Session:
        """Create and return a branch: a session with copies of this session's active messages.

        The copies keep their ids and times, and are numbered from 1. `at`, if given, is the `seq` of the last message
        to copy. If that message is superseded, the messages that were active just before then are copied. Title, tags,
        metadata, the last reset, retention limits, and summaries that cover only copied messages are copied too. If
        the call is repeated with the same `session_id`, the second call changes nothing.

        Raises:
            SessionNotFound: there is no such session.
            WrongUser: the session, or the one that has the `session_id`, belongs to another user.
            InvalidInput: there is no message with this `seq`, or another session has the `session_id`.
            StoreUnavailable: the database is not available.
        """
        check_argument("at", at, int)
        branch = Session(
            str(uuid7()) if session_id is None else session_id,
            self._backend,
            user_id=self.user_id,
            observer=self._events.observer,
            cache=self._cache,
            workspace=self.workspace,
        )
        await self._deliver_all()
        await self._transcripts.branch(Branching(self.session_id, branch.session_id, at, self.user_id))
        return branch

    async def _supersede(self, superseding: Superseding) -> Superseded:
        await self._deliver_all()
        with self._events.writing():
            return await self._transcripts.supersede(replace(superseding, user_id=self.user_id))

    async def append_instead(self, messages: Sequence[Message], seq: int, seen: tuple[int, int]) -> bool:
        """Supersede the messages after `seq`, and store `messages` in their place, in one transaction.

        `seen` is the session's `last_seq` and `revision` when the caller read it. Store nothing and return False if
        the session has changed since then, or has one of the messages already.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        await self._deliver_all()
        try:
            with self._events.writing():
                await self._transcripts.append_instead(self.turn(messages), seq, seen)
        except TurnRefused:
            return False
        return True

    async def _deliver_all(self) -> None:
        """Write the session's turns that wait in this process, because the next operation must come after them.

        Raises:
            StoreUnavailable: turns are still pending after the attempt.
        """
        if self.waiting() and not await self.deliver() and self.waiting():
            raise StoreUnavailable(
                "Earlier turns of this session are still pending; try again when the database accepts writes."
            )

    async def delete(self, *, run_id: str | None = None) -> bool:
        """Delete the session with all its messages; return False if the user has no such session.

        With `run_id`, do nothing if this run is not being executed, or if its message has deleted the session before.
        """
        with contextlib.suppress(SessionDamaged):
            if self.user_id is not None and await self._info() is None:
                return False
        was_there = await self._pending.delete(self.session_id, run_id=run_id)
        self._backend.older_turns.forget(self.session_id)
        self._cache.forget(self.session_id)
        return was_there

    async def _if_visible[T](self, read: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """Return the result of a read, or `otherwise` if this user may not see the session."""
        if self.user_id is not None and await self._info() is None:
            return otherwise
        async with ReportedRead(self._events):
            return await read()

    async def _info(self) -> SessionInfo | None:
        async with ReportedRead(self._events):
            return await self._transcripts.session(self.session_id, user_id=self.user_id)


def _with_waiting(found: Recollection, waiting: Sequence[Message]) -> Recollection:
    """Return a history with the messages in `waiting` that it lacks, at the end."""
    known = {key for message in found.messages for key in _keys(message)}
    late = []
    for message in waiting:
        if known.isdisjoint(keys := _keys(message)):
            late.append(message)
            known |= keys
    return replace(found, messages=(*found.messages, *late))


def _keys(message: Message) -> set[object]:
    """Return the keys that identify a message: its id and, for a complete answer, its `answer_key`."""
    return {message.id} if message.answer_key is None else {message.id, message.answer_key}


def _end(seq: int | None, name: str = "before") -> int:
    """Return `seq` within the range that databases can store; for None, return the highest number."""
    check_argument(name, seq, int)
    return END if seq is None else min(max(seq, 0), END)


def _check_view(view: str) -> None:
    if view not in ("active", "history"):
        raise InvalidInput('A view is "active" (without superseded messages) or "history" (all messages).')
