"""Summaries: what counts is one unbroken range since the last reset, each message in one of them."""

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


async def test_a_summary_comes_back_as_it_was(memory: Memory, clock: SettableClock) -> None:
    """With the time of storing, unless it has one of its own."""
    await say(memory, 6)
    first = replace(summary(1, 3, text="Ihr Tee: 茶 🍵"), model="openai:gpt-5-mini", prompt_version="2")
    second = replace(summary(4, 6), created_at=datetime(2025, 3, 4, 5, 6, 7, 89, tzinfo=UTC))
    assert await memory.summaries.add(first)
    assert await memory.summaries.add(second)
    assert await memory.summaries.active(ROOM) == [replace(first, created_at=clock()), second]
    assert await memory.summaries.all_of(ROOM) == [replace(first, created_at=clock()), second]


async def test_what_no_database_keeps_is_replaced(memory: Memory) -> None:
    """As in messages: a broken character does not cost the summary."""
    await say(memory, 2)
    assert await memory.summaries.add(summary(1, 2, text="a\x00b\ud800c"))
    [stored] = await memory.summaries.active(ROOM)
    assert stored.text == "a\ufffdb\ufffdc"


@pytest.mark.parametrize(("first_seq", "last_seq"), [(1, 2), (2, 6), (3, 4), (3, 6), (5, 8), (6, 8), (4, 11), (11, 12)])
async def test_only_what_follows_the_others_is_taken(memory: Memory, first_seq: int, last_seq: int) -> None:
    """No gap, no overlap, nothing that is not said yet; what is refused leaves nothing."""
    await say(memory, 10)
    assert await memory.summaries.add(summary(1, 3))
    assert not await memory.summaries.add(summary(first_seq, last_seq))
    assert await ranges(memory) == [(1, 3)]
    assert len(await memory.summaries.all_of(ROOM)) == 1


async def test_the_first_begins_at_the_beginning(memory: Memory) -> None:
    """A message that stands before it would be in no summary."""
    await say(memory, 4)
    assert not await memory.summaries.add(summary(2, 4))
    assert await memory.summaries.add(summary(1, 4))


async def test_a_summary_takes_the_place_of_others(memory: Memory) -> None:
    """Of all that it replaces, and of exactly their range; they are kept beside it."""
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
async def test_a_summary_that_is_not_what_it_replaces_is_refused(
    memory: Memory, replaced: list[int], first_seq: int, last_seq: int
) -> None:
    """Parts with a gap, another range, a part that does not count: nothing changes."""
    await say(memory, 8)
    parts = [summary(1, 2), summary(3, 4), summary(5, 6)]
    for part in parts:
        assert await memory.summaries.add(part)
    ids = [*(part.id for part in parts), "unknown"]
    assert not await memory.summaries.add(summary(first_seq, last_seq, level=2), replaces=[ids[n] for n in replaced])
    assert await memory.summaries.active(ROOM) == await memory.summaries.all_of(ROOM)
    assert await ranges(memory) == [(1, 2), (3, 4), (5, 6)]


async def test_what_was_replaced_is_not_replaced_again(memory: Memory) -> None:
    """Whoever comes second with the same parts has lost."""
    await say(memory, 4)
    parts = [summary(1, 2), summary(3, 4)]
    for part in parts:
        assert await memory.summaries.add(part)
    ids = [part.id for part in parts]
    assert await memory.summaries.add(summary(1, 4, level=2), replaces=ids)
    assert not await memory.summaries.add(summary(1, 4, level=2), replaces=ids)
    assert await ranges(memory) == [(1, 4)]


async def test_a_reset_hides_older_summaries(memory: Memory) -> None:
    """They do not count any more; the next begins after the reset."""
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
    """What was forgotten does not come back."""
    await say(memory, 4)
    await memory.session(ROOM).reset()
    assert not await memory.summaries.add(summary(1, 3))
    assert await memory.summaries.all_of(ROOM) == []


async def test_another_session_of_the_name_takes_no_summary_of_the_former(memory: Memory) -> None:
    """Who names the last message's id is told when it is gone."""
    await say(memory, 4)
    [*_, last] = await memory.session(ROOM).tail(4)
    await memory.session(ROOM).delete()
    assert not await memory.summaries.add(summary(1, 4), last_id=last.id)
    await say(memory, 4)
    assert not await memory.summaries.add(summary(1, 4), last_id=last.id)
    [*_, last] = await memory.session(ROOM).tail(4)
    assert await memory.summaries.add(summary(1, 4), last_id=last.id)


async def test_what_is_not_covered_is_counted(memory: Memory) -> None:
    """What user and assistant said after the summaries, or after the reset."""
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


async def test_of_many_at_once_one_is_taken(memory: Memory) -> None:
    """All stand for the same range; each message is in one of them."""
    await say(memory, 4)
    taken = await asyncio.gather(*(memory.summaries.add(summary(1, 4)) for _ in range(10)))
    assert sorted(taken) == [False] * 9 + [True]
    assert await ranges(memory) == [(1, 4)]


@pytest.mark.process
def test_of_many_processes_one_is_taken(shared_url: str) -> None:
    """Four processes with overlapping ranges at one moment, three rounds of them: no message is in two summaries."""
    asyncio.run(prepare(shared_url))
    answers = run_together(add_three, [(shared_url, number) for number in range(4)])
    taken = sorted(pair for answer in answers for pair in answer)
    assert [first for first, _ in taken] == [1, *(last + 1 for _, last in taken[:-1])]


async def prepare(url: str) -> None:
    """A session to summarise."""
    async with open_memory(url, options=MemoryOptions(background=False)) as memory:
        await say(memory, 60)


def add_three(url: str, number: int) -> list[tuple[int, int]]:
    """What each of the processes does; answers the ranges of its summaries that were taken."""

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


async def test_work_on_a_session_is_claimed_by_one(memory: Memory, clock: SettableClock) -> None:
    """Until the time is over, or it is released; another kind of work is another claim."""
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


async def test_of_many_claims_at_once_one_is_given(memory: Memory, clock: SettableClock) -> None:
    """At first, and when an old one is over."""
    await say(memory, 1)
    for _ in range(2):
        claims = await asyncio.gather(*(memory.summaries.claim(ROOM, "summary", f"p{n}", 60) for n in range(8)))
        assert sum(claims) == 1
        clock.advance(60)


async def test_a_session_that_is_not_there_has_nothing(memory: Memory) -> None:
    """No work to claim, no summaries to read or to add."""
    assert not await memory.summaries.claim(ROOM, "summary", "a", 60)
    assert not await memory.summaries.add(summary(1, 1))
    assert await memory.summaries.active(ROOM) == []
    await memory.summaries.release(ROOM, "summary", "a")


async def test_another_users_summaries_are_not_there(memory: Memory) -> None:
    """They say what the other one said."""
    await say(memory, 2, user_id="u1")
    await memory.summaries.add(summary(1, 2))
    assert len(await memory.summaries.active(ROOM, user_id="u1")) == 1
    assert await memory.summaries.active(ROOM, user_id="u2") == []
    assert await memory.summaries.all_of(ROOM, user_id="u2") == []


@pytest.mark.parametrize(
    ("first_seq", "last_seq", "text", "tokens"),
    [(0, 2, "a", 1), (3, 2, "a", 1), (1, 2, " \n", 1), (1, 2, "", 1), (1, 2, "a", -1)],
)
def test_what_stands_for_nothing_is_no_summary(first_seq: int, last_seq: int, text: str, tokens: int) -> None:
    """Refused where it is made, with a sentence that does not quote it."""
    with pytest.raises(InvalidInput, match="A summary's"):
        Summary(ROOM, first_seq, last_seq, text, "test-model", "1", tokens)
