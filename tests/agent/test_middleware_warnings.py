"""Tests of warnings about other middleware that repeats the memory's work or is listed in the wrong order."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    LLMToolSelectorMiddleware,
    ModelFallbackMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
)
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from tests.agent.talking import ROOM, add, adding, config_of, input_of, kept, kept_with_status
from threadkeep import Memory, Message, MiddlewareWarning, SessionMemory, rebuild
from threadkeep.testing import Gate, ScriptedModel


class Tooled(ScriptedModel):
    """A scripted model that accepts tools."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Return the model itself; the script determines its tool calls."""
        return self


class Other(ScriptedModel):
    """A scripted model with another name."""

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_model_name": "other"}


class Shouting(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware that changes the answer at the end of the run."""

    async def aafter_agent(self, state: AgentState[Any], runtime: Any) -> dict[str, Any]:
        """Convert the last message to capital letters."""
        last = state["messages"][-1]
        return {"messages": [last.model_copy(update={"content": last.text.upper()})]}


def agent_of(memory: Memory, model: ScriptedModel, other: Any, *, first: bool, **options: Any) -> Any:
    """Return an agent with the other middleware before or after the memory."""
    order = [other, SessionMemory(memory)] if first else [SessionMemory(memory), other]
    return create_agent(model, options.pop("tools", []), middleware=order, **options)


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collect the texts of middleware warnings."""
    sentences: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield sentences
    sentences += [str(one.message) for one in caught if issubclass(one.category, MiddlewareWarning)]


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_summaries_of_other_middleware_cause_one_warning(small_memory: Memory, first: bool) -> None:
    summarizing = SummarizationMiddleware(
        ScriptedModel([f"summary {n}" for n in range(9)]), trigger=("messages", 4), keep=("messages", 2)
    )
    model = ScriptedModel([f"answer {n}" for n in range(6)])
    agent = agent_of(small_memory, model, summarizing, first=first, checkpointer=InMemorySaver())
    with warned() as sentences:
        for number in range(6):
            await agent.ainvoke(input_of(f"question {number}"), config_of())
    [sentence] = sentences
    assert "SummarizationMiddleware" in sentence
    assert "Compression" in sentence


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_clearing_tool_results_causes_one_warning(small_memory: Memory, first: bool) -> None:
    editing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=1)])
    calls = [adding(f"call-{number}") for number in range(3)]
    agent = agent_of(small_memory, Tooled(replies=[*calls, "3"]), editing, first=first, tools=[add])
    with warned() as sentences:
        await agent.ainvoke(input_of("1 + 2?"), config_of())
    [sentence] = sentences
    assert "ContextEditingMiddleware" in sentence


async def test_a_prompt_that_is_changed_after_the_memory_causes_a_warning(small_memory: Memory) -> None:
    """A prompt that is changed after the memory causes one warning, because it is in no manifest and no budget."""
    for first in (True, False):
        model = Tooled(replies=["fine", "fine"])
        agent = agent_of(small_memory, model, TodoListMiddleware(), first=first, tools=[add])
        with warned() as sentences:
            for _ in range(2):
                await agent.ainvoke(input_of("hello"), config_of())
        stored = [await rebuild(one) for one in await small_memory.manifests.of_session(ROOM)]
        exact = [message.text for message in model.calls[-1]] in [[m.text for m in call] for call in stored]
        assert exact is first
        assert [("behind" in sentence, "budget" in sentence) for sentence in sentences] == [(True, True)] * (not first)


async def test_a_fallback_after_the_memory_causes_a_warning(small_memory: Memory) -> None:
    """A fallback after the memory causes a warning, because its calls are built for the first model."""
    for number in range(30):
        said = Message(role="user", content=f"{number} " + "words " * 60)
        await small_memory.session(ROOM).append([said, Message(role="assistant", content="fine")])
    for first in (True, False):
        large, small = ScriptedModel([ConnectionError("down")]), Other(replies=["fine"])
        small.profile = {"max_input_tokens": 1_500}
        agent = agent_of(small_memory, large, ModelFallbackMiddleware(small), first=first)
        with warned() as sentences:
            await agent.ainvoke(input_of("hello"), config_of())
        assert (len(small.calls[0]) < len(large.calls[0])) is first
        assert ["another model" in sentence for sentence in sentences] == [True] * (not first)


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_a_router_after_the_memory_causes_a_warning(sqlite_memory: Memory, first: bool) -> None:
    """Only one model is called, but the messages were chosen for the window of the other one."""
    large, small = ScriptedModel(["large"]), Other(replies=["small"] * 2)

    class Routing(AgentMiddleware[AgentState[Any], Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(request.override(model=small))

    agent = agent_of(sqlite_memory, large, Routing(), first=first)
    with warned() as sentences:
        for words in ("hello", "again"):
            await agent.ainvoke(input_of(words), config_of())
    assert ["another model" in sentence for sentence in sentences] == [True] * (not first)
    with warned() as sentences:
        alone: Any = create_agent(large, [], middleware=[SessionMemory(sqlite_memory)])
        await alone.ainvoke(input_of("hi"), config_of())
    assert sentences == []


async def test_an_answer_that_is_changed_after_storing_causes_a_warning(small_memory: Memory) -> None:
    """An answer that is changed after it was stored causes a warning.

    `after_agent` hooks run from the last middleware to the first.
    """
    for first in (True, False):
        agent = agent_of(small_memory, ScriptedModel(["fine", "fine"]), Shouting(), first=first)
        with warned() as sentences:
            await agent.ainvoke(input_of("hello"), config_of(f"room:{first}"))
            state = await agent.ainvoke(input_of("hello"), config_of(f"room:{first}"))
        assert state["messages"][-1].text == "FINE"
        assert (await kept(small_memory, f"room:{first}"))[-1] == ("assistant", "fine" if first else "FINE")
        assert [("after_agent" in sentence) for sentence in sentences] == [True] * first


async def test_output_of_other_middlewares_model_calls_is_not_stored(small_memory: Memory) -> None:
    gate = Gate()

    class Picking(Tooled):
        def with_structured_output(self, schema: Any, **kwargs: Any) -> Any:
            return self

    picker = Picking(replies=[['{"tools": ["', gate, 'add"]}']])
    selecting = LLMToolSelectorMiddleware(model=picker)
    agent = agent_of(small_memory, Tooled(replies=["fine"]), selecting, first=False, tools=[add])

    async def read() -> None:
        async for _ in agent.astream(input_of("1 + 2?"), config_of(), stream_mode="messages"):
            pass

    reading = asyncio.create_task(read())
    await gate.reached()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await kept_with_status(small_memory) == [("user", "1 + 2?", "complete")]


async def test_an_answer_in_another_thread_of_a_node_causes_no_warning(small_memory: Memory) -> None:
    """The state at the end of the run is not the state of an agent that a node calls with its own thread."""
    inner: Any = create_agent(ScriptedModel(["sunny"]), [], middleware=[SessionMemory(small_memory)])

    async def node(_: MessagesState) -> dict[str, Any]:
        told = await inner.ainvoke(input_of("weather?"), config_of("other"))
        return {"messages": [AIMessage(f"It is {told['messages'][-1].text}.")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    with warned() as sentences:
        await graph.compile().ainvoke(input_of("go out?"), config_of())
    assert await kept(small_memory, "other") == [("user", "weather?"), ("assistant", "sunny")]
    assert sentences == []
