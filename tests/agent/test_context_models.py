"""Tests of contexts that depend on the called model, and of sources that are not history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.retrievers import BaseRetriever
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel, PrivateAttr

from tests.agent.talking import ROOM, add, adding, ask, config_of, make_agent, seen
from threadkeep import (
    Memory,
    MemoryOptions,
    Message,
    RetrievedSnippets,
    SessionMemory,
    count_tokens,
    open_memory,
    rebuild,
)
from threadkeep.agent.provider_messages import CLOSING, NOTHING_ADDED
from threadkeep.context.tokens import chars4
from threadkeep.testing import ScriptedModel
from threadkeep.testing.scripted import Reply


class Sum(BaseModel):
    """A structured response."""

    total: int


THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"}
PICTURE = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}


class Known(ScriptedModel):
    """A model that reports a name and a provider."""

    model_name: str = "model-1"
    _provider: str = PrivateAttr()

    def __init__(self, replies: Iterable[Reply], provider: str = "somebody") -> None:
        super().__init__(replies)
        self._provider = provider

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {**super()._get_ls_params(stop, **kwargs), "ls_provider": self._provider}


@pytest.mark.parametrize(
    ("provider", "stays"),
    [("anthropic", True), ("openai", False), ("azure", False), ("amazon_bedrock", False), ("somebody", True)],
)
async def test_reasoning_is_sent_only_to_the_provider_that_signed_it(
    sqlite_memory: Memory, provider: str, stays: bool
) -> None:
    """Reasoning is removed for another provider; an unknown provider is assumed to be the last one."""
    said = AIMessage([THINKING, {"type": "text", "text": "Yes."}], response_metadata={"model_provider": "anthropic"})
    memory = SessionMemory(sqlite_memory, keep_originals=True)
    await ask(make_agent(ScriptedModel([said]), [memory]), "Is it?")
    model = Known(["Yes, I am sure."], provider)
    await ask(make_agent(model, [memory]), "Are you sure?")
    [_, answer, _] = model.calls[0]
    assert answer.text == "Yes."
    assert (answer.content == said.content) is stays


@pytest.mark.parametrize("provider", ["anthropic", "google_genai", "mistral", "amazon_bedrock", "openai"])
async def test_another_agent_s_answer_is_not_the_last_message(sqlite_memory: Memory, provider: str) -> None:
    """Claude, Gemini and Mistral refuse calls that end with an answer, and Gemini refuses tool calls behind one."""
    graph: Any = StateGraph(MessagesState)
    critic = Known([adding(), "remarks"], provider)
    for name, model in (("writer", Known(["draft"], provider)), ("critic", critic)):
        graph.add_node(name, make_agent(model, [SessionMemory(sqlite_memory)], [add]))
    graph.add_edge(START, "writer").add_edge("writer", "critic").add_edge("critic", END)
    await graph.compile().ainvoke({"messages": [HumanMessage("q")]}, config_of())
    closing = [] if provider == "openai" else [("human", CLOSING)]
    assert seen(critic.calls[0]) == [("human", "q"), ("ai", "draft"), *closing]
    assert seen(critic.calls[1]) == [*seen(critic.calls[0]), ("ai", ""), ("tool", "3")]
    stored = await sqlite_memory.manifests.of_session(ROOM)
    assert [seen(await rebuild(one)) for one in stored[:2]] == [seen(call) for call in reversed(critic.calls)]


@pytest.mark.parametrize("provider", ["mistral", "anthropic"])
async def test_a_question_behind_a_tool_s_result_follows_a_mark_for_mistral(
    sqlite_memory: Memory, provider: str
) -> None:
    """A structured response ends a turn with a tool's result; Mistral refuses a user message behind it."""
    calls = [AIMessage("", tool_calls=[{"name": "Sum", "args": {"total": 3}, "id": f"c{number}"}]) for number in (1, 2)]
    model = Known(calls, provider)
    agent = create_agent(
        model,
        middleware=[SessionMemory(sqlite_memory)],
        response_format=ToolStrategy(Sum),
        checkpointer=InMemorySaver(),
    )
    for question in ("one?", "two?"):
        await agent.ainvoke({"messages": [HumanMessage(question)]}, config_of())
    assert [message.type for message in model.calls[1][:3]] == ["human", "ai", "tool"]
    assert seen(model.calls[1][3:]) == [*([("ai", NOTHING_ADDED)] if provider == "mistral" else []), ("human", "two?")]


@pytest.mark.parametrize(("content", "learns"), [("words " * 400, True), (["words " * 400, PICTURE], False)])
async def test_calls_with_images_do_not_change_the_factor(
    sqlite_memory: Memory, content: str | list[str | dict[Any, Any]], learns: bool
) -> None:
    reply = AIMessage("Yes.", usage_metadata={"input_tokens": 3000, "output_tokens": 2, "total_tokens": 3002})
    agent = make_agent(Known([reply]), [SessionMemory(sqlite_memory)])
    messages: Sequence[BaseMessage] = [HumanMessage(content)]
    await agent.ainvoke({"messages": messages}, config_of())
    factor = await sqlite_memory.learned_factors.of("model-1")
    assert (factor is not None and factor.samples > 0) is learns


async def test_a_factor_belongs_to_the_estimate_that_it_was_learned_of(memory: Memory) -> None:
    """A factor learned with the default estimate is not used with a model's own estimate."""
    await memory.token_factors.save("claude-2.1", 3.0, 40)
    usage = {"input_tokens": 3_000, "output_tokens": 2, "total_tokens": 3_002}
    model = Known([AIMessage("Yes.", usage_metadata=usage)])
    model.model_name = "claude-2.1"
    await ask(make_agent(model, [SessionMemory(memory)]), "words " * 400)
    [stored] = await memory.manifests.of_session(ROOM)
    assert stored.manifest["counter"] == "estimate_claude2"
    await memory.learned_factors.save()
    kept = await memory.token_factors.all()
    assert kept.pop("claude-2.1") == (3.0, 40, None)
    assert [(name, samples) for name, (_, samples, _) in kept.items()] == [("claude-2.1 estimate_claude2", 1)]


@pytest.mark.parametrize("tokens", [1, None])
async def test_the_budget_uses_the_current_counter_whatever_is_stored(
    sqlite_url: str, memory_options: MemoryOptions, tokens: int | None
) -> None:
    before = replace(memory_options, counter=chars4)
    async with open_memory(sqlite_url, options=before) as memory:
        for _ in range(10):
            await memory.session(ROOM).append([Message("user", "你好，请问包裹什么时候到？" * 20, tokens=tokens)])
    async with open_memory(sqlite_url, options=memory_options) as memory:
        model = ScriptedModel(["Soon."])
        await ask(make_agent(model, [SessionMemory(memory, max_tokens=1000)]), "?")
        [stored] = await memory.manifests.of_session(ROOM)
        assert sum(map(count_tokens, model.calls[0])) == stored.manifest["tokens"]
        assert sum(map(count_tokens, model.calls[0])) <= 1000


class Shelf(BaseRetriever):
    """A retriever that returns one passage for every question."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [Document("Parcels take three days.", id="doc-1")]


async def test_passages_are_sent_without_earlier_turns(sqlite_memory: Memory) -> None:
    model = ScriptedModel(["one", "Three days."])
    agent = make_agent(model, [SessionMemory(sqlite_memory, max_messages=0, sources=[RetrievedSnippets(Shelf())])])
    await ask(agent, "Hello")
    await ask(agent, "How long does a parcel take?")
    assert not any("Hello" in message.text for message in model.calls[1])
    assert any("Parcels take three days." in message.text for message in model.calls[1])
