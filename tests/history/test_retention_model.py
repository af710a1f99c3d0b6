"""Property tests of retention against a plain implementation of its rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.context.test_window import choose
from tests.history.retaining import DAY
from threadkeep import Memory, Message
from threadkeep.context.window import Extent, Limits
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.all_sessions import AllRetention
from threadkeep.history.retention import Amount
from threadkeep.records import Retention, RetentionLimits, Role
from threadkeep.testing import SettableClock

pytestmark = pytest.mark.slow

_DAYS = st.sampled_from([0.0, 0.5, 1.0, 3.0])
_ROLES: st.SearchStrategy[Role] = st.sampled_from(["user", "assistant", "assistant", "system"])
_TURNS = st.lists(st.tuples(st.lists(_ROLES, min_size=1, max_size=4), _DAYS), min_size=1, max_size=8)
_LIMITS = st.builds(
    RetentionLimits,
    max_age_days=st.none() | st.sampled_from([0.75, 2.0, 5.0]),
    max_messages=st.none() | st.integers(1, 12),
    max_idle_days=st.none() | st.sampled_from([0.75, 4.0]),
)
_NUMBERS = count()

type Turns = list[tuple[list[Role], float]]


@dataclass(frozen=True)
class PlainSession:
    """A session as the test knows it: roles and times of its messages, and the seq of its reset."""

    name: str
    roles: list[Role]
    times: list[datetime]
    reset_seq: int

    def borders(self, rules: Retention, now: datetime) -> tuple[int | None, int]:
        """Return the last deleted and the last archived seq; the first is None if the session is deleted."""
        if self._is_idle(rules.delete, now):
            return None, 0
        deleted = self._border(rules.delete, now)
        if self._is_idle(rules.archive, now):
            return deleted, len(self.roles)
        return deleted, max(deleted, self._border(rules.archive, now))

    def _is_idle(self, limits: RetentionLimits, now: datetime) -> bool:
        return limits.max_idle_days is not None and self.times[-1] < now - timedelta(days=limits.max_idle_days)

    def _border(self, limits: RetentionLimits, now: datetime) -> int:
        border = 0
        if limits.max_age_days is not None:
            cutoff = now - timedelta(days=limits.max_age_days)
            border = len(list(takewhile(lambda time: time < cutoff, self.times)))
        if limits.max_messages is not None:
            users = [seq for seq, role in enumerate(self.roles, start=1) if role == "user"]
            newest_user = users[-1] if users else len(self.roles) + 1
            border = max(border, min(len(self.roles) - limits.max_messages, newest_user - 1))
        return border


async def append_turns(memory: Memory, clock: SettableClock, turns: Turns, reset_after: int | None) -> PlainSession:
    """Append the turns to a new session."""
    talk = PlainSession(f"room:{next(_NUMBERS)}", [], [], 0)
    for number, (roles, pause) in enumerate(turns, start=1):
        messages = [Message(role=role, content=f"{role} says", tokens=3) for role in roles]
        await memory.session(talk.name).append(messages)
        talk.roles.extend(roles)
        talk.times.extend([clock()] * len(roles))
        clock.advance(pause * DAY)
        if number == reset_after:
            await memory.session(talk.name).reset()
            talk = replace(talk, reset_seq=len(talk.roles))
    return talk


@given(
    talks=st.lists(_TURNS, min_size=1, max_size=3),
    rules=st.builds(Retention, archive=_LIMITS, delete=_LIMITS),
    reset_after=st.none() | st.integers(1, 8),
    max_messages=st.none() | st.integers(0, 6),
)
async def test_pruning_matches_the_plain_rules(
    memory: Memory,
    clock: SettableClock,
    talks: list[Turns],
    rules: Retention,
    reset_after: int | None,
    max_messages: int | None,
) -> None:
    """The plan matches the removal; remaining messages keep their seq, and windows have only those."""
    held = [await append_turns(memory, clock, turns, reset_after) for turns in talks]
    names = [talk.name for talk in held]
    plan = [one async for one in memory.retention.plan(rules, session_ids=names)]
    done = await memory.retention.prune(rules, session_ids=names)
    assert sum(one.messages for one in plan) == done.messages
    assert sum(one.tokens for one in plan) == 3 * done.messages
    for talk in held:
        deleted, archived = talk.borders(rules, clock())
        if deleted is None:
            assert [info async for info in memory.sessions(query=talk.name) if info.session_id == talk.name] == []
            continue
        await check(memory, talk, deleted, archived, Limits(max_messages, 20))
        assert [one async for one in memory.retention.plan(rules, session_ids=[talk.name])] == []


@settings(max_examples=settings().max_examples // 4)
@given(talks=st.lists(_TURNS, min_size=1, max_size=2), limits=_LIMITS, reset_after=st.none() | st.integers(1, 8))
async def test_pruning_in_a_graph_store_matches_the_plain_rules(
    memory: Memory, clock: SettableClock, talks: list[Turns], limits: RetentionLimits, reset_after: int | None
) -> None:
    """Deletion does not depend on the chunks, and nothing is archived."""
    beside = await memory.namespace(GraphLayout(chunk_size=3), await memory.graph_store())
    held = [await append_turns(beside, clock, turns, reset_after) for turns in talks]
    names = [talk.name for talk in held]
    rules = Retention(archive=RetentionLimits(max_messages=1), delete=limits)
    plan = [one async for one in AllRetention(memory).plan(rules, session_ids=names)]
    done = await AllRetention(memory).prune(rules, session_ids=names)
    assert (sum(one.messages for one in plan), done.archived) == (done.messages, Amount())
    assert sum(one.tokens for one in plan) == 3 * done.messages
    for talk in held:
        deleted, _ = talk.borders(Retention(delete=limits), clock())
        if deleted is None:
            anew = await beside.session(talk.name).append([Message(role="user", content="Hi")])
            assert anew.first_seq == 1
            continue
        await check(beside, talk, deleted, deleted, Limits(None, None))
        assert [one async for one in AllRetention(memory).plan(rules, session_ids=[talk.name])] == []


async def check(memory: Memory, talk: PlainSession, deleted: int, archived: int, limits: Limits) -> None:
    """Check the seqs, counters and windows of the remaining messages."""
    session = memory.session(talk.name)
    left = await session.tail(1000)
    assert [message.seq for message in left] == list(range(deleted + 1, len(talk.roles) + 1))
    info = await session.info()
    assert (info.message_count, info.deleted_seq, info.archived_seq) == (len(left), deleted, archived)
    border = max(archived, talk.reset_seq)
    live = [message for message in left if message.role != "system" and (message.seq or 0) > border]
    extent = Extent(first_seq=deleted + 1, reset_seq=talk.reset_seq, archived_seq=archived)
    assert await session.window(limits.max_messages, limits.max_tokens) == choose(live[::-1], limits, extent=extent)
