"""What a chat is asked and what it tells, and a turn as its callers follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import Interrupted
from threadkeep.records import Json
from threadkeep.records.runs import RunTrigger
from threadkeep.runs.requests import RunRequest


@dataclass(frozen=True)
class ChatRequest:
    """What a person said.

    Without a `session_id` it goes on with the session that the user last had with the workflow, or begins one; a
    `message_id` makes repeats harmless.
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
    """Tokens of a turn's model calls, as the provider reported them (estimated when it did not)."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class ChatContext:
    """What the turn's last model call saw: messages and tokens sent, and how many earlier messages were left out."""

    messages: int = 0
    tokens: int = 0
    dropped: int = 0


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
    """One turn that runs in the background; any number of callers may follow it, early or late.

    Its `session_id` and `run_id` are those that were given to it once it has begun.
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
        """What a user's messages without a session have in common: they go on where the last one was."""
        request = self.request
        return None if request.user_id is None else f"{request.user_id}\n{request.workflow}"

    @property
    def place(self) -> str:
        """What messages have in common that must stay in order: their session, as far as it is known."""
        return self.talk if self.request.session_id is None and self.talk is not None else self.session_id

    @property
    def run_request(self) -> RunRequest:
        """The run that answers it."""
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
        """Name the task that follows the turn to its end."""
        self.task = task
        task.add_done_callback(lambda _: self._signal())

    def tell_started(self) -> None:
        """Tell all followers that it runs now; once."""
        if not self._events:
            self._tell(ChatStarted(self.session_id, self.run_id, self.message_id))

    def tell_piece(self, text: str) -> None:
        """Pass a piece of the answer to all followers."""
        self.tell_started()
        self._tell(ChatToken(text))

    async def answer(self) -> ChatAnswer:
        """Wait for the answer. A caller that is cancelled does not stop the turn."""
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

    def _tell(self, event: ChatStarted | ChatToken) -> None:
        self._events.append(event)
        self._signal()

    def _signal(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
