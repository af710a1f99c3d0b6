"""Processes that stall in a turn and go on when another one has taken it over."""

from __future__ import annotations

import contextlib
from contextlib import AsyncExitStack

import pytest

from tests.agent.talking import kept
from tests.runs.chatting import ROOM, WATCHFUL, Chats, said
from tests.runs.desk import eventually, living_process
from threadkeep import Interrupted, Memory, MemoryOptions, open_memory
from threadkeep.records.runs import NewRun
from threadkeep.testing import Gate, ScriptedModel

ID = "telegram:42"


async def test_a_person_does_not_wait_for_ever_for_a_process_that_stands_still(
    sqlite_memory: Memory, make_chat: Chats
) -> None:
    """It keeps its run while it lives: the repeat is told to come again, and then gets the answer."""
    async with living_process() as owner:
        new = NewRun(run_id="held", workflow="chat", input={"text": "hi"}, session_id=ROOM, message_id=ID)
        await sqlite_memory.runs.order.add(new, owner=owner)
        model = ScriptedModel(["hello"])
        chat = make_chat(sqlite_memory, model, runs=WATCHFUL, elsewhere_seconds=0.05)
        with pytest.raises(Interrupted, match="send the message again"):
            await chat.ask(said("hi", ID))
        assert model.calls == []

    async def is_answered() -> bool:
        with contextlib.suppress(Interrupted):
            return (await chat.ask(said("hi", ID))).response == "hello"
        return False

    await eventually(is_answered)
    assert await kept(sqlite_memory, ROOM) == [("user", "hi"), ("assistant", "hello")]


async def test_a_process_that_wakes_up_late_stores_no_second_answer(
    shared_url: str, memory_options: MemoryOptions, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every database: it stalled, another took its message over and answered; then it goes on."""
    async with AsyncExitStack() as stack:
        memories = [await stack.enter_async_context(open_memory(shared_url, options=memory_options)) for _ in "ab"]
        gate = Gate()
        stalled = make_chat(memories[0], ScriptedModel([["hello from ", gate, "the late one"]]))
        turn = stalled.begin(said("hi", ID))
        await gate.reached()
        # Its lease has run out.
        monkeypatch.setattr("threadkeep.runs.engine.engine._names", set())
        other = make_chat(memories[1], ScriptedModel(["hello"]), runs=WATCHFUL)
        assert (await other.ask(said("hi", ID))).response == "hello"
        gate.open()
        await turn.answer()
        assert await kept(memories[0], ROOM) == [("user", "hi"), ("assistant", "hello")]
