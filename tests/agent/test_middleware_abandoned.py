"""Tests of runs that stop after the model has answered, and of slow runs that do not."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, hook_config
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.talking import ROOM, ask, kept, kept_with_status, make_agent, seen
from tests.limits import HANG_SECONDS
from threadkeep import Memory, SessionMemory
from threadkeep.testing import Gate, ScriptedModel

ONCE_EACH = [("user", "hi", "complete"), ("assistant", "hello", "complete")]


class Slow(AgentMiddleware):
    """Middleware that waits at a gate after each answer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    async def aafter_model(self, state: object, runtime: object) -> None:
        """Wait at the gate."""
        await self.gate.pass_through()


class Again(AgentMiddleware):
    """Middleware that requests a second answer."""

    done = False

    @hook_config(can_jump_to=["model"])
    async def aafter_model(self, state: object, runtime: object) -> dict[str, Any] | None:
        """Jump back to the model once."""
        if self.done:
            return None
        self.done = True
        return {"jump_to": "model"}


async def clear_away() -> None:
    """Make the event loop drop cancelled timers, with the contexts that they hold, and collect garbage."""
    for _ in range(500):
        asyncio.get_running_loop().call_later(60, gc.collect).cancel()
    await asyncio.sleep(0)
    gc.collect()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store an unfinished answer after a millisecond."""
    monkeypatch.setattr("threadkeep.agent.participation.ABANDONED_SECONDS", 0.001)


@pytest.mark.usefixtures("impatient")
async def test_an_answer_before_a_slow_hook_is_stored_once(
    small_memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.agent.participation._MOST_CHECKS", 1_000_000)
    slow = Slow()
    run = asyncio.create_task(ask(make_agent(ScriptedModel(["hello"]), [SessionMemory(small_memory), slow]), "hi"))
    await slow.gate.reached()
    await asyncio.sleep(0.02)
    slow.gate.open()
    await run
    assert await kept_with_status(small_memory) == ONCE_EACH


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_the_complete_answer_is_stored_after_a_timeout(
    small_memory: Memory, monkeypatch: pytest.MonkeyPatch, checkpointed: bool
) -> None:
    """The complete answer replaces the one that was stored early as interrupted, and a repeat returns it."""
    monkeypatch.setattr("threadkeep.agent.participation._MOST_CHECKS", 1)
    slow = Slow()
    model = ScriptedModel(["hello"])
    saver = InMemorySaver() if checkpointed else None
    agent = make_agent(model, [SessionMemory(small_memory), slow], checkpointer=saver)
    run = asyncio.create_task(ask(agent, "hi", message_id="telegram:1"))
    await slow.gate.reached()
    async with asyncio.timeout(HANG_SECONDS):
        while len(await kept(small_memory)) < 2:
            pass
    slow.gate.open()
    await run
    assert await kept_with_status(small_memory) == ONCE_EACH
    whole = await small_memory.session(ROOM).tail(10, view="history")
    assert [(one.content, one.status) for one in whole[1:]] == [("hello", "interrupted"), ("hello", "complete")]
    assert whole[1].superseded_by == whole[2].id
    assert await ask(agent, "hi", message_id="telegram:1") == "hello"
    assert len(model.calls) == 1


async def test_a_draft_that_is_sent_back_is_not_stored(small_memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep.agent.participation.ABANDONED_SECONDS", 0.3)
    monkeypatch.setattr("threadkeep.agent.participation._MOST_CHECKS", 1)
    gate = Gate()
    model = ScriptedModel(["a draft", [gate, "hello"]])
    run = asyncio.create_task(ask(make_agent(model, [SessionMemory(small_memory), Again()]), "hi"))
    await gate.reached()
    await asyncio.sleep(0.4)
    gate.open()
    await run
    assert await kept_with_status(small_memory) == ONCE_EACH


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_the_answer_of_a_cancelled_run_is_sent_with_the_next_turn(
    small_memory: Memory, checkpointed: bool
) -> None:
    """The answer of a cancelled run is stored as interrupted and sent with the next turn."""
    saver = InMemorySaver() if checkpointed else None
    slow = Slow()
    model = ScriptedModel(["one two", "fine"])
    agent = make_agent(model, [SessionMemory(small_memory), slow], checkpointer=saver)
    run = asyncio.create_task(ask(agent, "count"))
    await slow.gate.reached()
    run.cancel()
    await asyncio.wait([run])
    del run
    await clear_away()
    assert await kept(small_memory) == [("user", "count"), ("assistant", "one two")]
    slow.gate.open()
    assert await ask(agent, "and now?") == "fine"
    assert seen(model.calls[1]) == [("human", "count"), ("ai", "one two"), ("human", "and now?")]
    assert await kept_with_status(small_memory) == [
        ("user", "count", "complete"),
        ("assistant", "one two", "interrupted"),
        ("user", "and now?", "complete"),
        ("assistant", "fine", "complete"),
    ]


async def test_a_later_turn_does_not_end_an_earlier_run(small_memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep.agent.root_runs._IDLE_SECONDS", 0.2)
    slow = Slow()
    memory = SessionMemory(small_memory)
    held_up = asyncio.create_task(ask(make_agent(ScriptedModel(["hello"]), [memory, slow]), "hi"))
    await slow.gate.reached()
    await ask(make_agent(ScriptedModel(["fine"]), [memory]), "and now?")
    slow.gate.open()
    await held_up
    assert await kept_with_status(small_memory) == [
        ("user", "hi", "complete"),
        ("user", "and now?", "complete"),
        ("assistant", "fine", "complete"),
        ("assistant", "hello", "complete"),
    ]


@pytest.mark.parametrize("bad_id", ["ab\u200bc", "x" * 600])
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_message_with_an_invalid_id_is_stored_once(
    small_memory: Memory, bad_id: str, checkpointed: bool
) -> None:
    model = ScriptedModel(["hello", "fine"])
    saver = InMemorySaver() if checkpointed else None
    agent = make_agent(model, [SessionMemory(small_memory)], checkpointer=saver)
    for _ in range(2):
        assert await ask(agent, "hi", message_id=bad_id) == "hello"
    await ask(agent, "and now?")
    assert seen(model.calls[0]) == [("human", "hi")]
    assert seen(model.calls[1]) == [("human", "hi"), ("ai", "hello"), ("human", "and now?")]
    assert len(await kept(small_memory)) == 4
