"""Tests of LangGraph's `RetryPolicy` around agents with memory: answers of failed attempts are reused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import RetryPolicy

from tests.agent.talking import config_of, input_of
from tests.agent.test_several_agents import said
from threadkeep import Memory, SessionMemory
from threadkeep.testing import ScriptedModel

AGAIN = RetryPolicy(initial_interval=0.01, max_attempts=5, jitter=False)


def writer(memory: Memory, model: ScriptedModel, name: str = "writer", *others: AgentMiddleware) -> Any:
    """Return an agent with memory."""
    return create_agent(model, [], middleware=[*others, SessionMemory(memory)], name=name)


def drafts(name: str) -> ScriptedModel:
    """Return a model with nine numbered answers."""
    return ScriptedModel([f"{name} {number}" for number in range(9)])


def fails(times: int) -> Callable[[], None]:
    """Return a function that raises the given number of times."""
    left = iter(range(times))

    def step() -> None:
        if next(left, None) is not None:
            raise ConnectionError

    return step


def graph_of(node: Any, **options: Any) -> Any:
    """Return a graph of one node with retries."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("talk", node, retry_policy=AGAIN)
    builder.add_edge(START, "talk")
    return builder.compile(**options)


@pytest.mark.parametrize("with_checkpointer", [False, True])
async def test_a_node_that_fails_after_the_answer(small_memory: Memory, with_checkpointer: bool) -> None:
    model, step = drafts("draft"), fails(2)
    agent = writer(small_memory, model)

    async def talk(state: MessagesState) -> dict[str, Any]:
        answer = (await agent.ainvoke(state))["messages"][-1]
        step()
        return {"messages": [answer]}

    graph = graph_of(talk, checkpointer=InMemorySaver() if with_checkpointer else None)
    for _ in range(2):
        state = await graph.ainvoke(input_of("q", "m1"), config_of())
        assert [message.text for message in state["messages"]] == ["q", "draft 0"]
    assert await said(small_memory) == [(None, "q"), ("writer", "draft 0")]
    assert len(model.calls) == 1


async def test_a_retried_node_stores_each_answer_once(small_memory: Memory) -> None:
    models = {name: drafts(name) for name in ("writer", "critic")}
    agents = {name: writer(small_memory, model, name) for name, model in models.items()}
    critic_fails, end_fails = fails(1), fails(1)

    async def talk(state: Any) -> dict[str, Any]:
        for name in ("writer", "critic", "writer"):
            if name == "critic":
                critic_fails()
            state = await (RunnableLambda(lambda given: given) | agents[name]).ainvoke(state)
        end_fails()
        return {"messages": state["messages"][-1:]}

    state = await graph_of(talk).ainvoke(input_of("q"), config_of())
    assert state["messages"][-1].text == "writer 1"
    assert await said(small_memory) == [
        (None, "q"),
        ("writer", "writer 0"),
        ("critic", "critic 0"),
        ("writer", "writer 1"),
    ]
    assert [len(model.calls) for model in models.values()] == [2, 1]


async def test_two_tool_calls_in_one_node_are_two_runs(small_memory: Memory) -> None:
    model = drafts("writer")
    agent = writer(small_memory, model)

    @tool
    async def write(text: str) -> str:
        """Write."""
        return str((await agent.ainvoke(input_of(text)))["messages"][-1].text)

    async def talk(state: MessagesState) -> dict[str, Any]:
        first, second = [await write.ainvoke({"text": state["messages"][-1].text}) for _ in range(2)]
        return {"messages": [("assistant", f"{first}, {second}")]}

    state = await graph_of(talk).ainvoke(input_of("q"), config_of())
    assert state["messages"][-1].text == "writer 0, writer 1"
    assert await said(small_memory) == [(None, "q"), ("writer", "writer 0"), ("writer", "writer 1")]


async def test_retried_parallel_tasks_keep_their_first_answers(small_memory: Memory) -> None:
    model, steps = drafts("draft"), {"a": fails(2), "b": fails(1)}
    agent = writer(small_memory, model)

    async def ask(name: str) -> str:
        answer = (await agent.ainvoke(input_of("q")))["messages"][-1].text
        steps[name]()
        return str(answer)

    tried_again: Any = task(retry_policy=AGAIN)
    talk = tried_again(ask)

    @entrypoint()
    async def flow(_: str) -> list[str]:
        both: list[Any] = [talk(name) for name in steps]
        return [await one for one in both]

    told = await flow.ainvoke("q", config_of())
    stored = await said(small_memory)
    assert len(model.calls) == 2
    assert sorted(told) == [text for _, text in stored[1:]] == ["draft 0", "draft 1"]


async def test_an_agent_as_a_node_keeps_its_stored_answer_on_retry(small_memory: Memory) -> None:
    model, step = drafts("draft"), fails(2)

    class Failing(AgentMiddleware[AgentState[Any], Any, Any]):
        async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
            """Fail."""
            step()

    state = await graph_of(writer(small_memory, model, "writer", Failing())).ainvoke(input_of("q"), config_of())
    assert state["messages"][-1].text == "draft 0"
    assert await said(small_memory) == [(None, "q"), ("writer", "draft 0")]
    assert len(model.calls) == 1
