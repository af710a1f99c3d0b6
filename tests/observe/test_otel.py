"""Tests of OpenTelemetry spans of runs, turns and the memory, with the real SDK."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from threadkeep import Message, open_memory
from threadkeep.app import open_app
from threadkeep.observe import RunFinished
from threadkeep.observe.otel import OtelObserver
from threadkeep.runs.requests import RunRequest
from threadkeep.settings import load_settings

SECRET = "my CANARY card"


def recording() -> tuple[TracerProvider, InMemorySpanExporter]:
    """Return a provider and the exporter that has its spans."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})


async def test_a_turn_has_spans_without_text(tmp_path: Path) -> None:
    provider, exporter = recording()
    settings = load_settings(database_url="sqlite://", pending_dir=tmp_path / "pending")
    async with open_app(settings, observers=[OtelObserver(provider)]) as app:
        await app.chat.ask(RunRequest(workflow="chat", text=SECRET, session_id="room:1"))
        await app.memory.session("room:1").tail(5)
        await app.memory.session("room:1").append([Message("user", SECRET)])
    spans = exporter.get_finished_spans()
    assert {"invoke_workflow chat", "invoke_agent", "search_memory", "create_memory"} <= {span.name for span in spans}
    for span in spans:
        attributes = attributes_of(span)
        assert attributes["gen_ai.conversation.id"] == "room:1"
        assert attributes["gen_ai.operation.name"] == span.name.split()[0]
        assert (span.end_time or 0) >= (span.start_time or 0) > 0
        assert "CANARY" not in span.to_json()  # digits might be in a random id
    [agent] = [attributes_of(span) for span in spans if span.name == "invoke_agent"]
    assert agent["gen_ai.usage.input_tokens"]
    assert agent["gen_ai.usage.cache_read.input_tokens"] == 0


async def test_spans_have_a_parent_and_may_hash_session_ids() -> None:
    provider, exporter = recording()
    observer = OtelObserver(provider, hashes_sessions=True)
    async with open_memory("sqlite://", observers=[observer]) as memory:
        with provider.get_tracer("caller").start_as_current_span("request") as request:
            await memory.session("room:1").tail(5)
    [read, parent] = exporter.get_finished_spans()
    assert parent.name == "request"
    assert read.parent is not None
    assert read.parent.span_id == request.get_span_context().span_id
    assert "room:1" not in read.to_json()


def test_the_span_of_a_failed_run_has_an_error() -> None:
    provider, exporter = recording()
    OtelObserver(provider).notify(
        RunFinished(workflow="chat", status="failed", error="ModelCallFailed", milliseconds=250)
    )
    [span] = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert attributes_of(span)["error.type"] == "ModelCallFailed"
    assert (span.end_time or 0) - (span.start_time or 0) == 250_000_000
