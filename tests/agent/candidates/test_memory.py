"""Tests of the candidate graph's memory: messages of a thread, within limits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, TypedDict, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from tests.agent.candidates.asking import CONFIG, ask_all, asking, texts
from threadkeep import create_checkpointer, load_settings
from threadkeep.agent import candidate_graph
from threadkeep.agent.candidates import CandidateState
from threadkeep.context.cut import CUT_MARK
from threadkeep.testing import Gate, ScriptedModel, SettableClock


@pytest.fixture
async def checkpointer(database_url: str) -> AsyncIterator[BaseCheckpointSaver[str]]:
    """Open a checkpointer over an empty database of each engine."""
    async with create_checkpointer(load_settings(database_url=database_url)) as opened:
        yield opened


async def test_turns_are_remembered_from_run_to_run(checkpointer: BaseCheckpointSaver[str]) -> None:
    model = ScriptedModel(["answer 1", "answer 2", "answer 3"])
    graph = candidate_graph(model, system_prompt="Be brief.", checkpointer=checkpointer)
    for number in (1, 2, 3):
        state = await graph.ainvoke(asking(number), CONFIG)
        assert state["candidate"]["text"] == f"answer {number}"
    assert texts(model.calls[1]) == ["Be brief.", "question 1", "answer 1", "question 2"]
    assert texts(model.calls[2]) == ["Be brief.", "question 1", "answer 1", "question 2", "answer 2", "question 3"]
    assert [type(call[0]) for call in model.calls] == [SystemMessage] * 3


async def test_parallel_events_of_a_thread_are_answered_in_order(checkpointer: BaseCheckpointSaver[str]) -> None:
    model = ScriptedModel([lambda messages: f"answer to {messages[-1].text}"] * 11)
    graph = candidate_graph(model, max_messages=40, checkpointer=checkpointer)
    other = graph.with_config({"configurable": {"thread_id": "room:2"}})
    states = await asyncio.gather(
        *(graph.ainvoke(asking(n), CONFIG) for n in range(10)), other.ainvoke(asking(99)), return_exceptions=False
    )
    assert [state["candidate"]["text"] for state in states[:10]] == [f"answer to question {n}" for n in range(10)]
    kept = (await graph.aget_state(CONFIG)).values["messages"]
    assert texts(kept) == [text for n in range(10) for text in (f"question {n}", f"answer to question {n}")]
    assert len((await other.aget_state({"configurable": {"thread_id": "room:2"}})).values["messages"]) == 2


async def test_a_run_that_is_cancelled_lets_the_next_one_begin() -> None:
    gate = Gate()
    model = ScriptedModel([[gate, "slow"], "two", "three"])
    graph = candidate_graph(model, checkpointer=InMemorySaver())
    tasks = [asyncio.create_task(graph.ainvoke(asking(n), CONFIG)) for n in range(2)]
    await gate.reached()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with contextlib.aclosing(cast("AsyncGenerator[Any]", graph.astream(asking(2), CONFIG))) as stream:
        await anext(stream)
    assert (await graph.ainvoke(asking(3), CONFIG))["outcome"] == "OK"


async def test_messages_have_their_creation_times() -> None:
    clock = SettableClock()
    graph = candidate_graph(
        ScriptedModel([ConnectionError("down"), "yes"]),
        system_prompt="Be brief.",
        checkpointer=InMemorySaver(),
        clock=clock,
    )
    first = clock().isoformat()
    await graph.ainvoke(asking(1), CONFIG)
    clock.advance(60)
    state = await graph.ainvoke(asking(1), CONFIG)
    times = [message.additional_kwargs["createdAt"] for message in state["messages"]]
    assert times == [first, first, clock().isoformat()]


async def test_a_flat_prompt_contains_earlier_turns() -> None:
    model = ScriptedModel(f"answer {number}" for number in itertools.count(1))
    graph = candidate_graph(model, system_prompt="Be brief.", flat=True, max_messages=4, checkpointer=InMemorySaver())
    prompts: list[Any] = [{"kind": "prompt", "id": part, "value": f"part {part}"} for part in "ab"]
    events: list[CandidateState] = [{"event": {**asking(n)["event"], "annotations": prompts}} for n in (1, 2, 3)]
    state = await ask_all(graph, *events)
    first = "(system) Be brief.\n\n(user) question 1\n\npart a\n\npart b\n\n(assistant) answer 1"
    assert texts(model.calls[1]) == [f"{first}\n\n(user) question 2\n\npart a\n\npart b"]
    assert texts(model.calls[2])[0].startswith("(system) Be brief.\n\n(user) question 2\n\npart a")
    assert state["candidate"]["text"] == state["messages"][-1].text == "answer 3"


async def test_a_nul_character_does_not_fail_a_turn(checkpointer: BaseCheckpointSaver[str]) -> None:
    graph = candidate_graph(ScriptedModel(["yes\x00"]), checkpointer=checkpointer)
    state = await graph.ainvoke({"event": {"text": "well\x00?"}}, CONFIG)
    assert (state["combinedPrompt"], state["llmText"]) == ("well\ufffd?", "yes\ufffd")


async def test_without_a_checkpointer_runs_share_no_messages() -> None:
    model = ScriptedModel(["answer 1", "answer 2"])
    graph = candidate_graph(model)
    await graph.ainvoke(asking(1))
    await graph.ainvoke(asking(2))
    assert texts(model.calls[1]) == ["question 2"]


async def test_the_state_of_one_run_may_be_passed_to_the_next() -> None:
    model = ScriptedModel(["answer 1", "answer 2"])
    graph = candidate_graph(model, system_prompt="Be brief.")
    first = await graph.ainvoke(asking(1))
    second = await graph.ainvoke(cast("CandidateState", {**first, **asking(2)}))
    assert texts(model.calls[1]) == ["Be brief.", "question 1", "answer 1", "question 2"]
    assert second["candidate"]["id"] == "e2:candidate"


async def test_the_system_prompt_is_first_and_replaces_the_old_one() -> None:
    model = ScriptedModel(["one", "two", "three"])
    saver = InMemorySaver()
    earlier = [HumanMessage("earlier"), SystemMessage("The user is called Mia.")]
    await candidate_graph(model, system_prompt="Be brief.", checkpointer=saver).ainvoke(
        {**asking(1), "messages": earlier}, CONFIG
    )
    assert texts(model.calls[0]) == ["Be brief.", "The user is called Mia.", "earlier", "question 1"]
    await candidate_graph(model, system_prompt="Be kind.", checkpointer=saver).ainvoke(asking(2), CONFIG)
    assert texts(model.calls[1])[:3] == ["Be kind.", "The user is called Mia.", "earlier"]
    await candidate_graph(model, checkpointer=saver).ainvoke(asking(3), CONFIG)
    assert texts(model.calls[2])[:2] == ["The user is called Mia.", "earlier"]


async def test_the_memory_is_bounded_by_messages() -> None:
    model = ScriptedModel(f"answer {number}" for number in itertools.count())
    graph = candidate_graph(model, system_prompt="Be brief.", checkpointer=InMemorySaver())
    for number in range(20):
        state = await graph.ainvoke(asking(number), CONFIG)
        assert len(state["messages"]) <= 8
    assert max(map(len, model.calls)) == 8
    assert texts(model.calls[-1])[:2] == ["Be brief.", "question 16"]
    assert texts(model.calls[-1])[-3:] == ["question 18", "answer 18", "question 19"]


async def test_the_memory_is_bounded_by_characters() -> None:
    model = ScriptedModel(["a" * 60])
    graph = candidate_graph(model, system_prompt="S" * 20, max_chars=50)
    state = await graph.ainvoke({"event": {"text": "q" * 100}})
    assert texts(model.calls[0]) == ["S" * 20, "q" * (30 - len(CUT_MARK)) + CUT_MARK]
    assert sum(map(len, texts(state["messages"]))) <= 50
    assert state["candidate"]["text"] == state["llmText"] == "a" * 60


@pytest.mark.parametrize("max_messages", [1, 0])
async def test_a_memory_of_one_message_still_proposes_the_answer(max_messages: int) -> None:
    state = await candidate_graph(ScriptedModel(["answer"]), max_messages=max_messages).ainvoke(asking(1))
    assert texts(state["messages"]) == ["question 1"]
    assert state["candidate"]["text"] == "answer"


async def test_an_event_without_a_question_changes_no_messages() -> None:
    graph = candidate_graph(ScriptedModel(["answer 1"]), checkpointer=InMemorySaver())
    await graph.ainvoke(asking(1), CONFIG)
    state = await graph.ainvoke({"event": {"id": "e2"}}, CONFIG)
    assert (state["outcome"], state["candidate"], state["llmText"], state["combinedPrompt"]) == ("SKIP", *[None] * 3)
    assert texts(state["messages"]) == ["question 1", "answer 1"]


async def test_a_graph_can_be_compiled_again_from_its_builder() -> None:
    model = ScriptedModel(["answer 1", "answer 2"])
    graph = candidate_graph(model).builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke(asking(1), CONFIG)
    await graph.ainvoke(asking(2), CONFIG)
    assert texts(model.calls[1]) == ["question 1", "answer 1", "question 2"]


async def test_a_candidate_graph_is_a_node_of_another_graph() -> None:
    """As a subgraph, the candidate graph shares the keys of both states and the thread of the outer graph."""

    class Outer(TypedDict):
        event: Mapping[str, Any]
        outcome: str | None

    async def event_of(state: Outer) -> dict[str, object]:
        return {"event": {**state["event"], "text": state["event"]["text"].upper()}}

    model = ScriptedModel(["answer 1", "answer 2"])
    builder = StateGraph(Outer)
    builder.add_node("shout", event_of)
    builder.add_node("propose", candidate_graph(model, checkpointer=True))
    builder.add_edge(START, "shout")
    builder.add_edge("shout", "propose")
    graph = builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"event": asking(1)["event"], "outcome": None}, CONFIG)
    state = await graph.ainvoke({"event": asking(2)["event"], "outcome": None}, CONFIG)
    assert texts(model.calls[1]) == ["QUESTION 1", "answer 1", "QUESTION 2"]
    assert state["outcome"] == "OK"
    assert state["event"]["candidates"][0]["text"] == "answer 2"


async def test_two_graphs_with_different_limits_may_use_one_thread() -> None:
    saver = InMemorySaver()
    model = ScriptedModel(["answer 1", "answer 2", "answer 3"])
    large, small = (candidate_graph(model, max_messages=limit, checkpointer=saver) for limit in (6, 2))
    await ask_all(large, asking(1))
    await ask_all(small, asking(2))
    state = await ask_all(large, asking(3))
    assert texts(state["messages"]) == ["question 2", "answer 2", "question 3", "answer 3"]


turns = st.lists(
    st.tuples(st.integers(0, 3), st.text("ab 中{}", max_size=40), st.sampled_from(["yes", "", "z" * 90, "error"])),
    min_size=1,
    max_size=6,
)


@given(
    turns=turns, max_messages=st.integers(-1, 6), max_chars=st.integers(0, 120), system=st.sampled_from(["", "S" * 9])
)
@pytest.mark.slow
async def test_the_rules_hold_for_any_conversation(
    turns: list[tuple[int, str, str]], max_messages: int, max_chars: int, system: str
) -> None:
    """Each call has the system prompt first, the question last, unique ids, and keeps its limits."""
    replies = [OSError() if reply == "error" else reply for _, text, reply in turns if text.strip()]
    model = ScriptedModel(itertools.chain(replies, itertools.repeat("late")))
    graph = candidate_graph(
        model, system_prompt=system, max_messages=max_messages, max_chars=max_chars, checkpointer=InMemorySaver()
    )
    for number, text, _ in turns:
        calls = len(model.calls)
        state = await graph.ainvoke({"event": {"id": f"e{number}", "text": text}}, CONFIG)
        assert state["outcome"] == "SKIP" if not text.strip() else state["outcome"] in ("OK", "ERROR")
        assert len({message.id for message in state["messages"]}) == len(state["messages"])
        for call in model.calls[calls:]:
            _check_call(call, number, system, max(max_messages, 2 if system else 1), max_chars)


def _check_call(call: list[BaseMessage], number: int, system: str, max_messages: int, max_chars: int) -> None:
    assert not system or call[0].content == system
    assert isinstance(call[-1], HumanMessage)
    assert call[-1].id == f"e{number}"
    assert len(call) <= max_messages
    if max_chars >= len(system) + len(CUT_MARK):
        assert sum(map(len, texts(call))) <= max_chars
    assert all(isinstance(message, HumanMessage | AIMessage) for message in call[1 if system else 0 :])
