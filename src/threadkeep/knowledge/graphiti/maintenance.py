"""Work with Graphiti that an operator starts: connection tests, sending of earlier turns, and deletions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import GraphitiError, KnowledgeNotFound, SessionNotFound
from threadkeep.knowledge.graphiti.client import Episode, GraphitiClient, Step
from threadkeep.knowledge.graphiti.deliveries import Deliveries
from threadkeep.knowledge.graphiti.turns import TurnQueue, fact_episode
from threadkeep.records.json_values import DESCRIBED
from threadkeep.store.codec import time_text
from threadkeep.store.duties import ChannelState
from threadkeep.store.statements import ClockedTables

_SMOKE_SECONDS = 120.0
_LOOK_SECONDS = 0.5
_GONE_SECONDS = 5.0
_MOST_FACTS = 5
_NOT_STORED = (
    "The server accepted the message but did not store it: its worker, model or embedder fails. See its log, and "
    "restart it: after one failure its worker silently stops processing messages."
)
_NOT_DELETED = (
    "The server reports that it deleted the group, but has {left}. On FalkorDB the REST server deletes nothing: use "
    "THREADKEEP_GRAPHITI_TRANSPORT=mcp, or GRAPH.DELETE in the database."
)
_NO_FACT = "It finds no fact from the message. Its model may have found none; search for something that was said."


@dataclass(frozen=True)
class Check:
    """The result of one check in a test of the connection to the Graphiti server."""

    __pydantic_config__ = DESCRIBED

    name: str
    ok: bool
    milliseconds: float
    problem: str | None
    """The problem and its solution; null if there is none."""


async def smoke_test(client: GraphitiClient, *, clock: Callable[[], datetime]) -> list[Check]:
    """Write a test message into a new group, wait until it is stored, find it, and delete the group."""
    group_id = f"threadkeep_smoke_{uuid7().hex}"
    text = "The Threadkeep Smoke Test was written by the Connection Test."
    episode = Episode(name="threadkeep.smoke.user", role="user", speaker="Threadkeep", content=text, said_at=clock())

    async def send() -> None:
        await client.send(group_id, [episode])

    async def see() -> str | None:
        until = time.monotonic() + _SMOKE_SECONDS
        while not await client.episodes(group_id, 5):
            if time.monotonic() > until:
                return _NOT_STORED
            await asyncio.sleep(_LOOK_SECONDS)
        return None

    async def find() -> str | None:
        return None if await client.search([group_id], "Smoke Test", _MOST_FACTS) else _NO_FACT

    async def confirm_deleted() -> str | None:
        left = await remains(client, group_id)
        return _NOT_DELETED.format(left=left) if left else None

    checks = [await timed("send a message", send)]
    checks += [await timed("see it stored", see)] if checks[-1].ok else []
    if checks[-1].ok:
        checks.append(await timed("find a fact of it", find))
        checks.append(await timed("delete its group", partial(client.delete_group, group_id)))
        checks.append(await timed("see it gone", confirm_deleted))
    return checks


async def remains(client: GraphitiClient, group_id: str) -> str:
    """Describe the data that a server still has of a deleted group; return an empty text if it has none.

    The check takes some seconds, because messages in the server's queue can create the group again.

    Raises:
        GraphitiError: the server does not answer.
    """
    until = time.monotonic() + _GONE_SECONDS
    while True:
        episodes = await client.episodes(group_id, 100)
        facts = await client.search([group_id], "the", _MOST_FACTS)
        words = f"{len(episodes)} episodes and {len(facts)} facts" if episodes or facts else ""
        if words or time.monotonic() > until:
            return words
        await asyncio.sleep(1.0)


async def timed(name: str, step: Step) -> Check:
    """Execute a check of the connection test; return its result and duration."""
    started = time.monotonic()
    try:
        problem = await step()
    except GraphitiError as error:
        problem = str(error)
    return Check(name, problem is None, (time.monotonic() - started) * 1000, problem)


_DRAIN_SECONDS = 120.0
_QUEUE_LOOK_SECONDS = 1.0
_MOST_EPISODES = 10_000
_LATE = "graphiti-late"


@dataclass(frozen=True)
class Backfilled:
    """The result of queueing older, stored turns for Graphiti."""

    __pydantic_config__ = DESCRIBED

    queued: int
    """The number of turns that this call has queued."""
    left: int
    """A lower bound of the number of turns that are not queued yet; if it is not 0, call again."""


@dataclass(frozen=True)
class Purged:
    """The result of deleting a group on the Graphiti server."""

    __pydantic_config__ = DESCRIBED

    group_id: str
    dropped: int
    """The number of messages that were given up."""
    remains: str
    """A description of the data that the server still has; empty if it has none."""


@dataclass(frozen=True)
class Retracted:
    """The result of deleting the message (episode) in which a fact was sent to Graphiti."""

    __pydantic_config__ = DESCRIBED

    dropped: int
    """The number of episodes that were given up."""
    remains: str
    """A description of the data that the server still has; empty if it has none."""


class Backfill(ClockedTables, sql=("graph_turns.sql",)):
    """A backfill: it queues stored turns that were never queued for Graphiti. New turns are delivered first.

    Delivery rows show which turns were queued before, so a repeated call continues.
    """

    async def sessions(self, user_id: str | None = None) -> list[str]:
        """Return up to 10,001 sessions, of one user or of all users, with turns that were never queued for Graphiti."""
        rows = await self._driver.fetch(self._sql["sessions_to_backfill"], {"user_id": user_id, "limit": 10_001})
        return [row[0] for row in rows]

    async def queue(
        self, session_ids: Sequence[str], workspace: str | None, turns: TurnQueue, *, limit: int
    ) -> Backfilled:
        """Queue up to `limit` earlier turns of sessions, the oldest of each session first.

        Conversations of agents, and sessions without a scope to send to, are skipped.

        Raises:
            SessionNotFound: a session does not exist.
        """
        queued = left = 0
        for session_id in session_ids:
            async with self._driver.writing() as connection:
                found = await connection.fetch(self._sql["session_to_backfill"], {"session_id": session_id})
                if not found:
                    raise SessionNotFound(session_id)
                [(user_id, agent)] = found
                if agent is not None or not await turns.scopes_of(connection, session_id, user_id, workspace):
                    continue
                asked = {"session_id": session_id, "limit": limit - queued + 1}
                seqs = [row[0] for row in await connection.fetch(self._sql["answers_to_backfill"], asked)]
                now = time_text(self._clock())
                rows = [
                    {"session_id": session_id, "seq": seq, "workspace": workspace, "now": now}
                    for seq in seqs[: limit - queued]
                ]
                await connection.execute_many(self._sql["add_backfill"], rows)
            queued += len(rows)
            left += len(seqs) - len(rows)
        return Backfilled(queued, left)


async def purge(
    client: GraphitiClient,
    deliveries: Deliveries,
    group_id: str,
    *,
    state: ChannelState,
    expires_at: datetime,
    deliver: Callable[[], Awaitable[None]],
) -> Purged:
    """Delete a group, and check that it is gone.

    Messages that were not sent yet are given up first. Messages that the server has accepted but not stored would
    create the group again, so wait up to 120 seconds until it shows them. If some are still missing then, `state`
    stores their names until `expires_at`, and a repeated call waits for them again.

    Raises:
        GraphitiError: the server failed.
    """
    dropped = await deliveries.give_up_open("purged", group_id, queued_only=True)
    until = time.monotonic() + _DRAIN_SECONDS
    while (await deliveries.open_of(group_id))[1] and time.monotonic() < until:
        await deliveries.wake(group_id)
        await deliver()
        await asyncio.sleep(_QUEUE_LOOK_SECONDS)
    key = sha256(group_id.encode()).hexdigest()  # an id may name a person
    late = await state.value(_LATE, key)
    accepted = await deliveries.accepted(group_id, timedelta(seconds=_DRAIN_SECONDS)) | set(json.loads(late or "[]"))
    if is_late := bool(accepted):
        # Store the names first: the rows that contain them are deleted next, and a later step may fail.
        await state.keep(_LATE, key, json.dumps(sorted(accepted)), expires_at=expires_at)
    dropped += await deliveries.give_up_open("purged", group_id)
    while accepted:
        accepted -= {seen.name for seen in await client.episodes(group_id, _MOST_EPISODES)}
        if not accepted or time.monotonic() > until:
            break
        await asyncio.sleep(_QUEUE_LOOK_SECONDS)
    await deliveries.purge_dead(group_id)
    await client.delete_group(group_id)
    if is_late:
        await state.keep(_LATE, key, json.dumps(sorted(accepted)), expires_at=expires_at)
    left = [await remains(client, group_id)]
    left += [f"{len(accepted)} accepted messages that it may store later"] if accepted else []
    return Purged(group_id, dropped, " and ".join(filter(None, left)))


async def retract(client: GraphitiClient | None, deliveries: Deliveries, fact_id: str) -> Retracted:
    """Delete the episode in which a forgotten fact was sent to the server, and check that it is gone.

    If this fails, the worker tries again. Without a client, no request is sent, and the result says so.
    """
    name = fact_episode(fact_id)
    recorded = await deliveries.episode_of(name)
    if recorded is None or recorded.reason not in ("forgotten", "not_deleted"):
        # Nothing is left to delete on the server, or another message still confirms the fact.
        return Retracted(int(recorded is not None and recorded.reason == "undone"), "")
    if client is None:
        return Retracted(1, "the episode; if Graphiti is off, or without consent, no request to delete it is sent")
    if recorded.reason == "not_deleted":
        with suppress(KnowledgeNotFound):  # another call retries it already
            await deliveries.retry(recorded.number)
    try:
        found = await delete_episodes(client, recorded.group_id, {name})
    except GraphitiError as error:
        return Retracted(1, f"the episode: the server did not delete it ({error.kind})")
    if found.failed:
        return Retracted(1, "1 episode: the server failed to delete it")
    await deliveries.give_up([recorded.number], "not_deleted" if found.left else "undone")
    return Retracted(1, "1 episode" if found.left else "")


class Deletion(NamedTuple):
    """The names of deleted and of remaining (`left`) episodes. Deleting the ones in `failed` may be tried again."""

    deleted: set[str]
    left: set[str]
    failed: set[str]


async def delete_episodes(client: GraphitiClient, group_id: str, names: Collection[str]) -> Deletion:
    """Delete the episodes with these names that are among the last 10,000 of a group.

    If the server reports success, 404 or 405 but still has the episode, it cannot delete episodes (as on FalkorDB).

    Raises:
        GraphitiError: the server does not answer.
    """
    shown = [seen for seen in await client.episodes(group_id, _MOST_EPISODES) if seen.name in names]
    failed: set[str] = set()
    for seen in shown:
        try:
            await client.delete_episode(group_id, seen.uuid)
        except GraphitiError as error:
            if error.kind not in ("refused", "server"):
                raise
            if error.status not in (404, 405):
                failed.add(seen.name)
    after = await client.episodes(group_id, _MOST_EPISODES) if shown else []
    left = {seen.name for seen in after if seen.name in names}
    return Deletion({seen.name for seen in shown} - left, left, left & failed)
