"""Runs: one process answers a message, the others wait for what it says."""

from __future__ import annotations

import asyncio

import pytest

from tests.children import run_together
from threadkeep import Memory, MemoryOptions, open_memory
from threadkeep.records import Json
from threadkeep.store.runs import Claim, Run, RunEnd
from threadkeep.testing import SettableClock

_STALE_SECONDS = 15


def claim(number: int, message_id: str = "m1") -> Claim:
    """The claim of one of several processes for the same message."""
    return Claim(f"run-{number}", "room", message_id, "chat", f"process-{number}")


async def test_the_first_claim_gets_the_run(memory: Memory) -> None:
    """Those who come later learn who has it."""
    first, mine = await memory.runs.claim(claim(1))
    assert mine
    assert (first.run_id, first.owner, first.status, first.result) == ("run-1", "process-1", "running", None)
    second, mine = await memory.runs.claim(claim(2))
    assert not mine
    assert second == first
    assert await memory.runs.run("run-1") == first
    assert await memory.runs.run("run-2") is None


async def test_of_many_claims_at_once_one_gets_the_run(memory: Memory) -> None:
    """All of them see the same run."""
    claims = await asyncio.gather(*(memory.runs.claim(claim(number)) for number in range(10)))
    assert sum(mine for _, mine in claims) == 1
    assert len({run.run_id for run, _ in claims}) == 1


def test_of_many_processes_one_gets_the_run(shared_url: str) -> None:
    """Four processes, one message, one moment."""
    answers = run_together(claim_as, [(shared_url, number) for number in range(4)])
    assert sum(mine for _, mine in answers) == 1
    assert len({run_id for run_id, _ in answers}) == 1


def claim_as(url: str, number: int) -> tuple[str, bool]:
    """What each of the processes does."""

    async def take() -> tuple[str, bool]:
        async with open_memory(url, options=MemoryOptions(background=False)) as memory:
            run, mine = await memory.runs.claim(claim(number))
            return run.run_id, mine

    return asyncio.run(take())


async def test_another_message_is_another_run(memory: Memory) -> None:
    """Claims of different messages do not know each other."""
    assert (await memory.runs.claim(claim(1, "m1")))[1]
    assert (await memory.runs.claim(claim(2, "m2")))[1]


async def test_who_has_not_been_heard_of_is_replaced(memory: Memory, clock: SettableClock) -> None:
    """After the heartbeat is too old, by one of those who ask; the run keeps its id."""
    await memory.runs.claim(claim(1))
    clock.advance(_STALE_SECONDS)
    assert not (await memory.runs.claim(claim(2)))[1]
    clock.advance(1)
    claims = await asyncio.gather(*(memory.runs.claim(claim(number)) for number in (2, 3)))
    assert sum(mine for _, mine in claims) == 1
    [taken] = {run.owner for run, mine in claims if mine}
    found = await memory.runs.run("run-1")
    assert found is not None
    assert (found.owner, found.status) == (taken, "running")


async def test_a_heartbeat_keeps_the_run(memory: Memory, clock: SettableClock) -> None:
    """Its owner is alive, however long it takes; another's heartbeat does not count."""
    await memory.runs.claim(claim(1))
    for _ in range(3):
        clock.advance(_STALE_SECONDS - 1)
        await memory.runs.heartbeat("run-1", "process-1")
        await memory.runs.heartbeat("run-1", "process-2")
        assert not (await memory.runs.claim(claim(2)))[1]
    clock.advance(_STALE_SECONDS + 1)
    await memory.runs.heartbeat("run-1", "process-2")
    assert (await memory.runs.claim(claim(2)))[1]


async def test_a_finished_run_gives_its_answer_again(memory: Memory, clock: SettableClock) -> None:
    """Exactly, however much later; nobody carries it out a second time."""
    await memory.runs.claim(claim(1))
    result: dict[str, Json] = {"response": "你好 \u2028", "usage": {"tokens": 3}, "score": 0.25, "b": ["b"], "a": None}
    clock.advance(2)
    await memory.runs.finish("run-1", "process-1", "done", result=result)
    clock.advance(3600)
    found, mine = await memory.runs.claim(claim(2))
    assert not mine
    assert (found.status, found.result, found.error) == ("done", result, None)
    assert list(found.result or ()) == list(result)
    assert found.ended_at == found.heartbeat_at
    assert found.ended_at is not None
    assert found.started_at is not None
    assert (found.ended_at - found.started_at).total_seconds() == 2


@pytest.mark.parametrize("status", ["failed", "interrupted"])
async def test_a_run_that_did_not_succeed_is_begun_again(memory: Memory, status: RunEnd) -> None:
    """By the next who asks, as the same run."""
    await memory.runs.claim(claim(1))
    await memory.runs.finish("run-1", "process-1", status, error="ModelFailed")
    found = await memory.runs.run("run-1")
    assert found is not None
    assert (found.status, found.error) == (status, "ModelFailed")
    again, mine = await memory.runs.claim(claim(2))
    assert mine
    assert (again.run_id, again.owner, again.status) == ("run-1", "process-2", "running")
    assert (again.error, again.ended_at) == (None, None)


async def test_who_lost_a_run_does_not_finish_it(memory: Memory, clock: SettableClock) -> None:
    """A process that was taken for dead and comes back changes nothing."""
    await memory.runs.claim(claim(1))
    clock.advance(_STALE_SECONDS + 1)
    await memory.runs.claim(claim(2))
    await memory.runs.finish("run-1", "process-1", "done", result={"response": "late"})
    assert await status_of(memory) == "running"
    await memory.runs.finish("run-1", "process-2", "done", result={"response": "in time"})
    found = await memory.runs.run("run-1")
    assert found is not None
    assert found.result == {"response": "in time"}


async def test_an_answer_that_no_database_keeps_is_cleaned(memory: Memory) -> None:
    """As the message of the same answer is: a broken character must not cost the run."""
    await memory.runs.claim(claim(1))
    await memory.runs.finish("run-1", "process-1", "done", result={"response": "a\x00b\ud800c"})
    found = await memory.runs.run("run-1")
    assert found is not None
    assert found.result == {"response": "a\ufffdb\ufffdc"}


async def test_the_runs_of_a_deleted_session_are_gone(memory: Memory) -> None:
    """Their answers are what was said; the message can be asked anew."""
    await memory.runs.claim(claim(1))
    await memory.runs.finish("run-1", "process-1", "done", result={"response": "secret"})
    await memory.session("room").delete()
    assert await memory.runs.run("run-1") is None
    assert (await memory.runs.claim(claim(2)))[1]


async def status_of(memory: Memory) -> str | None:
    """How the run stands."""
    found: Run | None = await memory.runs.run("run-1")
    return found.status if found else None
