"""Tests of runs that other middleware blocks, or that fail in other middleware."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, AgentState, PIIDetectionError, PIIMiddleware
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from tests.agent.talking import ROOM, config_of, input_of, kept_with_status, make_agent, seen
from tests.limits import HANG_SECONDS
from threadkeep import Memory, SessionMemory
from threadkeep.testing import ScriptedModel

MAIL = "write to a@b.co"


def blocking(memory: Memory, model: ScriptedModel, *, first: bool, **options: Any) -> Any:
    """Return an agent with middleware that blocks e-mail addresses, before or after the memory."""
    pii = PIIMiddleware("email", strategy="block", **options.pop("pii", {}))
    order = [pii, SessionMemory(memory)] if first else [SessionMemory(memory), pii]
    return make_agent(model, order, **options)


class Failing(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware that fails the given number of times before the model call."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def abefore_model(self, state: AgentState[Any], runtime: Any) -> None:
        """Fail, or do nothing."""
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the knowledge base is down")


class Approving(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware that interrupts the run in one of its hooks before the first model call."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self.hook = hook

    def _ask(self, hook: str) -> None:
        if hook == self.hook:
            interrupt("may I?")

    async def abefore_agent(self, state: AgentState[Any], runtime: Any) -> None:
        """Interrupt the run if the hook is this one."""
        self._ask("before_agent")

    async def abefore_model(self, state: AgentState[Any], runtime: Any) -> None:
        """Interrupt the run if the hook is this one."""
        self._ask("before_model")

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        """Interrupt the run if the hook is this one."""
        self._ask("wrap_model_call")
        return await handler(request)


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("checkpointed", [True, False], ids=["checkpointer", "none"])
async def test_a_blocked_question_is_stored_as_failed_without_its_text(
    memory: Memory, checkpointed: bool, first: bool
) -> None:
    model = ScriptedModel(["fine"])
    saver = InMemorySaver() if checkpointed else None
    agent = blocking(memory, model, first=first, checkpointer=saver)
    for _ in range(2):
        with pytest.raises(PIIDetectionError):
            await agent.ainvoke(input_of(MAIL, "m1"), config_of())
        assert await kept_with_status(memory) == [("user", "", "failed")]
    if not checkpointed:  # the checkpointer keeps the blocked question, which is blocked again
        await agent.ainvoke(input_of("hello"), config_of())
        assert seen(model.calls[0]) == [("human", "hello")]
    info = await memory.session(ROOM).info()
    assert info.title == (None if checkpointed else "hello")


async def test_a_blocked_turn_does_not_delay_the_next_one(
    small_memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next turn begins although a reference to the blocked run's error exists."""
    monkeypatch.setattr("threadkeep.agent.root_runs._IDLE_SECONDS", 10 * HANG_SECONDS)
    agent = blocking(small_memory, ScriptedModel(["fine"]), first=True)
    with pytest.raises(PIIDetectionError) as held:
        await agent.ainvoke(input_of(MAIL), config_of())
    async with asyncio.timeout(HANG_SECONDS):
        await agent.ainvoke(input_of("hello"), config_of())
    assert held.value.args
    texts = [text for _, text, _ in await kept_with_status(small_memory)]
    assert texts == ["", "hello", "fine"]


async def test_a_question_whose_first_run_failed_is_stored_by_the_retry(memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["fine"]), [SessionMemory(memory), Failing(1)])
    with pytest.raises(ConnectionError):
        await agent.ainvoke(input_of("hello", "m1"), config_of())
    assert await kept_with_status(memory) == [("user", "", "failed")]
    await agent.ainvoke(input_of("hello", "m1"), config_of())
    stored = await kept_with_status(memory)
    assert stored[1:] == [("user", "hello", "complete"), ("assistant", "fine", "complete")]


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_a_blocked_answer_is_never_stored(small_memory: Memory, first: bool) -> None:
    middleware = SessionMemory(small_memory)
    pii = PIIMiddleware("email", strategy="block", apply_to_output=True)
    model = ScriptedModel(["mail c@d.co", "fine"])
    agent = make_agent(model, [pii, middleware] if first else [middleware, pii])
    with pytest.raises(PIIDetectionError):
        await agent.ainvoke(input_of("whom do I ask?"), config_of())
    assert middleware.open_runs == 0
    assert await kept_with_status(small_memory) == [("user", "whom do I ask?", "complete")]
    await agent.ainvoke(input_of("and now?"), config_of())
    assert "c@d.co" not in str(await kept_with_status(small_memory))


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("hook", ["before_agent", "before_model", "wrap_model_call"])
@pytest.mark.parametrize("new", [None, "and now?"], ids=["resumed", "asked again"])
async def test_an_interrupt_before_the_model_is_no_failure(
    memory: Memory, hook: str, new: str | None, first: bool
) -> None:
    """Before an interrupted run is resumed, only a run in its model call has stored its question.

    Other middleware may still reject it. The resumed run stores the whole turn.
    """
    model = ScriptedModel(["fine"])
    order = [Approving(hook), SessionMemory(memory)] if first else [SessionMemory(memory), Approving(hook)]
    agent = make_agent(model, order, checkpointer=InMemorySaver())
    questions = [("user", text, "complete") for text in ("hello", *([new] if new else []))]
    for _, text, _ in questions:
        await agent.ainvoke(input_of(text), config_of())
    begun = hook == "wrap_model_call" and not first
    assert await kept_with_status(memory) == (questions if begun else [])
    await agent.ainvoke(Command(resume="yes"), config_of())
    assert await kept_with_status(memory) == [*questions, ("assistant", "fine", "complete")]


async def test_a_second_agent_that_fails_does_not_change_the_first_answer(memory: Memory) -> None:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("first", make_agent(ScriptedModel(["one"]), [SessionMemory(memory)]))
    graph.add_node("second", make_agent(ScriptedModel(["two"]), [SessionMemory(memory), Failing(9)]))
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    with pytest.raises(ConnectionError):
        await graph.compile().ainvoke(input_of("hello"), config_of())
    assert await kept_with_status(memory) == [("user", "hello", "complete"), ("assistant", "one", "complete")]
