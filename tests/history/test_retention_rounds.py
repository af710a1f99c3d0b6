"""Rounds of retention: over all sessions or some, broken off and gone on with, by hand and on a schedule."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

import pytest

from tests.history.retaining import deleting, places, say
from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, SessionNotFound, open_memory
from threadkeep.history.retention import Amount, Pruned, RetentionOptions
from threadkeep.observe import MessagesPruned, PruningFailed
from threadkeep.records import Retention, RetentionLimits
from threadkeep.testing import SettableClock


async def test_a_round_can_be_of_some_sessions_or_of_one_user(memory: Memory, clock: SettableClock) -> None:
    """The others are left alone; a session that is not there is told."""
    for name, user in (("a", "u1"), ("b", "u1"), ("c", "u2")):
        await say(memory, clock, name, 1, 1, user_id=user)
    rules = deleting(max_messages=2)
    await memory.retention.prune(rules, session_ids=["a"])
    assert [len(await places(memory, name)) for name in ("a", "b", "c")] == [2, 4, 4]
    await memory.retention.prune(rules, user_id="u1")
    assert [len(await places(memory, name)) for name in ("a", "b", "c")] == [2, 2, 4]
    with pytest.raises(SessionNotFound):
        await memory.retention.prune(rules, session_ids=["c"], user_id="u1")
    with pytest.raises(SessionNotFound):
        _ = [removal async for removal in memory.retention.plan(rules, session_ids=["nobody"])]


async def test_more_sessions_than_a_page_are_all_seen(
    sqlite_memory: Memory, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the last page is full."""
    monkeypatch.setattr("threadkeep.history.retention._PAGE_SESSIONS", 2)
    for number in range(4):
        await say(sqlite_memory, clock, f"room:{number}", 1, 1)
    assert (await sqlite_memory.retention.prune(deleting(max_messages=2))).deleted == Amount(4, 8, 24)


@pytest.fixture
def quick_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step takes so long that the next one is shorter."""
    monkeypatch.setattr("threadkeep.history.retention._LONG_STEP_SECONDS", 1000.0)


@pytest.mark.usefixtures("quick_steps")
async def test_progress_is_told_after_each_step(memory: Memory) -> None:
    """In whole steps, and the sum is what was done."""
    await memory.session("a").append([Message(role="user", content="x", tokens=1) for _ in range(500)])
    await memory.session("a").append([Message(role="user", content="y", tokens=1)])
    told: list[Pruned] = []
    done = await memory.retention.prune(deleting(max_messages=1), report=told.append)
    assert [one.deleted.messages for one in told] == [200, 400, 500]
    assert told[-1] == done == Pruned(deleted=Amount(1, 500, 500))


async def test_long_steps_become_shorter(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is slow or busy is held for less at a time, down to some messages."""
    monkeypatch.setattr("threadkeep.history.retention._LONG_STEP_SECONDS", 0.0)
    await memory.session("a").append([Message(role="user", content="x", tokens=1) for _ in range(426)])
    told: list[Pruned] = []
    await memory.retention.prune(deleting(max_messages=1), report=told.append)
    assert [one.deleted.messages for one in told] == [200, 300, 350, 375, 400, 425]


@pytest.mark.usefixtures("quick_steps")
async def test_a_round_that_is_broken_off_goes_on_the_next_time(memory: Memory) -> None:
    """Whole steps were taken, the rest is as it was; the end is the same."""
    await memory.session("a").append([Message(role="user", content="x", tokens=1) for _ in range(500)])

    def stop(done: Pruned) -> None:
        raise KeyError(done.messages)

    with pytest.raises(KeyError):
        await memory.retention.prune(deleting(max_messages=1), report=stop)
    assert await places(memory, "a") == list(range(201, 501))
    assert await memory.session("a").count() == 300
    assert await memory.retention.prune(deleting(max_messages=1)) == Pruned(deleted=Amount(1, 299, 299))
    assert await places(memory, "a") == [500]


@pytest.mark.usefixtures("quick_steps")
async def test_who_stops_a_round_is_heard_before_each_step(memory: Memory) -> None:
    """Another process may have taken it over."""
    await memory.session("a").append([Message(role="user", content="x", tokens=1) for _ in range(500)])
    await memory.session("b").append([Message(role="user", content="x", tokens=1) for _ in range(500)])
    answers = iter([True, True, True, False, False])

    async def goes_on() -> bool:
        return next(answers)

    done = await memory.retention.prune(deleting(max_messages=1), may_continue=goes_on)
    assert done == Pruned(deleted=Amount(1, 400, 400))
    assert next(answers, None) is None


async def test_an_idle_session_in_which_a_turn_waits_to_be_written_stays(
    memory: Memory, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has spoken; the database does not know it yet."""
    await say(memory, clock, "a", 40)
    monkeypatch.setattr(type(memory.pending), "_deliver_own", _nothing)
    memory.pending.database_fails = True
    assert await memory.session("a").record([Message(role="user", content="Hello?", id="p:9")]) is None
    assert await memory.retention.prune(Retention(delete=RetentionLimits(max_idle_days=30))) == Pruned(busy=1)
    assert await places(memory, "a") == [1, 2]


async def _nothing(*_: object) -> bool:
    return False


async def test_a_round_is_told_as_counts(memory: Memory, events: RecordedEvents, clock: SettableClock) -> None:
    """One event for each kind of thing it did, none for nothing."""
    await say(memory, clock, "a", 1, 1, 1)
    rules = Retention(archive=RetentionLimits(max_messages=2), delete=RetentionLimits(max_messages=4))
    await memory.retention.prune(rules)
    await memory.retention.prune(rules)
    assert events.of(MessagesPruned) == [
        MessagesPruned(action="archive", sessions=1, messages=2),
        MessagesPruned(action="delete", sessions=1, messages=2),
    ]


async def test_an_open_memory_makes_rounds_by_itself(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents, clock: SettableClock
) -> None:
    """One of the processes each time, and again when it is due."""
    retention = RetentionOptions(rules=deleting(max_messages=2), interval_seconds=0.01)
    options = replace(memory_options, retention=retention)
    async with (
        open_memory(shared_url, observers=[events], options=options) as memory,
        open_memory(shared_url, observers=[events], options=options),
    ):
        await say(memory, clock, "a", 0, 0)
        async with asyncio.timeout(HANG_SECONDS):
            while await places(memory, "a") != [3, 4]:
                clock.advance(1)
        await say(memory, clock, "a", 0)
        async with asyncio.timeout(HANG_SECONDS):
            while await places(memory, "a") != [5, 6]:
                clock.advance(1)
    assert events.of(PruningFailed) == []


async def test_a_round_that_fails_is_told_and_made_again(
    sqlite_memory: Memory, memory_options: MemoryOptions, events: RecordedEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule outlives any failure."""
    retention = RetentionOptions(rules=deleting(max_messages=2), interval_seconds=0.01)
    failures = count()

    async def failing(*_: object, **__: object) -> Pruned:
        raise OSError(f"failure {next(failures)}")

    monkeypatch.setattr("threadkeep.history.retention.Pruner.prune", failing)
    async with open_memory("sqlite://", observers=[events], options=replace(memory_options, retention=retention)):
        await events.until(lambda: len(events.of(PruningFailed)) >= 2)
    assert events.of(PruningFailed)[0] == PruningFailed(error="OSError")


async def test_two_rounds_at_once_take_each_message_once(shared_url: str, memory_options: MemoryOptions) -> None:
    """Whoever comes second at a step leaves the session to the other; together they do what one would have done."""
    options = replace(memory_options, background=False)
    async with open_memory(shared_url, options=options) as one, open_memory(shared_url, options=options) as other:
        for name in ("a", "b", "c"):
            await one.session(name).append([Message(role="user", content="old", tokens=1) for _ in range(500)])
        done = await asyncio.gather(*(memory.retention.prune(deleting(max_messages=10)) for memory in (one, other)))
        assert sum(each.deleted.messages for each in done) == 3 * 490
        for name in ("a", "b", "c"):
            assert await places(other, name) == list(range(491, 501))
            assert await other.session(name).count() == 10


async def test_appends_go_on_while_a_session_is_pruned(shared_url: str, memory_options: MemoryOptions) -> None:
    """In the same session and in others: every turn is stored whole, and what is left has no gap."""
    async with open_memory(shared_url, options=replace(memory_options, background=False)) as memory:
        for _ in range(4):
            await memory.session("a").append([Message(role="user", content="old", tokens=1) for _ in range(500)])

        async def talk(name: str) -> None:
            for number in range(40):
                turn = [Message(role="user", content=f"{number}"), Message(role="assistant", content=f"{number}!")]
                await memory.session(name).append(turn)

        await asyncio.gather(memory.retention.prune(deleting(max_messages=10)), talk("a"), talk("b"))
        await memory.retention.prune(deleting(max_messages=10))
        assert await places(memory, "a") == list(range(2071, 2081))
        assert await memory.session("a").count() == 10
        assert await places(memory, "b") == list(range(71, 81))
