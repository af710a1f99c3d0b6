"""Looks at a Graphiti server: whether it answers, whether it stores, and whether it deletes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import GraphitiError
from threadkeep.knowledge.graphiti.client import Episode, GraphitiClient, Look

_SMOKE_SECONDS = 120.0
_LOOK_SECONDS = 0.5
_GONE_SECONDS = 5.0
_MOST_FACTS = 5
_NOT_STORED = (
    "The server took the message and did not store it: its worker, its model or its embedder fails. See its log, and "
    "restart it: after one failure its worker takes nothing more and does not say so."
)
_NOT_DELETED = (
    "The server says that it deleted the group, and has {left} of it. On FalkorDB the REST server deletes nothing: use "
    "THREADKEEP_GRAPHITI_TRANSPORT=mcp, or GRAPH.DELETE in the database."
)
_NO_FACT = "It finds no fact of the message. That may be its model's choice; ask for something that was said."


@dataclass(frozen=True)
class Check:
    """A check: its duration, and the problem with its cure, or None."""

    name: str
    milliseconds: float
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Return whether nothing is wrong."""
        return self.problem is None


async def connection_test(client: GraphitiClient) -> list[Check]:
    """Look at the server without writing, and without a word of anybody."""
    return [await _timed(name, look) for name, look in client.checks()]


async def smoke_test(client: GraphitiClient, *, clock: Callable[[], datetime]) -> list[Check]:
    """Write one message of our own into a group of its own, wait until it is stored, find it, and delete it again."""
    test = _Smoke(client, clock)
    checks: list[Check] = []
    for name, step in (
        ("send a message", test.send),
        ("see it stored", test.see),
        ("find a fact of it", test.find),
        ("delete its group", test.delete),
        ("see it gone", test.see_gone),
    ):
        checks.append(await _timed(name, step))
        if not checks[-1].ok and name in ("send a message", "see it stored"):
            break
    return checks


class _Smoke:
    """The steps of a smoke test."""

    def __init__(self, client: GraphitiClient, clock: Callable[[], datetime]) -> None:
        self._client = client
        self._clock = clock
        self._group_id = f"threadkeep_smoke_{uuid7().hex}"

    async def send(self) -> str | None:
        text = "The Threadkeep Smoke Test was written by the Connection Test."
        episode = Episode(
            name="threadkeep.smoke.user", role="user", speaker="Threadkeep", content=text, said_at=self._clock()
        )
        await self._client.send(self._group_id, [episode])
        return None

    async def see(self) -> str | None:
        until = time.monotonic() + _SMOKE_SECONDS
        while not await self._client.episodes(self._group_id, 5):
            if time.monotonic() > until:
                return _NOT_STORED
            await asyncio.sleep(_LOOK_SECONDS)
        return None

    async def find(self) -> str | None:
        return None if await self._client.search([self._group_id], "Smoke Test", _MOST_FACTS) else _NO_FACT

    async def delete(self) -> str | None:
        await self._client.delete_group(self._group_id)
        return None

    async def see_gone(self) -> str | None:
        left = await remains(self._client, self._group_id)
        return _NOT_DELETED.format(left=left) if left else None


async def remains(client: GraphitiClient, group_id: str) -> str:
    """Return what a server still has of a group that it was asked to delete, in words; empty if nothing.

    It is looked at for some seconds: what waited in the server's queue brings the group back.

    Raises:
        GraphitiError: the server does not answer.
    """
    until = time.monotonic() + _GONE_SECONDS
    words = ""
    while True:
        episodes = await client.episodes(group_id, 100)
        facts = await client.search([group_id], "the", _MOST_FACTS)
        words = f"{len(episodes)} episodes and {len(facts)} facts" if episodes or facts else ""
        if words or time.monotonic() > until:
            return words
        await asyncio.sleep(1.0)


async def _timed(name: str, step: Look) -> Check:
    started = time.monotonic()
    try:
        problem = await step()
    except GraphitiError as error:
        problem = str(error)
    return Check(name, (time.monotonic() - started) * 1000, problem)


def all_ok(checks: Sequence[Check]) -> bool:
    """Return whether nothing is wrong."""
    return all(check.ok for check in checks)
