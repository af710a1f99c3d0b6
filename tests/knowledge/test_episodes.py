"""Tests of episodes on each database: a person's questions with answers and outcomes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from threadkeep import InvalidInput, Memory, MemoryOptions, Message, Scope, SessionMemory, open_memory
from threadkeep.records.runs import NewRun
from threadkeep.testing import ScriptedModel, SettableClock

ADA = Scope("user", "ada")


async def talk(memory: Memory, session_id: str, user_id: str, *turns: tuple[str, str]) -> None:
    """Append turns to a session."""
    session = memory.session(session_id, user_id=user_id)
    for asked, answered in turns:
        await session.append([Message(role="user", content=asked), Message(role="assistant", content=answered)])


async def test_the_newest_come_first_from_all_sessions_of_the_person(memory: Memory, clock: SettableClock) -> None:
    await memory.persons.resolve("ada")
    await memory.persons.resolve("telegram:7")
    await memory.persons.merge("telegram:7", into="ada")
    for number in range(1, 4):
        clock.advance(60)
        await talk(memory, f"room:{number}", "ada" if number % 2 else "telegram:7", (f"q{number}", f"a{number}"))
    await talk(memory, "room:of-bob", "bob", ("a secret of Bob", "noted"))
    found = await memory.episodes.latest(ADA, limit=2)
    assert [(one.asked, one.answered, one.ended) for one in found] == [
        ("q3", "a3", "complete"),
        ("q2", "a2", "complete"),
    ]
    assert [one.seq for one in found] == [1, 1]
    assert len(await memory.episodes.latest(Scope("user", "telegram:7"))) == 3
    assert [one.asked for one in await memory.episodes.latest(Scope("session", "room:of-bob"))] == ["a secret of Bob"]


async def test_texts_in_a_graph_store_are_read(
    database_url: str, memory_options: MemoryOptions, clock: SettableClock
) -> None:
    """Feedback is read from the metadata; a session deleted there has no episodes."""
    async with open_memory(database_url, options=replace(memory_options, transcripts="graph_store")) as memory:
        await talk(memory, "room:1", "ada", ("Where is Oslo?", "In Norway."), ("taken back", "reply"))
        await memory.session("room:1").take_back(2)
        clock.advance(60)
        answer = Message(role="assistant", content="In Peru.", metadata={"feedback": "good"})
        await memory.session("room:2", user_id="ada").append([Message(role="user", content="Where is Lima?"), answer])
        found = await memory.episodes.latest(ADA)
        assert [(one.asked, one.answered, one.feedback) for one in found] == [
            ("Where is Lima?", "In Peru.", "good"),
            ("Where is Oslo?", "In Norway.", None),
        ]
        [recalled] = await memory.episodes.recall("Oslo", [ADA])
        assert recalled.answered == "In Norway."
        await memory.session("room:2").delete()
        assert [one.asked for one in await memory.episodes.latest(ADA)] == ["Where is Oslo?"]


async def test_an_open_question_is_no_episode_and_a_failed_one_says_how_it_ended(memory: Memory) -> None:
    """A question without an answer is an episode only if its run has ended."""
    session = memory.session("room:1", user_id="ada")
    run = NewRun(run_id="run-1", workflow="chat", input={}, session_id="room:1", message_id="q1")
    await memory.runs.order.add(run)
    await memory.runs.order.begin("run-1", "worker")
    await session.append([Message(role="user", content="Is it open?", id="q1", run_id="run-1")])
    assert await memory.episodes.latest(ADA) == []
    await memory.runs.finish("run-1", "worker", "failed", error="ModelCallFailed")
    await session.append([Message(role="user", content="Hello?", metadata={"feedback": "bad"})])
    [failed] = await memory.episodes.latest(ADA)
    assert (failed.asked, failed.answered) == ("Is it open?", None)
    assert (failed.ended, failed.error) == ("failed", "ModelCallFailed")
    assert (failed.workflow, failed.run_id) == ("chat", "run-1")
    await session.append([Message(role="assistant", content="Yes.")])
    newest = (await memory.episodes.latest(ADA))[0]
    assert (newest.asked, newest.answered, newest.feedback) == ("Hello?", "Yes.", "bad")


@pytest.mark.parametrize("name", [None, "finder"])
async def test_an_episode_names_the_tools_that_were_called(memory: Memory, name: str | None) -> None:
    """The tools come from the stored steps of the newest turns, with or without an agent name."""

    @tool
    def find_order(number: str) -> str:
        """Find an order."""
        return f"Order {number} is on its way."

    call = AIMessage("", tool_calls=[{"name": "find_order", "args": {"number": "7"}, "id": "c1"}])
    agent = create_agent(ScriptedModel([call, "Soon."]), [find_order], name=name, middleware=[SessionMemory(memory)])
    config = {"configurable": {"thread_id": "room:1", "user_id": "ada"}}
    await agent.ainvoke({"messages": [{"role": "user", "content": "Where is 7?"}]}, config)  # type: ignore[call-overload]
    [episode] = await memory.episodes.latest(ADA)
    assert (episode.asked, episode.answered, episode.tools) == ("Where is 7?", "Soon.", ("find_order",))


async def test_messages_reset_or_taken_back_are_no_episodes(memory: Memory) -> None:
    session = memory.session("room:1", user_id="ada")
    await talk(memory, "room:1", "ada", ("old", "reply"))
    await session.reset()
    await talk(memory, "room:1", "ada", ("kept", "reply"), ("taken back", "reply"))
    await session.take_back(2)
    assert [one.asked for one in await memory.episodes.latest(ADA)] == ["kept"]


async def test_recall_finds_by_words_and_only_in_the_named_scopes(memory: Memory, clock: SettableClock) -> None:
    """Words of the question or the answer match; an unrelated query returns nothing."""
    await talk(memory, "room:1", "ada", ("Where is my parcel?", "At the depot in Lyon."), ("Thanks", "Welcome."))
    clock.advance(timedelta(days=1).total_seconds())
    await talk(memory, "room:2", "bob", ("Where is my parcel?", "In Oslo."))
    [found] = await memory.episodes.recall("the depot of the parcel", [ADA], limit=1)
    assert found.answered == "At the depot in Lyon."
    assert await memory.episodes.recall("xylophone", [ADA]) == []
    assert await memory.episodes.recall("parcel", [Scope("workspace", "shop")]) == []


async def test_a_workspace_has_no_episodes_and_a_page_has_bounds(memory: Memory) -> None:
    with pytest.raises(InvalidInput, match="session or a user"):
        await memory.episodes.latest(Scope("workspace", "shop"))
    for limit in (0, 1_001):
        with pytest.raises(InvalidInput, match="limit"):
            await memory.episodes.latest(ADA, limit=limit)
    for limit in (1, 1_000):
        assert await memory.episodes.latest(ADA, limit=limit) == []
    with pytest.raises(InvalidInput, match="limit"):
        await memory.episodes.recall("the depot", [ADA], limit=cast("int", "5"))
