"""Messages that a chat front end sends, and the turn that answers them.

These front ends send the whole conversation with each request. The transcript is the history here: only the messages of
the user at the end are new. A session without messages begins with the earlier ones.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from fastapi.sse import format_sse_event
from langchain_core.messages import BaseMessage

from threadkeep.agent.conversion import from_langchain, transcript_text
from threadkeep.app import App
from threadkeep.errors import InvalidInput, ThreadkeepError
from threadkeep.records import Json, Message
from threadkeep.runs.chat_turns import ChatAnswer, ChatEvent, ChatRequest, ChatStarted, ChatToken, ChatTurn
from threadkeep.store.codec import clean_text
from threadkeep.web.langgraph.messages import new_messages
from threadkeep.web.problems import Problem, log_failure
from threadkeep.web.streams import HEARTBEAT, EventStream, problem_of_turn, with_silences


@dataclass(frozen=True)
class Sent:
    """A request of a front end: its messages in LangChain's form, its session and its user.

    Without a `session_id` the user's last session continues, or a new one starts.
    """

    messages: Sequence[BaseMessage]
    session_id: str | None
    user_id: str | None
    workflow: str
    metadata: Mapping[str, Json] = field(default_factory=dict)

    async def begin(self, app: App, *, stream: bool) -> ChatTurn:
        """Start the turn that answers the new messages, or join the turn that already does.

        Raises:
            InvalidInput: the last message is not the user's, or it has no text.
            InvalidKey, WorkflowNotFound, WrongUser, StoreUnavailable: as for any turn.
        """
        asked = new_messages(self.messages)
        text = clean_text("\n".join(transcript_text(one) for one in asked))
        if not text.strip():
            raise InvalidInput("The last message is the user's, and has text.")
        app.workflows.get(self.workflow)
        if self.session_id is not None:
            await self._bring_earlier(app, self.session_id, len(self.messages) - len(asked))
        request = ChatRequest(
            text,
            session_id=self.session_id,
            user_id=self.user_id,
            message_id=asked[-1].id or None,
            metadata=self.metadata,
            workflow=self.workflow,
        )
        return app.chat.begin(request, stream=stream)

    async def _bring_earlier(self, app: App, session_id: str, count: int) -> None:
        """Store earlier messages in a session that has none. System messages stay out: the workflow has its own."""
        session = app.memory.session(session_id, user_id=self.user_id)
        said = [from_langchain(one) for one in self.messages[:count] if one.type in ("human", "ai")]
        earlier: list[Message] = [one for one in said if one is not None and one.content.strip()]
        if earlier and not await session.count(view="history"):
            await session.append(earlier)


class Parts(ABC):
    """The parts of a protocol's stream, made of the events of a turn.

    A message of the stream has the id of the stored answer.
    """

    def __init__(self) -> None:
        self._begun: ChatStarted | None = None
        self._message_id: str | None = None

    def begin(self, event: ChatStarted) -> Iterator[bytes]:
        """Yield the parts that begin the stream, once."""
        if self._begun is None:
            self._begun = event
            yield from self.started(event)

    async def of(self, event: ChatEvent) -> AsyncIterator[bytes]:
        """Yield the parts for an event. An answer that existed before comes as one piece."""
        match event:
            case ChatToken(text, message_id):
                for part in self._spoken(text, message_id):
                    yield part
            case ChatAnswer():
                if event.response and self._message_id is None:
                    for part in self._spoken(event.response, event.answer_id):
                        yield part
                for part in self.closed():
                    yield part
                async for part in self.ended(event):
                    yield part

    def _spoken(self, text: str, message_id: str | None) -> Iterator[bytes]:
        named = message_id or (self._begun.run_id if self._begun else "")
        if named != self._message_id:
            yield from self.closed()
            self._message_id = named
            yield from self.opened(named)
        yield self.piece(text, named)

    def closed(self) -> Iterator[bytes]:
        """Yield the parts that end the open message, if there is one."""
        if open_id := self._message_id:
            self._message_id = ""
            yield from self.ended_message(open_id)

    @abstractmethod
    def started(self, event: ChatStarted) -> Iterator[bytes]:
        """Yield the parts that begin the stream."""

    def opened(self, message_id: str) -> Iterator[bytes]:
        """Yield the parts that begin a message."""
        yield from ()

    @abstractmethod
    def piece(self, text: str, message_id: str) -> bytes:
        """Return the part for a piece of a message."""

    def ended_message(self, message_id: str) -> Iterator[bytes]:
        """Yield the parts that end a message."""
        yield from ()

    @abstractmethod
    def ended(self, answer: ChatAnswer) -> AsyncIterator[bytes]:
        """Yield the parts that end the stream."""

    @abstractmethod
    def failed(self, problem: Problem) -> Iterator[bytes]:
        """Yield the parts that end the stream of a turn without an answer, after its open message."""


async def open_parts(turn: ChatTurn, parts: Parts, heartbeat_seconds: float) -> EventStream:
    """Return a turn as a stream in a protocol. Errors before its first event are raised, for an HTTP status."""
    events = with_silences(turn.follow(), heartbeat_seconds)
    first = await anext(events)
    return EventStream(_encoded(turn, parts, first, events))


async def _encoded(
    turn: ChatTurn, parts: Parts, first: ChatEvent | None, rest: AsyncGenerator[ChatEvent | None]
) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        try:
            async for event in _after(first, rest):
                if event is None:
                    yield HEARTBEAT
                    continue
                for part in parts.begin(ChatStarted(turn.session_id, turn.run_id, turn.message_id)):
                    yield part
                async for part in parts.of(event):
                    yield part
        except Exception as error:  # noqa: BLE001 - a stream that breaks off looks like one that ended
            if not isinstance(error, ThreadkeepError):
                log_failure("a stream failed", error)
            for part in (*parts.closed(), *parts.failed(problem_of_turn(turn, error))):
                yield part


async def _after[T](first: T, rest: AsyncIterator[T]) -> AsyncIterator[T]:
    yield first
    async for event in rest:
        yield event


def data_event(data: Mapping[str, object]) -> bytes:
    """Return an unnamed server-sent event with JSON data."""
    return format_sse_event(data_str=clean_text(json.dumps(data, ensure_ascii=False)))
