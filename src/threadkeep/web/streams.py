"""Turns as server-sent events: `start`, `token` for each piece, then `end` or `error`.

A client cannot tell a broken stream from a finished one, so the last event always names the outcome. While the turn
waits or the model computes, comments keep proxies from closing the connection. A client that disconnects stops
nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing

from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Send

from threadkeep.errors import ThreadkeepError
from threadkeep.records import Json
from threadkeep.runs.chat_turns import ChatAnswer, ChatEvent, ChatStarted, ChatToken, ChatTurn
from threadkeep.store.codec import clean_text
from threadkeep.web.problems import Problem, log_failure, problem_of

EXAMPLE = (
    'event: start\ndata: {"session_id": "session-123", "run_id": "0199…", "message_id": "web-0001"}\n\n'
    'event: token\ndata: {"text": "Our refund policy "}\n\n'
    'event: token\ndata: {"text": "allows returns within 30 days."}\n\n'
    'event: end\ndata: {"session_id": "session-123", "response": "Our refund policy allows returns …"}\n\n'
)

HEARTBEAT = format_sse_event(comment="still here")


_ITEM: dict[str, object] = {
    "type": "object",
    "required": ["data"],
    "properties": {"event": {"type": "string"}, "id": {"type": "string"}, "data": {"type": "string"}},
}


def event_content(example: str) -> dict[str, object]:
    """Return the OpenAPI content of a stream of server-sent events."""
    return {"text/event-stream": {"itemSchema": _ITEM, "example": example}}


class EventStream(StreamingResponse):
    """A response of server-sent events whose source is closed when the client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._events = events

    async def stream_response(self, send: Send) -> None:
        """Send the events."""
        async with aclosing(self._events):
            await super().stream_response(send)


async def open_stream(turn: ChatTurn, *, heartbeat_seconds: float) -> EventStream:
    """Return the stream of a turn after it has started, or after waiting for one heartbeat period.

    Errors before that are raised, so they can become an HTTP status.
    """
    events = with_silences(turn.follow(), heartbeat_seconds)
    first = await anext(events)
    return EventStream(_encoded(turn, first, events))


async def with_silences[T](events: AsyncIterator[T], seconds: float) -> AsyncGenerator[T | None]:
    """Yield the events, and None after each period of `seconds` without an event."""
    upcoming: asyncio.Task[T] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.create_task(_next(events))
            await asyncio.wait([upcoming], timeout=seconds)
            if not upcoming.done():
                yield None
                continue
            arrived, upcoming = upcoming, None
            try:
                event = arrived.result()
            except StopAsyncIteration:
                return
            yield event
    finally:
        if upcoming is not None:
            upcoming.cancel()


def problem_of_turn(turn: ChatTurn, error: Exception) -> Problem:
    """Return the problem of a failed turn, with the ids that are needed to send its message again."""
    names = {"session_id": turn.session_id, "run_id": turn.run_id, "message_id": turn.message_id}
    return problem_of(error).model_copy(update=names)


async def _encoded(
    turn: ChatTurn, first: ChatEvent | None, rest: AsyncGenerator[ChatEvent | None]
) -> AsyncGenerator[bytes]:
    """Yield the events as bytes. For an answer that already existed, create its start and pieces."""
    started = spoken = False
    async with aclosing(rest):
        try:
            async for event in _after(first, rest):
                match event:
                    case None:
                        yield HEARTBEAT
                    case ChatStarted(session_id, run_id, message_id):
                        started = True
                        yield _start(session_id, run_id, message_id)
                    case ChatToken(text):
                        spoken = True
                        yield _event("token", {"text": text})
                    case ChatAnswer():
                        if not started:
                            yield _start(event.session_id, event.run_id, event.message_id)
                        if event.response and not spoken:
                            yield _event("token", {"text": event.response})
                        yield _event("end", event.to_dict())
        except Exception as error:  # noqa: BLE001 - a stream that breaks off looks like one that ended
            if not isinstance(error, ThreadkeepError):
                log_failure("a stream failed", error)
            yield _event("error", problem_of_turn(turn, error).model_dump(exclude_none=True))


async def _after[T](first: T, rest: AsyncIterator[T]) -> AsyncIterator[T]:
    yield first
    async for event in rest:
        yield event


async def _next[T](events: AsyncIterator[T]) -> T:
    return await anext(events)


def _start(session_id: str, run_id: str, message_id: str) -> bytes:
    return _event("start", {"session_id": session_id, "run_id": run_id, "message_id": message_id})


def _event(name: str, data: Mapping[str, Json]) -> bytes:
    return format_sse_event(event=name, data_str=clean_text(json.dumps(data, ensure_ascii=False)))
