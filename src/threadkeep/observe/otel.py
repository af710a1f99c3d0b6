"""OpenTelemetry spans from events: names, times and counts, without text that people wrote.

The names of spans and attributes follow OpenTelemetry's conventions for generative AI, which may still change.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import sha256

from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider, get_tracer

from threadkeep.observe.events import Event, RunFinished, StoreRead, StoreWrite, TurnFinished

type _Attributes = Mapping[str, str | int | float | bool]
type _Timed = RunFinished | TurnFinished | StoreRead | StoreWrite

_FAILED = frozenset({"failed", "error", "conflict"})


class OtelObserver:
    """An observer that makes a span at the end of each run, turn, and read or write of the memory.

    The span gets the start time of the work; its parent is the current span of the task that did the work. Without
    OpenTelemetry's SDK, the observer does nothing.
    """

    def __init__(self, provider: TracerProvider | None = None, *, hashes_sessions: bool = False) -> None:
        """Create an observer.

        Args:
            provider: the tracer provider that receives the spans; by default, the global one.
            hashes_sessions: True to set `gen_ai.conversation.id` to a digest of the session id instead of the id.
        """
        self._tracer = get_tracer("threadkeep", tracer_provider=provider)
        self._hashes_sessions = hashes_sessions

    def notify(self, event: Event) -> None:
        """Make a span for the end of a run, a turn, a read or a write; ignore other events."""
        match event:
            case RunFinished():
                self._span(event, "invoke_workflow", {"threadkeep.run.status": event.status})
            case TurnFinished():
                self._span(event, "invoke_agent", _usage(event))
            case StoreRead():
                self._span(event, "search_memory", {"threadkeep.outcome": event.outcome})
            case StoreWrite():
                self._span(event, "create_memory", {"threadkeep.outcome": event.outcome})
            case _:
                pass

    def _span(self, event: _Timed, operation: str, own: _Attributes) -> None:
        ended = time.time_ns()
        span = self._tracer.start_span(
            f"{operation} {event.workflow}" if isinstance(event, RunFinished) else operation,
            kind=SpanKind.CLIENT if isinstance(event, StoreRead | StoreWrite) else SpanKind.INTERNAL,
            attributes={"gen_ai.operation.name": operation, **self._common(event), **own},
            start_time=ended - round(event.milliseconds * 1_000_000),
        )
        outcome = event.outcome if isinstance(event, StoreRead | StoreWrite) else event.status
        if outcome in _FAILED:
            span.set_status(Status(StatusCode.ERROR))
        if isinstance(event, RunFinished) and event.error is not None:
            span.set_attribute("error.type", event.error)
        span.end(end_time=ended)

    def _common(self, event: _Timed) -> _Attributes:
        found: dict[str, str] = {}
        if event.session_id is not None:
            hashed = sha256(event.session_id.encode("utf-8", "surrogatepass")).hexdigest()
            found["gen_ai.conversation.id"] = hashed if self._hashes_sessions else event.session_id
        if isinstance(event, RunFinished):
            found["gen_ai.workflow.name"] = event.workflow
        if isinstance(event, StoreRead | StoreWrite):
            found["gen_ai.memory.store.id"] = event.backend
        elif event.run_id is not None:
            found["threadkeep.run.id"] = event.run_id
        return found


def _usage(event: TurnFinished) -> _Attributes:
    return {
        "gen_ai.usage.input_tokens": event.input_tokens,
        "gen_ai.usage.output_tokens": event.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": event.cache_read_tokens,
        "threadkeep.usage.estimated": event.estimated,
        "threadkeep.turn.status": event.status,
    }
