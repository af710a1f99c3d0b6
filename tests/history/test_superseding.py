"""Tests of superseding and branching through the public API: take back, edit and regenerate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep import (
    InvalidInput,
    InvalidMessage,
    Memory,
    MemoryOptions,
    Message,
    MessageNotFound,
    MessageSuperseded,
    RecalledTurns,
    SessionMemory,
    SessionNotFound,
    StoreUnavailable,
    WrongUser,
    open_memory,
    rebuild,
)
from threadkeep.context.window import Exclusion
from threadkeep.history.session import AgentInput, Session
from threadkeep.records import Summary, View
from threadkeep.store.address import TranscriptLocation
from threadkeep.testing import ScriptedModel, SettableClock

ROOM = "room"


async def test_messages_are_taken_back_and_stay_in_the_history(memory: Memory) -> None:
    session = await _said(memory, "q1", "a1", "q2", "a2 refund")
    [taken] = await session.take_back()
    assert (taken.id, taken.content, taken.seq) == ("a2 refund", "a2 refund", 4)
    assert await _texts(session) == ["q1", "a1", "q2"]
    assert [message.id for message in await session.tail(9, view="history")] == ["q1", "a1", "q2", "a2 refund"]
    assert (await session.count(), await session.count(view="history")) == (3, 4)
    assert [message.content for message in (await session.window()).messages] == ["q1", "a1", "q2"]
    assert await memory.search("refund") == []
    assert [message.content for message in await session.take_back(2)] == ["a1", "q2"]
    assert (await session.info()).last_message == "q1"
    found = await session.find("a1")
    assert found is not None
    assert found.superseded_at is not None


async def test_concurrent_take_backs_get_different_messages(memory: Memory) -> None:
    session = await _said(memory, *(f"q{number}" for number in range(5)))
    taken = await asyncio.gather(*(session.take_back() for _ in range(7)))
    assert sorted(message.content for one in taken for message in one) == [f"q{number}" for number in range(5)]
    assert sorted(map(len, taken)) == [0, 0, 1, 1, 1, 1, 1]


async def test_an_edit_supersedes_all_later_messages(memory: Memory) -> None:
    """The new version keeps the role and metadata, has a new id and the next seq, and supersedes later messages."""
    session = memory.session(ROOM, user_id="u1")
    await session.append([Message("user", "q1", "q1", metadata={"page": "/a"}), Message("assistant", "a1", "a1")])
    await session.append([Message("user", "q2", "q2")])
    edited = await session.edit("q1", "better", new_id="q1b")
    assert (edited.role, edited.content, edited.id, edited.seq) == ("user", "better", "q1b", 4)
    assert edited.metadata == {"page": "/a"}
    assert await session.tail(9) == [edited]
    history = await session.tail(9, view="history")
    assert [message.superseded_by for message in history] == ["q1b", None, None, None]
    assert await session.edit("q1", "better", new_id="q1b") == edited
    assert (await session.info()).title == "better"
    assert (await session.edit("q1b", "best")).id not in (None, "q1b")


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
async def test_a_title_is_never_taken_from_a_message_without_a_text(
    database_url: str, memory_options: MemoryOptions, transcripts: TranscriptLocation
) -> None:
    """A picture has no text. If the text after it is superseded, so is the title."""
    async with open_memory(database_url, options=replace(memory_options, transcripts=transcripts)) as memory:
        session = memory.session(ROOM)
        await session.append([Message("user", "", "picture"), Message("user", "q1", "q1")])
        assert (await session.info()).title == "q1"
        await session.edit("q1", "better")
        assert (await session.info()).title == "better"
        await session.take_back(2)
        assert (await session.info()).title is None


async def test_an_invalid_change_is_refused(memory: Memory) -> None:
    session = await _said(memory, "q1", "a1", user_id="u1")
    other = memory.session(ROOM, user_id="u2")
    with pytest.raises(MessageNotFound, match="threadkeep sessions show"):
        await session.edit("nothing", "new")
    with pytest.raises(MessageNotFound):
        await memory.session("nowhere").edit("q1", "new")
    with pytest.raises(MessageNotFound, match="of a user"):
        await memory.session("nowhere").regenerate()
    with pytest.raises(MessageNotFound):
        await session.regenerate("no-such-run")
    with pytest.raises(SessionNotFound):
        await memory.session("nowhere").branch()
    with pytest.raises(InvalidMessage):
        await session.edit("q1", "")
    for wrong in (0, -1, True, 10_001):
        with pytest.raises(InvalidInput):
            await session.take_back(wrong)
    with pytest.raises(InvalidInput, match="history"):
        await session.tail(1, view="all")  # type: ignore[arg-type]
    for foreign in (other.take_back(), other.edit("q1", "x"), other.regenerate(), other.branch(1)):
        with pytest.raises(WrongUser):
            await foreign
    assert await _texts(session) == ["q1", "a1"]
    assert (await session.info()).revision == 0
    await session.edit("a1", "better")
    with pytest.raises(MessageSuperseded):
        await session.edit("a1", "again")


async def test_regenerate_has_a_question_answered_again(memory: Memory) -> None:
    """`regenerate` returns the input for the agent, and the new answer belongs to the same question."""
    model = ScriptedModel(["first", "second", "other"])
    agent = create_agent(model, middleware=[SessionMemory(memory)])
    session = memory.session(ROOM)
    await agent.ainvoke({"messages": [{"role": "user", "content": "q1", "id": "q1"}]}, _config())
    again = await session.regenerate("q1")
    assert again == {"messages": [{"role": "user", "content": "q1", "id": "q1"}]}
    result = await agent.ainvoke(again, _config())
    assert result["messages"][-1].content == "second"
    assert [[message.content for message in call] for call in model.calls] == [["q1"], ["q1"]]
    assert await _texts(session) == ["q1", "second"]
    assert await _texts(session, view="history") == ["q1", "first", "second"]
    assert [message.seq for message in await session.tail(9)] == [1, 3]
    repeated = await agent.ainvoke({"messages": [{"role": "user", "content": "q1", "id": "q1"}]}, _config())
    assert repeated["messages"][-1].content == "second"
    await agent.ainvoke({"messages": [{"role": "user", "content": "q2", "id": "q2"}]}, _config())
    assert [message.content for message in model.calls[-1]] == ["q1", "second", "q2"]


async def test_a_run_is_regenerated_by_its_id(memory: Memory) -> None:
    """All messages after the question of the run are superseded; None means the newest question."""
    session = memory.session(ROOM)
    for number in (1, 2, 3):
        await session.append(
            [
                Message("user", f"q{number}", f"q{number}", run_id=f"r{number}"),
                Message("assistant", f"a{number}", f"a{number}", run_id=f"r{number}"),
            ]
        )
    await session.append([Message("assistant", "by another run", "x", run_id="r9", answers="q3")])
    assert _id(await session.regenerate("r9")) == "q3"
    assert _id(await session.regenerate("r2")) == "q2"
    assert await _texts(session) == ["q1", "a1", "q2"]
    assert _id(await session.regenerate()) == "q2"
    with pytest.raises(MessageNotFound):
        await session.regenerate("r3")
    with pytest.raises(MessageSuperseded):
        await session.regenerate("q3")


async def test_superseded_messages_in_a_checkpoint_are_not_sent(memory: Memory) -> None:
    """The checkpoint keeps superseded messages, but they are excluded from model calls."""
    model = ScriptedModel(["first", "second", "third", "fourth"])
    agent = create_agent(model, middleware=[SessionMemory(memory)], checkpointer=InMemorySaver())
    session = memory.session(ROOM)
    await agent.ainvoke({"messages": [{"role": "user", "content": "q1", "id": "q1"}]}, _config())
    result = await agent.ainvoke(await session.regenerate(), _config())
    assert result["messages"][-1].content == "second"
    await agent.ainvoke({"messages": [{"role": "user", "content": "q2", "id": "q2"}]}, _config())
    edited = await session.edit("q1", "better", new_id="q1b")
    await agent.ainvoke({"messages": [{"role": "user", "content": edited.content, "id": edited.id}]}, _config())
    sent = [[message.content for message in call] for call in model.calls]
    assert sent == [["q1"], ["q1"], ["q1", "second", "q2"], ["better"]]
    assert await _texts(session) == ["better", "fourth"]
    excluded = [stored.manifest.get("excluded") for stored in await memory.manifests.of_session(ROOM)]
    assert [{"first_seq": 1, "last_seq": 5, "reason": "superseded"}] in excluded


async def test_an_answer_to_a_question_taken_back_is_superseded(memory: Memory) -> None:
    session = memory.session(ROOM)

    async def taking_back(_: Sequence[object]) -> str:
        await session.take_back()
        return "too late"

    agent = create_agent(ScriptedModel([taking_back, "next"]), middleware=[SessionMemory(memory)])
    result = await agent.ainvoke({"messages": [{"role": "user", "content": "q1", "id": "q1"}]}, _config())
    assert result["messages"][-1].content == "too late"
    assert await _texts(session) == []
    assert await _texts(session, view="history") == ["q1", "too late"]
    repeated = await agent.ainvoke({"messages": [{"role": "user", "content": "q1", "id": "q1"}]}, _config())
    assert repeated["messages"][-1].content == "too late"


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
async def test_a_refused_edit_keeps_the_summaries(
    database_url: str, memory_options: MemoryOptions, transcripts: TranscriptLocation
) -> None:
    async with open_memory(database_url, options=replace(memory_options, transcripts=transcripts)) as memory:
        session = await _said(memory, "q1", "a1")
        assert await memory.summaries.add(Summary(ROOM, 1, 2, "q1 and a1", "m", "1", 1))
        with pytest.raises(InvalidMessage):
            await session.edit("q1", "better", new_id="a1")
        assert len(await memory.summaries.active(ROOM)) == 1


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
async def test_a_repeated_branch_gets_no_later_summaries(
    database_url: str, memory_options: MemoryOptions, transcripts: TranscriptLocation
) -> None:
    """The messages of the branch may differ by then from those that the summary covers."""
    async with open_memory(database_url, options=replace(memory_options, transcripts=transcripts)) as memory:
        session = await _said(memory, "q1", "a1")
        branch = await session.branch(session_id="copy")
        await branch.edit("q1", "other")
        await session.append([Message("user", "q2")])
        assert await memory.summaries.add(Summary(ROOM, 1, 3, "q1 and q2", "m", "1", 1))
        await session.branch(session_id="copy")
        assert await memory.summaries.active("copy") == []


async def test_a_branch_is_independent_of_its_parent(memory: Memory) -> None:
    session = await _said(memory, "q1", "a1", "q2", "a2", user_id="u1")
    branch = await session.branch(at=2)
    assert await _texts(branch) == ["q1", "a1"]
    info = await branch.info()
    assert (info.parent_session_id, info.parent_seq, info.user_id, branch.user_id) == (ROOM, 2, "u1", "u1")
    await branch.append([Message("user", "other")])
    assert await _texts(session) == ["q1", "a1", "q2", "a2"]
    whole = await session.branch(session_id="copy")
    assert whole.session_id == "copy"
    assert await _texts(whole) == ["q1", "a1", "q2", "a2"]
    found = await memory.search("other", user_id="u1")
    assert [hit.session_id for hit in found] == [branch.session_id]


async def test_a_window_lists_superseded_messages(memory: Memory) -> None:
    """Superseded messages have a reason of their own and do not count as dropped."""
    session = await _said(memory, *(f"q{number}" for number in range(1, 11)))
    await session.edit("q7", "new", new_id="n")
    await _said(memory, "last")
    window = await session.window(max_messages=3)
    assert window.manifest.included == (6, 11, 12)
    assert window.manifest.excluded == (Exclusion(1, 5, "over_limit"), Exclusion(7, 10, "superseded"))
    assert window.manifest.dropped == 5
    window = await session.window(max_messages=None, max_tokens=None)
    assert (window.manifest.excluded, window.manifest.dropped) == ((Exclusion(7, 10, "superseded"),), 0)
    await session.take_back()
    assert (await session.window()).manifest.excluded[-1] == Exclusion(12, 12, "superseded")


async def test_summaries_of_superseded_messages_are_inactive(memory: Memory) -> None:
    """Earlier summaries and the valid parts of a merged one are active; later messages can be summarised again."""
    session = await _said(memory, *(f"q{number}" for number in range(1, 13)))
    for first, last in ((1, 4), (5, 8), (9, 10)):
        assert await memory.summaries.add(_summary(first, last))
    parts = await memory.summaries.active(ROOM)
    merged = _summary(1, 8, level=2)
    assert await memory.summaries.add(merged, [part.id for part in parts[:2]])
    await session.edit("q6", "new", new_id="n")
    assert [(one.first_seq, one.last_seq) for one in await memory.summaries.active(ROOM)] == [(1, 4)]
    uncovered = await memory.summaries.uncovered(ROOM)
    assert (uncovered.after_seq, uncovered.messages) == (4, 2)
    assert len(await memory.summaries.all_of(ROOM)) == 4
    assert await memory.summaries.add(_summary(5, 13))


async def test_a_summary_of_an_outdated_revision_is_not_stored(memory: Memory) -> None:
    session = await _said(memory, "q1", "q2", "q3")
    revision = (await session.info()).revision
    await session.edit("q2", "new")
    assert not await memory.summaries.add(_summary(1, 2), revision=revision)
    assert await memory.summaries.add(_summary(1, 2), revision=(await session.info()).revision)


async def test_the_anchor_is_reset_when_most_of_the_window_was_superseded(memory: Memory) -> None:
    """The anchor is reset if too few messages remain after it; a move with an outdated revision is ignored."""
    session = await _said(memory, *(f"q{number}" for number in range(1, 21)))
    await memory.contexts.move_anchor(ROOM, "chat", 10)
    await session.take_back(2)
    state = await memory.contexts.state(ROOM, "chat")
    assert (state.anchor_seq, state.revision) == (10, 1)
    await session.edit("q12", "new")
    state = await memory.contexts.state(ROOM, "chat")
    assert (state.anchor_seq, state.revision) == (0, 2)
    await memory.contexts.move_anchor(ROOM, "chat", 10, revision=1)
    assert (await memory.contexts.state(ROOM, "chat")).anchor_seq == 0
    await memory.contexts.move_anchor(ROOM, "chat", 5, revision=2)
    assert (await memory.contexts.state(ROOM, "chat")).anchor_seq == 5


async def test_older_turns_that_were_superseded_are_not_recalled(memory: Memory) -> None:
    session = await _said(memory, "my cat is called Mittens", "a1", *(f"q{number}" for number in range(1, 7)))
    model = ScriptedModel(["x", "y"])
    recalled = RecalledTurns(memory)
    agent = create_agent(model, middleware=[SessionMemory(memory, max_messages=2, sources=[recalled])])
    await agent.ainvoke({"messages": [{"role": "user", "content": "what is the name of my cat?"}]}, _config())
    assert "Mittens" in str(model.calls[-1])
    await session.edit("my cat is called Mittens", "nothing")
    await _said(memory, *(f"p{number}" for number in range(1, 7)))
    await agent.ainvoke({"messages": [{"role": "user", "content": "what is the name of my cat?"}]}, _config())
    assert "Mittens" not in str(model.calls[-1])


async def test_a_call_before_an_edit_can_be_rebuilt(memory: Memory) -> None:
    """The manifest and the superseded messages are still stored."""
    model = ScriptedModel(["a1", "a2"])
    agent = create_agent(model, middleware=[SessionMemory(memory)])
    for number in (1, 2):
        await agent.ainvoke({"messages": [{"role": "user", "content": f"q{number}", "id": f"q{number}"}]}, _config())
    await memory.session(ROOM).edit("q1", "other")
    calls = [await rebuild(stored) for stored in await memory.manifests.of_session(ROOM)]
    assert ["q1", "a1", "q2"] in [[message.content for message in call] for call in calls]


async def test_pending_turns_are_written_before_messages_are_taken_back(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await _said(memory, "q1")
    append = memory._backend.transcripts.append  # noqa: SLF001 - simulates an outage of writes only

    async def away(_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(memory._backend.transcripts, "append", away)  # noqa: SLF001 - as above
    await session.record([Message("user", "waiting", "w")])
    with pytest.raises(StoreUnavailable):
        await session.take_back()
    monkeypatch.setattr(memory._backend.transcripts, "append", append)  # noqa: SLF001 - as above
    assert [message.id for message in await session.take_back()] == ["w"]
    assert await _texts(session) == ["q1"]


async def test_the_times_of_superseding_are_those_of_the_clock(memory: Memory, clock: SettableClock) -> None:
    """A superseded message and its new version have the same time, from the clock."""
    session = await _said(memory, "q1")
    clock.advance(60)
    edited = await session.edit("q1", "new")
    found = await session.find("q1")
    assert found is not None
    assert found.superseded_at == edited.created_at == clock()


async def _said(memory: Memory, *words: str, user_id: str | None = None) -> Session:
    """Return a session with a message per word, which is also its id; words with `a` are the assistant's."""
    session = memory.session(ROOM, user_id=user_id)
    await session.append([Message("assistant" if word.startswith("a") else "user", word, word) for word in words])
    return session


async def _texts(session: Session, view: View = "active") -> list[str]:
    return [message.content for message in await session.tail(99, view=view)]


def _summary(first_seq: int, last_seq: int, level: int = 1) -> Summary:
    return Summary(ROOM, first_seq, last_seq, f"{first_seq} to {last_seq}", "m", "1", tokens=5, level=level)


def _id(asked: AgentInput) -> object:
    [message] = asked["messages"]
    return message["id"] if isinstance(message, dict) else message.id


def _config() -> RunnableConfig:
    return {"configurable": {"thread_id": ROOM}}
