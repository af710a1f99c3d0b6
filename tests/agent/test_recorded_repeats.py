"""Tests of repeated messages to a recorded graph: if its final answer was stored, no node runs again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from tests.agent.talking import ROOM, config_of, input_of, kept_with_status
from tests.limits import HANG_SECONDS
from threadkeep import Memory, Message, SessionMemory, TurnOptions, open_memory_sync, recorded
from threadkeep.testing import Gate, ScriptedModel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    supervisors = pytest.importorskip("langgraph_supervisor", reason="langgraph-supervisor is not installed.")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Bound(ScriptedModel):
    """A scripted model that accepts tools."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Return the model itself; the script determines its tool calls."""
        return self


class Score(BaseModel):
    """A structured response."""

    points: int


class Noted(MessagesState):
    """A state with other values than messages."""

    route: str
    score: Score


def asking() -> dict[str, Any]:
    """Return the same question with the same id, as a repeated delivery."""
    return input_of("2 + 2?", "m1")


def names_and_texts(state: Any) -> list[tuple[str | None, str]]:
    """Return the name and text of each message after the question."""
    return [(message.name, message.text) for message in state["messages"][1:] if message.text]


def routed(memory: Memory, router: ScriptedModel, *agents: Any, saver: InMemorySaver | None = None) -> Any:
    """Return a recorded graph whose router has no memory, and whose agents run one after the other."""

    async def route(state: Noted) -> dict[str, Any]:
        answer = await router.ainvoke("where to?")
        return {"route": answer.text, "score": Score(points=3)}

    graph: Any = StateGraph(Noted)
    graph.add_node("route", route)
    graph.add_edge(START, "route")
    previous = "route"
    for agent in agents:
        graph.add_node(agent.name, agent)
        graph.add_edge(previous, agent.name)
        previous = agent.name
    return recorded(graph.compile(checkpointer=saver), memory)


def speaker(memory: Memory, name: str, *replies: Any) -> Any:
    """Return an agent with memory."""
    return create_agent(ScriptedModel(list(replies)), [], middleware=[SessionMemory(memory)], name=name)


@pytest.mark.parametrize("checkpointed", [True, False], ids=["checkpointer", "none"])
async def test_a_supervisor_is_not_asked_again(memory: Memory, checkpointed: bool) -> None:
    hand_over = AIMessage("", tool_calls=[{"name": "transfer_to_math", "args": {}, "id": "call-1"}])
    chief, math_model = Bound(replies=[hand_over, "it is 4", "fine"]), ScriptedModel(["4"])
    math: Any = create_agent(math_model, [], middleware=[SessionMemory(memory)], name="math")
    saver = InMemorySaver() if checkpointed else None
    graph = recorded(supervisors.create_supervisor([math], model=chief).compile(checkpointer=saver), memory)
    first = await graph.ainvoke(asking(), config_of())
    again = await graph.ainvoke(asking(), config_of())
    assert (len(chief.calls), len(math_model.calls)) == (2, 1)
    assert again["messages"][-1].id == first["messages"][-1].id
    assert names_and_texts(again)[-1] == ("supervisor", "it is 4")
    assert ("math", "4") in names_and_texts(again)
    await graph.ainvoke(input_of("and now?"), config_of())
    late = await graph.ainvoke(asking(), config_of())
    assert late["messages"][-1].text == "it is 4"
    assert len(chief.calls) == 3


@pytest.mark.parametrize("checkpointed", [True, False], ids=["checkpointer", "none"])
async def test_a_graph_whose_last_agent_stored_its_answer_is_not_run_again(memory: Memory, checkpointed: bool) -> None:
    """A repeat returns the whole state if the last agent stored its own answer, and calls no model."""
    router = ScriptedModel(["math"])
    saver = InMemorySaver() if checkpointed else None
    graph = routed(memory, router, speaker(memory, "math", "4"), speaker(memory, "critic", "right"), saver=saver)
    first = await graph.ainvoke(asking(), config_of())
    again = await graph.ainvoke(asking(), config_of())
    assert len(router.calls) == 1
    assert names_and_texts(again) == names_and_texts(first) == [("math", "4"), ("critic", "right")]
    assert [message.id for message in again["messages"]] == [message.id for message in first["messages"]]
    assert set(again) == set(first)
    assert (again["route"], again["score"]) == ("math", Score(points=3))


async def test_a_repeat_of_a_failed_run_runs_the_graph(memory: Memory) -> None:
    """A repeat runs the graph again if only an agent before the last one stored its answer."""
    router = ScriptedModel(["math", "math"])
    critic = speaker(memory, "critic", ConnectionError("down"), "right")
    graph = routed(memory, router, speaker(memory, "math", "4"), critic)
    with pytest.raises(ConnectionError):
        await graph.ainvoke(asking(), config_of())
    again = await graph.ainvoke(asking(), config_of())
    assert names_and_texts(again) == [("math", "4"), ("critic", "right")]
    assert len(router.calls) == 2


async def test_tools_of_a_recorded_agent_run_once(memory: Memory) -> None:
    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    call = AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": 5}, "id": "call-1"}])
    model = Bound(replies=[call, "done", "never"])
    for agent in (create_agent(model, [pay], name="cashier") for _ in range(2)):
        state = await recorded(agent, memory).ainvoke(asking(), config_of())
        assert state["messages"][-1].text == "done"
    assert (paid, len(model.calls)) == ([5], 2)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_repeat_returns_the_structured_response(memory: Memory, restarted: bool) -> None:
    call = AIMessage("", tool_calls=[{"name": "Score", "args": {"points": 3}, "id": "c"}])
    model = Bound(replies=[call, "never"])
    graph = recorded(create_agent(model, [], response_format=Score, name="judge"), memory)
    first = await graph.ainvoke(asking(), config_of())
    if restarted:
        graph = recorded(create_agent(model, [], response_format=Score, name="judge"), memory)
    again = await graph.ainvoke(asking(), config_of())
    assert first["structured_response"] == Score(points=3)
    assert again["structured_response"] == ({"points": 3} if restarted else Score(points=3))
    assert set(again) == set(first)
    assert len(model.calls) == 1
    assert (await kept_with_status(memory))[-1] == ("assistant", '{"points":3}', "complete")


async def test_a_structured_response_beside_a_text_is_an_answer(memory: Memory) -> None:
    call = AIMessage("Three.", tool_calls=[{"name": "Score", "args": {"points": 3}, "id": "c"}])
    model = Bound(replies=[call, "never"])
    graph = recorded(create_agent(model, [], response_format=Score, name="judge"), memory)
    await graph.ainvoke(asking(), config_of())
    again = await graph.ainvoke(asking(), config_of())
    assert again["structured_response"] == Score(points=3)
    assert await kept_with_status(memory) == [("user", "2 + 2?", "complete"), ("assistant", "Three.", "complete")]


async def test_a_repeat_streams_the_stored_answer(memory: Memory) -> None:
    model = ScriptedModel(["4", "never"])
    graph = recorded(create_agent(model, [], name="math"), memory)
    await graph.ainvoke(asking(), config_of())
    values = [part async for part in graph.astream(asking(), config_of(), stream_mode="values")]
    assert [[message.text for message in part["messages"]] for part in values] == [["2 + 2?"], ["2 + 2?", "4"]]
    [update] = [part async for part in graph.astream(asking(), config_of(), stream_mode="updates")]
    assert update["math"]["messages"][0].text == "4"
    [(piece, _)] = [part async for part in graph.astream(asking(), config_of(), stream_mode="messages")]
    assert piece.text == "4"
    parts = [part async for part in graph.astream(asking(), config_of(), stream_mode=["updates", "messages"])]
    assert sorted(mode for mode, _ in parts) == ["messages", "updates"]
    parts = [part async for part in graph.astream(asking(), config_of(), stream_mode="debug")]
    assert [(part["type"], part["payload"]["name"]) for part in parts] == [("task", "math"), ("task_result", "math")]
    parts = [part async for part in graph.astream(asking(), config_of(), stream_mode="values", version="v2")]
    assert [(part["type"], part["ns"]) for part in parts] == [("values", ())] * 2
    output = await graph.ainvoke(asking(), config_of(), version="v2")
    assert output.value["messages"][-1].text == "4"
    assert len(model.calls) == 1


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
async def test_a_repeat_has_the_events_of_an_answer(memory: Memory) -> None:
    model = ScriptedModel(["4", "never"])
    graph = recorded(create_agent(model, [], name="math"), memory)
    for version in ("v2", "v2", "v1"):
        events = [event async for event in graph.astream_events(asking(), config_of(), version=version)]
        ended = [event for event in events if event["event"] == "on_chain_end" and event["name"] == "math"]
        output = ended[-1]["data"]["output"]
        # Version v1 contains the updates of the last node.
        assert (output["math"] if version == "v1" else output)["messages"][-1].text == "4"
        assert (events[0]["event"], events[0]["name"]) == ("on_chain_start", "math")
    run = await graph.astream_events(asking(), config_of(), version="v3")
    assert (await run.output())["messages"][-1].text == "4"
    assert len(model.calls) == 1


async def test_a_repeat_streams_the_steps_of_a_graph(memory: Memory) -> None:
    graph = routed(memory, ScriptedModel(["math"]), speaker(memory, "math", "4"), speaker(memory, "critic", "right"))
    await graph.ainvoke(asking(), config_of())
    first, second = [part async for part in graph.astream(asking(), config_of(), stream_mode="updates")]
    assert [message.text for message in first["math"]["messages"]] == ["4"]
    assert [message.text for message in second["critic"]["messages"]] == ["right"]
    assert second["critic"]["route"] == "math"


@pytest.mark.parametrize("mode", ["values", "updates", "messages"])
async def test_a_stream_ends_with_the_answer_that_was_stored_first(memory: Memory, mode: str) -> None:
    gate, options = Gate(), TurnOptions(ordered=False)
    late = recorded(create_agent(ScriptedModel([[gate, "late"]]), [], name="math"), memory, options)
    faster = recorded(create_agent(ScriptedModel(["first"]), [], name="math"), memory, options)

    async def last() -> Any:
        return [part async for part in late.astream(asking(), config_of(), stream_mode=mode)][-1]

    streaming = asyncio.create_task(last())
    await gate.reached()
    await faster.ainvoke(asking(), config_of())
    gate.open()
    part = await streaming
    message = part[0] if mode == "messages" else part.get("math", part)["messages"][-1]
    assert (message.name, message.text) == ("math", "first")
    assert [text for _, text, _ in await kept_with_status(memory)] == ["2 + 2?", "first"]


async def test_a_saved_state_gets_the_answer_that_was_stored_first(memory: Memory) -> None:
    """The state in the checkpointer ends with the answer that the caller gets, and nothing is left to run."""
    gate, options, saver = Gate(), TurnOptions(ordered=False), InMemorySaver()
    model = ScriptedModel([[gate, "late"], "5"])
    late = recorded(create_agent(model, [], checkpointer=saver), memory, options)
    faster = recorded(create_agent(ScriptedModel(["first"]), []), memory, options)
    asked = asyncio.create_task(late.ainvoke(asking(), config_of()))
    await gate.reached()
    await faster.ainvoke(asking(), config_of())
    gate.open()
    await asked
    state = await late.aget_state(config_of())
    assert [message.text for message in state.values["messages"]] == ["2 + 2?", "first"]
    assert state.next == ()
    await late.ainvoke(input_of("2 + 3?"), config_of())
    assert [message.text for message in model.calls[1]] == ["2 + 2?", "first", "2 + 3?"]


def test_a_synchronous_stream_ends_with_the_answer_that_was_stored_first(shared_url: str) -> None:
    with open_memory_sync(shared_url) as memory:
        options = TurnOptions(ordered=False)
        faster = recorded(create_agent(ScriptedModel(["first"]), [], name="math"), memory, options)

        def reply(_: Any) -> str:
            other = threading.Thread(target=faster.invoke, args=(asking(), config_of()))
            other.start()
            other.join(HANG_SECONDS)
            return "late"

        agent = create_agent(ScriptedModel([reply]), [], name="math", checkpointer=InMemorySaver())
        late = recorded(agent, memory, options)
        *_, part = late.stream(asking(), config_of(), stream_mode="values")
        assert [message.text for message in part["messages"]] == ["2 + 2?", "first"]
        state = late.get_state(config_of())
        assert [message.text for message in state.values["messages"]] == ["2 + 2?", "first"]


def test_a_repeat_of_a_synchronous_call_runs_nothing(shared_url: str) -> None:
    with open_memory_sync(shared_url) as memory:
        for number, saver in enumerate((None, InMemorySaver())):
            model = ScriptedModel(["4", "never"])
            graph = recorded(create_agent(model, [], name="math", checkpointer=saver), memory)
            config = config_of(f"room:{number}")
            first = graph.invoke(asking(), config)
            again = graph.invoke(asking(), config)
            assert [message.id for message in again["messages"]] == [message.id for message in first["messages"]]
            *_, part = graph.stream(asking(), config, stream_mode="values")
            assert part["messages"][-1].text == "4"
            assert len(model.calls) == 1


async def test_answers_of_output_version_v2_are_stored(memory: Memory) -> None:
    graph = recorded(create_agent(ScriptedModel(["4"]), [], name="math"), memory)
    output = await graph.ainvoke(asking(), config_of(), version="v2")
    assert output.value["messages"][-1].text == "4"
    assert [text for _, text, _ in await kept_with_status(memory)] == ["2 + 2?", "4"]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_repeat_gets_an_answer_that_is_only_an_image(memory: Memory, checkpointed: bool) -> None:
    image = AIMessage([{"type": "image", "base64": "aGk=", "mime_type": "image/png"}])
    model = ScriptedModel([image, image, "4"])
    graph = recorded(create_agent(model, [], checkpointer=InMemorySaver() if checkpointed else None), memory)
    for message_id in ("m1", "m1", "m2", "m2"):
        await graph.ainvoke(input_of("draw", message_id), config_of())
    assert len(model.calls) == 2
    stored = [(one.content, one.answers, one.ordinal) for one in await memory.session(ROOM).tail(9)]
    assert stored[1::2] == [("[image]", "m1", None), ("[image]", "m2", None)]


async def test_a_repeat_after_wrapping_returns_the_earlier_answer(memory: Memory) -> None:
    model = ScriptedModel(["4", "5"])
    agent: Any = create_agent(model, [], middleware=[SessionMemory(memory)])
    for graph in (agent, recorded(agent, memory)):
        assert (await graph.ainvoke(asking(), config_of()))["messages"][-1].text == "4"
    assert [one.ordinal for one in await memory.session(ROOM).tail(9)] == [None, None]


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_message_before_an_interrupt_is_not_the_answer(memory: Memory, streamed: bool) -> None:
    async def draft(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("a draft")]}

    async def approve(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"approved: {interrupt('may I?')}")]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("draft", draft)
    builder.add_node("approve", approve)
    builder.add_edge(START, "draft")
    builder.add_edge("draft", "approve")
    graph = recorded(builder.compile(checkpointer=InMemorySaver()), memory)
    if streamed:
        async for _ in graph.astream(asking(), config_of()):
            pass
    else:
        await graph.ainvoke(asking(), config_of())
    assert [text for _, text, _ in await kept_with_status(memory)] == ["2 + 2?"]
    await graph.ainvoke(Command(resume="yes"), config_of())
    assert [text for _, text, _ in await kept_with_status(memory)] == ["2 + 2?", "approved: yes"]
    assert (await memory.session(ROOM).tail(1))[0].answers == "m1"


async def test_an_agent_of_a_resumed_graph_takes_part_in_its_turn(memory: Memory) -> None:
    """An agent in a resumed graph receives the session, and its answer belongs to the interrupted question."""

    @tool
    def ask_person() -> str:
        """Ask the person."""
        return f"they said {interrupt('sure?')}"

    call = AIMessage("", tool_calls=[{"name": "ask_person", "args": {}, "id": "call-1"}])
    model = ScriptedModel([ConnectionError(), "two", call, "one"])
    builder: Any = StateGraph(MessagesState)
    builder.add_node("agent", create_agent(model, [ask_person], middleware=[SessionMemory(memory)]))
    builder.add_edge(START, "agent")
    graph = recorded(builder.compile(checkpointer=InMemorySaver()), memory)
    await memory.session(ROOM).append([Message("user", "hi"), Message("assistant", "hello")])
    for message_id in ("m1", "m2", "m1"):
        with contextlib.suppress(ConnectionError):
            await graph.ainvoke(input_of(message_id, message_id), config_of())
    await graph.ainvoke(Command(resume="yes"), config_of())
    assert [message.text for message in model.calls[-1]] == ["hi", "hello", "m1", "", "they said yes"]
    stored = await memory.session(ROOM).tail(2)
    assert [(message.content, message.answers) for message in stored] == [("two", "m2"), ("one", "m1")]
