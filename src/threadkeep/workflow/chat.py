"""The chat: people's messages in, an agent's answers out, for every face (HTTP, terminal) alike.

Turns of one session run one after the other, in order of arrival; sessions run in parallel. A turn belongs to the chat,
not to the caller who waits for it: a caller that goes away does not stop it. A `message_id` makes a request idempotent,
in this process by joining the turn that runs, across processes by the table of runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import (
    Interrupted,
    ModelCallFailed,
    SessionNotFound,
    StoreError,
    StoreUnavailable,
    ThreadkeepError,
    WrongUser,
)
from threadkeep.history.keys import channel_of
from threadkeep.history.memory import Memory
from threadkeep.observe import ContextBuilt, Event, TurnFinished, TurnStatus
from threadkeep.records import Json
from threadkeep.store.runs import Claim, Run, RunEnd
from threadkeep.workflow.answering import Answering, Question, Reply

_FIRST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 0.5
_HEARTBEAT_SECONDS = 5.0


@dataclass(frozen=True)
class ChatRequest:
    """What a person said. Without a `session_id` a session is begun; a `message_id` makes repeats harmless."""

    message: str
    session_id: str | None = None
    user_id: str | None = None
    message_id: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatUsage:
    """Tokens of a turn's model calls, as the provider reported them (estimated when it did not)."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class ChatContext:
    """What the turn's last model call saw: messages and tokens sent, and how many earlier messages were left out."""

    messages: int
    tokens: int
    dropped: int


@dataclass(frozen=True)
class ChatAnswer:
    """What the assistant said."""

    session_id: str
    run_id: str
    message_id: str
    response: str
    confidence: float | None
    escalated: bool
    usage: ChatUsage
    context: ChatContext

    def to_dict(self) -> dict[str, Json]:
        """The answer as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ChatAnswer:
        """The answer that `to_dict` described."""
        return cls(**{**values, "usage": ChatUsage(**values["usage"]), "context": ChatContext(**values["context"])})


@dataclass(frozen=True)
class ChatStarted:
    """The turn runs now; sent once, first."""

    session_id: str
    run_id: str
    message_id: str


@dataclass(frozen=True)
class ChatToken:
    """A piece of the answer."""

    text: str


type ChatEvent = ChatStarted | ChatToken | ChatAnswer


class ChatTurn:
    """One turn that runs in the background; any number of callers may follow it, early or late."""

    def __init__(self, request: ChatRequest, *, stream: bool) -> None:
        self.request = request
        self.stream = stream
        self.session_id = request.session_id or str(uuid7())
        self.message_id = request.message_id or str(uuid7())
        self.run_id = str(uuid7())
        self.task: asyncio.Task[ChatAnswer] | None = None
        self.context: ContextBuilt | None = None
        self._events: list[ChatStarted | ChatToken] = []
        self._changed = asyncio.Event()

    def start(self, task: asyncio.Task[ChatAnswer]) -> None:
        """Name the task that carries the turn out."""
        self.task = task
        task.add_done_callback(lambda _: self._signal())

    def note(self, built: ContextBuilt) -> None:
        """Remember what a model call was given.

        It may be told under another run's id, that of the run which stored the question first; one with the turn's own
        is not given up for such a one, which may as well be an agent's beside the chat.
        """
        if self.context is None or self.context.run_id != self.run_id or built.run_id == self.run_id:
            self.context = built

    def tell(self, event: ChatStarted | ChatToken) -> None:
        """Pass an event to all followers."""
        self._events.append(event)
        self._signal()

    async def answer(self) -> ChatAnswer:
        """Wait for the answer. A caller that is cancelled does not stop the turn."""
        if self.task is None:
            raise RuntimeError("the turn has not begun")
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.task.cancelled():
                raise Interrupted(
                    "The service stopped before the answer was complete; send the message again."
                ) from None
            raise

    async def follow(self) -> AsyncIterator[ChatEvent]:
        """All events from the beginning, then the answer."""
        if self.task is None:
            raise RuntimeError("the turn has not begun")
        place = 0
        while True:
            changed = self._changed
            while place < len(self._events):
                yield self._events[place]
                place += 1
            if self.task.done():
                yield await self.answer()
                return
            await changed.wait()

    def _signal(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Chat:
    """The conversations of one memory with one agent."""

    def __init__(self, memory: Memory, answering: Answering) -> None:
        self._memory = memory
        self._answering = answering
        self._owner = str(uuid7())
        self._turns: dict[tuple[str, str, str | None], ChatTurn] = {}
        # A lock lives as long as a turn holds it or waits for it, so that all turns of a session meet at the same one.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._at_work: dict[str, ChatTurn] = {}
        memory.observers.add(self)

    @property
    def running(self) -> int:
        """How many turns run or wait now."""
        return len(self._turns)

    def notify(self, event: Event, /) -> None:
        """Remember what the model calls of the turns at work were given; of a session that is one at a time."""
        if isinstance(event, ContextBuilt) and event.session_id in self._at_work:
            self._at_work[event.session_id].note(event)

    def begin(self, request: ChatRequest, *, stream: bool = True) -> ChatTurn:
        """Start a turn, or join the one that answers this message already.

        Without `stream` the model is asked for its answer as a whole, and followers get no pieces.

        Raises:
            InvalidKey, InvalidInput: the session id or the user id cannot be used.
        """
        turn = ChatTurn(request, stream=stream)
        self._memory.session(turn.session_id, user_id=request.user_id)
        key = (turn.session_id, turn.message_id, request.user_id)
        if running := self._turns.get(key):
            return running
        task = asyncio.create_task(self._run(turn), name="threadkeep-turn")
        turn.start(task)
        self._turns[key] = turn
        task.add_done_callback(lambda _: self._ended(key, turn))
        return turn

    async def ask(self, request: ChatRequest) -> ChatAnswer:
        """The answer to a message.

        Raises:
            ModelCallFailed: the model did not answer; the message is stored.
            SessionNotFound: the session is another user's.
            Interrupted: the service stopped meanwhile.
        """
        return await self.begin(request, stream=False).answer()

    @contextlib.asynccontextmanager
    async def in_turn(self, session_id: str) -> AsyncIterator[None]:
        """A place among the turns of a session, in order of arrival: inside, this process has no other one at work.

        For what must not happen in the middle of a turn: a reset between question and answer would part them, and a
        deleted session would come back with the answer.
        """
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        async with lock:
            yield

    async def close(self, seconds: float) -> None:
        """Let running turns finish within a limit, then cancel them; what they had said is stored as interrupted."""
        tasks = [turn.task for turn in self._turns.values() if turn.task is not None]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _ended(self, key: tuple[str, str, str | None], turn: ChatTurn) -> None:
        del self._turns[key]
        if turn.task is not None and not turn.task.cancelled():
            turn.task.exception()  # a caller who went away does not ask for it

    async def _run(self, turn: ChatTurn) -> ChatAnswer:
        async with self.in_turn(turn.session_id):
            await self._check_owner(turn)
            self._at_work[turn.session_id] = turn
            try:
                return await (self._answer(turn) if turn.request.message_id is None else self._answer_once(turn))
            finally:
                del self._at_work[turn.session_id]

    async def _check_owner(self, turn: ChatTurn) -> None:
        """Another user's session is not there. If the database cannot tell now, the turn's own write will."""
        if turn.request.user_id is None or turn.request.session_id is None:
            return
        session = self._memory.session(turn.session_id)
        try:
            async with session.patience():
                info = await session.info()
        except (SessionNotFound, StoreError, TimeoutError):
            return
        if info.user_id != turn.request.user_id:
            raise SessionNotFound(turn.session_id)

    async def _check_owner_of_result(self, turn: ChatTurn, run: Run) -> None:
        """An answer that is stored is given to its session's user, and to nobody while that cannot be told.

        Asked again, and not taken from before: the session may have been made while its run was waited for.
        """
        if turn.request.user_id is None or turn.request.session_id is None:
            return
        own = self._memory.session(turn.session_id, user_id=turn.request.user_id)
        if any(message.run_id == run.run_id for message in own.waiting()):
            return
        try:
            async with own.patience():
                info = await self._memory.session(turn.session_id).info()
        except (SessionNotFound, StoreError, TimeoutError) as error:
            # A session that is not there waits to be written, perhaps in another process.
            raise StoreUnavailable(
                "The database cannot tell now whose answer this is; send the message again, with its message_id."
            ) from error
        if info.user_id != turn.request.user_id:
            raise SessionNotFound(turn.session_id)

    async def _answer_once(self, turn: ChatTurn) -> ChatAnswer:
        """Answer a message that has an id: by whichever process claims it first."""
        run, mine = await self._claim(turn)
        if run is not None:
            turn.run_id = run.run_id
        if not mine and run is not None and run.result is not None:
            await self._check_owner_of_result(turn, run)
            return ChatAnswer.from_dict(run.result)
        beating = asyncio.create_task(self._keep_alive(turn.run_id))
        try:
            answer = await self._answer(turn)
        except BaseException as error:
            status: RunEnd = "interrupted" if isinstance(error, asyncio.CancelledError) else "failed"
            kind = error.kind if isinstance(error, ModelCallFailed) else type(error).__name__
            await self._finish(turn, status, error=kind)
            raise
        finally:
            beating.cancel()
        await self._finish(turn, "done", result=answer.to_dict())
        return answer

    async def _finish(
        self, turn: ChatTurn, status: RunEnd, *, result: Mapping[str, Json] | None = None, error: str | None = None
    ) -> None:
        """Record how a run ended, without keeping the caller waiting for a database that is down."""

        async def record() -> None:
            with contextlib.suppress(StoreError):  # what was said is kept with the transcript in any case
                await self._memory.runs.finish(turn.run_id, self._owner, status, result=result, error=error)

        with contextlib.suppress(TimeoutError):
            async with self._memory.session(turn.session_id).patience():
                await self._memory.finish(record)

    async def _claim(self, turn: ChatTurn) -> tuple[Run | None, bool]:
        """The run of a message: ours to carry out, or somebody's that has ended. None where no database can tell."""
        claim = Claim(turn.run_id, turn.session_id, turn.message_id, self._answering.workflow, self._owner)
        pause = _FIRST_POLL_SECONDS
        while True:
            try:
                async with self._memory.session(turn.session_id).patience():
                    run, mine = await self._memory.runs.claim(claim)
            except (StoreError, TimeoutError):
                return None, True
            if mine or run.result is not None:
                return run, mine
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_POLL_SECONDS)

    async def _keep_alive(self, run_id: str) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            with contextlib.suppress(StoreError):
                await self._memory.runs.heartbeat(run_id, self._owner)

    async def _answer(self, turn: ChatTurn) -> ChatAnswer:
        started = time.perf_counter()
        turn.tell(ChatStarted(turn.session_id, turn.run_id, turn.message_id))
        reply: Reply | None = None
        status: TurnStatus = "failed"
        try:
            request = turn.request
            question = Question(
                text=request.message,
                session_id=turn.session_id,
                message_id=turn.message_id,
                run_id=UUID(turn.run_id),
                user_id=request.user_id,
                metadata=request.metadata,
                stream=turn.stream,
            )
            async for piece in self._answering.answer(question):
                if isinstance(piece, Reply):
                    reply = piece
                else:
                    turn.tell(ChatToken(piece))
            status = "complete"
        except asyncio.CancelledError:
            status = "interrupted"
            raise
        except WrongUser as error:
            raise SessionNotFound(turn.session_id) from error
        except ThreadkeepError:
            raise
        except Exception as error:
            raise ModelCallFailed(type(error).__name__) from error
        finally:
            self._tell_end(turn, status, started, reply)
        if reply is None:
            raise ModelCallFailed("NoAnswer")
        return self._with_context(turn, reply)

    def _with_context(self, turn: ChatTurn, reply: Reply) -> ChatAnswer:
        built = turn.context or ContextBuilt(messages=0, tokens=0)
        return ChatAnswer(
            session_id=turn.session_id,
            run_id=turn.run_id,
            message_id=turn.message_id,
            response=reply.text,
            confidence=reply.confidence,
            escalated=reply.escalated,
            usage=ChatUsage(
                built.tokens if reply.input_tokens is None else reply.input_tokens,
                reply.output_tokens,
            ),
            context=ChatContext(built.messages, built.tokens, built.dropped),
        )

    def _tell_end(self, turn: ChatTurn, status: TurnStatus, started: float, reply: Reply | None) -> None:
        self._memory.observers.notify(
            TurnFinished(
                channel=channel_of(turn.session_id, default="http"),
                status=status,
                milliseconds=(time.perf_counter() - started) * 1000,
                input_tokens=(reply and reply.input_tokens) or 0,
                output_tokens=reply.output_tokens if reply else 0,
                run_id=turn.run_id,
                session_id=turn.session_id,
            )
        )
