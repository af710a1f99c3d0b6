"""Tests of retention rounds: over all or some sessions, interrupted, manual and scheduled."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

import pytest

from tests.history.retaining import deleting, say, seqs
from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, SessionNotFound, open_memory
from threadkeep.history.retention import Amount, Pruned, RetentionOptions
from threadkeep.observe import MessagesPruned, PruningFailed
from threadkeep.records import Retention, RetentionLimits
from threadkeep.testing import SettableClock


async def test_a_round_can_be_of_some_sessions_or_of_one_user(memory: Memory, clock: SettableClock) -> None:
    for name, user in (("a", "u1"), ("b", "u1"), ("c", "u2")):
        await say(memory, clock, name, 1, 1, user_id=user)
    rules = deleting(max_messages=2)
    await memory.retention.prune(rules, session_ids=["a"])
    assert [len(await seqs(memory, name)) for name in ("a", "b", "c")] == [2, 4, 4]
    await memory.retention.prune(rules, user_id="u1")
    assert [len(await seqs(memory, name)) for name in ("a", "b", "c")] == [2, 2, 4]
    with pytest.raises(SessionNotFound):
        await memory.retention.prune(rules, session_ids=["c"], user_id="u1")
    with pytest.raises(SessionNotFound):
        _ = [removal async for removal in memory.retention.plan(rules, session_ids=["nobody"])]


async def test_more_sessions_than_a_page_are_all_seen(
    sqlite_memory: Memory, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.history.retention._PAGE_SESSIONS", 2)
    for number in range(4):
        await say(sqlite_memory, clock, f"room:{number}", 1, 1)
    assert (await sqlite_memory.retention.prune(deleting(max_messages=2))).deleted == Amount(4, 8, 24)


@pytest.fixture
def quick_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the step size constant, whatever the duration of a step."""
    monkeypatch.setattr("threadkeep.history.retention._LONG_STEP_SECONDS", 1000.0)


@pytest.mark.usefixtures("quick_steps")
async def test_progress_is_reported_after_each_step(memory: Memory) -> None:
    await memory.session("a").append([Message(role="user", content="x", tokens=1) for _ in range(500)])
    await memory.session("a").append([Message(role="user", content="y", tokens=1)])
    told: list[Pruned] = []
    done = await memory.retention.prune(deleting(max_messages=1), report=told.append)
    assert [one.deleted.messages for one in told] == [200, 400, 500]
    assert told[-1] == done == Pruned(deleted=Amount(1, 500, 500))


async def test_long_steps_become_shorter(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next steps of a slow database are halved down to a minimum."""
    monkeypatch.setattr("threadkeep.history.retention._LONG_STEP_SECONDS", 0.0)
    await memory.session("a").append([Message(role="user", content="x", tokens=1) for _ in range(426)])
    told: list[Pruned] = []
    await memory.retention.prune(deleting(max_messages=1), report=told.append)
    assert [one.deleted.messages for one in told] == [200, 300, 350, 375, 400, 425]


@pytest.mark.usefixtures("quick_steps")
async def test_an_interrupted_round_is_completed_by_the_next(memory: Memory) -> None:
    await memory.session("a").append([Message(role="user", content="x", tokens=1) for _ in range(500)])

    def stop(done: Pruned) -> None:
        raise KeyError(done.messages)

    with pytest.raises(KeyError):
        await memory.retention.prune(deleting(max_messages=1), report=stop)
    assert await seqs(memory, "a") == list(range(201, 501))
    assert await memory.session("a").count() == 300
    assert await memory.retention.prune(deleting(max_messages=1)) == Pruned(deleted=Amount(1, 299, 299))
    assert await seqs(memory, "a") == [500]


@pytest.mark.usefixtures("quick_steps")
async def test_a_round_can_be_stopped_before_each_step(memory: Memory) -> None:
    """`may_continue` is called before each step, since another process may have taken over."""
    await memory.session("a").append([Message(role="user", content="x", tokens=1) for _ in range(500)])
    await memory.session("b").append([Message(role="user", content="x", tokens=1) for _ in range(500)])
    answers = iter([True, True, True, False, False])

    async def is_continued() -> bool:
        return next(answers)

    done = await memory.retention.prune(deleting(max_messages=1), may_continue=is_continued)
    assert done == Pruned(deleted=Amount(1, 400, 400))
    assert next(answers, None) is None


async def test_an_idle_session_with_a_pending_turn_stays(
    memory: Memory, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pending turn counts as activity, although the database does not have it yet."""
    await say(memory, clock, "a", 40)
    monkeypatch.setattr(type(memory.pending), "_deliver_own", _nothing)
    memory.pending.database_fails = True
    assert await memory.session("a").record([Message(role="user", content="Hello?", id="p:9")]) is None
    assert await memory.retention.prune(Retention(delete=RetentionLimits(max_idle_days=30))) == Pruned(busy=1)
    assert await seqs(memory, "a") == [1, 2]


async def _nothing(*_: object) -> bool:
    return False


async def test_a_round_is_reported_as_counts(memory: Memory, events: RecordedEvents, clock: SettableClock) -> None:
    """A round emits one event for each action, and none if it did nothing."""
    await say(memory, clock, "a", 1, 1, 1)
    rules = Retention(archive=RetentionLimits(max_messages=2), delete=RetentionLimits(max_messages=4))
    await memory.retention.prune(rules)
    await memory.retention.prune(rules)
    assert events.of(MessagesPruned) == [
        MessagesPruned(action="archive", sessions=1, messages=2),
        MessagesPruned(action="delete", sessions=1, messages=2),
    ]


async def test_an_open_memory_prunes_on_a_schedule(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents, clock: SettableClock
) -> None:
    retention = RetentionOptions(rules=deleting(max_messages=2), interval_seconds=0.01)
    options = replace(memory_options, retention=retention)
    async with (
        open_memory(shared_url, observers=[events], options=options) as memory,
        open_memory(shared_url, observers=[events], options=options),
    ):
        await say(memory, clock, "a", 0, 0)
        async with asyncio.timeout(HANG_SECONDS):
            while await seqs(memory, "a") != [3, 4]:
                clock.advance(1)
        await say(memory, clock, "a", 0)
        async with asyncio.timeout(HANG_SECONDS):
            while await seqs(memory, "a") != [5, 6]:
                clock.advance(1)
    assert events.of(PruningFailed) == []


async def test_a_failed_round_is_reported_and_retried(
    sqlite_memory: Memory, memory_options: MemoryOptions, events: RecordedEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    retention = RetentionOptions(rules=deleting(max_messages=2), interval_seconds=0.01)
    failures = count()

    async def failing(*_: object, **__: object) -> Pruned:
        raise OSError(f"failure {next(failures)}")

    monkeypatch.setattr("threadkeep.history.retention.Pruner.prune", failing)
    async with open_memory("sqlite://", observers=[events], options=replace(memory_options, retention=retention)):
        await events.until(lambda: len(events.of(PruningFailed)) >= 2)
    assert events.of(PruningFailed)[0] == PruningFailed(error="OSError")


async def test_two_concurrent_rounds_delete_each_message_once(shared_url: str, memory_options: MemoryOptions) -> None:
    """A round that finds a session locked leaves it to the other; together they delete each message once."""
    options = replace(memory_options, background=False)
    async with open_memory(shared_url, options=options) as one, open_memory(shared_url, options=options) as other:
        for name in ("a", "b", "c"):
            await one.session(name).append([Message(role="user", content="old", tokens=1) for _ in range(500)])
        done = await asyncio.gather(*(memory.retention.prune(deleting(max_messages=10)) for memory in (one, other)))
        assert sum(each.deleted.messages for each in done) == 3 * 490
        for name in ("a", "b", "c"):
            assert await seqs(other, name) == list(range(491, 501))
            assert await other.session(name).count() == 10


async def test_appends_work_while_a_session_is_pruned(shared_url: str, memory_options: MemoryOptions) -> None:
    """Each turn is stored whole, and the remaining messages have no gap."""
    async with open_memory(shared_url, options=replace(memory_options, background=False)) as memory:
        for _ in range(4):
            await memory.session("a").append([Message(role="user", content="old", tokens=1) for _ in range(500)])

        async def talk(name: str) -> None:
            for number in range(40):
                turn = [Message(role="user", content=f"{number}"), Message(role="assistant", content=f"{number}!")]
                await memory.session(name).append(turn)

        await asyncio.gather(memory.retention.prune(deleting(max_messages=10)), talk("a"), talk("b"))
        await memory.retention.prune(deleting(max_messages=10))
        assert await seqs(memory, "a") == list(range(2071, 2081))
        assert await memory.session("a").count() == 10
        assert await seqs(memory, "b") == list(range(71, 81))
