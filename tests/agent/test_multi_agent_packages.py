"""Tests of graphs that langgraph-supervisor and langgraph-swarm build."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.talking import ROOM, config_of, input_of
from threadkeep import Memory, SessionMemory, recorded
from threadkeep.testing import ScriptedModel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    supervisors = pytest.importorskip("langgraph_supervisor", reason="langgraph-supervisor is not installed.")
    swarms = pytest.importorskip("langgraph_swarm", reason="langgraph-swarm is not installed.")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Bound(ScriptedModel):
    """A scripted model that accepts tools."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Return the model itself; the script determines its tool calls."""
        return self


async def said(memory: Memory) -> list[tuple[str | None, str]]:
    """Return the author and text of each message."""
    return [(message.author, message.content) for message in await memory.session(ROOM).tail(50)]


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def handing_over(tool_name: str, text: str = "") -> AIMessage:
    """Return a message that hands over to another agent."""
    return AIMessage(text, tool_calls=[{"name": tool_name, "args": {}, "id": f"call-{tool_name}"}])


async def test_worker_and_supervisor_store_their_answers(memory: Memory) -> None:
    math_model = ScriptedModel(["4", "6"])
    math: Any = create_agent(math_model, [add], middleware=[SessionMemory(memory)], name="math")
    chief = Bound(replies=[handing_over("transfer_to_math"), "it is 4", handing_over("transfer_to_math"), "it is 6"])
    graph = recorded(supervisors.create_supervisor([math], model=chief).compile(name="team"), memory)
    state = await graph.ainvoke(input_of("2 + 2?"), config_of())
    assert state["messages"][-1].text == "it is 4"
    assert await said(memory) == [(None, "2 + 2?"), ("math", "4"), ("supervisor", "it is 4")]
    state = await graph.ainvoke(input_of("3 + 3?"), config_of())
    assert "2 + 2?" not in [message.text for message in state["messages"]]
    assert [message.text for message in chief.calls[2]][-4:] == ["2 + 2?", "4", "it is 4", "3 + 3?"]
    assert (await said(memory))[3:] == [(None, "3 + 3?"), ("math", "6"), ("supervisor", "it is 6")]


async def test_a_swarm_stores_the_answer_of_the_active_agent(memory: Memory) -> None:
    to_b: BaseTool = swarms.create_handoff_tool(agent_name="b")
    a_model = ScriptedModel([handing_over(to_b.name, "one moment")])
    b_model = ScriptedModel(["from b", "again from b"])
    a: Any = create_agent(a_model, [to_b], middleware=[SessionMemory(memory)], name="a")
    b: Any = create_agent(b_model, [add], middleware=[SessionMemory(memory)], name="b")
    graph = swarms.create_swarm([a, b], default_active_agent="a").compile(checkpointer=InMemorySaver())
    await graph.ainvoke(input_of("q"), config_of())
    assert await said(memory) == [(None, "q"), ("b", "from b")]
    await graph.ainvoke(input_of("and now?"), config_of())
    assert await said(memory) == [(None, "q"), ("b", "from b"), (None, "and now?"), ("b", "again from b")]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_handover_counts_as_no_answer(memory: Memory, checkpointed: bool) -> None:
    """An agent that is active again after a handover stores its first answer, and a repeat calls no model."""
    to_a, to_b = (swarms.create_handoff_tool(agent_name=name) for name in "ab")
    a_model, b_model = Bound(replies=[handing_over(to_b.name), "from a"]), Bound(replies=[handing_over(to_a.name)])
    remember_a, remember_b = SessionMemory(memory), SessionMemory(memory)
    a: Any = create_agent(a_model, [to_b], middleware=[remember_a], name="a")
    b: Any = create_agent(b_model, [to_a], middleware=[remember_b], name="b")
    saver = InMemorySaver() if checkpointed else None
    graph = swarms.create_swarm([a, b], default_active_agent="a").compile(checkpointer=saver)
    for _ in range(2):
        assert (await graph.ainvoke(input_of("q", "m1"), config_of()))["messages"][-1].text == "from a"
    assert (len(a_model.calls), len(b_model.calls)) == (2, 1)
    stored = await memory.session(ROOM).tail(9)
    assert [(one.author, one.content, one.ordinal) for one in stored] == [(None, "q", None), ("a", "from a", None)]
    assert (remember_a.open_runs, remember_b.open_runs) == (0, 0)


async def test_a_recorded_graph_streams_and_stores(memory: Memory) -> None:
    chief = Bound(replies=["hello"])
    graph = recorded(supervisors.create_supervisor([], model=chief).compile(), memory)
    parts = [part async for part in graph.astream(input_of("hi"), config_of(), stream_mode="updates")]
    assert parts
    assert await said(memory) == [(None, "hi"), ("supervisor", "hello")]


async def test_a_worker_called_again_by_a_supervisor_repeats_its_answer(memory: Memory) -> None:
    math_model = Bound(replies=["4"])
    math: Any = create_agent(math_model, [add], middleware=[SessionMemory(memory)], name="math")
    chief = Bound(replies=[handing_over("transfer_to_math"), "it is 4", handing_over("transfer_to_math"), "still 4"])
    team: Any = supervisors.create_supervisor([math], model=chief).compile(checkpointer=InMemorySaver())
    for told in ("it is 4", "still 4"):
        state = await team.ainvoke(input_of("2 + 2?", "m1"), {**config_of(), "recursion_limit": 50})
        assert state["messages"][-1].text == told
    assert len(math_model.calls) == 1
    assert [str(message.text) for message in chief.calls[-1]].count("4") == 2
    assert await said(memory) == [(None, "2 + 2?"), ("math", "4")]
