"""Turns as server-sent events: `start`, `token` for each piece, then `end` or `error`.

A client cannot distinguish a broken stream from a finished one, so the last event names the outcome. During a wait,
comments keep proxies from closing the connection. The turn continues if the client disconnects.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Send

from threadkeep.boundary import ErrorBoundary, retrieve_exception
from threadkeep.errors import ThreadkeepError
from threadkeep.records.runs import Run
from threadkeep.runs.chat_turns import ChatAnswer, ChatEvent, ChatStarted, ChatToken, ChatTurn
from threadkeep.store.codec import clean_text
from threadkeep.web.problems import Problem, ProblemRaised, log_failure, problem_of

EXAMPLE = (
    'event: start\ndata: {"session_id": "session-123", "run_id": "0199…", "message_id": "web-0001"}\n\n'
    'event: token\ndata: {"text": "Our refund policy "}\n\n'
    'event: token\ndata: {"text": "allows returns within 30 days."}\n\n'
    'event: end\ndata: {"session_id": "session-123", "response": "Our refund policy allows returns …"}\n\n'
)

_READ_AHEAD = 8

HEARTBEAT = format_sse_event(comment="still here")
DONE = format_sse_event(data_str="[DONE]")
"""The last event of the streams of OpenAI and of the AI SDK."""


_ITEM: dict[str, object] = {
    "type": "object",
    "required": ["data"],
    "properties": {"event": {"type": "string"}, "id": {"type": "string"}, "data": {"type": "string"}},
}


def streamed(example: str, description: str) -> dict[str, Any]:
    """Return the OpenAPI response of a stream of server-sent events."""
    return {"description": description, "content": {"text/event-stream": {"itemSchema": _ITEM, "example": example}}}


class EventStream(StreamingResponse):
    """A response of server-sent events. It closes the generator of the events, even if the client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._events = events

    async def stream_response(self, send: Send) -> None:
        """Send the events, then close their generator."""
        async with aclosing(self._events):
            await super().stream_response(send)


class StreamParts(ABC):
    """An encoder that converts the events of a turn to server-sent events of one protocol.

    Each message has the id under which its text is stored. Several messages can be unfinished at once.
    """

    def __init__(self) -> None:
        self._begun: ChatStarted | None = None
        self._open: dict[str, None] = {}
        self._has_spoken = False

    def events(self, turn: ChatTurn) -> AsyncGenerator[ChatEvent | Run]:
        """Return the events of the turn. If there is no answer, an encoder may yield the run as the last event."""
        return turn.follow()

    async def of(self, event: ChatEvent | Run | None, turn: ChatTurn) -> AsyncIterator[bytes]:
        """Yield the server-sent events for an event of the turn. For None (no event for a while), yield a comment."""
        if event is None:
            yield HEARTBEAT
            return
        for part in self._begin(event if isinstance(event, ChatAnswer) else turn):
            yield part
        match event:
            case ChatToken():
                for part in self._spoken(event):
                    yield part
            case ChatAnswer():
                if event.response and not self._has_spoken:
                    for part in self._spoken(ChatToken(event.response, event.answer_id)):
                        yield part
                for part in self._closed(*self._open):
                    yield part
                async for part in self.ended(event):
                    yield part

    def _begin(self, ids: ChatAnswer | ChatTurn) -> Iterator[bytes]:
        if self._begun is None:
            self._begun = ChatStarted(ids.session_id, ids.run_id, ids.message_id)
            yield from self.started(self._begun)

    def _spoken(self, token: ChatToken) -> Iterator[bytes]:
        named = token.message_id or (self._begun.run_id if self._begun else "")
        if token.text:
            self._has_spoken = True
            if named not in self._open:
                self._open[named] = None
                yield from self.opened(named)
            yield self.piece(token.text, named)
        if token.last and named in self._open:
            yield from self._closed(named)

    def broken(self, problem: Problem) -> Iterator[bytes]:
        """Yield the server-sent events that end the unfinished messages, report the problem and end the stream."""
        yield from self._closed(*self._open)
        yield from self.failed(problem)

    def _closed(self, *message_ids: str) -> Iterator[bytes]:
        for message_id in message_ids:
            del self._open[message_id]
            yield from self.ended_message(message_id)

    @abstractmethod
    def started(self, event: ChatStarted) -> Iterator[bytes]:
        """Yield the server-sent events that begin the stream."""

    def opened(self, message_id: str) -> Iterator[bytes]:
        """Yield the server-sent events that begin a message."""
        yield from ()

    @abstractmethod
    def piece(self, text: str, message_id: str) -> bytes:
        """Return the server-sent event for a piece of a message."""

    def ended_message(self, message_id: str) -> Iterator[bytes]:
        """Yield the server-sent events that end a message."""
        yield from ()

    @abstractmethod
    def ended(self, answer: ChatAnswer) -> AsyncIterator[bytes]:
        """Yield the server-sent events that end the stream."""

    @abstractmethod
    def failed(self, problem: Problem) -> Iterator[bytes]:
        """Yield the server-sent events that report a failed turn and end the stream, after all messages have ended."""


class TurnParts(StreamParts):
    """An encoder of the events of a turn for Threadkeep's own API."""

    def started(self, event: ChatStarted) -> Iterator[bytes]:
        """Yield a `start` event with the ids of the turn."""
        yield json_event(asdict(event), "start")

    def piece(self, text: str, message_id: str) -> bytes:
        """Return a `token` event with a piece of the answer."""
        return json_event({"text": text}, "token")

    async def ended(self, answer: ChatAnswer) -> AsyncIterator[bytes]:
        """Yield an `end` event with the answer."""
        yield json_event(answer.to_dict(), "end")

    def failed(self, problem: Problem) -> Iterator[bytes]:
        """Yield an `error` event with the problem."""
        yield json_event(problem.model_dump(exclude_none=True), "error")


async def open_stream(turn: ChatTurn, parts: StreamParts, request: Request) -> EventStream:
    """Return the stream of a turn when the turn has started, or after one heartbeat period.

    Errors before that are raised, so that the response has an HTTP error status.
    """
    events = with_keepalives(parts.events(turn), request)
    first = await anext(events)

    def encode(event: ChatEvent | Run | None) -> AsyncIterator[bytes]:
        return parts.of(event, turn)

    def failed(error: Exception) -> Iterator[bytes]:
        return parts.broken(problem_of_turn(turn, error))

    return EventStream(encoded(begin_with(first, events), encode, failed))


async def encoded[T](
    events: AsyncGenerator[T],
    encode: Callable[[T], AsyncIterator[bytes]],
    failed: Callable[[Exception], Iterable[bytes]],
) -> AsyncGenerator[bytes]:
    """Yield the bytes that `encode` returns for each event. After an error, yield the bytes of `failed` and end."""
    async with aclosing(events):
        with ErrorBoundary() as attempt:
            async for event in events:
                async for part in encode(event):
                    yield part
        if attempt.error is not None:
            if not isinstance(attempt.error, ThreadkeepError | ProblemRaised):
                log_failure("a stream failed", attempt.error)
            for part in failed(attempt.error):
                yield part


async def with_keepalives[T](events: AsyncGenerator[T], request: Request) -> AsyncGenerator[T | None]:
    """Yield the events, and None when a heartbeat period has passed; then check the key. At the end, close `events`.

    One task reads the events, and waits while `_READ_AHEAD` of them have not been yielded.

    Raises:
        ProblemRaised: the key or token of the request is no longer valid.
    """
    state, seconds, now = request.app.state, request.app.state.heartbeat_seconds, asyncio.get_running_loop().time
    arrived: asyncio.Queue[T | None] = asyncio.Queue(_READ_AHEAD)
    reader = asyncio.create_task(_read(events, arrived), name="stream")
    # If this function waits for an event, the queue is empty; None then ends the wait.
    reader.add_done_callback(lambda _: arrived.put_nowait(None) if arrived.empty() else None)
    next_check = now() + seconds
    try:
        while not (reader.done() and arrived.empty()):
            if now() >= next_check:
                await state.keys.check(request.state.caller)
                next_check = now() + seconds
            try:
                async with asyncio.timeout_at(next_check):
                    event = await arrived.get()
            except TimeoutError:
                yield None
                continue
            if event is not None:
                yield event
        await reader
    finally:
        reader.cancel()
        await asyncio.wait([reader])
        retrieve_exception(reader)


async def _read[T](events: AsyncGenerator[T], arrived: asyncio.Queue[T | None]) -> None:
    async with aclosing(events):
        async for event in events:
            await arrived.put(event)


def problem_of_turn(turn: ChatTurn, error: Exception) -> Problem:
    """Return the problem document for a failed turn, with the ids for sending its message again."""
    names = {"session_id": turn.session_id, "run_id": turn.run_id, "message_id": turn.message_id}
    return problem_of(error).model_copy(update=names)


async def begin_with[T](first: T, rest: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Yield `first`, then the items of `rest`. Closing this generator also closes `rest`."""
    async with aclosing(rest):
        yield first
        async for item in rest:
            yield item


def json_event(data: Mapping[str, object], name: str | None = None, *, number: str | None = None) -> bytes:
    """Return a server-sent event with JSON data. `number` is the id of the event."""
    return format_sse_event(event=name, id=number, data_str=clean_text(json.dumps(data, ensure_ascii=False)))
