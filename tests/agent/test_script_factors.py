"""Tests of token factors by script, for models of unknown families that need more tokens for some scripts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import PrivateAttr

from bench.token_families import real_counts
from bench.token_samples import rows
from tests.agent.talking import ROOM, ask, make_agent
from threadkeep import Memory, MemoryOptions, SessionMemory, open_memory
from threadkeep.context.tokens import estimate
from threadkeep.records import Json
from threadkeep.testing import ScriptedModel

_CALLS = 30
_ENGLISH, _THAI = ("English: prose", "English: chat"), ("Thai: prose", "Thai: chat")


class Unknown(ScriptedModel):
    """A model of a family without an estimate, with the tokenizer of Claude 2."""

    model_name: str = "mistral-large-2"
    _counts: dict[str, int] = PrivateAttr(default_factory=lambda: {"ok": 1})

    def __init__(self) -> None:
        super().__init__(repeat(self._reply))

    def question(self, titles: Sequence[str], rng: random.Random) -> str:
        """Return a question of samples from these rows."""
        counts, texts = real_counts()["published"]["claude2"], rows("published")
        samples = rng.choices([pair for title in titles for pair in zip(texts[title], counts[title], strict=True)], k=6)
        words = "\n".join(text for text, _ in samples)
        self._counts[words] = sum(count for _, count in samples)
        return words

    def _reply(self, messages: Sequence[BaseMessage]) -> AIMessage:
        given = sum(self._counts.get(message.text, 0) for message in messages)
        usage: Any = {"input_tokens": given, "output_tokens": 1, "total_tokens": given + 1}
        return AIMessage("ok", usage_metadata=usage)


async def converse(memory: Memory, model: Unknown) -> None:
    """Run a chat in Thai, one in English and one in both, in random order."""
    agent, rng = make_agent(model, [SessionMemory(memory, max_tokens=20_000)]), random.Random(5)
    for _ in range(_CALLS):
        titles = rng.choice([_THAI, _ENGLISH, (*_THAI, *_ENGLISH)])
        await ask(agent, model.question(titles, rng), thread_id=f"room of {titles}")


async def manifest_of(memory: Memory, model: Unknown, words: str, room: str = "new room") -> Mapping[str, Json]:
    """Ask in a session, and return the manifest of the call."""
    await ask(make_agent(model, [SessionMemory(memory)]), words, thread_id=room)
    return (await memory.manifests.of_session(room))[0].manifest


async def test_thai_and_english_are_both_counted_within_a_tenth(memory: Memory) -> None:
    """Usage reports of mixed chats yield a separate factor for each script."""
    model, rng = Unknown(), random.Random(6)
    await converse(memory, model)
    for titles in (_THAI, _ENGLISH):
        made = await manifest_of(memory, model, model.question(titles, rng), f"last of {titles}")
        reported: Any = made["reported"]
        assert made["tokens"] == pytest.approx(reported["input_tokens"], rel=0.1)


async def test_the_system_prompt_is_counted_in_its_script(memory: Memory) -> None:
    model, rng = Unknown(), random.Random(6)
    for number in range(_CALLS):
        prompt = model.question(_THAI, rng) if number % 2 else None
        agent = make_agent(model, [SessionMemory(memory)], system_prompt=prompt)
        await ask(agent, model.question(_ENGLISH, rng), thread_id=f"room {number}")
    factor = await memory.learned_factors.of(model.model_name)
    assert factor.other is not None
    assert factor.value < 1.2
    assert factor.other > 3


async def test_both_factors_survive_a_restart(shared_url: str, memory_options: MemoryOptions) -> None:
    model, rng = Unknown(), random.Random(6)
    async with open_memory(shared_url, options=memory_options) as memory:
        await converse(memory, model)
        factor = await memory.learned_factors.of(model.model_name)
    assert factor.other is not None
    assert factor.value < 1.2
    assert factor.other > 3
    async with open_memory(shared_url, options=memory_options) as memory:
        made = await manifest_of(memory, model, model.question(_THAI, rng))
        assert made["counter"] == f"estimate×{factor.value:.2f}, other scripts ×{factor.other:.2f}"


async def test_two_processes_store_factors_of_different_models(shared_url: str, memory_options: MemoryOptions) -> None:
    one, other, rng = Unknown(), Unknown(), random.Random(6)
    other.model_name = "grok-9"
    async with (
        open_memory(shared_url, options=memory_options) as first,
        open_memory(shared_url, options=memory_options) as second,
    ):
        for memory, model in ((first, one), (second, other), (second, one)):
            await manifest_of(memory, model, model.question(_THAI, rng), f"room of {model.model_name}")
        learned = await first.learned_factors.of(one.model_name)
    async with open_memory(shared_url, options=memory_options) as memory:
        kept = await memory.token_factors.all()
    assert kept.keys() == {"mistral-large-2", "grok-9"}
    assert kept["mistral-large-2"] == (learned.value, learned.samples, learned.other)


async def test_a_model_of_a_known_family_has_one_factor(memory: Memory) -> None:
    model, rng = Unknown(), random.Random(6)
    model.model_name = "claude-3-opus"
    made = [await manifest_of(memory, model, model.question((*_THAI, *_ENGLISH), rng)) for _ in range(3)]
    assert str(made[-1]["counter"]).startswith("estimate_claude3×")
    assert "other" not in str(made[-1]["counter"])
    assert (await memory.learned_factors.of("claude-3-opus")).other is None


async def test_each_message_costs_the_sum_of_its_scripts(memory: Memory) -> None:
    await memory.token_factors.save("mistral-large-2", 1.0, 20, 3.0)
    model, thai, english = Unknown(), "พัสดุของฉันจะมาถึงเมื่อไร" * 5, "When does my parcel arrive?" * 5
    agent = make_agent(model, [SessionMemory(memory, max_tokens=2_000)])
    for words in (thai, english, thai + english) * 6:
        await ask(agent, words)
    made = (await memory.manifests.of_session(ROOM))[0].manifest
    entries: Any = made["entries"]
    sent = {str(message.text): entry["tokens"] for message, entry in zip(model.calls[-1], entries, strict=True)}
    assert sent[english] == estimate(english)
    assert sent[thai] == pytest.approx(3 * estimate(thai), abs=2)
    mixed = estimate(english) + 3 * estimate(thai)
    assert sent[thai + english] == pytest.approx(mixed, rel=0.1)
    assert sum(entry["tokens"] for entry in entries) == made["tokens"]
    assert 900 < int(str(made["tokens"])) <= 2_000
    assert len(entries) < len(model.calls) * 2 - 1
