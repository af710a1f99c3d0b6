"""Tests of duties: one process at a time has a duty, and not before it is due again."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from tests.children import run_together
from tests.databases import migrated_driver
from threadkeep.store.duties import Duties
from threadkeep.testing import SettableClock

HOUR = 3600.0


@pytest.fixture
async def duties(database_url: str, clock: SettableClock) -> AsyncIterator[Duties]:
    """Return the duties of an empty database of each engine."""
    async with migrated_driver(database_url) as driver:
        yield Duties(driver, clock=clock)


async def test_a_duty_has_one_owner_until_its_claim_expires(duties: Duties, clock: SettableClock) -> None:
    assert await duties.claim("tidy", "a", seconds=60, every_seconds=HOUR)
    assert not await duties.claim("tidy", "b", seconds=60, every_seconds=HOUR)
    assert await duties.claim("other", "b", seconds=60, every_seconds=HOUR)
    clock.advance(40)
    assert await duties.claim("tidy", "a", seconds=60, every_seconds=HOUR)
    clock.advance(40)
    assert not await duties.claim("tidy", "b", seconds=60, every_seconds=HOUR)
    clock.advance(21)
    assert await duties.claim("tidy", "b", seconds=60, every_seconds=HOUR)
    assert not await duties.claim("tidy", "a", seconds=60, every_seconds=HOUR)


async def test_a_finished_duty_is_not_claimed_before_it_is_due(duties: Duties, clock: SettableClock) -> None:
    """The interval applies to all processes together."""
    assert await duties.claim("tidy", "a", seconds=60, every_seconds=HOUR)
    clock.advance(30)
    await duties.done("tidy", "a")
    for _ in range(2):
        assert not await duties.claim("tidy", "a", seconds=60, every_seconds=HOUR)
        assert not await duties.claim("tidy", "b", seconds=60, every_seconds=HOUR)
        clock.advance(HOUR - 31)
        assert not await duties.claim("tidy", "b", seconds=60, every_seconds=HOUR)
        clock.advance(31)
        assert await duties.claim("tidy", "b", seconds=60, every_seconds=HOUR)
        await duties.done("tidy", "b")


@pytest.mark.parametrize("ahead", [400 * 24 * HOUR, HOUR])
@pytest.mark.parametrize("end", ["killed", "released", "done"])
async def test_a_clock_that_was_ahead_blocks_nothing(
    duties: Duties, clock: SettableClock, end: str, ahead: float
) -> None:
    """A claim of a clock that was ahead, as by an hour in another zone, does not block others until its time."""
    clock.advance(ahead)
    assert await duties.claim("receive", "a", seconds=60, every_seconds=HOUR)
    if end != "killed":
        await (duties.done if end == "done" else duties.release)("receive", "a")
    clock.advance(-ahead)
    assert await duties.claim("receive", "b", seconds=60, every_seconds=HOUR)
    clock.advance(-HOUR / 2)
    assert not await duties.claim("receive", "c", seconds=60, every_seconds=HOUR)


async def test_a_released_duty_can_be_claimed_at_once(duties: Duties) -> None:
    """A released duty was not done; only its owner can release or finish it."""
    assert await duties.claim("tidy", "a", seconds=60, every_seconds=HOUR)
    await duties.done("tidy", "b")
    await duties.release("tidy", "b")
    assert not await duties.claim("tidy", "b", seconds=60, every_seconds=HOUR)
    await duties.release("tidy", "a")
    assert await duties.claim("tidy", "b", seconds=60, every_seconds=HOUR)


@pytest.mark.process
def test_one_of_several_concurrent_processes_gets_the_duty(shared_url: str) -> None:
    assert sum(run_together(claim_in_a_process, [(shared_url, f"owner {n}") for n in range(4)])) == 1


def claim_in_a_process(url: str, owner: str) -> bool:
    """Claim the duty, as each of the processes does."""

    async def claim() -> bool:
        async with migrated_driver(url) as driver:
            return await Duties(driver, clock=SettableClock()).claim("tidy", owner, seconds=60, every_seconds=HOUR)

    return asyncio.run(claim())


async def test_a_loop_blocked_during_a_claim_holds_no_lock(sqlite_url: str, clock: SettableClock) -> None:
    """A blocking call on the event loop may write through another connection during a claim."""
    path = sqlite_url.removeprefix("sqlite:///")
    async with migrated_driver(sqlite_url) as driver:
        duties = Duties(driver, clock=clock)
        for steps in range(16):
            claiming = asyncio.create_task(duties.claim(f"tidy {steps}", "a", seconds=60, every_seconds=HOUR))
            for _ in range(steps):
                await asyncio.sleep(0)
                time.sleep(0.005)  # noqa: ASYNC251 - blocks the loop while the threads of the claim run
            with closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)) as other:
                other.execute("PRAGMA busy_timeout = 200")
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
            assert await claiming
