"""Tests of the background compressor: turns do not wait for it, and failures are retried."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable

import pytest

from tests.databases import execute
from tests.history.summaries import Asked, WrittenDown, check_coverage, ranges, talk
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, open_memory
from threadkeep.context.cut import CUT_MARK
from threadkeep.history.compression import Compression, CompressionFailed, CompressionRequest
from threadkeep.history.compressor import Compressor, CompressorOptions
from threadkeep.observe import SummaryFailed, SummaryMade
from threadkeep.observe.log import LogObserver
from threadkeep.testing import Gate, SettableClock

SMALL = Compression(trigger=("messages", 20), keep=("messages", 6))
BUDGET = 8_000


def consider(memory: Memory, summarizer: WrittenDown, session_id: str = "room") -> None:
    """Request compression, as after each turn."""
    memory.compressor.consider(CompressionRequest(session_id, SMALL, summarizer, BUDGET))


async def test_compression_runs_in_the_background(memory: Memory) -> None:
    summarizer = WrittenDown()
    await talk(memory, 10)
    consider(memory, summarizer)
    assert summarizer.asked == []
    await memory.compressor.idle()
    assert await ranges(memory) == [(1, 14)]


async def test_a_session_is_compressed_once_at_a_time(memory: Memory) -> None:
    """Requests during a compression lead to one later check; a direct call returns None meanwhile."""
    summarizer, gate = WrittenDown(), Gate()
    summarizer.answer = lambda asked: waiting(gate, asked)
    await talk(memory, 10)
    consider(memory, summarizer)
    await gate.reached()
    for _ in range(5):
        consider(memory, summarizer)
    assert await memory.compressor.compress_now("room", SMALL, WrittenDown(), budget=BUDGET) is None
    gate.open()
    await memory.compressor.idle()
    assert await ranges(memory) == [(1, 14)]
    assert len(summarizer.asked) == 1


async def test_a_slow_model_of_one_session_does_not_block_another(memory: Memory, events: RecordedEvents) -> None:
    slow, gate, quick = WrittenDown(), Gate(), WrittenDown()
    slow.answer = lambda asked: waiting(gate, asked)
    for session_id in ("slow", "quick"):
        await talk(memory, 10, session_id)
    consider(memory, slow, "slow")
    await gate.reached()
    consider(memory, quick, "quick")
    await events.until(lambda: bool(events.of(SummaryMade)))
    assert (await ranges(memory, "quick"), await ranges(memory, "slow")) == ([(1, 14)], [])
    gate.open()
    await memory.compressor.idle()
    assert await ranges(memory, "slow") == [(1, 14)]


async def waiting(gate: Gate, asked: Asked) -> str:
    """Return an answer after the gate opens."""
    await gate.pass_through()
    return f"of {asked.lines[0]['message']}"


def _raise(error: BaseException) -> str:
    raise error


@pytest.mark.parametrize(
    ("answer", "reason", "error"),
    [
        (lambda _: _raise(RuntimeError("no such key")), "model", "RuntimeError"),
        (lambda _: _raise(TimeoutError()), "timeout", None),
        (lambda _: _raise(asyncio.CancelledError()), "model", "CancelledError"),
        (lambda _: " \n", "empty", None),
        (lambda _: "[]", "empty", None),
        (lambda _: _raise(CompressionFailed("too_long")), "too_long", None),
    ],
)
async def test_a_failure_changes_nothing_and_is_reported(
    memory: Memory, events: RecordedEvents, answer: Callable[[Asked], str], reason: str, error: str | None
) -> None:
    summarizer = WrittenDown()
    summarizer.answer = answer
    await talk(memory, 10)
    consider(memory, summarizer)
    await memory.compressor.idle()
    [told] = events.of(SummaryFailed)
    assert (told.reason, told.error, told.session_id) == (reason, error, "room")
    assert await memory.summaries.all_of("room") == []
    assert len(await memory.session("room").tail(100)) == 20
    summarizer.answer = None
    assert await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET) is not None


async def test_failures_are_tried_again_after_growing_pauses(
    sqlite_memory: Memory, clock: SettableClock, events: RecordedEvents
) -> None:
    """The first pause is one minute; each later one is twice as long."""
    summarizer = WrittenDown()
    summarizer.answer = lambda _: ""
    await talk(sqlite_memory, 10)
    tries: list[int] = []
    for _ in range(8):
        consider(sqlite_memory, summarizer)
        await sqlite_memory.compressor.idle()
        tries.append(len(summarizer.asked))
        clock.advance(31)
    assert tries == [1, 1, 2, 2, 2, 2, 3, 3]
    assert len(events.of(SummaryFailed)) == 3
    clock.advance(3600)
    summarizer.answer = None
    consider(sqlite_memory, summarizer)
    await sqlite_memory.compressor.idle()
    assert len(events.of(SummaryMade)) == 1
    assert await ranges(sqlite_memory) == [(1, 14)]


async def test_failures_are_tried_again_after_some_turns(sqlite_memory: Memory, clock: SettableClock) -> None:
    """A busy session is retried after ten turns at first, then after twice as many."""
    summarizer = WrittenDown()
    summarizer.answer = lambda _: ""
    await talk(sqlite_memory, 10)
    tries: list[int] = []
    for _ in range(32):
        consider(sqlite_memory, summarizer)
        await sqlite_memory.compressor.idle()
        tries.append(len(summarizer.asked))
        clock.advance(1)
    assert [tries.index(count) for count in (1, 2, 3)] == [0, 10, 30]


async def test_a_model_that_writes_too_much_is_called_again_with_a_lower_limit(sqlite_memory: Memory) -> None:
    summarizer = WrittenDown()
    summarizer.answer = lambda _: "word " * (5_000 if len(summarizer.asked) == 1 else 10)
    await talk(sqlite_memory, 10)
    consider(sqlite_memory, summarizer)
    await sqlite_memory.compressor.idle()
    asked = [asked.max_tokens for asked in summarizer.asked]
    assert await ranges(sqlite_memory) == [(1, 14)]
    assert asked[0] >= 2 * asked[1]
    [made] = await sqlite_memory.summaries.active("room")
    assert CUT_MARK not in made.text


async def test_a_summary_that_stays_too_long_is_cut(memory: Memory, events: RecordedEvents) -> None:
    """The beginning of the second text is stored within its limit, and the messages are covered."""
    summarizer = WrittenDown()
    summarizer.answer = lambda _: "word " * 5_000
    await talk(memory, 10)
    consider(memory, summarizer)
    await memory.compressor.idle()
    assert len(summarizer.asked) == 2
    [made] = await memory.summaries.active("room")
    assert (made.first_seq, made.last_seq) == (1, 14)
    assert made.text.endswith(CUT_MARK)
    assert made.tokens <= BUDGET // 8
    assert not events.of(SummaryFailed)


async def test_a_failure_in_one_session_does_not_stop_others(sqlite_memory: Memory) -> None:
    broken, well = WrittenDown(), WrittenDown()
    broken.answer = lambda _: _raise(RuntimeError())
    for session_id in ("one", "two"):
        await talk(sqlite_memory, 10, session_id)
    consider(sqlite_memory, broken, "one")
    consider(sqlite_memory, well, "two")
    await sqlite_memory.compressor.idle()
    assert await ranges(sqlite_memory, "one") == []
    assert await ranges(sqlite_memory, "two") == [(1, 14)]


def noting(order: list[str], name: str) -> Callable[[Asked], str]:
    """Return an answer that records the order of the calls."""

    def answer(_: Asked) -> str:
        order.append(name)
        return "Short."

    return answer


@pytest.mark.slow
async def test_a_long_session_does_not_block_others(sqlite_memory: Memory) -> None:
    """The parts of a long session are read alternately with other sessions."""
    reader = WrittenDown(input_tokens=1_000)
    order: list[str] = []
    reader.answer = noting(order, "past")
    await talk(sqlite_memory, 200, "past")
    await talk(sqlite_memory, 10, "other")
    consider(sqlite_memory, reader, "past")
    other = WrittenDown()
    other.answer = noting(order, "other")
    consider(sqlite_memory, other, "other")
    await sqlite_memory.compressor.idle()
    assert order.index("other") <= 8 < len(order)
    assert (await check_coverage(sqlite_memory, "past"))[-1].last_seq == 394


@pytest.mark.parametrize("change", ["reset", "delete", "delete and begin anew"])
async def test_a_summary_of_a_changed_session_is_discarded(memory: Memory, events: RecordedEvents, change: str) -> None:
    summarizer, gate = WrittenDown(), Gate()
    summarizer.answer = lambda asked: waiting(gate, asked)
    await talk(memory, 10)
    consider(memory, summarizer)
    await gate.reached()
    session = memory.session("room")
    await (session.reset() if change == "reset" else session.delete())
    if change == "delete and begin anew":
        await talk(memory, 10)
    gate.open()
    await memory.compressor.idle()
    assert await memory.summaries.all_of("room") == []
    assert [told.reason for told in events.of(SummaryFailed)] == ["outdated"]


async def test_turns_during_a_compression_follow_its_range(memory: Memory) -> None:
    summarizer, gate = WrittenDown(), Gate()
    summarizer.answer = lambda asked: waiting(gate, asked)
    await talk(memory, 10)
    consider(memory, summarizer)
    await gate.reached()
    await talk(memory, 3)
    gate.open()
    await memory.compressor.idle()
    assert await ranges(memory) == [(1, 14)]
    await check_coverage(memory)


async def test_a_failing_database_is_reported(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    summarizer = WrittenDown()
    async with open_memory(shared_url, observers=[events], options=memory_options) as memory:
        await talk(memory, 10)
        await asyncio.to_thread(execute, shared_url, "ALTER TABLE chat_summaries RENAME TO elsewhere")
        consider(memory, summarizer)
        await memory.compressor.idle()
        [told] = events.of(SummaryFailed)
        assert told.reason == "store"
        await asyncio.to_thread(execute, shared_url, "ALTER TABLE elsewhere RENAME TO chat_summaries")
        await talk(memory, 10, "two")
        consider(memory, summarizer, "two")
        await memory.compressor.idle()
        assert await ranges(memory, "two") == [(1, 14)]


async def test_closing_the_memory_finishes_queued_compressions(shared_url: str, memory_options: MemoryOptions) -> None:
    async with open_memory(shared_url, options=memory_options) as memory:
        await talk(memory, 10)
        consider(memory, WrittenDown())
    async with open_memory(shared_url, options=memory_options) as memory:
        assert await ranges(memory) == [(1, 14)]


async def test_closing_does_not_wait_forever(memory: Memory, events: RecordedEvents, clock: SettableClock) -> None:
    """A hanging model is abandoned after `closing_seconds`; the session can be compressed later."""
    summarizer, gate = WrittenDown(), Gate()
    summarizer.answer = lambda asked: waiting(gate, asked)
    compressor = Compressor(
        memory._backend.transcripts,  # noqa: SLF001 - a compressor with other options
        memory.summaries,
        observer=events,
        clock=clock,
        counter=len,
        options=CompressorOptions(closing_seconds=0.01),
    )
    await talk(memory, 10)
    compressor.consider(CompressionRequest("room", SMALL, summarizer, BUDGET))
    await gate.reached()
    await compressor.close()
    compressor.consider(CompressionRequest("room", SMALL, summarizer, BUDGET))
    assert await ranges(memory) == []
    assert await memory.compressor.compress_now("room", SMALL, WrittenDown(), budget=BUDGET) is not None


async def test_a_full_queue_drops_the_oldest_sessions(sqlite_memory: Memory, events: RecordedEvents) -> None:
    """Each session dropped from the queue emits an event; its next turn queues it again."""
    summarizer = WrittenDown()
    for number in range(1_007):
        consider(sqlite_memory, summarizer, f"room-{number}")
    assert [(told.reason, told.session_id) for told in events.of(SummaryFailed)] == [
        ("crowded", f"room-{number}") for number in range(4, 7)
    ]
    await sqlite_memory.compressor.idle()


async def test_no_text_of_messages_is_reported(
    sqlite_memory: Memory, events: RecordedEvents, caplog: pytest.LogCaptureFixture
) -> None:
    """A model's error may quote the messages, so events, logs and the caller's error name only its type."""
    caplog.set_level(logging.DEBUG)
    sqlite_memory.observers.add(LogObserver())
    summarizer = WrittenDown()
    summarizer.answer = lambda asked: _raise(ValueError(f"cannot read {asked.record}"))
    await talk(sqlite_memory, 10)
    consider(sqlite_memory, summarizer)
    await sqlite_memory.compressor.idle()
    with pytest.raises(CompressionFailed) as failed:
        await sqlite_memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
    assert failed.value.kind == "ValueError"
    trace = "".join(traceback.format_exception(failed.value))
    reported = "\n".join([*map(repr, events.all), trace, caplog.text])
    assert "summary_failed" in reported
    assert "question" not in reported
