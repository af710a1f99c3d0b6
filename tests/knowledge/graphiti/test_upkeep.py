"""Tests of operator commands: testing the server, sending earlier turns, and purging a group."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.knowledge.graphiti.conftest import Opening, allow, deliver
from threadkeep import Memory, Message, SessionNotFound
from threadkeep.errors import GraphitiClosed, InvalidInput
from threadkeep.knowledge.graphiti.turns import group_id_of
from threadkeep.knowledge.promotion import Promotion, RelationOf
from threadkeep.records.knowledge import Scope
from threadkeep.testing import FakeGraphiti, SettableClock

SESSION = Scope("session", "room:1")
GROUP = group_id_of(SESSION)


async def talk(memory: Memory, first: int, last: int, session_id: str = "room:1") -> None:
    """Append the turns with these numbers to a session."""
    for number in range(first, last + 1):
        turn = [
            Message(role="user", content=f"q{number}", id=f"q{number}"),
            Message(role="assistant", content=f"a{number}", id=f"a{number}"),
        ]
        await memory.session(session_id, user_id="ann").append(turn)


def contents(graphiti: FakeGraphiti) -> list[str]:
    """Return the texts of the session's group, in the order in which they were stored."""
    return [episode["content"].partition("): ")[2] for episode in graphiti.stored.get(GROUP, [])]


async def test_earlier_turns_are_sent_once_with_consent(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """New turns are sent first; each backfill continues after the one before."""
    async with opening(scopes=("session",)) as memory:
        await talk(memory, 1, 3)
        await allow(memory)
        with pytest.raises(GraphitiClosed):
            await memory.graphiti.backfill()
        await allow(memory, "backfill")
        first = await memory.graphiti.backfill(limit=2)
        assert (first.queued, first.left) == (2, 1)
        await talk(memory, 4, 4)
        await deliver(memory, clock)
        assert contents(graphiti) == ["q4", "a4", "q1", "a1", "q2", "a2"]
        second = await memory.graphiti.backfill(["room:1"])
        assert (second.queued, second.left) == (1, 0)
        assert (await memory.graphiti.backfill()).queued == 0
        await deliver(memory, clock)
        assert sorted(contents(graphiti)) == sorted(f"{role}{n}" for n in range(1, 5) for role in "qa")
        with pytest.raises(SessionNotFound):
            await memory.graphiti.backfill(["nowhere"])


async def test_earlier_turns_without_a_group_are_not_queued_forever(opening: Opening, clock: SettableClock) -> None:
    """A turn without a user has no group of a user, so no delivery would show that it was queued."""
    async with opening(scopes=("user",)) as memory:
        said = [Message(role="user", content="question"), Message(role="assistant", content="answer")]
        await memory.session("room:1").append(said)
        await memory.session("room:2", user_id="ann").append(said)
        await allow(memory, "backfill")
        for queued in (1, 0):
            found = await memory.graphiti.backfill()
            assert (found.queued, found.left) == (queued, 0)
            await deliver(memory, clock)


@pytest.mark.parametrize("odd", ["nul\x00", "half \ud83d"], ids=["nul", "surrogate"])
async def test_a_name_with_invalid_characters_is_refused(allowed: Memory, odd: str) -> None:
    """An invalid name must not look like a database outage; the text of a promotion is cleaned instead."""
    await allow(allowed, "backfill", "promoted_facts")
    graphiti = allowed.graphiti
    for refused in (
        graphiti.consents.trust(odd, by="ops"),
        graphiti.consents.distrust(odd),
        graphiti.backfill([odd]),
        graphiti.backfill(user_id=odd),
        graphiti.undo_promotion(odd),
    ):
        with pytest.raises(InvalidInput):
            await refused
    relations = (RelationOf(odd, "USES", "git"),)
    assert (await graphiti.promote(Promotion("decision", odd, relations=relations), "shop")).queued == 1


async def test_earlier_turns_are_sent_at_a_limited_rate(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    async with opening(scopes=("session",), backfill_per_minute=4) as memory:
        await talk(memory, 1, 10)
        await allow(memory, "backfill")
        await memory.graphiti.backfill()
        await deliver(memory, clock, looks=2)
        assert len(contents(graphiti)) == 4
        await deliver(memory, clock, looks=30)
        assert len(contents(graphiti)) == 20


async def test_processes_share_the_limit_of_a_workspace(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    options: Any = {"scopes": ("session",), "backfill_per_minute": 4}
    async with opening(**options) as one, opening(**options) as other:
        await talk(one, 1, 4, session_id="room:1")
        await talk(one, 1, 4, session_id="room:2")
        await allow(one, "backfill")
        await one.graphiti.backfill()
        for _ in range(2):
            clock.advance(1)
            await asyncio.gather(one.graphiti.deliver(), other.graphiti.deliver())
        assert len(everything(graphiti)) == 4
        await talk(one, 9, 9, session_id="room:3")
        clock.advance(1)
        await one.graphiti.deliver()
        assert len(everything(graphiti)) == 6
        await deliver(one, clock, looks=30)
        assert len(everything(graphiti)) == 18


def everything(graphiti: FakeGraphiti) -> list[str]:
    """Return the texts of all groups."""
    return [episode["content"].partition("): ")[2] for group in graphiti.stored.values() for episode in group]


def commit(folder: Path, text: str) -> None:
    """Commit a file in a git folder, which is created if it is missing."""
    (folder / "file.txt").write_text(text, encoding="utf-8")
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "Change"]):
        subprocess.run([*git, *words], check=True, capture_output=True)


async def test_the_state_of_the_git_folder_is_sent_when_it_changes(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consent to both data classes is needed; branch, commit and dirty state are sent, but no path."""
    monkeypatch.setattr("threadkeep.knowledge.graphiti.consent.CACHED_SECONDS", 0.0)
    commit(tmp_path, "one")
    async with opening(git_folder=str(tmp_path), scopes=("workspace",)) as memory:
        for classes in ((), ("git_metadata",), ("promoted_facts",)):
            await allow(memory, *classes)
            assert await memory.graphiti.note_repo_state() is None
        await allow(memory, "git_metadata", "promoted_facts")
        assert await memory.graphiti.note_repo_state() is not None
        assert await memory.graphiti.note_repo_state() is None
        commit(tmp_path, "two")
        (tmp_path / "file.txt").write_text("three", encoding="utf-8")
        assert await memory.graphiti.note_repo_state() is not None
        await deliver(memory, clock)
    told = everything(graphiti)
    assert len(told) == 2
    assert all("Branch main at commit" in text for text in told)
    assert ["not committed" in text for text in told] == [False, True]
    assert str(tmp_path) not in str(graphiti.requests)


async def test_a_purge_drops_queued_messages_and_reports_what_remains(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        await talk(memory, 1, 1)
        await deliver(memory, clock)
        await talk(memory, 2, 2)
        purged = await memory.graphiti.purge(SESSION)
        assert (purged.group_id, purged.dropped) == (GROUP, 2)
        assert purged.remains.startswith("2 episodes")
        graphiti.backend = "neo4j"
        assert (await memory.graphiti.purge(SESSION)).remains == ""
        assert await memory.graphiti.retry() == 0
        await deliver(memory, clock)
        assert contents(graphiti) == []


async def test_a_purge_after_consent_was_withdrawn_waits_for_accepted_messages(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that the server stores during the purge are deleted, and no retry sends them again."""
    monkeypatch.setattr("threadkeep.knowledge.graphiti.maintenance._QUEUE_LOOK_SECONDS", 0.01)
    graphiti.backend, graphiti.auto = "neo4j", False
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        await talk(memory, 1, 1)
        await deliver(memory, clock, looks=1)
        await memory.graphiti.decline(by="ann")
        asyncio.get_running_loop().call_later(0.05, graphiti.ingest)
        assert (await memory.graphiti.purge(SESSION)).remains == ""
        assert (graphiti.names(GROUP), graphiti.ingest()) == ([], 0)
        await allow(memory)
        assert await memory.graphiti.retry() == 0


@pytest.mark.parametrize("declined", [False, True])
async def test_an_erase_is_complete_only_after_the_server_has_stored_the_accepted_messages(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock, monkeypatch: pytest.MonkeyPatch, declined: bool
) -> None:
    """Otherwise they restore the deleted groups later. A repeated erase then deletes these."""
    monkeypatch.setattr("threadkeep.knowledge.graphiti.maintenance._DRAIN_SECONDS", 0.1)
    monkeypatch.setattr("threadkeep.knowledge.graphiti.maintenance._QUEUE_LOOK_SECONDS", 0.01)
    graphiti.backend, graphiti.auto = "neo4j", False
    async with opening(scopes=("session", "user")) as memory:
        await allow(memory)
        await talk(memory, 1, 1)
        clock.advance(1)
        await memory.graphiti.deliver()
        if declined:
            await memory.graphiti.decline(by="ann")
        for _ in range(2):
            receipt = await memory.erase(user_id="ann")
            assert sum("2 accepted messages that it may store later" in one for one in receipt.not_reached) == 2
            assert not receipt.complete
        assert graphiti.ingest() == 4
        for _ in range(2):
            assert (await memory.erase(user_id="ann")).complete
        assert graphiti.stored == {}


async def test_a_repeated_erase_waits_for_late_messages_even_if_the_first_one_failed(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.knowledge.graphiti.maintenance._DRAIN_SECONDS", 0)
    graphiti.backend, graphiti.auto = "neo4j", False
    async with opening(scopes=("session", "user")) as memory:
        await allow(memory)
        await talk(memory, 1, 1)
        clock.advance(1)
        await memory.graphiti.deliver()
        graphiti.fail("status", "/group", status=500)
        assert not (await memory.erase(user_id="ann")).complete
        graphiti.mend()
        assert not (await memory.erase(user_id="ann")).complete
        assert graphiti.ingest() == 4
        assert (await memory.erase(user_id="ann")).complete
        assert graphiti.stored == {}


async def test_dead_messages_of_a_purged_group_are_not_sent_again(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """A retry of all dead letters must not restore the deleted group."""
    graphiti.backend = "neo4j"
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        await talk(memory, 1, 1)
        graphiti.fail("status", "/messages", status=422)
        await deliver(memory, clock)
        graphiti.mend()
        assert (await memory.graphiti.status()).counts["dead"] == 2
        assert (await memory.graphiti.purge(SESSION)).remains == ""
        assert await memory.graphiti.retry() == 0
        await deliver(memory, clock)
        assert contents(graphiti) == []


async def test_a_purge_of_a_person_deletes_the_groups_of_all_ids(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """A merged id has a group with messages from before the merge."""
    graphiti.backend = "neo4j"
    async with opening(scopes=("user",)) as memory:
        await allow(memory)
        answered = [Message(role="user", content="hi"), Message(role="assistant", content="hello")]
        merged = [f"telegram:{number}" for number in range(21)]
        for person in ("ann", *merged):
            await memory.persons.resolve(person)
            await memory.session(person, user_id=person).append(answered)
        await deliver(memory, clock)
        for person in merged:
            await memory.persons.merge(person, into="ann")
        assert sum(map(len, graphiti.stored.values())) == 44
        assert (await memory.graphiti.purge(Scope("user", "ann"))).remains == ""
        assert graphiti.stored == {}


async def test_nothing_is_queued_while_consent_is_withdrawn(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """Dead letters and earlier turns can be queued again after another grant."""
    await allow(allowed, "backfill")
    await talk(allowed, 1, 1)
    await allowed.graphiti.decline(by="ann")
    with pytest.raises(GraphitiClosed, match="Nobody has consented"):
        await allowed.graphiti.retry()
    with pytest.raises(GraphitiClosed, match="Nobody has consented"):
        await allowed.graphiti.backfill(["room:1"])
    assert set((await allowed.graphiti.status()).counts) == {"dead", "turns"}
    await allow(allowed)
    assert await allowed.graphiti.retry() == 4
    await deliver(allowed, clock)
    assert (await allowed.graphiti.status()).counts["confirmed"] == 4


async def test_an_erase_is_not_complete_while_the_server_has_the_group(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """The receipt counts the group without naming it or the person; a repeated erase completes it."""
    async with opening(scopes=("user",)) as memory:
        await allow(memory)
        await talk(memory, 1, 1)
        await deliver(memory, clock)
        kept = await memory.erase(user_id="ann")
        assert not kept.complete
        assert await memory.verify_erased(kept) == "there"
        assert group_id_of(Scope("user", "ann")) not in str(kept.to_dict())
        graphiti.fail("status")
        refused = await memory.erase(user_id="ann")
        graphiti.backend = "neo4j"
        graphiti.mend()
        gone = await memory.erase(user_id="ann")
        counts = [
            (store.before, store.after)
            for receipt in (kept, refused, gone)
            for store in receipt.stores
            if store.name == "groups in Graphiti"
        ]
        # The two groups are that of the person and that of the session.
        assert counts == [(2, 1), (2, 2), (2, 0)]
        assert (refused.complete, gone.complete) == (False, True)
        assert await memory.verify_erased(gone) == "gone"


async def test_the_connection_is_tested_without_writing(allowed: Memory, graphiti: FakeGraphiti) -> None:
    checks = await allowed.graphiti.test()
    assert [check.name for check in checks] == ["healthcheck", "paths", "unknown edge", "database"]
    assert all(check.ok for check in checks)
    assert {one.method for one in graphiti.requests} == {"GET"}
    graphiti.fail("status", "/episodes")
    [problem] = [check.problem for check in await allowed.graphiti.test() if not check.ok]
    assert "See its log" in str(problem)


@pytest.mark.parametrize("backend", ["falkordb", "neo4j"])
async def test_a_smoke_test_says_whether_the_server_stores_and_deletes(
    allowed: Memory, graphiti: FakeGraphiti, backend: str
) -> None:
    graphiti.backend = backend  # type: ignore[assignment]
    checks = {check.name: check for check in await allowed.graphiti.test(smoke=True)}
    assert checks["see it stored"].ok
    assert checks["find a fact of it"].ok
    gone = checks["see it gone"]
    assert gone.ok == (backend == "neo4j")
    if not gone.ok:
        assert "reports that it deleted the group, but has 1 episodes" in str(gone.problem)


async def test_a_smoke_test_finds_a_dead_worker(
    allowed: Memory, graphiti: FakeGraphiti, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.knowledge.graphiti.maintenance._SMOKE_SECONDS", 0)
    graphiti.worker_dead = True
    [*_, last] = await allowed.graphiti.test(smoke=True)
    assert last.name == "see it stored"
    assert "did not store it" in str(last.problem)
