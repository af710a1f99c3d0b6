"""Tests of delivering turns to Graphiti: consent, queueing, sending, confirming, retrying and giving up."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.agent.talking import ROOM, config_of, input_of, make_agent
from tests.databases import execute
from tests.knowledge.graphiti.conftest import Opening, allow, deliver
from tests.recorded_events import RecordedEvents
from threadkeep import KnownFacts, Memory, MemoryOptions, Message, SessionMemory, open_memory
from threadkeep.errors import GraphitiClosed, InvalidInput, KnowledgeNotFound
from threadkeep.knowledge.graphiti.client import Episode
from threadkeep.knowledge.graphiti.rest import RestClient
from threadkeep.knowledge.graphiti.turns import group_id_of
from threadkeep.knowledge.promotion import Promotion
from threadkeep.observe import EpisodesDelivered
from threadkeep.records.graphiti import GraphitiOptions
from threadkeep.records.knowledge import Scope
from threadkeep.testing import FakeGraphiti, ScriptedModel, SettableClock

SESSION = group_id_of(Scope("session", "room:1"))
WORKSPACE = group_id_of(Scope("workspace", "shop"))


async def talk(memory: Memory, turns: int = 1, *, session_id: str = "room:1", first: int = 1) -> None:
    """Append turns to a session."""
    session = memory.session(session_id, user_id="ann")
    for number in range(first, first + turns):
        asked = Message(role="user", content=f"question {number}", id=f"q{number}")
        await session.append([asked, Message(role="assistant", content=f"answer {number}", id=f"a{number}")])


def contents(graphiti: FakeGraphiti, group_id: str = SESSION) -> list[str]:
    """Return the texts of a group, sorted by time."""
    stored = sorted(graphiti.stored.get(group_id, []), key=lambda episode: str(episode["valid_at"]))
    return [episode["content"].partition("): ")[2] for episode in stored]


async def test_a_conversation_arrives_in_each_group_in_order_and_once(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    await talk(allowed, 20)
    await deliver(allowed, clock)
    said = [text for number in range(1, 21) for text in (f"question {number}", f"answer {number}")]
    assert contents(graphiti) == contents(graphiti, WORKSPACE) == said
    status = await allowed.graphiti.status()
    assert status.counts == {"confirmed": 80, "turns": 0}
    assert (status.dead, status.repeats) == ({}, 0)
    assert max(len(request.body["messages"]) for request in graphiti.requests if request.path == "/messages") == 20


async def test_an_erase_names_the_episodes_that_stay(allowed: Memory, clock: SettableClock) -> None:
    """Episodes of the workspace stay; the groups of the session and the person are deleted."""
    await talk(allowed, 2)
    await deliver(allowed, clock)
    for dry_run in (True, False):
        receipt = await allowed.erase(user_id="ann", dry_run=dry_run)
        named = [one for one in receipt.not_reached if "episodes in Graphiti" in one]
        assert [one.partition(" ")[0] for one in named] == ["4"]


async def test_an_erase_where_graphiti_is_off_is_not_complete(
    allowed: Memory,
    database_url: str,
    memory_options: MemoryOptions,
    graphiti: FakeGraphiti,
    clock: SettableClock,
) -> None:
    """The groups stay on the server until the erase is repeated with Graphiti enabled.

    Until then, a dry run finds them. After that, the first receipt can be verified too.
    """
    if database_url == "sqlite://":
        pytest.skip("A database in memory belongs to one memory.")
    graphiti.backend = "neo4j"
    await talk(allowed, 2)
    await deliver(allowed, clock)
    async with open_memory(database_url, options=memory_options) as off:
        receipt = await off.erase(user_id="ann")
    assert not receipt.complete
    assert any("erase again in a process with Graphiti enabled" in one for one in receipt.not_reached)
    plan = {store.name: store.before for store in (await allowed.erase(user_id="ann", dry_run=True)).stores}
    assert (plan["chat_graph_groups"], plan["chat_messages"]) == (1, 4)
    assert await allowed.verify_erased(receipt) == "there"
    again = await allowed.erase(user_id="ann")
    assert not any("erase again" in one for one in again.not_reached)
    assert again.complete
    assert [await allowed.verify_erased(one) for one in (receipt, again)] == ["gone", "gone"]


async def test_the_groups_of_sessions_that_were_deleted_before_are_erased(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """The owner of such a group is unknown, so the next erase of any person deletes it."""
    graphiti.backend = "neo4j"
    await talk(allowed, 2)
    await deliver(allowed, clock)
    await allowed.session("room:1").delete()
    assert contents(graphiti) != []
    receipt = await allowed.erase(user_id="ann")
    assert contents(graphiti) == []
    assert receipt.complete
    await allowed.erase(user_id="ann")
    assert [request.path for request in graphiti.requests].count(f"/group/{SESSION}") == 1


async def test_an_episode_has_a_name_a_speaker_and_a_time(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    await talk(allowed)
    await deliver(allowed, clock, looks=1)
    sent = [one for request in graphiti.requests if request.path == "/messages" for one in request.body["messages"]]
    asked, answered = sent[:2]
    turn = asked["name"].split(".")[2]
    assert asked["name"] == f"threadkeep.turn.{turn}.user"
    assert answered["name"] == f"threadkeep.turn.{turn}.assistant"
    assert asked["role"] == f"user_{hashlib.sha256(b'ann').hexdigest()[:8]}"
    assert answered["role"] == "assistant"
    assert asked["timestamp"] < answered["timestamp"]
    assert "uuid" not in asked
    assert json.loads(asked["source_description"])["source"] == "threadkeep"


async def test_without_consent_and_trust_nothing_is_queued_or_sent(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """Nothing is sent if consent or trust is missing, and turns from before the grant are not sent after it."""
    async with opening() as memory:
        await talk(memory)
        await memory.graphiti.consents.trust("shop", by="ops")
        await talk(memory, first=2)
        await memory.graphiti.consents.distrust("shop")
        await memory.graphiti.grant(["chat_text"], by="ops")
        await talk(memory, first=3)
        await deliver(memory, clock)
        assert (await memory.graphiti.status()).counts == {"turns": 0}
        assert graphiti.bytes_received == 0
        await memory.graphiti.consents.trust("shop", by="ops")
        await talk(memory, first=4)
        await deliver(memory, clock)
        assert contents(graphiti) == ["question 4", "answer 4"]


async def test_withdrawn_consent_stops_everything_at_once(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """Queued messages become dead letters; a new grant and a retry send them."""
    await talk(allowed)
    await allowed.graphiti.decline(by="ann")
    await talk(allowed, first=2)
    await deliver(allowed, clock)
    assert graphiti.bytes_received == 0
    status = await allowed.graphiti.status()
    assert (status.granted, status.dead) == ((), {"consent_withdrawn": 4})
    await allowed.graphiti.grant(["chat_text"], by="ann")
    await deliver(allowed, clock)
    assert graphiti.bytes_received == 0
    assert await allowed.graphiti.retry() == 4
    await deliver(allowed, clock)
    assert contents(graphiti) == ["question 1", "answer 1"]


async def test_messages_without_consent_for_their_class_block_no_others(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """A batch without consent stays queued, and is sent after a grant."""
    await allow(allowed, "promoted_facts")
    for number in range(20):
        await allowed.graphiti.promote(Promotion("decision", f"Decision {number}"), "shop")
    await allow(allowed)
    await talk(allowed)
    await deliver(allowed, clock)
    assert contents(graphiti, WORKSPACE) == ["question 1", "answer 1"]
    status = await allowed.graphiti.status()
    assert (status.counts["queued"], status.troubles) == (20, {"no_consent": 1})
    await allow(allowed, "promoted_facts")
    await deliver(allowed, clock)
    assert len(contents(graphiti, WORKSPACE)) == 22


async def test_messages_of_an_untrusted_workspace_block_no_others(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """The group of a person may have messages of several workspaces."""
    async with opening(scopes=("session", "user")) as memory:
        await allow(memory)
        await memory.graphiti.consents.trust("lab", by="ops")
        told = [Message(role="user", content="q"), Message(role="assistant", content="a")]
        for _ in range(10):
            await memory.session("room:2", user_id="ann", workspace="lab").append(told)
        await memory.graphiti.consents.distrust("lab")
        await talk(memory)
        await deliver(memory, clock)
        assert contents(graphiti, group_id_of(Scope("user", "ann"))) == ["question 1", "answer 1"]


@pytest.mark.parametrize("workspace", ["x" * 600, "a\x00b", "a\ud83d"], ids=["long", "nul", "surrogate"])
async def test_an_invalid_workspace_fails_no_turn(opening: Opening, graphiti: FakeGraphiti, workspace: str) -> None:
    """An invalid workspace is not sent, and the model gets the facts of the user."""
    async with opening(recall_enabled=True) as memory:
        await allow(memory)
        await memory.knowledge.remember(Scope("user", "ann"), "diet", "vegan")
        model = ScriptedModel(["Hello!"])
        agent = make_agent(model, [SessionMemory(memory, sources=[KnownFacts(memory)])])
        await agent.ainvoke(input_of("Hello"), config_of(user_id="ann", workspace=workspace))
        assert any("vegan" in message.text for message in model.calls[0])
        assert await memory.session(ROOM).count() == 2
        assert (await memory.graphiti.status()).counts["turns"] == 0
        assert graphiti.requests == []


async def test_a_turn_of_an_invalid_user_blocks_no_others(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock, database_url: str
) -> None:
    """A turn of an older version with an invalid user goes to its other scopes, and later turns are sent."""
    if database_url == "sqlite://":
        pytest.skip("A database in memory cannot be changed from outside.")
    async with opening(scopes=("session", "user")) as memory:
        await allow(memory)
        await talk(memory, session_id="room:2")
        execute(database_url, "UPDATE chat_sessions SET user_id = ' '")
        await talk(memory, first=2)
        await deliver(memory, clock)
        assert contents(graphiti, group_id_of(Scope("session", "room:2"))) == ["question 1", "answer 1"]
        assert contents(graphiti, group_id_of(Scope("user", "ann"))) == ["question 2", "answer 2"]


async def test_consent_is_for_one_endpoint(
    opening: Opening, allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    async with FakeGraphiti() as another, opening(endpoint=another.url) as memory:
        await talk(memory)
        await deliver(memory, clock)
        assert another.bytes_received == graphiti.bytes_received == 0
        with pytest.raises(GraphitiClosed) as closed:
            await memory.graphiti.consents.check("shop")
        assert closed.value.reason == "no_consent"
    await talk(allowed, first=2)
    await deliver(allowed, clock)
    assert contents(graphiti) == ["question 2", "answer 2"]


async def test_only_complete_answers_and_their_questions_are_sent(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    session = allowed.session("room:1")
    await session.append([Message(role="user", content="lost", id="q0", run_id="r0")])
    await session.append([Message(role="assistant", content="half", answers="q0", status="interrupted")])
    await session.append([Message(role="system", content="a note")])
    questions = [Message(role="user", content=text, id=text, run_id="r1") for text in ("hello", "and more")]
    await session.append(questions)
    for author in ("writer", "critic"):
        answer = Message(role="assistant", content=f"by the {author}", author=author, answers="and more", run_id="r1")
        await session.append([answer])
    await deliver(allowed, clock)
    assert contents(graphiti) == ["hello", "and more", "by the writer", "by the critic"]
    [first, second] = [name for name in graphiti.names(SESSION) if name.endswith("assistant")]
    assert second == first.replace(".assistant", "-2.assistant")


async def test_system_messages_are_sent_if_configured_and_allowed(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    async with opening(include_system=True) as memory:
        await allow(memory)
        session = memory.session("room:1")
        note = Message(role="system", content="note")
        await session.append([Message(role="user", content="q"), note, Message(role="assistant", content="a")])
        await deliver(memory, clock)
        assert sorted(contents(graphiti)) == ["a", "q"]
        assert (await memory.graphiti.status()).wanted == ("chat_text", "system_messages")
        await allow(memory, "system_messages")
        await deliver(memory, clock)
        assert contents(graphiti) == ["q", "note", "a"]


async def test_messages_taken_back_are_not_sent(allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock) -> None:
    """Deleting a session deletes its queued messages too."""
    await talk(allowed)
    await allowed.session("room:1").take_back(2)
    await talk(allowed, session_id="room:2")
    await allowed.session("room:2").delete()
    await deliver(allowed, clock)
    assert graphiti.stored == {}
    assert (await allowed.graphiti.status()).counts.get("queued") is None


async def test_only_lost_messages_are_sent_again_after_a_restart(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    graphiti.auto = False
    await talk(allowed, 2)
    await deliver(allowed, clock, looks=1)
    assert graphiti.ingest(3) == 3
    await graphiti.restart()
    graphiti.auto = True
    await deliver(allowed, clock, looks=30)
    for group_id in (SESSION, WORKSPACE):
        assert contents(graphiti, group_id) == ["question 1", "answer 1", "question 2", "answer 2"]
    status = await allowed.graphiti.status()
    assert (status.counts["confirmed"], status.repeats) == (8, 5)


async def test_nothing_is_sent_again_while_the_server_makes_progress(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """One stored message in 30 s is slow progress, and causes no repeat."""
    graphiti.auto = False
    await talk(allowed, 10)
    await deliver(allowed, clock, looks=1)
    while graphiti.queue:
        graphiti.ingest(1)
        clock.advance(30)
        await deliver(allowed, clock, looks=2)
    assert (await allowed.graphiti.status()).repeats == 0
    assert len(contents(graphiti)) == 20


async def test_lost_messages_are_sent_again_while_later_ones_of_other_groups_are_stored(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """The REST server stores all messages in order, so an earlier message that it does not show is lost."""
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        graphiti.fail("blackhole", "/messages", times=1)
        await talk(memory)
        await deliver(memory, clock, looks=1)
        for number in range(1, 21):
            await talk(memory, session_id="room:2", first=number)
            await deliver(memory, clock, looks=1)
        assert len(graphiti.names(group_id_of(Scope("session", "room:1")))) == 2
        assert (await memory.graphiti.status()).repeats == 2


async def test_a_dead_worker_leads_to_dead_letters(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """If the server stores nothing after the retries, the messages become dead letters that can be retried."""
    async with opening(max_attempts=2, scopes=("session",)) as memory:
        await allow(memory)
        graphiti.worker_dead = True
        await talk(memory)
        await deliver(memory, clock, looks=3)
        status = await memory.graphiti.status()
        assert status.counts["sent"] == 2
        await deliver(memory, clock, looks=30)
        status = await memory.graphiti.status()
        assert (status.dead, status.repeats) == ({"not_stored": 2}, 2)
        await graphiti.restart()
        [dead, _] = await memory.graphiti.deliveries(status="dead")
        assert await memory.graphiti.retry(dead.number) == 1
        assert await memory.graphiti.retry() == 1
        await deliver(memory, clock)
        assert contents(graphiti) == ["question 1", "answer 1"]


async def test_a_request_whose_answer_was_lost_is_not_repeated(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """The server stored the message before the connection broke; it is found by its name."""
    graphiti.fail("reset_after", "/messages", times=2)
    await talk(allowed)
    await deliver(allowed, clock, looks=20)
    assert contents(graphiti) == contents(graphiti, WORKSPACE) == ["question 1", "answer 1"]
    assert (await allowed.graphiti.status()).repeats == 0


@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"status": 500}, {"status": 429, "headers": {"Retry-After": "30"}}, {"status": 401}]
)
async def test_an_outage_loses_nothing_and_counts_no_attempt(
    allowed: Memory,
    graphiti: FakeGraphiti,
    clock: SettableClock,
    fault: dict[str, object],
) -> None:
    graphiti.fail("status", "/messages", **fault)
    await talk(allowed)
    await deliver(allowed, clock, looks=50)
    status = await allowed.graphiti.status()
    assert status.counts["queued"] == 4
    assert set(status.troubles) <= {"server", "limited", "denied"}
    assert status.troubles
    graphiti.mend()
    await until_delivered(allowed, clock)
    assert contents(graphiti) == ["question 1", "answer 1"]
    assert (await allowed.graphiti.status()).repeats == 0


async def until_delivered(memory: Memory, clock: SettableClock) -> None:
    """Run the delivery until nothing is queued or unconfirmed."""
    while (await memory.graphiti.status()).counts.keys() - {"confirmed", "dead", "turns"}:
        await deliver(memory, clock, looks=1)
        clock.advance(300)


async def test_a_refused_message_becomes_a_dead_letter_and_blocks_no_others(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = FakeGraphiti._take_messages  # noqa: SLF001 - makes the server refuse

    def refusing(self: FakeGraphiti, body: dict[str, list[dict[str, str]]], *, store: bool) -> tuple[int, object]:
        if any(message["content"] == "question 2" for message in body["messages"]):
            return 422, {"detail": []}
        return take(self, body, store=store)

    monkeypatch.setattr(FakeGraphiti, "_take_messages", refusing)
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        await talk(memory, 3)
        await deliver(memory, clock)
        assert contents(graphiti) == ["question 1", "answer 1", "answer 2", "question 3", "answer 3"]
        assert (await memory.graphiti.status()).dead == {"refused_422": 1}


@pytest.mark.parametrize(("size", "arrived"), [(4, []), (1, ["question 1"])])
async def test_no_message_of_a_refused_batch_follows_a_withdrawal_of_consent(
    opening: Opening,
    graphiti: FakeGraphiti,
    clock: SettableClock,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    arrived: list[str],
) -> None:
    """After a refused batch each message is a request of its own, which checks consent again."""
    send = RestClient.send

    async def withdrawing(self: RestClient, group_id: str, episodes: Sequence[Episode], **more: Any) -> int:
        if len(episodes) == size:
            await memory.graphiti.decline(by="ann")
        return await send(self, group_id, episodes, **more)

    monkeypatch.setattr(RestClient, "send", withdrawing)
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        await talk(memory, 2)
        graphiti.fail("status", "/messages", status=422, times=1)
        await deliver(memory, clock)
        assert contents(graphiti) == arrived
        assert (await memory.graphiti.status()).dead == {"consent_withdrawn": 4}


async def test_a_full_queue_drops_whole_turns_of_sessions_first(opening: Opening, clock: SettableClock) -> None:
    """The oldest turns of sessions are dropped first, each with question and answer."""
    async with opening(max_queue=6) as memory:
        await allow(memory)
        await talk(memory, 3)
        assert await memory.graphiti._turns.make_deliveries() == 3  # noqa: SLF001 - without sending
        status = await memory.graphiti.status()
        assert (status.counts["queued"], status.dead) == (6, {"outbox_full": 6})
        assert {one.scope for one in await memory.graphiti.deliveries(status="queued")} == {"workspace"}


async def test_a_full_queue_keeps_the_answer_to_a_sent_question(opening: Opening, clock: SettableClock) -> None:
    """The answer is the oldest message, but later turns are dropped instead."""
    async with opening(max_queue=4, max_batch=1, scopes=("session",)) as memory:
        await allow(memory)
        await talk(memory)
        await deliver(memory, clock, looks=1)
        await talk(memory, 3, session_id="room:2")
        await deliver(memory, clock)
        found = [(one.session_id, one.status) for one in await memory.graphiti.deliveries()]
        assert found[:2] == [("room:1", "confirmed")] * 2
        assert [status for _, status in found[2:]] == ["dead"] * 4 + ["confirmed"] * 2


async def test_the_error_of_a_group_ends_with_its_messages(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    async with opening(scopes=("session",)) as memory:
        await allow(memory)
        await talk(memory)
        graphiti.fail("reset")
        await deliver(memory, clock, looks=2)
        assert (await memory.graphiti.status()).troubles == {"broken": 1}
        await memory.graphiti.decline(by="ann")
        assert (await memory.graphiti.status()).troubles == {}


async def test_each_step_of_a_delivery_is_counted(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock, events: RecordedEvents
) -> None:
    def counted() -> Counter[tuple[str, str | None]]:
        found: Counter[tuple[str, str | None]] = Counter()
        for one in events.of(EpisodesDelivered):
            found[one.result, one.reason] += one.count
        return found

    async with opening(max_queue=8) as memory:
        await allow(memory)
        await talk(memory, 3)
        await deliver(memory, clock)
        arrived = {("queued", None): 12, ("dead", "outbox_full"): 4, ("sent", None): 8, ("confirmed", None): 8}
        assert counted() == arrived
        graphiti.fail("status", "/messages", status=422)
        await talk(memory, 1, session_id="room:2")
        await deliver(memory, clock)
        assert counted()["dead", "refused"] == 4
        graphiti.mend()
        await talk(memory, 1, session_id="room:3")
        await memory.graphiti.decline(by="ann")
        assert counted()["dead", "consent_withdrawn"] == 4
        assert await memory.graphiti.drop() == counted()["dead", "dropped"] == 12


async def test_two_processes_send_nothing_twice(
    opening: Opening, allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock, database_url: str
) -> None:
    if database_url == "sqlite://":
        pytest.skip("A database in memory belongs to one memory.")
    await talk(allowed, 10)
    async with opening() as other:
        for _ in range(10):
            await asyncio.gather(allowed.graphiti.deliver(), other.graphiti.deliver())
            clock.advance(20)
    assert len(graphiti.names(SESSION)) == len(set(graphiti.names(SESSION))) == 20
    assert len(graphiti.names(WORKSPACE)) == len(set(graphiti.names(WORKSPACE))) == 20


async def test_a_process_that_died_after_it_sent_repeats_nothing(
    opening: Opening, allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are marked before they are sent, so the next process first checks whether they are stored."""
    await talk(allowed)
    sent = asyncio.Event()

    async def dying(*_: object, **__: object) -> None:
        sent.set()
        await asyncio.Event().wait()

    client = allowed.graphiti.client()
    send = type(client).send
    monkeypatch.setattr(client, "send", dying)
    async with allowed.graphiti.delivering():
        await sent.wait()
    monkeypatch.setattr(client, "send", lambda *arguments, **more: send(client, *arguments, **more))
    clock.advance(10_000_000)
    await deliver(allowed, clock, looks=20)
    assert contents(graphiti) == ["question 1", "answer 1"]


async def test_a_dropped_message_is_never_sent(allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock) -> None:
    await talk(allowed)
    await allowed.graphiti.decline(by="ann")
    with pytest.raises(KnowledgeNotFound):
        await allowed.graphiti.drop(99)
    assert await allowed.graphiti.drop() == 4
    await allow(allowed)
    assert await allowed.graphiti.retry() == 0
    await deliver(allowed, clock)
    assert graphiti.bytes_received == 0


async def test_a_duplicate_turn_is_not_sent_again(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    await talk(allowed)
    await talk(allowed)
    await deliver(allowed, clock)
    assert len(graphiti.names(SESSION)) == 2


async def test_two_owners_with_one_raw_name_have_two_groups(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """If two ids have the same readable form, the second gets a hashed group id."""
    async with opening(group_id_strategy="raw", scopes=("session",)) as memory:
        await allow(memory)
        await talk(memory, session_id="room:1")
        await talk(memory, session_id="room.1", first=2)
        await deliver(memory, clock)
        assert contents(graphiti, "threadkeep_session_room_1") == ["question 1", "answer 1"]
        assert contents(graphiti, group_id_of(Scope("session", "room.1"))) == ["question 2", "answer 2"]


async def test_merged_persons_share_a_group(opening: Opening, graphiti: FakeGraphiti, clock: SettableClock) -> None:
    async with opening(scopes=("user",)) as memory:
        await allow(memory)
        await memory.persons.resolve("ann")
        await memory.persons.resolve("telegram:7")
        await memory.persons.merge("telegram:7", into="ann")
        answered = [Message(role="user", content="hi"), Message(role="assistant", content="hello")]
        await memory.session("telegram:7", user_id="telegram:7").append(answered)
        await memory.session("nobody").append(answered)
        await deliver(memory, clock)
        assert list(graphiti.stored) == [group_id_of(Scope("user", "ann"))]


async def test_delivery_runs_in_the_background(
    opening: Opening, graphiti: FakeGraphiti, events: RecordedEvents
) -> None:
    async with opening(background=True, poll_seconds=0.01) as memory:
        await allow(memory)
        await talk(memory)
        await events.until(lambda: sum(one.count for one in events.of(EpisodesDelivered) if one.result == "sent") == 4)
    assert contents(graphiti) == contents(graphiti, WORKSPACE) == ["question 1", "answer 1"]


async def test_with_graphiti_off_nothing_is_queued(database_url: str, memory_options: MemoryOptions) -> None:
    options = replace(memory_options, graphiti=GraphitiOptions(endpoint="http://graph:8000", enabled=False))
    async with open_memory(database_url, options=options) as memory:
        await talk(memory)
        status = await memory.graphiti.status()
        assert (status.enabled, status.counts) == (False, {"turns": 0})
        with pytest.raises(GraphitiClosed, match="Graphiti is off"):
            await memory.graphiti.grant(["chat_text"], by="ops")


async def test_transcripts_in_a_graph_store_cannot_be_delivered(memory_options: MemoryOptions) -> None:
    """Turns in a graph store have no common transaction with the outbox."""
    options = replace(memory_options, transcripts="graph_store", graphiti=GraphitiOptions(endpoint="http://graph:8000"))
    with pytest.raises(InvalidInput, match="THREADKEEP_TRANSCRIPTS=tables"):
        async with open_memory("sqlite://", options=options):
            pass
