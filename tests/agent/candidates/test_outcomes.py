"""Tests of the outcomes of the candidate graph and of the candidates it adds to events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from langchain_core.language_models import FakeListLLM, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt

from tests.recorded_events import RecordedEvents
from threadkeep import InvalidInput, PromptTemplate
from threadkeep.agent import candidate_graph
from threadkeep.observe import MemoryUpdated, ModelFailed, PromptSent
from threadkeep.testing import Gate, ScriptedModel, SettableClock

CANARY = "canary-91be"


def prompt(text: str, id_: str = "", created_at: str | None = None) -> dict[str, Any]:
    """Return a prompt annotation."""
    return {"id": id_, "kind": "prompt", "value": text, "created_at": created_at}


def texts(messages: Sequence[BaseMessage]) -> list[tuple[str, str]]:
    """Return the type and text of each message."""
    return [(message.type, message.text) for message in messages]


async def test_an_answer_becomes_a_candidate(clock: SettableClock) -> None:
    model = ScriptedModel(["Blue, mostly."])
    event: dict[str, Any] = {
        "id": "e1",
        "message": {"id": "m1", "text": "What colour is the sky?"},
        "type": "chat.message",
    }
    state = await candidate_graph(model, clock=clock).ainvoke({"event": event})
    candidate = {
        "id": "m1:candidate",
        "kind": "text",
        "status": "proposed",
        "source": "llm-bot",
        "text": "Blue, mostly.",
        "created_at": "2026-01-01T12:00:00+00:00",
    }
    assert state["outcome"] == "OK"
    assert state["candidate"] == candidate
    assert state["event"] == {**event, "candidates": [candidate]}
    assert state["errors"] == []
    assert (state["combinedPrompt"], state["llmText"]) == ("What colour is the sky?", "Blue, mostly.")
    assert texts(state["messages"]) == [("human", "What colour is the sky?"), ("ai", "Blue, mostly.")]


async def test_the_prompt_is_the_text_then_the_annotations_in_order() -> None:
    """The prompt is the text and the annotations, sorted by time and id, without duplicates."""
    model = ScriptedModel(["ok"])
    event: dict[str, Any] = {
        "text": "Say hello.",
        "annotations": [
            prompt("third", "b", "2026-01-01T10:00:01Z"),
            prompt("second", "a", "2026-01-01T10:00:01Z"),
            prompt("first", "z", "2026-01-01T10:00:00Z"),
            prompt(" Say hello. ", "0", "2026-01-01T09:00:00Z"),
            {"id": "t", "kind": "topic", "value": "greetings"},
        ],
    }
    state = await candidate_graph(model).ainvoke({"event": event})
    assert texts(model.calls[0]) == [("human", "Say hello.\n\nfirst\n\nsecond\n\nthird")]
    assert state["combinedPrompt"] == "Say hello.\n\nfirst\n\nsecond\n\nthird"


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"message": {"text": "  \n"}},
        {"text": None, "annotations": []},
        {"annotations": [{"kind": "topic", "value": "weather"}, prompt("  ")]},
    ],
)
async def test_an_event_without_a_question_is_skipped(event: dict[str, Any]) -> None:
    model = ScriptedModel()
    state = await candidate_graph(model, system_prompt="Be brief.").ainvoke({"event": event})
    assert state["outcome"] == "SKIP"
    assert state["candidate"] is None
    assert state["event"] == event
    assert state["messages"] == []
    assert model.calls == []


@pytest.mark.parametrize("reply", ["", " \n\t "])
async def test_a_blank_reply_is_ok_without_a_candidate(reply: str) -> None:
    state = await candidate_graph(ScriptedModel([reply])).ainvoke({"event": {"text": "Hi"}})
    assert state["outcome"] == "OK"
    assert state["candidate"] is None
    assert state["event"] == {"text": "Hi"}
    assert texts(state["messages"]) == [("human", "Hi")]


async def test_a_models_error_is_the_outcome_error(
    events: RecordedEvents, clock: SettableClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names its class and the cure; state, events and log contain no text of the exception."""
    model = ScriptedModel([ValueError(f"bad request: {CANARY}")])
    graph = candidate_graph(model, clock=clock, observers=[events])
    with caplog.at_level("DEBUG"):
        state = await graph.ainvoke({"event": {"id": "e1", "text": "Hi"}})
    error = {
        "source": "llm-bot",
        "error": "ValueError",
        "message": "The model did not answer (ValueError). Send the event again, or check the model.",
        "created_at": "2026-01-01T12:00:00+00:00",
    }
    assert state["outcome"] == "ERROR"
    assert state["errors"] == [error]
    assert state["event"] == {"id": "e1", "text": "Hi", "errors": [error]}
    assert state["candidate"] is None
    assert state["llmText"] is None
    assert texts(state["messages"]) == [("human", "Hi")]
    assert [event.error for event in events.of(ModelFailed)] == ["ValueError"]
    assert CANARY not in repr(state) + repr(events.all) + caplog.text


async def test_a_model_that_takes_too_long_is_an_error() -> None:
    model = ScriptedModel([["never", Gate()]])
    state = await candidate_graph(model, timeout_seconds=0.01).ainvoke({"event": {"text": "Hi"}})
    assert state["outcome"] == "ERROR"
    assert state["errors"][0]["error"] == "TimeoutError"


async def test_a_cancelled_run_has_no_outcome() -> None:
    gate = Gate()
    run = asyncio.create_task(candidate_graph(ScriptedModel([["never", gate]])).ainvoke({"event": {"text": "Hi"}}))
    await gate.reached()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_an_interrupt_is_no_error_of_the_model() -> None:
    model = ScriptedModel([GraphInterrupt([Interrupt("may I?")])])
    state = await candidate_graph(model).ainvoke({"event": {"text": "Hi"}})
    assert [one.value for one in state["__interrupt__"]] == ["may I?"]
    assert state.get("outcome") is None


async def test_candidates_and_errors_of_other_sources_stay_in_the_event() -> None:
    given: dict[str, Any] = {"text": "Hi", "candidates": [{"id": "other"}], "errors": [{"source": "router"}]}
    state = await candidate_graph(ScriptedModel(["Hello"])).ainvoke({"event": given})
    assert [one["id"] for one in state["event"]["candidates"]][:1] == ["other"]
    assert len(state["event"]["candidates"]) == 2
    assert state["event"]["errors"] == [{"source": "router"}]
    assert len(given["candidates"]) == 1


async def test_a_wrong_event_is_refused_without_quoting_it() -> None:
    event: dict[str, Any] = {"annotations": [prompt("first"), prompt("second", created_at=CANARY)]}
    with pytest.raises(InvalidInput, match=r"event\.annotations\.1\.created_at cannot be used") as caught:
        await candidate_graph(ScriptedModel()).ainvoke({"event": event})
    assert CANARY not in str(caught.value)


async def test_a_flat_prompt_is_one_text() -> None:
    """A flat prompt is one text of `(role) content` parts, with the system prompt first."""
    model = ScriptedModel(["Hello."])
    state = await candidate_graph(model, system_prompt="Be brief.", flat=True).ainvoke({"event": {"text": "Hi"}})
    assert texts(model.calls[0]) == [("human", "(system) Be brief.\n\n(user) Hi")]
    assert state["candidate"]["text"] == "Hello."


async def test_a_template_determines_the_flat_prompt() -> None:
    """A template determines the positions of system prompt, history and input in the flat prompt."""
    model = ScriptedModel(["Hello."])
    template = PromptTemplate("{{system}}\nSo far: {{history}}\nNow: {{input}}")
    graph = candidate_graph(model, system_prompt="Be brief.", flat=template)
    await graph.ainvoke({"event": {"text": "{{system}}?"}, "messages": [HumanMessage("Hi"), AIMessage("Hello")]})
    assert texts(model.calls[0]) == [
        ("human", "Be brief.\nSo far: (user) Hi\n\n(assistant) Hello\nNow: {{system}}?"),
    ]


async def test_a_model_that_returns_text_works() -> None:
    state = await candidate_graph(FakeListLLM(responses=["Hello."]), flat=True).ainvoke({"event": {"text": "Hi"}})
    assert texts(state["messages"]) == [("human", "Hi"), ("ai", "Hello.")]
    assert state["candidate"]["text"] == "Hello."


async def test_any_runnable_works() -> None:
    def count(messages: LanguageModelInput) -> AIMessage:
        return AIMessage(f"{len(cast('list[BaseMessage]', messages))} messages")

    model = RunnableLambda(count)
    state = await candidate_graph(model, system_prompt="S").ainvoke({"event": {"text": "Hi"}})
    assert state["candidate"]["text"] == "2 messages"


async def test_changes_and_prompts_are_events_without_text(events: RecordedEvents) -> None:
    graph = candidate_graph(ScriptedModel(["No."]), max_messages=3, max_chars=20, observers=[events])
    history: list[BaseMessage] = [HumanMessage("x" * 8), AIMessage("y" * 6), HumanMessage("z" * 2)]
    await graph.ainvoke({"event": {"text": CANARY}, "messages": history})
    first, second = events.of(MemoryUpdated)
    assert (first.before_count, first.after_count) == (4, 3)
    assert (first.trimmed_by_chars, first.trimmed_by_count) == (8, 0)
    assert (second.before_count, second.after_count) == (4, 3)
    assert (second.trimmed_by_chars, second.trimmed_by_count) == (6, 0)
    (sent,) = events.of(PromptSent)
    assert (sent.messages, sent.characters, sent.flat) == (3, 6 + 2 + len(CANARY), False)
    assert sent.tokens > 0
    assert {event.run_id for event in (first, second, sent)} == {first.run_id}
    assert CANARY not in repr(events.all)


async def test_the_answer_is_streamed_once() -> None:
    graph = candidate_graph(ScriptedModel(["one two three"]))
    stream = cast(
        "AsyncIterator[tuple[BaseMessage, dict[str, Any]]]",
        graph.astream({"event": {"text": "Hi"}}, stream_mode="messages"),
    )
    pieces = [message.text async for message, about in stream if about["langgraph_node"] == "call_model"]
    assert "".join(pieces) == "one two three"


async def test_characters_that_no_database_stores_are_replaced() -> None:
    model = ScriptedModel(["no\x00pe \ud800"])
    state = await candidate_graph(model).ainvoke({"event": {"text": "a\x00b"}})
    assert state["combinedPrompt"] == "a\ufffdb"
    assert state["candidate"]["text"] == "no\ufffdpe \ufffd"
    assert texts(state["messages"])[1] == ("ai", "no\ufffdpe \ufffd")


async def test_tool_calls_without_results_get_placeholders_before_the_next_call() -> None:
    calling = AIMessage("Let me look.", tool_calls=[{"name": "look_up", "args": {}, "id": "c1"}])
    model = ScriptedModel([calling, "Done."])
    graph = candidate_graph(model)
    first = await graph.ainvoke({"event": {"id": "1", "text": "Hi"}})
    second = await graph.ainvoke({"messages": first["messages"], "event": {"id": "2", "text": "And?"}})
    assert [message.type for message in model.calls[1]] == ["human", "ai", "tool", "human"]
    assert second["candidate"]["text"] == "Done."
