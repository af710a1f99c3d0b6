"""Requests and events of the chat, and a turn that callers can follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import Interrupted
from threadkeep.records import Json
from threadkeep.records.runs import RunTrigger
from threadkeep.runs.live import LiveRun
from threadkeep.runs.requests import RunRequest


@dataclass(frozen=True)
class ChatRequest:
    """A message of a person.

    Without a `session_id` the turn continues the last session of the user with the workflow, or starts a new one. A
    `message_id` makes retries safe.
    """

    message: str
    session_id: str | None = None
    user_id: str | None = None
    message_id: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    workflow: str = "chat"
    trigger: RunTrigger = "http"


@dataclass(frozen=True)
class ChatUsage:
    """Tokens of a turn's model calls; `estimated` if a provider did not report all of them."""

    input_tokens: int
    output_tokens: int
    estimated: bool = False

    def to_dict(self) -> dict[str, Json]:
        """Return the usage as JSON values; `estimated` is included only if it is true."""
        counted: dict[str, Json] = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return {**counted, "estimated": True} if self.estimated else counted


@dataclass(frozen=True)
class ChatContext:
    """The context of the turn's last model call: messages and tokens sent, and earlier messages dropped."""

    messages: int = 0
    tokens: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class ChatAnswer:
    """The answer to a message.

    `message_id` is the id of the person's message, `answer_id` the id of the stored answer. `replaced` is true if
    another process answered first: the streamed tokens then do not belong to this answer.
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
        """Return the answer as JSON values; `replaced` only if it is true. The `answer_id` is in the run's result."""
        values: dict[str, Json] = {**asdict(self), "usage": self.usage.to_dict()}
        silent = {"answer_id"} if self.replaced else {"answer_id", "replaced"}
        return {name: value for name, value in values.items() if name not in silent}


@dataclass(frozen=True)
class ChatStarted:
    """An event that is sent once, first, when the turn starts to run."""

    session_id: str
    run_id: str
    message_id: str


@dataclass(frozen=True)
class ChatToken:
    """A piece of the answer."""

    text: str


type ChatEvent = ChatStarted | ChatToken | ChatAnswer


class ChatTurn:
    """A turn that runs in the background; any number of callers may follow it, early or late.

    Once the turn has begun, `session_id` and `run_id` are the ids that were assigned to it.
    """

    def __init__(self, request: ChatRequest, *, stream: bool) -> None:
        self.request = request
        self.stream = stream
        self.session_id = request.session_id or str(uuid7())
        self.message_id = request.message_id or str(uuid7())
        self.run_id = str(uuid7())
        self.stopped = False
        self.task: asyncio.Task[ChatAnswer] | None = None
        self.cancel: Callable[[], Coroutine[object, object, None]] | None = None
        self._events: list[ChatStarted | ChatToken] = []
        self._changed = asyncio.Event()

    @property
    def talk(self) -> str | None:
        """The key of a user's messages without a session; they continue the user's last session."""
        request = self.request
        return None if request.user_id is None else f"{request.user_id}\n{request.workflow}"

    @property
    def place(self) -> str:
        """The key that orders messages: their session, or the user and workflow while the session is unknown."""
        return self.talk if self.request.session_id is None and self.talk is not None else self.session_id

    @property
    def run_request(self) -> RunRequest:
        """The request for the run that answers the turn."""
        request = self.request
        return RunRequest(
            workflow=request.workflow,
            text=request.message,
            session_id=request.session_id,
            user_id=request.user_id,
            message_id=self.message_id,
            metadata=request.metadata,
            trigger=request.trigger,
            stream=self.stream,
        )

    def start(self, task: asyncio.Task[ChatAnswer]) -> None:
        """Set the task that follows the turn to its end."""
        self.task = task
        task.add_done_callback(lambda _: self._signal())

    def tell_started(self) -> None:
        """Send the start event to all followers, once."""
        if not self._events:
            self._tell(ChatStarted(self.session_id, self.run_id, self.message_id))

    def tell_piece(self, text: str) -> None:
        """Send a token of the answer to all followers."""
        self.tell_started()
        self._tell(ChatToken(text))

    async def answer(self) -> ChatAnswer:
        """Wait for the answer. Cancelling the caller does not stop the turn."""
        if self.task is None:
            raise RuntimeError("the turn has not begun")
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.task.cancelled():
                raise Interrupted(
                    "The service stopped before the answer was complete; send the message again, with its message_id."
                ) from None
            raise

    async def follow(self) -> AsyncIterator[ChatEvent]:
        """Yield all events from the beginning, then the answer."""
        if self.task is None:
            raise RuntimeError("the turn has not begun")
        place = 0
        while True:
            changed = self._changed
            while place < len(self._events):
                yield self._events[place]
                place += 1
            if self.task.done():
                answer = await self.answer()
                yield replace(answer, replaced=answer.replaced or not self._told_at_the_end(answer.response))
                return
            await changed.wait()

    def _told_at_the_end(self, response: str) -> bool:
        """Return whether the tokens end with the answer; other agents or a failed attempt may have sent some before."""
        pieces = "".join(event.text for event in self._events if isinstance(event, ChatToken))
        return not pieces or pieces.endswith(response)

    def _tell(self, event: ChatStarted | ChatToken) -> None:
        self._events.append(event)
        self._signal()

    def _signal(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def listen(turn: ChatTurn, live: LiveRun, work: asyncio.Task[Any]) -> None:
    """Forward the events of the run's current attempt to the turn until its outcome is known."""
    work.add_done_callback(lambda _: live.signal())
    heard = live.first_piece
    while True:
        change = live.next_change
        if live.begun:
            turn.tell_started()
        for piece in live.pieces[heard:]:
            turn.tell_piece(piece.text)
        heard = len(live.pieces)
        if work.done() or live.outcome is not None:
            return
        await change.wait()
