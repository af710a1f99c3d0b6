"""Tests of compression: the ranges of summaries, and that all their messages were read."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.databases import execute
from tests.history.summaries import WrittenDown, check_coverage, exchange, ranges, talk
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.context.compression import WindowRoom
from threadkeep.context.cut import middle_mark
from threadkeep.context.window import Exclusion
from threadkeep.errors import InvalidInput
from threadkeep.history.compression import Compression
from threadkeep.observe import SummaryMade

SMALL = Compression(trigger=("messages", 20), keep=("messages", 6))
BUDGET = 8_000


async def test_nothing_happens_before_the_trigger(memory: Memory) -> None:
    """Compression does nothing below the trigger, or for a session that does not exist."""
    summarizer = WrittenDown()
    assert await memory.compressor.compress_now("nowhere", SMALL, summarizer, budget=BUDGET) is None
    await talk(memory, 9)
    assert await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET) is None
    assert summarizer.asked == []


async def test_all_but_the_kept_tail_becomes_a_summary(memory: Memory, events: RecordedEvents) -> None:
    """The summary has its exact range, model, prompt version and tokens; the messages stay stored."""
    summarizer = WrittenDown()
    await talk(memory, 10)
    made = await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
    assert made is not None
    assert (made.first_seq, made.last_seq, made.level) == (1, 14, 1)
    assert (made.model, made.prompt_version, made.text) == ("written-down", "test-1", "Messages 1 to 14.")
    assert made.tokens > 0
    assert summarizer.given() == list(range(1, 15))
    assert [summary.id for summary in await check_coverage(memory)] == [made.id]
    assert len(await memory.session("room").tail(100)) == 20
    [told] = events.of(SummaryMade)
    assert (told.messages, told.tokens, told.of, told.session_id) == (14, made.tokens, "messages", "room")


async def test_the_next_summary_follows_the_first(memory: Memory) -> None:
    """A second summary is made when the trigger is reached again; its prompt has the first one."""
    summarizer = WrittenDown()
    await talk(memory, 10)
    await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
    await talk(memory, 6)
    assert await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET) is None
    await talk(memory, 1)
    await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
    assert await ranges(memory) == [(1, 14), (15, 28)]
    assert summarizer.given() == list(range(1, 29))
    assert summarizer.asked[1].earlier == "Messages 1 to 14."


async def test_the_trigger_may_be_a_fraction_of_the_budget(memory: Memory) -> None:
    await talk(memory, 10)
    tokens = sum(message.tokens or 0 for message in await memory.session("room").tail(100))
    half = Compression(trigger=("fraction", 0.5), keep=("messages", 6))
    summarizer = WrittenDown()
    assert await memory.compressor.compress_now("room", half, summarizer, budget=tokens * 2 + 2) is None
    assert await memory.compressor.compress_now("room", half, summarizer, budget=tokens * 2) is not None


async def test_the_kept_tail_may_be_limited_in_tokens(memory: Memory) -> None:
    await talk(memory, 10)
    [*_, last] = await memory.session("room").tail(100)
    keep = Compression(trigger=("messages", 20), keep=("tokens", 4 * (last.tokens or 0) + 3))
    await memory.compressor.compress_now("room", keep, WrittenDown(), budget=BUDGET)
    assert await ranges(memory) == [(1, 16)]


async def test_messages_excluded_from_a_window_are_summarised_before_the_trigger(memory: Memory) -> None:
    """Turns excluded from a window are summarised whole, except the newest question."""
    summarizer = WrittenDown()
    await talk(memory, 5)
    await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET, left_out_upto_seq=5)
    assert await ranges(memory) == [(1, 6)]
    assert await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET, left_out_upto_seq=6) is None
    await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET, left_out_upto_seq=10)
    assert await ranges(memory) == [(1, 6), (7, 8)]


async def test_a_full_window_is_summarised_before_it_overflows(memory: Memory) -> None:
    """A summary is made before a window overflows; two fifths of its capacity stay as messages."""
    summarizer = WrittenDown()
    compress = memory.compressor.compress_now
    await talk(memory, 7)
    full = WindowRoom(messages=15)
    assert await compress("room", SMALL, summarizer, budget=BUDGET, window=full) is None
    await talk(memory, 1)
    assert await compress("room", SMALL, summarizer, budget=BUDGET, window=full) is not None
    assert await ranges(memory) == [(1, 12)]
    left = (await memory.summaries.uncovered("room")).tokens
    assert await compress("room", SMALL, summarizer, budget=BUDGET, window=WindowRoom(tokens=left * 2)) is None
    assert await compress("room", SMALL, summarizer, budget=BUDGET, window=WindowRoom(tokens=left)) is not None
    assert await ranges(memory) == [(1, 12), (13, 14)]
    await check_coverage(memory)


async def test_system_messages_are_read_as_notes(memory: Memory) -> None:
    """System messages in the range are passed as notes; they do not count for the trigger."""
    summarizer = WrittenDown()
    await memory.session("room").append([Message(role="system", content="The weather turns."), *exchange(1)])
    await talk(memory, 9)
    await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
    assert await ranges(memory) == [(1, 15)]
    assert summarizer.asked[0].lines[0] == {
        "message": 1,
        "at": "2026-01-01 12:00",
        "from": "note",
        "text": "The weather turns.",
    }


async def test_a_range_that_is_too_long_is_read_in_parts(memory: Memory) -> None:
    summarizer = WrittenDown(input_tokens=2_000)
    await talk(memory, 100)
    await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
    assert summarizer.given() == list(range(1, 195))
    assert len(summarizer.asked) > 3
    assert all(asked.record.count("word") < 2_000 for asked in summarizer.asked)
    assert (await check_coverage(memory))[-1].last_seq == 194


async def test_a_message_that_is_too_long_is_read_in_pieces(memory: Memory) -> None:
    """Each piece is passed with the text written so far."""
    summarizer = WrittenDown(input_tokens=1_000)
    words = " ".join(f"word{number}" for number in range(3_000))
    await memory.session("room").append([Message(role="user", content=words), Message(role="assistant", content="ok")])
    await talk(memory, 10)
    await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
    pieces = [asked for asked in summarizer.asked if asked.lines[0]["message"] == 1]
    assert "".join(str(asked.lines[0]["text"]) for asked in pieces) == words
    assert [asked.task for asked in pieces] == ["messages", *["continuation"] * (len(pieces) - 1)]
    assert [asked.lines[0]["part"] for asked in pieces] == [f"{n} of {len(pieces)}" for n in range(1, len(pieces) + 1)]
    assert pieces[1].earlier == "Messages 1 to 1."
    assert (await ranges(memory))[0] == (1, 1)
    await check_coverage(memory)


async def test_the_middle_of_a_huge_message_is_not_read(sqlite_memory: Memory) -> None:
    """The number of calls is bounded: a mark replaces the middle of the message."""
    summarizer = WrittenDown(input_tokens=300)
    words = " ".join(f"word{number}" for number in range(20_000))
    await sqlite_memory.session("room").append([Message(role="user", content=words)])
    await talk(sqlite_memory, 10)
    await sqlite_memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
    read = [str(asked.lines[0]["text"]) for asked in summarizer.asked if asked.lines[0]["message"] == 1]
    assert 25 < len(read) < 50
    beginning, mark, end = re.split(r"(… \[cut \d+ characters\] …)", "".join(read))
    assert words.startswith(beginning)
    assert words.endswith(end)
    assert mark == middle_mark(len(words) - len(beginning) - len(end))
    assert (await ranges(sqlite_memory))[0] == (1, 1)
    await check_coverage(sqlite_memory)


async def test_summaries_over_the_limit_are_merged(memory: Memory, events: RecordedEvents) -> None:
    """The oldest summaries are merged when all exceed `max_summary_tokens`; coverage stays exact."""
    summarizer = WrittenDown()
    summarizer.answer = lambda asked: f"{asked.task} " + "much " * 90
    options = Compression(trigger=("messages", 20), keep=("messages", 6), max_summary_tokens=250)
    for _ in range(6):
        await talk(memory, 10)
        await memory.compressor.compress_now("room", options, summarizer, budget=BUDGET)
        assert sum(summary.tokens for summary in await check_coverage(memory)) <= 250
    active = await check_coverage(memory)
    assert active[0].level > 1
    assert active[0].first_seq == 1
    assert active[-1].last_seq == 114
    assert {told.of for told in events.of(SummaryMade)} == {"messages", "summaries"}
    merged = [asked for asked in summarizer.asked if asked.task == "summaries"]
    assert merged[0].lines[0]["summary_of_messages"] == "1-14"


async def test_a_merge_reads_the_original_summaries(memory: Memory) -> None:
    """A merge reads the original summaries until they are too long, and then the merged text."""
    summarizer = WrittenDown()
    summarizer.answer = lambda asked: f"{asked.task} " + "much " * 90
    options = Compression(trigger=("messages", 20), keep=("messages", 6), max_summary_tokens=250)
    levels = []
    for _ in range(12):
        await talk(memory, 10)
        await memory.compressor.compress_now("room", options, summarizer, budget=BUDGET)
        levels.append((await check_coverage(memory))[0].level)
    merged = [asked for asked in summarizer.asked if asked.task == "summaries"]
    read = [[line["summary_of_messages"] for line in asked.lines] for asked in merged]
    assert read[2] == ["1-14", "15-34", "35-54", "55-74"]
    assert max(map(len, read)) * 95 <= 4 * 250 + 95
    assert any(ranges_read[0] != "1-14" for ranges_read in read)
    assert levels == sorted(levels)
    assert levels[-1] in (3, 4)


async def test_a_reset_hides_earlier_summaries(memory: Memory) -> None:
    summarizer = WrittenDown()
    await talk(memory, 10)
    await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
    await memory.session("room").reset()
    assert await ranges(memory) == []
    await talk(memory, 10)
    await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
    assert await ranges(memory) == [(21, 34)]
    assert summarizer.asked[1].earlier is None


async def test_archived_messages_are_not_summarised(shared_url: str, memory_options: MemoryOptions) -> None:
    summarizer = WrittenDown()
    async with open_memory(shared_url, options=memory_options) as memory:
        await talk(memory, 15)
        await asyncio.to_thread(execute, shared_url, "UPDATE chat_sessions SET archived_seq = 10")
        await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
        assert await ranges(memory) == [(11, 24)]
        await talk(memory, 15)
        await asyncio.to_thread(execute, shared_url, "UPDATE chat_sessions SET archived_seq = 30")
        await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
        assert await ranges(memory) == [(11, 24), (31, 54)]
        recollection = await memory.session("room").recall()
        assert recollection.excluded == (
            Exclusion(1, 10, "archived"),
            Exclusion(11, 24, "summarised"),
            Exclusion(25, 30, "archived"),
            Exclusion(31, 54, "summarised"),
        )
    assert summarizer.given() == [*range(11, 25), *range(31, 55)]


async def test_deleted_messages_are_not_summarised(shared_url: str, memory_options: MemoryOptions) -> None:
    summarizer = WrittenDown()
    async with open_memory(shared_url, options=memory_options) as memory:
        await talk(memory, 10)
        await memory.compressor.compress_now("room", SMALL, summarizer, budget=BUDGET)
        await talk(memory, 300)
        for sql in ("DELETE FROM chat_messages WHERE seq <= 500", "UPDATE chat_sessions SET archived_seq = 500"):
            await asyncio.to_thread(execute, shared_url, sql)
        await memory.compressor.compress_now("room", SMALL, summarizer, budget=100_000)
        assert await ranges(memory) == [(1, 14), (501, 614)]
    assert summarizer.given()[14:] == list(range(501, 615))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"trigger": ("messages", 0)}, "trigger"),
        ({"keep": ("fraction", 2)}, "keep"),
        ({"trigger": ("messages", 20), "keep": ("messages", 20)}, "keep"),
        ({"max_summary_tokens": 5}, "max_summary_tokens"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{word}"):
        Compression(**options)  # type: ignore[arg-type]
