"""Tests of compression in agents: each message is sent, summarized or listed as excluded."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.agent.talking import ROOM, ask, make_agent, seen, stream
from tests.history.summaries import Asked, WrittenDown, check_coverage
from threadkeep import Compression, KnownFacts, Memory, Message, Scope, SessionMemory, rebuild
from threadkeep.context.manifest import ContextManifest
from threadkeep.context.window import Exclusion
from threadkeep.records import Json
from threadkeep.testing import Gate, ScriptedModel

WORDS = "and some more words " * 10
RUSSIAN = "и ещё несколько слов " * 20
HINDI = "और कुछ शब्द " * 6


class Called(ScriptedModel):
    """A scripted model with the name of a known model."""

    model_name: str = "claude-2.1"


def compressing(memory: Memory, summarizer: WrittenDown | None, *, max_tokens: int | None = 2_000) -> SessionMemory:
    """Return the middleware with compression and without a message limit."""
    options = Compression(trigger=("messages", 30), keep=("messages", 8), summarizer=summarizer)
    return SessionMemory(memory, max_messages=None, max_tokens=max_tokens, compression=options)


def accounted(values: Mapping[str, Json]) -> list[int]:
    """Return the sequence numbers that a manifest lists, with duplicates."""
    manifest = ContextManifest.from_dict(values)
    sent = [entry.seq for entry in manifest.entries if entry.seq is not None]
    out = [seq for gap in manifest.excluded for seq in range(gap.first_seq, gap.last_seq + 1)]
    return sorted([*sent, *out])


@pytest.mark.parametrize("max_tokens", [1_200, 2_000, None])
@pytest.mark.slow
async def test_each_call_accounts_for_every_message(sqlite_memory: Memory, max_tokens: int | None) -> None:
    """Each message is sent, in a summary that is sent, or excluded with a reason, exactly once."""
    model = ScriptedModel(f"answer {number} {WORDS}" for number in range(100))
    agent = make_agent(model, [compressing(sqlite_memory, WrittenDown(), max_tokens=max_tokens)])
    for number in range(60):
        await ask(agent, f"question {number} {WORDS}")
        await sqlite_memory.compressor.idle()
        await check_coverage(sqlite_memory, ROOM)
    manifests = await sqlite_memory.manifests.of_session(ROOM, limit=100)
    assert len(manifests) == 60
    for turn, stored in enumerate(reversed(manifests)):
        assert accounted(stored.manifest) == list(range(1, 2 * turn + 2))
    newest = ContextManifest.from_dict(manifests[0].manifest)
    assert {gap.reason for gap in newest.excluded} == {"summarised"}


async def test_a_summary_with_its_range_precedes_the_window(sqlite_memory: Memory) -> None:
    model = ScriptedModel(f"answer {number}" for number in range(100))
    agent = make_agent(model, [compressing(sqlite_memory, WrittenDown())], system_prompt="Be kind.")
    for number in range(16):
        await ask(agent, f"question {number}")
        await sqlite_memory.compressor.idle()
    (kind, system), (_, summary), *talk = seen(model.calls[-1])
    assert (kind, system) == ("system", "Be kind.")
    assert '<summary of="messages 1 to 22 (22 messages)">\nMessages 1 to 22.\n</summary>' in summary
    assert talk[0] == ("human", "question 11")
    assert talk[-1] == ("human", "question 15")


async def test_the_size_of_a_window_is_in_stored_tokens(sqlite_memory: Memory) -> None:
    """A model with another tokenizer gets summaries in time, because the window is measured in stored tokens."""
    model = Called(replies=[f"ответ {number} {RUSSIAN}" for number in range(100)])
    options = Compression(trigger=("messages", 1_000), keep=("messages", 4), summarizer=WrittenDown())
    session = SessionMemory(sqlite_memory, max_messages=None, max_tokens=2_000, compression=options)
    agent = make_agent(model, [session])
    for number in range(24):
        await ask(agent, f"вопрос {number} {RUSSIAN}")
        await sqlite_memory.compressor.idle()
    manifests = await sqlite_memory.manifests.of_session(ROOM, limit=100)
    assert all(str(stored.manifest["counter"]).startswith("estimate_claude2") for stored in manifests)
    reasons = {gap.reason for one in manifests for gap in ContextManifest.from_dict(one.manifest).excluded}
    assert reasons == {"summarised"}


async def test_prompt_and_facts_do_not_change_the_size_of_the_window(sqlite_memory: Memory) -> None:
    for number in range(12):
        await sqlite_memory.knowledge.remember(Scope("workspace", "shop"), f"fact {number}", WORDS)
    model = Called(replies=[f"उत्तर {number} {HINDI}" for number in range(100)])
    session = SessionMemory(
        sqlite_memory,
        max_messages=None,
        max_tokens=2_000,
        compression=Compression(trigger=("messages", 1_000), keep=("messages", 4), summarizer=WrittenDown()),
        sources=[KnownFacts(sqlite_memory, workspace="shop")],
    )
    agent = make_agent(model, [session], system_prompt=WORDS * 10)
    for number in range(24):
        await ask(agent, f"प्रश्न {number} {HINDI}")
        await sqlite_memory.compressor.idle()
    manifests = await sqlite_memory.manifests.of_session(ROOM, limit=100)
    reasons = {gap.reason for one in manifests for gap in ContextManifest.from_dict(one.manifest).excluded}
    assert reasons == {"summarised"}


async def test_no_turn_waits_for_a_summary(sqlite_memory: Memory) -> None:
    summarizer, gate = WrittenDown(), Gate()

    async def wait(asked: Asked) -> str:
        await gate.pass_through()
        return "At last."

    summarizer.answer = wait
    model = ScriptedModel(f"answer {number}" for number in range(100))
    agent = make_agent(model, [compressing(sqlite_memory, summarizer)])
    for number in range(20):
        await ask(agent, f"question {number}")
    await gate.reached()
    assert "At last." not in str(seen(model.calls[-1]))
    gate.open()
    await sqlite_memory.compressor.idle()
    await ask(agent, "And now?")
    assert "At last." in seen(model.calls[-1])[0][1]


async def test_without_a_summarizer_the_agents_own_model_writes(sqlite_memory: Memory) -> None:
    model = ScriptedModel(f"answer {number}" for number in range(100))
    agent = make_agent(model, [compressing(sqlite_memory, None)])
    heard = [await stream(agent, f"question {number}") for number in range(15)]
    await sqlite_memory.compressor.idle()
    [summary] = await check_coverage(sqlite_memory, ROOM)
    assert (summary.first_seq, summary.last_seq, summary.text) == (1, 22, "answer 15")
    assert heard == [f"answer {number}" for number in range(15)]


async def test_an_agent_with_a_smaller_budget_lists_excluded_summaries(sqlite_memory: Memory) -> None:
    """An agent with a smaller budget sends whole summaries and lists the excluded ones."""
    summarizer = WrittenDown()
    summarizer.answer = lambda asked: f"Summary {len(summarizer.asked)}. " + "fact " * 100
    session = sqlite_memory.session(ROOM)
    options = Compression(trigger=("messages", 20), keep=("messages", 4))
    for _ in range(3):
        for number in range(12):
            await session.append([Message("user", f"question {number}"), Message("assistant", "answer")])
        await sqlite_memory.compressor.compress_now(ROOM, options, summarizer, budget=8_000)
    first, *others = await sqlite_memory.summaries.active(ROOM)
    model = ScriptedModel(["so"])
    await ask(make_agent(model, [SessionMemory(sqlite_memory, max_tokens=1_600)]), "And?")
    [stored] = await sqlite_memory.manifests.of_session(ROOM)
    manifest = ContextManifest.from_dict(stored.manifest)
    [entry] = [entry for entry in manifest.entries if entry.section == "summary"]
    assert entry.summaries == tuple(summary.id for summary in others)
    assert entry.tokens_before is None
    assert all(summary.text in model.calls[0][0].text for summary in others)
    assert first.text not in model.calls[0][0].text
    assert manifest.excluded[0] == Exclusion(first.first_seq, first.last_seq, "over_budget")
    assert accounted(stored.manifest) == list(range(1, 74))
    assert await rebuild(stored) == model.calls[0]
