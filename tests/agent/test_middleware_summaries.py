"""Tests of agents with compression: the calls of consecutive turns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig

from threadkeep import Compression, ContextManifest, ModelSummarizer, SessionMemory, rebuild
from threadkeep.history.memory import Memory
from threadkeep.testing import ScriptedModel

CONFIG: RunnableConfig = {"configurable": {"thread_id": "room"}}


def compression(*summaries: str | AIMessage | Exception, messages: int = 8) -> Compression:
    """Return options that keep four messages and summarize older ones."""
    summarizer = ModelSummarizer(ScriptedModel(replies=list(summaries)))
    return Compression(trigger=("messages", messages), keep=("messages", 4), summarizer=summarizer)


async def talk(memory: Memory, options: Compression, turns: range, max_messages: int | None = None) -> ScriptedModel:
    """Run numbered turns, and wait for due summaries after each one."""
    model = ScriptedModel(replies=[f"answer {n}" for n in turns])
    middleware = [SessionMemory(memory, max_messages=max_messages, compression=options)]
    agent = create_agent(model, [], system_prompt="Be brief.", middleware=middleware)
    for number in turns:
        await agent.ainvoke({"messages": [HumanMessage(f"question {number}")]}, CONFIG)
        await memory.compressor.idle()
    return model


def contents(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the texts of messages."""
    return [str(message.content) for message in messages]


async def manifests(memory: Memory) -> list[ContextManifest]:
    """Return the manifests of all calls of the session, oldest first."""
    stored = await memory.manifests.of_session("room", limit=200)
    return [ContextManifest.from_dict(one.manifest) for one in reversed(stored)]


async def test_a_summary_replaces_old_messages(memory: Memory) -> None:
    model = await talk(memory, compression("They counted from 0 to 1."), range(5))
    system, summary, *rest = contents(model.calls[-1])
    assert system == "Be brief."
    assert "messages 1 to 4 (4 messages)" in summary
    assert "They counted from 0 to 1." in summary
    assert rest == ["question 2", "answer 2", "question 3", "answer 3", "question 4"]
    found = await manifests(memory)
    assert [(gap.first_seq, gap.last_seq, gap.reason) for gap in found[-1].excluded] == [(1, 4, "summarised")]
    assert contents(await rebuild(found[-1], memory)) == contents(model.calls[-1])
    assert [message.content for message in await memory.session("room").tail(20)][:2] == ["question 0", "answer 0"]


@pytest.mark.slow
async def test_every_message_is_covered_at_every_call(memory: Memory) -> None:
    """Each message is sent or in exactly one summary, also if the message limit is reached first."""
    options = compression(*[f"Summary {n}." for n in range(40)], messages=40)
    await talk(memory, options, range(40), max_messages=10)
    for manifest in await manifests(memory):
        said = [entry.seq for entry in manifest.entries if entry.seq is not None]
        summarised = [
            seq
            for gap in manifest.excluded
            if gap.reason == "summarised"
            for seq in range(gap.first_seq, gap.last_seq + 1)
        ]
        assert sorted(said + summarised) == list(range(1, max(said) + 1))


async def test_where_no_summary_can_be_made_the_window_alone_is_used(memory: Memory) -> None:
    model = await talk(memory, compression(RuntimeError("overloaded"), "", " "), range(12))
    assert contents(model.calls[-1])[1] == "question 0"
    assert await memory.summaries.all_of("room") == []


async def test_a_reset_hides_the_summaries(memory: Memory) -> None:
    await talk(memory, compression("Old."), range(5))
    await memory.session("room").reset()
    model = await talk(memory, compression(), range(5, 6))
    assert contents(model.calls[-1]) == ["Be brief.", "question 5"]
    assert (await manifests(memory))[-1].excluded[0].reason == "reset"
