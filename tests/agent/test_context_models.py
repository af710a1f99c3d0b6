"""Tests of contexts that depend on the called model, and of sources that are not history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.retrievers import BaseRetriever
from pydantic import PrivateAttr

from tests.agent.talking import ROOM, ask, config_of, make_agent
from threadkeep import (
    Memory,
    MemoryOptions,
    Message,
    RetrievedSnippets,
    SessionMemory,
    count_tokens,
    open_memory,
)
from threadkeep.context.tokens import chars4
from threadkeep.testing import ScriptedModel
from threadkeep.testing.scripted import Reply

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
