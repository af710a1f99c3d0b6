"""Tests of retention: exactly the messages beyond the limits are archived or deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.history.retaining import DAY, deleting, planned, say, seqs, window_seqs
from threadkeep import Memory, Message, SessionNotFound
from threadkeep.context.window import Exclusion
from threadkeep.history.retention import Amount, PlannedRemoval, Pruned
from threadkeep.records import Retention, RetentionLimits, Summary
from threadkeep.testing import SettableClock


async def test_messages_that_are_too_old_are_deleted(memory: Memory, clock: SettableClock) -> None:
    await say(memory, clock, "a", 10, 10, 10, 10, 1)
    await say(memory, clock, "young", 1)
    assert await planned(memory, deleting(max_age_days=30)) == [PlannedRemoval("a", "delete", 1, 4, 4, 4 * 3)]
    assert await seqs(memory, "a") == list(range(1, 11))
    done = await memory.retention.prune(deleting(max_age_days=30))
    assert done == Pruned(deleted=Amount(1, 4, 12))
    assert await seqs(memory, "a") == [5, 6, 7, 8, 9, 10]
    assert await seqs(memory, "young") == [1, 2]
    assert await memory.retention.prune(deleting(max_age_days=30)) == Pruned()
    assert (await memory.session("a").append([Message(role="user", content="next")])).first_seq == 11


async def test_only_the_newest_messages_stay_in_windows(memory: Memory, clock: SettableClock) -> None:
    await say(memory, clock, "a", 1, 1, 1, 1, 1)
    rules = Retention(archive=RetentionLimits(max_messages=4))
    assert await memory.retention.prune(rules) == Pruned(archived=Amount(1, 6, 18))
    assert await window_seqs(memory, "a") == [7, 8, 9, 10]
    window = await memory.session("a").window()
    assert window.manifest.excluded == (Exclusion(1, 6, "archived"),)
    assert window.manifest.dropped == 0
    assert await memory.session("a").count() == 10
    assert [hit.message.seq for hit in await memory.search("tea")] == [10, 8]
    assert await planned(memory, rules) == []


async def test_an_idle_session_is_deleted_as_a_whole(memory: Memory, clock: SettableClock) -> None:
    """Sessions with recent activity stay, however old their first messages are."""
    await say(memory, clock, "idle", 1)
    await say(memory, clock, "busy", 40)
    await say(memory, clock, "busy", 1)
    rules = Retention(delete=RetentionLimits(max_idle_days=30))
    assert await planned(memory, rules) == [PlannedRemoval("idle", "delete", 1, 2, 2, 6, whole_session=True)]
    assert await memory.retention.prune(rules) == Pruned(deleted=Amount(1, 2, 6), whole_sessions=1)
    with pytest.raises(SessionNotFound):
        await memory.session("idle").info()
    assert await seqs(memory, "busy") == [1, 2, 3, 4]
    assert (await memory.session("idle").append([Message(role="user", content="Me again")])).first_seq == 1


async def test_an_idle_session_can_be_archived_as_a_whole(memory: Memory, clock: SettableClock) -> None:
    await say(memory, clock, "idle", 40)
    rules = Retention(archive=RetentionLimits(max_idle_days=30))
    assert await memory.retention.prune(rules) == Pruned(archived=Amount(1, 2, 6))
    assert await window_seqs(memory, "idle") == []
    await say(memory, clock, "idle", 1)
    assert await window_seqs(memory, "idle") == [3, 4]
    assert await seqs(memory, "idle") == [1, 2, 3, 4]


async def test_an_empty_session_is_deleted_when_it_is_idle(memory: Memory, clock: SettableClock) -> None:
    await say(memory, clock, "a", 20)
    rules = Retention(delete=RetentionLimits(max_age_days=10, max_idle_days=30))
    assert await memory.retention.prune(rules) == Pruned(deleted=Amount(1, 2, 6))
    assert await memory.session("a").count() == 0
    assert (await memory.session("a").info()).title is None
    clock.advance(20 * DAY)
    assert await planned(memory, rules) == [PlannedRemoval("a", "delete", 3, 2, 0, 0, whole_session=True)]
    assert await memory.retention.prune(rules) == Pruned(deleted=Amount(1), whole_sessions=1)
    assert [info async for info in memory.sessions()] == []


async def test_deleted_messages_are_not_archived_too(memory: Memory, clock: SettableClock) -> None:
    """With both rules, each message is counted once, as deleted or as archived."""
    await say(memory, clock, "a", 10, 10, 10, 10, 1)
    rules = Retention(
        archive=RetentionLimits(max_age_days=15), delete=RetentionLimits(max_age_days=35, max_messages=1000)
    )
    assert await planned(memory, rules) == [
        PlannedRemoval("a", "delete", 1, 2, 2, 6),
        PlannedRemoval("a", "archive", 3, 6, 4, 12),
    ]
    done = await memory.retention.prune(rules)
    assert done == Pruned(archived=Amount(1, 4, 12), deleted=Amount(1, 2, 6))
    assert await seqs(memory, "a") == [3, 4, 5, 6, 7, 8, 9, 10]
    assert await window_seqs(memory, "a") == [7, 8, 9, 10]
    assert done.to_dict() == {
        "archived": {"sessions": 1, "messages": 4, "tokens": 12},
        "deleted": {"sessions": 1, "messages": 2, "tokens": 6},
        "whole_sessions": 0,
        "busy": 0,
    }


async def test_the_newest_question_stays_with_any_limit(memory: Memory, clock: SettableClock) -> None:
    """A run may be answering the question; its thirty steps do not push it out of the session."""
    await say(memory, clock, "a", 1, 1)
    await memory.session("a").append([Message(role="assistant", content=f"step {n}") for n in range(30)])
    await memory.retention.prune(deleting(max_messages=10))
    assert (await seqs(memory, "a"))[:2] == [3, 4]
    await say(memory, clock, "a", 1)
    await memory.retention.prune(deleting(max_messages=1))
    assert await seqs(memory, "a") == [35, 36]


async def test_the_limits_of_a_session_replace_the_rules(memory: Memory, clock: SettableClock) -> None:
    for name in ("a", "b", "c"):
        await say(memory, clock, name, 0, 0)
    clock.advance(20 * DAY)
    await memory.retention.change("a", Retention())
    await memory.retention.change("b", deleting(max_messages=2))
    assert await memory.retention.of("a") == Retention()
    assert await memory.retention.of("c") is None
    await memory.retention.prune(deleting(max_age_days=10))
    assert [len(await seqs(memory, name)) for name in ("a", "b", "c")] == [4, 2, 0]
    await memory.retention.change("a", None)
    await memory.retention.prune(deleting(max_age_days=10))
    assert await seqs(memory, "a") == []
    with pytest.raises(SessionNotFound):
        await memory.retention.change("nobody", Retention())
    with pytest.raises(SessionNotFound):
        await memory.retention.of("nobody")


async def test_the_limits_of_a_session_apply_without_rules(memory: Memory, clock: SettableClock) -> None:
    """Only sessions with limits of their own are pruned."""
    for name in ("a", "b"):
        await say(memory, clock, name, 1, 1)
    assert not await memory.retention.has_work()
    await memory.retention.change("b", deleting(max_messages=2))
    assert await memory.retention.has_work()
    assert await memory.retention.prune() == Pruned(deleted=Amount(1, 2, 6))
    assert await seqs(memory, "a") == [1, 2, 3, 4]


async def test_summaries_of_removed_messages_stay(memory: Memory, clock: SettableClock) -> None:
    """Each excluded range has its reason, and the next summary begins after the removed messages."""
    await say(memory, clock, "a", 1, 1, 1, 1, 1)
    summary = Summary("a", 1, 4, "They had tea.", "m", "1", 5)
    assert await memory.summaries.add(summary)
    await memory.retention.prune(deleting(max_messages=8))
    await memory.retention.prune(Retention(archive=RetentionLimits(max_messages=4)))
    [kept] = await memory.summaries.active("a")
    assert (kept.first_seq, kept.last_seq, kept.text) == (1, 4, "They had tea.")
    recollection = await memory.session("a").recall()
    assert [message.seq for message in recollection.messages] == [7, 8, 9, 10]
    assert recollection.excluded == (Exclusion(1, 4, "summarised"), Exclusion(5, 6, "archived"))
    assert (await memory.summaries.uncovered("a")).after_seq == 6
    assert not await memory.summaries.add(replace(summary, id="next", first_seq=8, last_seq=8))
    assert await memory.summaries.add(replace(summary, id="next", first_seq=7, last_seq=8))
    recollection = await memory.session("a").recall()
    assert [message.seq for message in recollection.messages] == [9, 10]
    assert recollection.excluded == (
        Exclusion(1, 4, "summarised"),
        Exclusion(5, 6, "archived"),
        Exclusion(7, 8, "summarised"),
    )


async def test_archived_messages_are_in_no_summary(memory: Memory, clock: SettableClock) -> None:
    await say(memory, clock, "a", 1, 1, 1)
    await memory.retention.prune(Retention(archive=RetentionLimits(max_messages=4)))
    assert (await memory.summaries.uncovered("a")).after_seq == 2
    assert not await memory.summaries.add(Summary("a", 4, 4, "Tea.", "m", "1", 5))
    assert await memory.summaries.add(Summary("a", 3, 4, "Tea.", "m", "1", 5))
    recollection = await memory.session("a").recall()
    assert recollection.excluded == (Exclusion(1, 2, "archived"), Exclusion(3, 4, "summarised"))


async def test_nothing_is_pruned_by_default(memory: Memory, clock: SettableClock) -> None:
    await say(memory, clock, "a", 4000, 4000)
    assert await planned(memory) == []
    assert await memory.retention.prune() == Pruned()
    assert await seqs(memory, "a") == [1, 2, 3, 4]
