"""Helpers that store messages and records of model calls, and create summaries of ranges of messages."""

from __future__ import annotations

from collections.abc import Mapping

from threadkeep import Memory, Message
from threadkeep.records import Json, Summary
from threadkeep.store.manifests import NotedManifest

ROOM = "room"


async def say(memory: Memory, count: int, session_id: str = ROOM, *, user_id: str | None = None) -> None:
    """Append messages of ten tokens each, of user and assistant in turn."""
    said = [Message(role="assistant" if n % 2 else "user", content=f"Message {n}.", tokens=10) for n in range(count)]
    await memory.session(session_id, user_id=user_id).append(said)


def note_call(
    memory: Memory, session_id: str | None, run_id: str, manifest: Mapping[str, Json], texts: Mapping[str, str]
) -> None:
    """Queue the record of a model call."""
    memory.manifests.queue(NotedManifest(session_id, run_id, memory.clock(), lambda: manifest, texts))


def summary(first_seq: int, last_seq: int, *, session_id: str = ROOM, level: int = 1, text: str = "Tea.") -> Summary:
    """Return a summary of a range."""
    return Summary(session_id, first_seq, last_seq, text, "test-model", "1", tokens=3, level=level)


async def ranges(memory: Memory, session_id: str = ROOM) -> list[tuple[int, int]]:
    """Return the ranges of the active summaries."""
    return [(each.first_seq, each.last_seq) for each in await memory.summaries.active(session_id)]
