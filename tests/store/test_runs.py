"""Tests of runs: one process answers a message, and the others wait for its answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from tests.children import run_together
from tests.store.running import asked
from threadkeep import Memory, MemoryOptions, open_memory
from threadkeep.records import Json
from threadkeep.records.runs import RunBudget
from threadkeep.store.runs.order import Added
from threadkeep.testing import SettableClock


async def ask(memory: Memory, number: int) -> Added:
    """Add the run of a message, as each of several processes does."""
    return await memory.runs.order.add(asked(f"run-{number}", message="m1"), owner=f"process-{number}")


async def test_one_of_many_concurrent_requests_creates_the_run(memory: Memory) -> None:
    added = await asyncio.gather(*(ask(memory, number) for number in range(10)))
    assert sum(each.outcome == "new" for each in added) == 1
    assert len({(each.run.run_id, each.run.owner, each.run.status) for each in added}) == 1


def test_one_of_many_processes_creates_the_run(shared_url: str) -> None:
    answers = run_together(ask_as, [(shared_url, number) for number in range(4)])
    assert sum(new for _, new in answers) == 1
    assert len({run_id for run_id, _ in answers}) == 1


def ask_as(url: str, number: int) -> tuple[str, bool]:
    """Add the run in a process; return its id and whether it is new."""

    async def take() -> tuple[str, bool]:
        async with open_memory(url, options=MemoryOptions(background=False)) as memory:
            added = await ask(memory, number)
            return added.run.run_id, added.outcome == "new"

    return asyncio.run(take())


async def test_a_finished_run_returns_its_answer_again(memory: Memory, clock: SettableClock) -> None:
    """A request repeated at any time gets the exact result, and the run is not executed again."""
    await ask(memory, 1)
    result: dict[str, Json] = {"response": "你好 \u2028", "usage": {"tokens": 3}, "score": 0.25, "b": ["b"], "a": None}
    clock.advance(2)
    await memory.runs.finish("run-1", "process-1", "done", result=result)
    clock.advance(3600)
    added = await ask(memory, 2)
    found = added.run
    assert added.outcome == "known"
    assert (found.run_id, found.status, found.result, found.error) == ("run-1", "done", result, None)
    assert list(found.result or ()) == list(result)
    assert found.ended_at == found.heartbeat_at
    assert found.ended_at is not None
    assert found.started_at is not None
    assert (found.ended_at - found.started_at).total_seconds() == 2


async def test_invalid_characters_of_an_answer_are_replaced(memory: Memory) -> None:
    await ask(memory, 1)
    await memory.runs.finish("run-1", "process-1", "done", result={"response": "a\x00b\ud800c"})
    found = await memory.runs.run("run-1")
    assert found is not None
    assert found.result == {"response": "a\ufffdb\ufffdc"}


async def test_a_new_run_is_returned_as_it_is_stored(memory: Memory, clock: SettableClock) -> None:
    """Its fields are not read back from the database, so each must have the value that a later read returns."""
    for number, owner in ((1, "me"), (2, None)):
        new = asked(f"run-{number}", message=f"m{number}", said="é\0")
        new = replace(new, user_id="ann", version="v1", node_id="n", trigger="webhook", any_session=True)
        new = replace(new, budget=RunBudget(5, 0.1), deadline_at=clock() + timedelta(seconds=1))
        added = await memory.runs.order.add(new, owner=owner)
        assert added.run == await memory.runs.run(new.run_id)
        assert added.run.status == ("running" if owner else "queued")
        clock.advance(1)
