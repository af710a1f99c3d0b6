"""Requests, events and answers of the chat, and a turn that callers can follow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import (
    BudgetTooSmall,
    Interrupted,
    ModelCallFailed,
    RunFailed,
    RunNotFound,
    RunWaits,
    SessionNotFound,
    StoreError,
    StoreUnavailable,
    ThreadkeepError,
    TurnInMemoryOnly,
    WrongUser,
)
from threadkeep.history.memory import Memory
from threadkeep.records import Json, Message
from threadkeep.records.json_values import DESCRIBED
from threadkeep.records.runs import NO_USAGE, Run, TokenUsage
from threadkeep.runs.requests import RunRequest, Submitted
from threadkeep.runs.service import RunService
from threadkeep.runs.session_answers import newest_answer, result_of_answer, with_own_answer
from threadkeep.runs.streams import RunStream
from threadkeep.runs.views import RUN_ERRORS
from threadkeep.store.runs import Outcome
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.registry import Workflows


@dataclass(frozen=True)
class ChatUsage:
    """The tokens of a turn's model calls; `estimated` is true if a provider did not report all of them."""

    input_tokens: int
    output_tokens: int
    estimated: bool = False

    def to_dict(self) -> dict[str, Json]:
        """Return the usage as JSON values; `estimated` is included only if it is true."""
        counted: dict[str, Json] = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return {**counted, "estimated": True} if self.estimated else counted


@dataclass(frozen=True)
class ChatContext:
    """The size of the context that the turn's last model call received."""

    __pydantic_config__ = DESCRIBED

    messages: int = 0
    """The number of messages that were sent, including the system message and the new message."""
    tokens: int = 0
    """The number of tokens that were sent, as counted by Threadkeep."""
    dropped: int = 0
    """The number of earlier messages that the limits excluded."""


@dataclass(frozen=True)
class ChatAnswer:
    """The answer to a message.

    `message_id` is the id of the person's message, `answer_id` the id of the stored answer. `replaced` is true if
    the streamed tokens do not belong to this answer, for example because another process answered first.
    """

    session_id: str
    run_id: str
    message_id: str
    response: str
    confidence: float | None
    escalated: bool
    usage: ChatUsage
    context: ChatContext
    answer_id: str | None = None
    replaced: bool = False

    def to_dict(self) -> dict[str, Json]:
        """Return the answer as JSON values, without the `answer_id`, and with `replaced` only if it is true."""
        values: dict[str, Json] = {**asdict(self), "usage": self.usage.to_dict()}
        silent = {"answer_id"} if self.replaced else {"answer_id", "replaced"}
        return {name: value for name, value in values.items() if name not in silent}


@dataclass(frozen=True)
class ChatStarted:
    """The first event of a turn. It is not sent if the answer was already stored."""

    session_id: str
    run_id: str
    message_id: str


@dataclass(frozen=True)
class ChatToken:
    """A piece of an answer. `message_id` is the id of the answer, or None while this id is unknown.

    Several messages may stream at once. The `last` piece of a message may have an empty text.
    """

    text: str
    message_id: str | None = None
    last: bool = False


type ChatEvent = ChatStarted | ChatToken | ChatAnswer


class ChatTurn:
    """A turn that runs in the background; any number of callers may follow it, at any time.

    `session_id` and `run_id` may change until the turn has begun. `run_request` is the request for the run that answers
    the turn. `stream` is the stream of this run. `user_key` combines the user and the workflow. `stored_id` is the id
    of the stored answer, or None while it is not known whether the answer is stored. `Chat.begin` sets the `task`.
    """

    task: asyncio.Task[ChatAnswer]

    def __init__(self, request: RunRequest, *, stream: bool) -> None:
        self.request = request
        self.session_id = request.session_id or str(uuid7())
        self.message_id = request.message_id or str(uuid7())
        self.run_id = str(uuid7())
        self.run_request = replace(request, message_id=self.message_id, stream=stream)
        self.stream = RunStream(self.run_id)
        self.user_key = None if request.user_id is None else f"{request.user_id}\n{request.workflow}"
        self.stored_id: str | None = None
        self.stopped = False
        self.cancel: Callable[[], Coroutine[object, object, None]] | None = None

    @property
    def order_key(self) -> str:
        """The key of turns that wait for each other: the session id, or `user_key` if the request names only a user."""
        return self.user_key if self.request.session_id is None and self.user_key is not None else self.session_id

    def read_from(self, stream: RunStream) -> None:
        """Let followers get the turn's start event and tokens from `stream` from now on."""
        before, self.stream = self.stream, stream
        before.signal()

    async def answer(self) -> ChatAnswer:
        """Wait for the answer; raise the errors of `Chat.ask`. Cancelling the caller does not stop the turn."""
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.task.cancelled():
                raise Interrupted(
                    "The service stopped before the answer was complete; send the message again, with its message_id."
                ) from None
            raise

    async def follow(self) -> AsyncGenerator[ChatEvent]:
        """Yield the events of the turn as they happen, then the answer; raise as `Chat.ask` does."""
        stream, position, has_begun, sent = None, 0, False, ""
        while True:
            if stream is not self.stream:
                stream, position = self.stream, self.stream.first_piece
            # Read `is_over` before the tokens are yielded: while a slow caller takes them, the turn may go on and end.
            change, pieces, is_over = stream.next_change, stream.pieces[position:], self.task.done()
            if not has_begun and (stream.begun or pieces):
                has_begun = True
                yield ChatStarted(self.session_id, self.run_id, self.message_id)
            for piece in pieces:
                position, sent = position + 1, sent + piece.text
                yield ChatToken(piece.text, piece.message_id, piece.last)
            if is_over:
                answer = await self.answer()
                # If the sent tokens do not end with the answer, they belong to another attempt.
                yield replace(answer, replaced=answer.replaced or bool(sent and not sent.endswith(answer.response)))
                return
            await change.wait()


ELSEWHERE = "Another process is answering in this session; send the message again later, with the same message_id."
UNEXECUTED = "No process executes an earlier run of this session; start {}, or end the run: threadkeep runs cancel {}"
STOPPED = "The turn was stopped before the answer was complete; the partial answer is stored as interrupted."
TAKEN_BACK = "A newer message arrived before the answer was complete, so this message was taken back."

_TOO_SMALL = "The message does not fit beside the system prompt; raise the token limit, or shorten the prompt."
_NO_DATABASE = "The database is unavailable, and this message cannot be answered without it; send it again later."


def error_of(ended: Run | Outcome, turn: ChatTurn, workflow: Workflow) -> ThreadkeepError:
    """Return the error that callers of a turn get if its run did not succeed."""
    kind = ended.error or "NoAnswer"
    if ended.status in ("waiting", "cancelled"):
        rolled_back = isinstance(ended, Run) and ended.is_rolled_back
        stopped = Interrupted(TAKEN_BACK if rolled_back else STOPPED)
        return RunWaits(turn.run_id) if ended.status == "waiting" else stopped
    known: dict[str, ThreadkeepError] = {
        WrongUser.__name__: SessionNotFound(turn.session_id),
        StoreUnavailable.__name__: StoreUnavailable(_NO_DATABASE),
        TurnInMemoryOnly.__name__: TurnInMemoryOnly(turn.session_id),
        BudgetTooSmall.__name__: BudgetTooSmall(_TOO_SMALL),
    }
    if kind in known:
        return known[kind]
    if kind in RUN_ERRORS or workflow.source != "built-in":
        return RunFailed(turn.run_id, kind, RUN_ERRORS.get(kind))
    return ModelCallFailed(kind)


class ChatAnswers:
    """A builder of answers from ended runs. It leaves out details that the database cannot return in time."""

    def __init__(self, memory: Memory, workflows: Workflows) -> None:
        self._memory = memory
        self._workflows = workflows

    async def of_recorded(
        self, turn: ChatTurn, ended: Run | Outcome, runs: RunService, submitted: Submitted
    ) -> ChatAnswer:
        """Return the answer from an ended run, and record that a caller gets it.

        If the database does not respond, `ended` is only the outcome of the run.

        Raises:
            ThreadkeepError: the run has no answer; `error_of` chooses the error.
        """
        stream = submitted.stream
        stands: Message | None = None
        # If the run was over before this request, its answer may have been replaced since then: look in the database.
        hold, usage = None if submitted.over else stream.hold, stream.usage or ()
        turn.stored_id = None if hold is None else hold.told_id
        if ended.status == "done":
            if isinstance(ended, Run) and len(ended.inputs) > 1:
                async with self._optional(turn):
                    ended = await with_own_answer(self._memory, ended, turn.message_id)
            answer_id = (ended.result or {}).get("message_id")
            if isinstance(answer_id, str) and (hold is None or hold.told_id != answer_id):
                # Record that a caller gets the answer, even if the answer still waits to be stored.
                async with self._optional(turn):
                    stands = await self._memory.session(turn.session_id).tell(answer_id)
                    if stands is None and (first := await self._answer_to(turn)) is not None:
                        # The run's answer is not stored, because another answer was stored before it.
                        stands = await self._memory.session(turn.session_id).tell(str(first.id))
            if stands is not None and stands.id == answer_id:
                stands = None
            if stream.usage is None:
                async with self._optional(turn):
                    usage = await runs.usage(turn.run_id)
        answer = self.of(turn, ended, usage)
        if stands is not None:
            answer = replace(answer, answer_id=stands.id, response=stands.content)
            answer = replace(answer, confidence=stands.confidence, escalated=stands.escalated)
        return replace(answer, replaced=stands is not None or (hold is not None and hold.replaced))

    async def stored(self, turn: ChatTurn) -> ChatAnswer | None:
        """Return the newest stored answer if this message was sent before, and record that a caller gets the answer.

        Return None if there is no answer, if it is not complete, or if the database is unavailable.
        """
        if turn.request.message_id is None:
            return None
        found: Message | None = None
        async with self._optional(turn):
            found = await self._answer_to(turn)
        if found is None:
            return None
        async with self._optional(turn):
            found = await self._memory.session(turn.session_id).tell(str(found.id)) or found
        turn.run_id = found.run_id or turn.run_id
        return self.of(turn, Outcome("done", result=result_of_answer(found)), ())

    async def of_unrecorded(self, turn: ChatTurn, outcome: Outcome, usage: Sequence[TokenUsage]) -> ChatAnswer:
        """Return the answer of a run that the database does not record, or an older stored answer to its message.

        The stored answer could not be read while the database was down, so the message was answered again.

        Raises:
            ThreadkeepError: the run has no answer; `error_of` chooses the error.
        """
        answer = self.of(turn, outcome, usage)
        if turn.request.message_id is None:
            return answer
        async with self._optional(turn):
            await self._memory.session(turn.session_id).deliver()
        stored = await self.stored(turn)
        return answer if stored is None or stored.answer_id == answer.answer_id else stored

    async def _answer_to(self, turn: ChatTurn) -> Message | None:
        """Return the newest answer to a turn's message, if it is complete."""
        session = self._memory.session(turn.session_id, user_id=turn.request.user_id)
        found = await newest_answer(session, turn.message_id)
        return found if found is not None and found.status == "complete" else None

    @contextlib.asynccontextmanager
    async def _optional(self, turn: ChatTurn) -> AsyncIterator[None]:
        """Ignore the error of the block if the database is too slow or unavailable, or the session was deleted."""
        with contextlib.suppress(RunNotFound, StoreError, TimeoutError):
            async with self._memory.session(turn.session_id).timeout():
                yield

    def of(self, turn: ChatTurn, ended: Run | Outcome, usage: Sequence[TokenUsage]) -> ChatAnswer:
        """Return the answer of a run, with its token usage.

        Raises:
            ThreadkeepError: the run has no answer; `error_of` chooses the error.
        """
        if ended.status != "done":
            raise error_of(ended, turn, self._workflows.get(turn.request.workflow))
        known: Mapping[str, Any] = ended.result or {}
        used = sum(usage, NO_USAGE)
        return ChatAnswer(
            session_id=turn.session_id,
            run_id=turn.run_id,
            message_id=turn.message_id,
            answer_id=known.get("message_id"),
            response=known.get("text", ""),
            confidence=known.get("confidence"),
            escalated=bool(known.get("escalated")),
            usage=ChatUsage(used.input_tokens, used.output_tokens, used.estimated),
            context=ChatContext(**known.get("context", {})),
        )
