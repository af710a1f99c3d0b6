"""Tests of models with unusual usage reports, names and tools: the agent answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.chat_models import base, init_chat_model
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langgraph.graph import MessagesState, StateGraph

from tests.agent.talking import ROOM, ask, config_of, input_of
from threadkeep import Memory, SessionMemory, memory_node
from threadkeep.testing import ScriptedModel

LONG = "many words " * 400


class Reporting(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware that replaces the usage report of each answer."""

    def __init__(self, usage: object) -> None:
        super().__init__()
        self._usage = usage

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Call the model and replace the usage report."""
        response = await handler(request)
        object.__setattr__(response.result[-1], "usage_metadata", self._usage)
        return response


class Anything(ScriptedModel):
    """A model that accepts tools of every shape."""

    def bind_tools(self, tools: Sequence[object], **_options: object) -> Runnable[Any, AIMessage]:
        """Ignore the tools."""
        return self.bind()


class Named(ScriptedModel):
    """A model with a name."""

    model_name: str = ""


@pytest.mark.parametrize(
    ("usage", "kept"),
    [
        ({"input_tokens": 10, "output_tokens": 1, "input_token_details": {"cache_read": 50}}, (10, 1, 10)),
        ({"input_tokens": 10, "output_tokens": 1, "input_token_details": {"cache_read": "a"}}, (10, 1, 0)),
        ({"input_tokens": 10, "output_tokens": 1, "input_token_details": None}, (10, 1, 0)),
        ({"input_tokens": 10**30, "output_tokens": 0}, (10**30, 0, 0)),
        ({"input_tokens": -5, "output_tokens": -1}, None),
        ({"input_tokens": 10}, None),
        ({"input_tokens": "many", "output_tokens": 2.5}, None),
        ({}, None),
        ("garbage", None),
    ],
)
async def test_invalid_usage_reports_are_ignored(
    sqlite_memory: Memory, usage: object, kept: tuple[int, int, int] | None
) -> None:
    model = ScriptedModel(replies=["answer"])
    agent = create_agent(model, middleware=[SessionMemory(sqlite_memory), Reporting(usage)])
    assert await ask(agent, LONG) == "answer"
    [stored] = await sqlite_memory.manifests.of_session(ROOM)
    reported: Any = stored.manifest.get("reported")
    assert kept == (reported and tuple(reported.get(name, 0) for name in _COUNTS))


_COUNTS = ("input_tokens", "output_tokens", "cached_tokens")


@pytest.mark.parametrize(
    "told",
    [{"googleSearch": {}}, {"cachePoint": {"type": "default"}}, {"name": "x", "run": print}],
    ids=["search", "mark", "object"],
)
async def test_provider_specific_tools_are_counted_as_json(sqlite_memory: Memory, told: dict[str, object]) -> None:
    agent = create_agent(Anything(replies=["answer"]), [told], middleware=[SessionMemory(sqlite_memory)])
    assert await ask(agent, "hi") == "answer"
    [stored] = await sqlite_memory.manifests.of_session(ROOM)
    tools = stored.manifest["tools"]
    assert isinstance(tools, int)
    assert tools > 0


async def test_other_tools_are_counted_again(sqlite_memory: Memory) -> None:
    @tool
    def short() -> str:
        """Do it."""
        return "done"

    @tool(description=LONG)
    def long() -> str:
        return "done"

    class Choosing(AgentMiddleware[AgentState[Any], Any, Any]):
        """Middleware that selects one tool for the first call and another one for later calls."""

        async def awrap_model_call(
            self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
        ) -> ModelResponse[Any]:
            """Select the tool by the number of messages."""
            return await handler(request.override(tools=[short if len(request.messages) == 1 else long]))

    calling = AIMessage("", tool_calls=[{"name": "short", "args": {}, "id": "call-1"}])
    model = ScriptedModel(replies=[calling, "answer"])
    agent = create_agent(model, [short, long], middleware=[Choosing(), SessionMemory(sqlite_memory)])
    await ask(agent, "hi")
    second, first = await sqlite_memory.manifests.of_session(ROOM)
    assert first.manifest["tools"] != second.manifest["tools"]


@pytest.mark.parametrize("name", ["".join(map(chr, range(0x4E00, 0x5E00))), "nul\0", "half \ud800", "😀"])
async def test_factors_of_models_with_unusual_names_are_stored(memory: Memory, name: str) -> None:
    usage = {"input_tokens": 2_000, "output_tokens": 1, "total_tokens": 2_001}
    model = Named(replies=[AIMessage("answer", usage_metadata=usage) for _ in range(2)])
    model.model_name = name
    agent = create_agent(model, middleware=[SessionMemory(memory)])
    assert await ask(agent, LONG) == "answer"
    await memory.learned_factors.save()
    [(kept, (_, samples, _))] = (await memory.token_factors.all()).items()
    [stored] = await memory.manifests.of_session(ROOM)
    assert (stored.manifest["model"], samples) == (kept, 1)


@pytest.mark.parametrize("default", [{}, {"model": "small", "configurable_fields": ("model",)}], ids=["none", "small"])
async def test_the_config_of_a_run_chooses_the_model(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, default: dict[str, Any]
) -> None:
    def make(model: str, **_: object) -> Named:
        made = Named(replies=["answer"])
        made.model_name = model
        return made

    # LangChain creates the model of a provider here, for each call.
    monkeypatch.setattr(base, "_init_chat_model_helper", make)
    model = init_chat_model(**default)
    agent = create_agent(model, middleware=[SessionMemory(sqlite_memory)])
    graph: Any = StateGraph(MessagesState)
    graph.add_node("chat", memory_node(sqlite_memory, model))
    runnables: list[Runnable[Any, Any]] = [agent, graph.set_entry_point("chat").compile()]
    for runnable in runnables:
        answered = await runnable.ainvoke(input_of("hi"), config_of(model="large"))
        assert answered["messages"][-1].text == "answer"
    stored = await sqlite_memory.manifests.of_session(ROOM)
    assert [one.manifest["model"] for one in stored] == ["large", "large"]


async def test_a_model_with_retries_answers(sqlite_memory: Memory) -> None:
    model: Any = ScriptedModel(replies=["first", "second"]).with_retry()
    graph: Any = StateGraph(MessagesState)
    graph.add_node("chat", memory_node(sqlite_memory, model))
    agent = create_agent(model, middleware=[SessionMemory(sqlite_memory)])
    assert await ask(agent, "one") == "first"
    assert await ask(graph.set_entry_point("chat").compile(), "two") == "second"
