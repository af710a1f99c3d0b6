"""Tests of repeated events in the candidate graph: one question and one answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from tests.agent.candidates.asking import CONFIG, ask_all, asking, texts
from threadkeep.agent import candidate_graph
from threadkeep.testing import Gate, ScriptedModel, SettableClock


async def test_the_same_event_again_gets_the_same_answer(clock: SettableClock) -> None:
    model = ScriptedModel(["answer"])
    graph = candidate_graph(model, checkpointer=InMemorySaver(), clock=clock)
    first = await graph.ainvoke(asking(1), CONFIG)
    clock.advance(60)
    second = await graph.ainvoke(asking(1), CONFIG)
    assert second == first
    assert len(model.calls) == 1


async def test_a_repeated_event_gets_its_answer_after_its_messages_were_removed() -> None:
    graph = candidate_graph(ScriptedModel(["answer"]), checkpointer=InMemorySaver())
    first = await graph.ainvoke(asking(1), CONFIG)
    await graph.aupdate_state(CONFIG, {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES)]}, as_node="build_candidate")
    second = await graph.ainvoke(asking(1), CONFIG)
    assert second["candidate"] == first["candidate"]


async def test_an_event_is_retried_after_an_error() -> None:
    model = ScriptedModel([ConnectionError("down"), "answer"])
    graph = candidate_graph(model, system_prompt="Be brief.", checkpointer=InMemorySaver())
    failed = await graph.ainvoke(asking(1), CONFIG)
    assert failed["errors"][0]["source"] == "llm-bot"
    state = await graph.ainvoke(asking(1), CONFIG)
    assert model.calls[0] == model.calls[1]
    assert (state["outcome"], state["errors"], "errors" in state["event"]) == ("OK", [], False)
    assert texts(state["messages"]) == ["Be brief.", "question 1", "answer"]


async def test_a_repeated_older_event_is_asked_last() -> None:
    model = ScriptedModel(["answer 1", "answer 2", "answer 1 again"])
    graph = candidate_graph(model, checkpointer=InMemorySaver())
    state = await ask_all(graph, asking(1), asking(2), asking(1))
    assert texts(model.calls[2]) == ["question 2", "answer 2", "question 1"]
    assert texts(state["messages"]) == ["question 2", "answer 2", "question 1", "answer 1 again"]


async def test_a_known_event_with_another_text_replaces_its_message() -> None:
    model = ScriptedModel(["answer", "better answer"])
    graph = candidate_graph(model, checkpointer=InMemorySaver())
    await graph.ainvoke(asking(1), CONFIG)
    state = await graph.ainvoke({"event": {"id": "e1", "text": "question 1, corrected"}}, CONFIG)
    assert texts(model.calls[1]) == ["question 1, corrected"]
    assert [message.id for message in state["messages"] if isinstance(message, HumanMessage)] == ["e1"]
    assert state["candidate"]["text"] == "better answer"


async def test_equal_texts_without_an_id_are_two_messages() -> None:
    model = ScriptedModel(["one", "two"])
    graph = candidate_graph(model, checkpointer=InMemorySaver())
    state = await ask_all(graph, {"event": {"text": "ok"}}, {"event": {"text": "ok"}})
    assert texts(state["messages"]) == ["ok", "one", "ok", "two"]


async def test_an_event_without_an_id_is_recognized_by_its_annotations() -> None:
    model = ScriptedModel(["one", "two"])
    graph = candidate_graph(model, checkpointer=InMemorySaver())
    event: dict[str, Any] = {
        "annotations": [{"id": "a1", "kind": "prompt", "value": "Hi", "createdAt": "2026-01-01T10:00:00Z"}]
    }
    first = await graph.ainvoke({"event": event}, CONFIG)
    second = await graph.ainvoke({"event": event}, CONFIG)
    assert len(model.calls) == 1
    assert second["candidate"] == first["candidate"]


async def test_a_stopped_run_continues_from_its_checkpoint() -> None:
    gate = Gate()
    saver = InMemorySaver()
    model = ScriptedModel([["never", gate], "answer"])
    graph = candidate_graph(model, checkpointer=saver)
    async with aclosing(cast("AsyncGenerator[Any]", graph.astream(asking(1), CONFIG, stream_mode="updates"))) as steps:
        await anext(steps)
    state = await candidate_graph(ScriptedModel(["answer"]), checkpointer=saver).ainvoke(None, CONFIG)
    assert texts(state["messages"]) == ["question 1", "answer"]
    assert state["outcome"] == "OK"
