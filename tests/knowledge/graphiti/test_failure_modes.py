"""Tests of the failure modes of real Graphiti servers, by number, with a fake server that fails in this way.

Other files of this folder test: 2 a dead worker, 6 a restart with a full queue, 11 a lost response
(`test_delivery`); 3, 5 and 8 failing, slow and malformed searches, 12 outdated and duplicate facts, 15 text that is
no instruction (`test_recall`); 4 a connection that breaks after a 500, 13 missing and new fields (`test_rest`); 10 a
deletion that deletes nothing (`test_upkeep`).
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.knowledge.graphiti.conftest import Opening, allow, deliver
from threadkeep import Memory, Message
from threadkeep.errors import GraphitiError, StoreUnavailable
from threadkeep.knowledge.graphiti.deliveries import Deliveries
from threadkeep.knowledge.graphiti.recall import RecallQuestion
from threadkeep.knowledge.graphiti.turns import group_id_of
from threadkeep.records.knowledge import Scope
from threadkeep.testing import FakeGraphiti, SettableClock
from threadkeep.testing.fake_graphiti import Backend

SESSION = Scope("session", "room:1")
GROUP = group_id_of(SESSION)


async def talk(memory: Memory, turns: int = 1, *, first: int = 1) -> None:
    """Append turns to a session."""
    for number in range(first, first + turns):
        turn = [Message(role="user", content=f"q{number}"), Message(role="assistant", content=f"a{number}")]
        await memory.session("room:1", user_id="ann").append(turn)


async def test_mode_1_an_accepted_message_is_unconfirmed_until_it_is_stored(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        graphiti.fail("blackhole", "/messages")
        await talk(memory)
        await deliver(memory, clock, looks=2)
        assert (await memory.graphiti.status()).counts == {"sent": 2, "turns": 0}
        graphiti.mend()
        await deliver(memory, clock, looks=20)
        status = await memory.graphiti.status()
        assert (status.counts, status.repeats) == ({"confirmed": 2, "turns": 0}, 2)
        assert len(graphiti.names(GROUP)) == 2


async def test_mode_7_a_healthy_server_without_its_database_is_detected(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """No message is lost; all arrive when the database is available again."""
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        for path in ("/messages", "/search", "/episodes", "/entity-edge"):
            graphiti.fail("status", path, status=500)
        checks = {check.name: check.problem for check in await memory.graphiti.test()}
        assert checks["healthcheck"] is None
        assert "500" in str(checks["database"])
        await talk(memory, 2)
        await deliver(memory, clock, looks=5)
        status = await memory.graphiti.status()
        assert (status.counts["queued"], set(status.troubles)) == (4, {"server"})
        graphiti.mend()
        assert all(check.ok for check in await memory.graphiti.test())
        clock.advance(60)
        await deliver(memory, clock, looks=20)
        assert (await memory.graphiti.status()).counts == {"confirmed": 4, "turns": 0}


async def test_a_wrong_endpoint_delays_messages_as_a_missing_server_does(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """A proxy responds with 404 while it has no server, so no message becomes a dead letter."""
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        graphiti.fail("status", "/messages", status=404)
        await talk(memory, 2)
        await deliver(memory, clock, looks=5)
        assert (await memory.graphiti.status()).counts == {"queued": 4, "turns": 0}
        graphiti.mend()
        clock.advance(60)
        await deliver(memory, clock, looks=20)
        assert (await memory.graphiti.status()).counts == {"confirmed": 4, "turns": 0}


@pytest.mark.parametrize(
    ("step", "fails"),
    [("due_groups", True), ("claim", True), ("claim", False)],
    ids=["no group is read", "no group is claimed", "another process has the group"],
)
async def test_delivery_continues_after_an_attempt_that_did_not_reach_the_server(
    opening: Opening,
    graphiti: FakeGraphiti,
    clock: SettableClock,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    fails: bool,
) -> None:
    """After repeated failures of the server, one attempt at a time is made, whatever happens to an earlier attempt."""

    async def interrupted(*_: object, **__: object) -> None:
        if fails:
            raise StoreUnavailable("The database is away.")

    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        graphiti.fail("status", "/messages", status=500)
        await talk(memory)
        await deliver(memory, clock, looks=20)
        assert set((await memory.graphiti.status()).troubles) == {"server"}
        graphiti.mend()
        clock.advance(3600)
        with monkeypatch.context() as interrupting, suppress(StoreUnavailable):
            interrupting.setattr(Deliveries, step, interrupted)
            await memory.graphiti.deliver()
        clock.advance(3600)
        await deliver(memory, clock, looks=20)
        assert (await memory.graphiti.status()).counts == {"confirmed": 2, "turns": 0}


@pytest.mark.parametrize("ahead", [400 * 86_400, 3_600])
@pytest.mark.parametrize("killed", [True, False])
async def test_a_clock_that_was_ahead_blocks_no_deliveries(
    opening: Opening,
    graphiti: FakeGraphiti,
    clock: SettableClock,
    monkeypatch: pytest.MonkeyPatch,
    killed: bool,
    ahead: int,
) -> None:
    """A lease or a pause of a process whose clock was ahead does not last until that time."""
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        await talk(memory)
        clock.advance(ahead)
        graphiti.fail("status", "/messages", status=500)
        with monkeypatch.context() as patched:
            if killed:
                patched.setattr("threadkeep.knowledge.graphiti.deliveries.Deliveries.release", do_nothing)
            await deliver(memory, clock, looks=5)
        graphiti.mend()
        clock.advance(-ahead)
        await deliver(memory, clock, looks=20)
        assert (await memory.graphiti.status()).counts == {"confirmed": 2, "turns": 0}


async def test_messages_lost_while_the_clock_was_ahead_are_sent_again(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        clock.advance(3_600)
        await talk(memory)
        await deliver(memory, clock, looks=3)
        await talk(memory)
        graphiti.fail("blackhole", "/messages")
        await deliver(memory, clock, looks=1)
        graphiti.mend()
        clock.advance(-3_600)
        await deliver(memory, clock, looks=20)
        assert (await memory.graphiti.status()).counts == {"confirmed": 4, "turns": 0}


async def do_nothing(*_: object, **__: object) -> None:
    """Do nothing, as a process that was killed."""


@pytest.mark.parametrize(("status", "least_seconds"), [(401, 200), (403, 200), (429, 90)])
async def test_mode_9_the_pause_that_a_refusing_proxy_asks_for_is_kept(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock, status: int, least_seconds: float
) -> None:
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        graphiti.fail("status", "/messages", status=status, headers={"Retry-After": "120"})
        await talk(memory)
        await deliver(memory, clock, looks=1)
        asked = len(graphiti.requests)
        for _ in range(10):
            clock.advance(least_seconds / 11)
            await memory.graphiti.deliver()
        assert len(graphiti.requests) == asked
        troubles = (await memory.graphiti.status()).troubles
        assert set(troubles) == ({"limited"} if status == 429 else {"denied"})
        graphiti.mend()
        clock.advance(400)
        await deliver(memory, clock)
        assert (await memory.graphiti.status()).counts == {"confirmed": 2, "turns": 0}


async def test_the_pause_of_a_group_is_doubled_after_each_failure(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause is random, up to the doubled time; here it is as long as possible."""
    monkeypatch.setattr("threadkeep.knowledge.graphiti.worker.random.uniform", lambda _, most: most)
    async with opening(scopes=("session",), first_pause_seconds=10.0, longest_pause_seconds=300.0) as memory:
        await allow(memory)
        graphiti.fail("status", "/messages", status=500)
        await talk(memory)
        tried = []
        for seconds in (0, 19, 2, 38, 3):
            clock.advance(seconds)
            await memory.graphiti.deliver()
            tried.append(len(graphiti.requests))
        assert tried == [1, 1, 2, 2, 3]


async def test_mode_10_accepted_messages_do_not_restore_a_deleted_group(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge also deletes messages that the server has accepted before, and none is stored after it."""
    monkeypatch.setattr("threadkeep.knowledge.graphiti.maintenance._LOOK_SECONDS", 0.01)
    graphiti.backend = "neo4j"
    graphiti.auto = False
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        await talk(memory)
        await deliver(memory, clock, looks=1)
        assert (await memory.graphiti.status()).counts["sent"] == 2
        graphiti.ingest()
        purged = await memory.graphiti.purge(SESSION)
        assert (purged.remains, graphiti.names(GROUP), graphiti.ingest()) == ("", [], 0)


@pytest.mark.parametrize("backend", ["falkordb", "neo4j"])
async def test_mode_12_facts_beyond_the_limit_are_dropped(
    opening: Opening, graphiti: FakeGraphiti, backend: Backend
) -> None:
    """FalkorDB applies the limit per group, and returns a repeated id twice."""
    graphiti.backend = backend
    other = group_id_of(Scope("workspace", "other"))
    for number in range(6):
        graphiti.add_fact(GROUP, f"Garden {number} is green", uuid=f"u{number}")
        graphiti.add_fact(other, f"Garden {number} is green.", uuid=f"v{number}")
    options = {"recall_enabled": True, "recall_max_facts": 3, "recall_scopes": ("session", "workspace")}
    async with opening(recall_extra_group_ids=(other,), recall_timeout_seconds=30.0, **options) as memory:
        await allow(memory)
        recalled = await memory.graphiti.recall(RecallQuestion("Which garden is green?", {"session": SESSION}))
        texts = [fact.text.rstrip(".") for fact in recalled.facts]
        assert len(texts) == len(set(texts)) == 3


async def test_mode_14_trailing_slashes_are_ignored_and_redirects_not_followed(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """A redirect could lead to an endpoint without consent."""
    async with opening(endpoint=f" {graphiti.url}/// ", scopes=("session",)) as memory:
        await allow(memory)
        await talk(memory)
        await deliver(memory, clock)
        assert len(graphiti.names(GROUP)) == 2
        graphiti.fail("status", "/messages", status=307, headers={"Location": f"{graphiti.url}/elsewhere"})
        await talk(memory, first=2)
        await deliver(memory, clock, looks=3)
        assert not [one for one in graphiti.requests if one.path == "/elsewhere"]
        with pytest.raises(GraphitiError):
            await memory.graphiti.client().send(GROUP, [])
