"""Tests of processes that compress one session: one is killed during it, and several work at once."""

from __future__ import annotations

import asyncio
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from tests.children import PROCESSES, Child, run_together
from tests.history.summaries import Asked, WrittenDown, check_coverage, ranges, talk
from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, open_memory
from threadkeep.history.compression import Compression, CompressionFailed
from threadkeep.history.pending import PendingOptions
from threadkeep.history.summary_writer import CLAIM_SECONDS
from threadkeep.testing import Gate, SettableClock

pytestmark = pytest.mark.process

SMALL = Compression(trigger=("messages", 20), keep=("messages", 6))
IN_PARTS = 1_500


def options(folder: Path, clock: SettableClock | None = None) -> MemoryOptions:
    """Return the options of a memory with a stopped clock, which is equal in all processes."""
    pending = PendingOptions(folder=folder / "pending", first_pause_seconds=0.01, longest_pause_seconds=0.05)
    return MemoryOptions(clock=clock or SettableClock(), pending=pending)


async def compressed(memory: Memory, summarizer: WrittenDown) -> bool:
    """Return whether a summary was made."""
    try:
        return await memory.compressor.compress_now("room", SMALL, summarizer, budget=8_000) is not None
    except CompressionFailed:
        return False


def compress(url: str, folder: Path, at_second_part: Event | None = None) -> tuple[bool, int]:
    """Compress the session, and hang at the second part if an event is given.

    Returns whether a summary was made, and the number of model calls.
    """
    return asyncio.run(_compress(url, folder, at_second_part))


async def _compress(url: str, folder: Path, at_second_part: Event | None) -> tuple[bool, int]:
    summarizer = WrittenDown(IN_PARTS)

    def stop(asked: Asked) -> str:
        if len(summarizer.asked) == 2 and at_second_part is not None:
            at_second_part.set()
            PROCESSES.Event().wait()
        return f"of {asked.lines[0]['message']}"

    summarizer.answer = stop
    async with open_memory(url, options=options(folder)) as memory:
        return await compressed(memory, summarizer), len(summarizer.asked)


async def prepare(url: str, folder: Path) -> None:
    """Store a session that needs compression in several parts."""
    async with open_memory(url, options=options(folder)) as memory:
        await talk(memory, 40)


@pytest.mark.slow
async def test_another_process_continues_the_compression_of_a_killed_one(shared_url: str, tmp_path: Path) -> None:
    """Stored summaries stay, and another process does the rest when the claim has expired."""
    await prepare(shared_url, tmp_path)
    at_second_part = PROCESSES.Event()
    child = Child(compress, shared_url, tmp_path, at_second_part)
    assert await asyncio.to_thread(at_second_part.wait, HANG_SECONDS)
    await asyncio.to_thread(child.kill)
    clock = SettableClock()
    async with open_memory(shared_url, options=options(tmp_path, clock)) as memory:
        [(first, last)] = await ranges(memory)
        assert (first, last < 74) == (1, True)
        await check_coverage(memory)
        summarizer = WrittenDown(IN_PARTS)
        assert not await compressed(memory, summarizer)
        assert summarizer.asked == []
        clock.advance(CLAIM_SECONDS + 1)
        assert await compressed(memory, summarizer)
        assert summarizer.given() == list(range(last + 1, 75))
        assert (await check_coverage(memory))[-1].last_seq == 74
        assert len(await memory.session("room").tail(100)) == 80


async def test_concurrent_processes_make_one_summary_of_each_range(shared_url: str, tmp_path: Path) -> None:
    await prepare(shared_url, tmp_path)
    results = await asyncio.to_thread(run_together, compress, [(shared_url, tmp_path)] * 4)
    async with open_memory(shared_url, options=options(tmp_path)) as memory:
        active = await check_coverage(memory)
        assert active[-1].last_seq == 74
        assert len(await memory.summaries.all_of("room")) == len(active)
    assert [made for made, _ in results].count(True) == 1
    assert sum(asked for _, asked in results) == len(active)


async def test_a_process_with_an_expired_claim_stores_no_summary(
    shared_url: str, tmp_path: Path, events: RecordedEvents
) -> None:
    await prepare(shared_url, tmp_path)
    slow, gate = WrittenDown(), Gate()

    async def wait(asked: Asked) -> str:
        await gate.pass_through()
        return "too late"

    slow.answer = wait
    later = SettableClock()
    later.advance(CLAIM_SECONDS + 1)
    async with (
        open_memory(shared_url, options=options(tmp_path), observers=[events]) as one,
        open_memory(shared_url, options=options(tmp_path / "other", later)) as other,
    ):
        first = asyncio.create_task(compressed(one, slow))
        await gate.reached()
        assert await compressed(other, WrittenDown())
        gate.open()
        assert not await first
        assert [summary.text for summary in await check_coverage(other)] == ["Messages 1 to 74."]
