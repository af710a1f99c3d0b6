"""Tests of retried model calls: one question and one answer are stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRetryMiddleware
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import Runtime

from tests.agent.talking import ask, config_of, input_of, kept, kept_with_status, make_agent, seen, stream
from threadkeep import Memory, SessionMemory, recorded
from threadkeep.agent.provider_messages import NO_ANSWER
from threadkeep.testing import Gate, ScriptedModel

DOWN = ConnectionError("the provider is down")


@pytest.mark.parametrize("outside", [True, False])
async def test_model_calls_may_be_retried_before_or_after_the_memory(small_memory: Memory, outside: bool) -> None:
    retry = ModelRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)
    model = ScriptedModel(["hello", ["half ", DOWN], DOWN, "fine"])
    remembering = SessionMemory(small_memory)
    agent = make_agent(model, [retry, remembering] if outside else [remembering, retry])
    await ask(agent, "hi")
    await stream(agent, "and now?")
    assert len(model.calls) == 4
    assert model.calls[1] == model.calls[2] == model.calls[3]
    assert await kept_with_status(small_memory) == [
        ("user", "hi", "complete"),
        ("assistant", "hello", "complete"),
        ("user", "and now?", "complete"),
        ("assistant", "fine", "complete"),
    ]


async def test_the_error_message_of_a_retry_is_stored_as_failed(small_memory: Memory) -> None:
    """The error message of an exhausted retry is stored as failed and not sent in later calls."""
    retry = ModelRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)
    model = ScriptedModel([DOWN, DOWN, "hello"])
    agent = make_agent(model, [retry, SessionMemory(small_memory)])
    apology = await ask(agent, "hi")
    assert await kept_with_status(small_memory) == [("user", "hi", "complete"), ("assistant", apology, "failed")]
    await ask(agent, "are you there?")
    assert seen(model.calls[2]) == [("human", "hi"), ("ai", NO_ANSWER), ("human", "are you there?")]


async def test_a_failed_try_before_a_tool_call_is_forgotten(small_memory: Memory) -> None:
    retry = ModelRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)

    @tool(return_direct=True)
    def direct() -> str:
        """Answer for the model."""
        return "from the tool"

    call = AIMessage("", tool_calls=[{"name": "direct", "args": {}, "id": "call-1"}])
    agent = make_agent(ScriptedModel([["half ", DOWN], call]), [retry, SessionMemory(small_memory)], [direct])
    await agent.ainvoke(input_of("hi"), config_of())
    assert await kept(small_memory) == [("user", "hi"), ("assistant", "from the tool")]


async def test_only_the_partial_answer_of_the_last_attempt_is_stored(small_memory: Memory) -> None:
    retry = ModelRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)
    gate = Gate()
    model = ScriptedModel([["first ", DOWN], ["second ", "half ", gate, "never"]])
    task = asyncio.create_task(stream(make_agent(model, [SessionMemory(small_memory), retry]), "hi"))
    await gate.reached()
    task.cancel()
    await asyncio.wait([task])
    assert (await kept_with_status(small_memory))[1] == ("assistant", "second half ", "interrupted")


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["none", "saver"])
async def test_a_retried_agent_stores_a_question_without_id_once(
    small_memory: Memory, saver: InMemorySaver | None
) -> None:
    model = ScriptedModel([DOWN, DOWN, "fine", "hello"])
    agent = make_agent(model, [SessionMemory(small_memory)], checkpointer=saver)
    retried = agent.with_retry(wait_exponential_jitter=False)
    for _ in range(2):
        await retried.ainvoke({"messages": [("user", "hi")]}, config_of())
    assert seen(model.calls[2]) == [("human", "hi")]
    assert [text for _, text in await kept(small_memory)] == ["hi", "fine", "hi", "hello"]


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_a_retried_chain_stores_a_question_without_id_once(small_memory: Memory, is_recorded: bool) -> None:
    """A chain that builds the input of its agent gives each attempt another input."""
    model = ScriptedModel([DOWN, DOWN, "fine", "hello"])
    remembering = [] if is_recorded else [SessionMemory(small_memory)]
    agent: Any = make_agent(model, remembering)
    as_input = RunnableLambda[Any, Any](lambda words: {"messages": [("user", words)]})
    chain = as_input | (recorded(agent, small_memory) if is_recorded else agent)
    for _ in range(2):
        await chain.with_retry(wait_exponential_jitter=False).ainvoke("hi", config_of())
    assert [text for _, text in await kept(small_memory)] == ["hi", "fine", "hi", "hello"]


async def test_a_question_that_the_program_asks_again_is_another_question(small_memory: Memory) -> None:
    agent = make_agent(ScriptedModel([DOWN, "fine"]), [SessionMemory(small_memory)])

    async def twice(_: object) -> None:
        with pytest.raises(ConnectionError):
            await agent.ainvoke(input_of("hi"), config_of())
        await agent.ainvoke(input_of("hi"), config_of())

    await RunnableLambda(twice).ainvoke("")
    assert [text for _, text in await kept(small_memory)] == ["hi", "hi", "fine"]


async def test_a_retried_batch_stores_each_question_once(small_memory: Memory) -> None:
    agent = make_agent(ScriptedModel([DOWN, "one", "two"]), [SessionMemory(small_memory)])
    inputs: list[Any] = [{"messages": [("user", words)]} for words in ("q1", "q2")]
    retried = agent.with_retry(wait_exponential_jitter=False)
    await retried.abatch(inputs, [config_of("a"), config_of("b")])
    rows = [await kept(small_memory, session) for session in ("a", "b")]
    assert [[role for role, _ in one] for one in rows] == [["user", "assistant"]] * 2


async def test_the_agents_of_a_parallel_chain_each_answer_the_question(small_memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["one", "two"]), [SessionMemory(small_memory)])
    chain = RunnableParallel(first=agent, second=agent)
    await chain.ainvoke({"messages": [("user", "hi")]}, config_of())
    assert [text for _, text in await kept(small_memory)] == ["hi", "one", "hi", "two"]


class Guard(AgentMiddleware):
    """A middleware that rejects a bad answer after it was stored."""

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Raise if the answer is bad."""
        if state["messages"][-1].text == "bad":
            raise DOWN


async def test_a_retry_does_not_repeat_a_stored_answer(small_memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["bad", "good"]), [Guard(), SessionMemory(small_memory)])
    state = await agent.with_retry(wait_exponential_jitter=False).ainvoke({"messages": [("user", "hi")]}, config_of())
    assert state["messages"][-1].text == "good"


async def test_only_the_next_attempt_uses_the_question_of_a_failed_one(small_memory: Memory) -> None:
    """The other agent of a retried parallel chain is called again, too."""
    models = ScriptedModel([DOWN, "one"]), ScriptedModel(["two", "two again"])
    first, second = [make_agent(model, [SessionMemory(small_memory)]) for model in models]
    chain = RunnableParallel(first=first, second=second).with_retry(wait_exponential_jitter=False)
    states = await chain.ainvoke({"messages": [("user", "hi")]}, config_of())
    assert [states[name]["messages"][-1].text for name in ("first", "second")] == ["one", "two again"]
