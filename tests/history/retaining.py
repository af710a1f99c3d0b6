"""Helpers for tests of retention: sessions whose messages have an age."""

from __future__ import annotations

from threadkeep import Memory, Message
from threadkeep.history.retention import PlannedRemoval
from threadkeep.records import Retention, RetentionLimits
from threadkeep.testing import SettableClock

DAY = 86_400.0


async def say(memory: Memory, clock: SettableClock, session_id: str, *days: float, user_id: str | None = None) -> None:
    """For each number in `days`, append a turn of two messages, and then let so many days pass."""
    for pause in days:
        turn = [
            Message(role="user", content="What now?", tokens=3),
            Message(role="assistant", content="Tea.", tokens=3),
        ]
        await memory.session(session_id, user_id=user_id).append(turn)
        clock.advance(pause * DAY)


async def seqs(memory: Memory, session_id: str) -> list[int | None]:
    """Return the seq of each message of a session."""
    return [message.seq for message in await memory.session(session_id).tail(1000)]


async def window_seqs(memory: Memory, session_id: str) -> list[int | None]:
    """Return the seq of each message in the window of a session."""
    window = await memory.session(session_id).window(None, None)
    return [message.seq for message in window.messages]


async def planned(memory: Memory, rules: Retention | None = None) -> list[PlannedRemoval]:
    """Return the removals that a dry run reports."""
    return [removal async for removal in memory.retention.plan(rules)]


def deleting(max_age_days: float | None = None, max_messages: int | None = None) -> Retention:
    """Return rules that delete by age or by count."""
    return Retention(delete=RetentionLimits(max_age_days=max_age_days, max_messages=max_messages))
