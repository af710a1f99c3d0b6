"""Runs that are cut off after the model has answered, and those that only look so."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, hook_config
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.talking import ask, kept, kept_with_status, make_agent, seen
from tests.limits import HANG_SECONDS
from threadkeep import Memory, SessionMemory
from threadkeep.testing import Gate, ScriptedModel

ONCE_EACH = [("user", "hi", "complete"), ("assistant", "hello", "complete")]


class Slow(AgentMiddleware):
    """Takes its time after each answer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    async def aafter_model(self, state: object, runtime: object) -> None:
        """Wait at the gate."""
        await self.gate.pass_through()


class Again(AgentMiddleware):
    """Sends the first answer back."""

    done = False

    @hook_config(can_jump_to=["model"])
    async def aafter_model(self, state: object, runtime: object) -> dict[str, Any] | None:
        """Ask once more."""
        if self.done:
            return None
        self.done = True
        return {"jump_to": "model"}


async def clear_away() -> None:
    """Do at once what takes seconds: a loop forgets cancelled timers, and the contexts they hold, by the heap."""
    for _ in range(500):
        asyncio.get_running_loop().call_later(60, gc.collect).cancel()
    await asyncio.sleep(0)
    gc.collect()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers wait for a moment only."""
    monkeypatch.setattr("threadkeep.agent.participation.ABANDONED_SECONDS", 0.001)


@pytest.mark.usefixtures("impatient")
async def test_a_slow_hook_after_the_answer_changes_nothing(
    small_memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is alive, however long nothing is heard of it: the answer is stored once, as complete."""
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
async def test_the_complete_answer_is_kept_after_the_patience_was_over(
    small_memory: Memory, monkeypatch: pytest.MonkeyPatch, checkpointed: bool
) -> None:
    """What was stored for fear of losing it takes nothing from the answer: a repeat of the question gets that."""
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
    assert await kept_with_status(small_memory) == [
        ONCE_EACH[0],
        ("assistant", "hello", "interrupted"),
        ONCE_EACH[1],
    ]
    assert await ask(agent, "hi", message_id="telegram:1") == "hello"
    assert len(model.calls) == 1


async def test_a_draft_that_is_sent_back_is_not_stored(small_memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the model is asked again nothing waits to be stored, however long it takes."""
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
async def test_an_answer_that_was_cut_off_is_there_for_the_next_turn(small_memory: Memory, checkpointed: bool) -> None:
    """The person stopped the run, whose answer is stored at once, and says something else."""
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


async def test_a_turn_does_not_end_another_that_lives(small_memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns overlap on a session: the one that is held up after its answer keeps its place."""
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
async def test_a_message_under_an_id_that_cannot_be_kept_is_one(
    small_memory: Memory, bad_id: str, checkpointed: bool
) -> None:
    """Delivered twice it is one question with one answer, and the model sees it once; also beside a next one."""
    model = ScriptedModel(["hello", "fine"])
    saver = InMemorySaver() if checkpointed else None
    agent = make_agent(model, [SessionMemory(small_memory)], checkpointer=saver)
    for _ in range(2):
        assert await ask(agent, "hi", message_id=bad_id) == "hello"
    await ask(agent, "and now?")
    assert seen(model.calls[0]) == [("human", "hi")]
    assert seen(model.calls[1]) == [("human", "hi"), ("ai", "hello"), ("human", "and now?")]
    assert len(await kept(small_memory)) == 4
