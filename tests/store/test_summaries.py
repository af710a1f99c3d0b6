"""Tests of summaries: the active ones form one unbroken range since the last reset."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.children import run_together
from tests.store.summarising import ROOM, ranges, say, summary
from threadkeep import InvalidInput, Memory, MemoryOptions, open_memory
from threadkeep.records import Summary
from threadkeep.store.summaries import Uncovered
from threadkeep.testing import SettableClock


async def test_a_summary_is_read_back_unchanged(memory: Memory, clock: SettableClock) -> None:
    """The time of storing is added unless the summary has one."""
    await say(memory, 6)
    first = replace(summary(1, 3, text="Ihr Tee: 茶 🍵"), model="openai:gpt-5-mini", prompt_version="2")
    second = replace(summary(4, 6), created_at=datetime(2025, 3, 4, 5, 6, 7, 89, tzinfo=UTC))
    assert await memory.summaries.add(first)
    assert await memory.summaries.add(second)
    assert await memory.summaries.active(ROOM) == [replace(first, created_at=clock()), second]
    assert await memory.summaries.all_of(ROOM) == [replace(first, created_at=clock()), second]


async def test_invalid_characters_are_replaced(memory: Memory) -> None:
    await say(memory, 2)
    assert await memory.summaries.add(summary(1, 2, text="a\x00b\ud800c"))
    [stored] = await memory.summaries.active(ROOM)
    assert stored.text == "a\ufffdb\ufffdc"


@pytest.mark.parametrize(("first_seq", "last_seq"), [(1, 2), (2, 6), (3, 4), (3, 6), (5, 8), (6, 8), (4, 11), (11, 12)])
async def test_a_summary_must_follow_the_others(memory: Memory, first_seq: int, last_seq: int) -> None:
    """A gap, an overlap, or messages that do not exist are refused, and nothing is stored."""
    await say(memory, 10)
    assert await memory.summaries.add(summary(1, 3))
    assert not await memory.summaries.add(summary(first_seq, last_seq))
    assert await ranges(memory) == [(1, 3)]
    assert len(await memory.summaries.all_of(ROOM)) == 1


async def test_the_first_summary_begins_at_the_first_message(memory: Memory) -> None:
    """Messages before the first summary would be in none."""
    await say(memory, 4)
    assert not await memory.summaries.add(summary(2, 4))
    assert await memory.summaries.add(summary(1, 4))


async def test_a_merged_summary_replaces_others(memory: Memory) -> None:
    """The new summary has exactly the range of those that it replaces, which stay stored."""
    await say(memory, 10)
    parts = [summary(1, 2), summary(3, 5), summary(6, 9)]
    for part in parts:
        assert await memory.summaries.add(part)
    whole = summary(1, 5, level=2)
    assert await memory.summaries.add(whole, replaces=[parts[0].id, parts[1].id])
    assert await ranges(memory) == [(1, 5), (6, 9)]
    assert [each.level for each in await memory.summaries.active(ROOM)] == [2, 1]
    assert {each.id for each in await memory.summaries.all_of(ROOM)} == {whole.id, *(part.id for part in parts)}
    assert await memory.summaries.add(summary(10, 10))


@pytest.mark.parametrize(
    ("replaced", "first_seq", "last_seq"),
    [([0, 2], 1, 6), ([0, 2], 1, 2), ([0, 1], 1, 5), ([0, 1], 2, 4), ([1], 3, 6), ([0, 1, 2], 1, 7), ([3], 1, 2)],
)
async def test_a_merged_summary_with_another_range_is_refused(
    memory: Memory, replaced: list[int], first_seq: int, last_seq: int
) -> None:
    await say(memory, 8)
    parts = [summary(1, 2), summary(3, 4), summary(5, 6)]
    for part in parts:
        assert await memory.summaries.add(part)
    ids = [*(part.id for part in parts), "unknown"]
    assert not await memory.summaries.add(summary(first_seq, last_seq, level=2), replaces=[ids[n] for n in replaced])
    assert await memory.summaries.active(ROOM) == await memory.summaries.all_of(ROOM)
    assert await ranges(memory) == [(1, 2), (3, 4), (5, 6)]


async def test_a_replaced_summary_is_not_replaced_again(memory: Memory) -> None:
    await say(memory, 4)
    parts = [summary(1, 2), summary(3, 4)]
    for part in parts:
        assert await memory.summaries.add(part)
    ids = [part.id for part in parts]
    assert await memory.summaries.add(summary(1, 4, level=2), replaces=ids)
    assert not await memory.summaries.add(summary(1, 4, level=2), replaces=ids)
    assert await ranges(memory) == [(1, 4)]


async def test_a_reset_hides_older_summaries(memory: Memory) -> None:
    await say(memory, 4)
    assert await memory.summaries.add(summary(1, 3))
    await memory.session(ROOM).reset()
    assert await memory.summaries.active(ROOM) == []
    assert len(await memory.summaries.all_of(ROOM)) == 1
    await say(memory, 2)
    assert not await memory.summaries.add(summary(4, 6))
    assert await memory.summaries.add(summary(5, 6))
    assert await ranges(memory) == [(5, 6)]


async def test_a_summary_that_was_begun_before_a_reset_is_refused(memory: Memory) -> None:
    await say(memory, 4)
    await memory.session(ROOM).reset()
    assert not await memory.summaries.add(summary(1, 3))
    assert await memory.summaries.all_of(ROOM) == []


async def test_a_new_session_accepts_no_summary_of_a_deleted_one(memory: Memory) -> None:
    """With the id of its last message, a summary of a deleted session is refused."""
    await say(memory, 4)
    [*_, last] = await memory.session(ROOM).tail(4)
    await memory.session(ROOM).delete()
    assert not await memory.summaries.add(summary(1, 4), last_id=last.id)
    await say(memory, 4)
    assert not await memory.summaries.add(summary(1, 4), last_id=last.id)
    [*_, last] = await memory.session(ROOM).tail(4)
    assert await memory.summaries.add(summary(1, 4), last_id=last.id)


async def test_uncovered_messages_are_counted(memory: Memory) -> None:
    assert await memory.summaries.uncovered(ROOM) == Uncovered()
    await say(memory, 5)
    assert await memory.summaries.uncovered(ROOM) == Uncovered(0, 5, 5, 50)
    await memory.summaries.add(summary(1, 3))
    assert await memory.summaries.uncovered(ROOM) == Uncovered(3, 5, 2, 20)
    await memory.summaries.add(summary(4, 5))
    assert await memory.summaries.uncovered(ROOM) == Uncovered(5, 5, 0, 0)
    await say(memory, 1)
    await memory.session(ROOM).reset()
    assert await memory.summaries.uncovered(ROOM) == Uncovered(6, 6, 0, 0)
    await say(memory, 2)
    assert await memory.summaries.uncovered(ROOM) == Uncovered(6, 8, 2, 20)


async def test_one_of_many_concurrent_summaries_is_accepted(memory: Memory) -> None:
    await say(memory, 4)
    taken = await asyncio.gather(*(memory.summaries.add(summary(1, 4)) for _ in range(10)))
    assert sorted(taken) == [False] * 9 + [True]
    assert await ranges(memory) == [(1, 4)]


@pytest.mark.process
def test_summaries_of_many_processes_do_not_overlap(shared_url: str) -> None:
    """Four processes add overlapping ranges three times: no message is in two summaries."""
    asyncio.run(prepare(shared_url))
    answers = run_together(add_three, [(shared_url, number) for number in range(4)])
    taken = sorted(pair for answer in answers for pair in answer)
    assert [first for first, _ in taken] == [1, *(last + 1 for _, last in taken[:-1])]


async def prepare(url: str) -> None:
    """Create a session to summarise."""
    async with open_memory(url, options=MemoryOptions(background=False)) as memory:
        await say(memory, 60)


def add_three(url: str, number: int) -> list[tuple[int, int]]:
    """Add summaries as each of the processes does; return the ranges that were accepted."""

    async def add() -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        async with open_memory(url, options=MemoryOptions(background=False)) as memory:
            for _ in range(3):
                after = (await memory.summaries.uncovered(ROOM)).after_seq
                attempt = summary(after + 1, after + 2 + number)
                if await memory.summaries.add(attempt):
                    taken.append((attempt.first_seq, attempt.last_seq))
        return taken

    return asyncio.run(add())


async def test_a_claim_on_a_session_has_one_owner(memory: Memory, clock: SettableClock) -> None:
    """A claim lasts until it expires or is released; other kinds of work have claims of their own."""
    await say(memory, 1)
    assert await memory.summaries.claim(ROOM, "summary", "a", 60)
    assert not await memory.summaries.claim(ROOM, "summary", "b", 60)
    assert await memory.summaries.claim(ROOM, "embedding", "b", 60)
    clock.advance(59)
    assert not await memory.summaries.claim(ROOM, "summary", "b", 60)
    assert await memory.summaries.claim(ROOM, "summary", "a", 60)
    clock.advance(59)
    assert not await memory.summaries.claim(ROOM, "summary", "b", 60)
    clock.advance(1)
    assert await memory.summaries.claim(ROOM, "summary", "b", 60)
    await memory.summaries.release(ROOM, "summary", "a")
    assert not await memory.summaries.claim(ROOM, "summary", "a", 60)
    await memory.summaries.release(ROOM, "summary", "b")
    assert await memory.summaries.claim(ROOM, "summary", "a", 60)


async def test_a_claim_from_a_clock_that_was_ahead_blocks_no_other_process(
    memory: Memory, clock: SettableClock
) -> None:
    """If its process died, the session would get no summaries until that time."""
    await say(memory, 1)
    clock.advance(86_400)
    assert await memory.summaries.claim(ROOM, "summary", "a", 60)
    clock.advance(-86_400)
    assert await memory.summaries.claim(ROOM, "summary", "b", 60)
    assert not await memory.summaries.claim(ROOM, "summary", "a", 60)


async def test_one_of_many_concurrent_claims_is_given(memory: Memory, clock: SettableClock) -> None:
    await say(memory, 1)
    for _ in range(2):
        claims = await asyncio.gather(*(memory.summaries.claim(ROOM, "summary", f"p{n}", 60) for n in range(8)))
        assert sum(claims) == 1
        clock.advance(60)


async def test_a_missing_session_has_no_claims_and_no_summaries(memory: Memory) -> None:
    assert not await memory.summaries.claim(ROOM, "summary", "a", 60)
    assert not await memory.summaries.add(summary(1, 1))
    assert await memory.summaries.active(ROOM) == []
    await memory.summaries.release(ROOM, "summary", "a")


async def test_summaries_of_another_user_are_not_returned(memory: Memory) -> None:
    await say(memory, 2, user_id="u1")
    await memory.summaries.add(summary(1, 2))
    assert len(await memory.summaries.active(ROOM, user_id="u1")) == 1
    assert await memory.summaries.active(ROOM, user_id="u2") == []
    assert await memory.summaries.all_of(ROOM, user_id="u2") == []


@pytest.mark.parametrize(
    ("first_seq", "last_seq", "text", "tokens"),
    [(0, 2, "a", 1), (3, 2, "a", 1), (1, 2, " \n", 1), (1, 2, "", 1), (1, 2, "a", -1)],
)
def test_an_invalid_summary_is_refused(first_seq: int, last_seq: int, text: str, tokens: int) -> None:
    with pytest.raises(InvalidInput, match="A summary's"):
        Summary(ROOM, first_seq, last_seq, text, "test-model", "1", tokens)
