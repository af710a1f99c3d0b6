"""Tests of promoted facts: directives in messages, secrets, delivery to the graph, and undoing."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage

from tests.knowledge.graphiti.conftest import Opening, allow, deliver
from threadkeep import Evidence, Memory, Message, SessionMemory, knowledge_tools
from threadkeep.errors import InvalidInput
from threadkeep.knowledge.graphiti.turns import fact_episode, group_id_of
from threadkeep.knowledge.learning import DirectiveLearner, LearningRequest
from threadkeep.knowledge.promotion import Promotion, RelationOf, accepted_directives
from threadkeep.records.knowledge import ProposalQuery, Scope
from threadkeep.testing import FakeGraphiti, ScriptedModel, SettableClock
from threadkeep.testing.fake_graphiti import Backend


@pytest.mark.parametrize(
    ("text", "kind", "scope", "words"),
    [
        ("preference (user): Keep diffs small.", "preference", "user", "Keep diffs small."),
        ("Hello\npref: I prefer tabs.\nBye", "preference", "user", "I prefer tabs."),
        ("decision: Use PostgreSQL", "decision", "workspace", "Use PostgreSQL"),
        ("steps:\nbuild\ntest\n\nand more", "procedure", "workspace", "build\ntest"),
        ("howto: run make", "procedure", "workspace", "run make"),
        ("remember: the cat sleeps", "lesson_learned", "workspace", "the cat sleeps"),
        ("note (session): we stop here", "lesson_learned", "session", "we stop here"),
        ("TODO: mend it", "task_update", "workspace", "mend it"),
        (
            "term: a turn is a question with its answers",
            "terminology",
            "workspace",
            "a turn is a question with its answers",
        ),
        ("lesson: I like it short", "lesson_learned", "user", "I like it short"),
        ("remember: I live in Riga", "lesson_learned", "user", "I live in Riga"),
        ("note: I'm allergic to nuts", "lesson_learned", "user", "I'm allergic to nuts"),
        ("note: Ich wohne in Riga", "lesson_learned", "user", "Ich wohne in Riga"),
        ("note: Je préfère le thé", "lesson_learned", "user", "Je préfère le thé"),
        ("note: je habite ici", "lesson_learned", "user", "je habite ici"),
        ("note: Je moet de tests draaien", "lesson_learned", "workspace", "Je moet de tests draaien"),
        ("note: Je mag alles", "lesson_learned", "workspace", "Je mag alles"),
        ("note: Ik woon in Gent", "lesson_learned", "user", "Ik woon in Gent"),
        ("note: Mon chat dort", "lesson_learned", "user", "Mon chat dort"),
        ("note: Mi gato duerme", "lesson_learned", "user", "Mi gato duerme"),
        ("note: Meu gato dorme", "lesson_learned", "user", "Meu gato dorme"),
        ("note: Monday is free", "lesson_learned", "workspace", "Monday is free"),
        ("remember: Я живу в Риге", "lesson_learned", "user", "Я живу в Риге"),
        ("remember：我住在里加", "lesson_learned", "user", "我住在里加"),
        ("remember: 我们用里加的数据库", "lesson_learned", "workspace", "我们用里加的数据库"),
        ("note: Моё имя Анна", "lesson_learned", "user", "Моё имя Анна"),
        ("note: Meinungen sind wichtig", "lesson_learned", "workspace", "Meinungen sind wichtig"),
        ("note: my-service is slow", "lesson_learned", "workspace", "my-service is slow"),
        ("note: I/O errors are retried", "lesson_learned", "workspace", "I/O errors are retried"),
        ("decision: I take the small one", "decision", "workspace", "I take the small one"),
    ],
)
def test_a_directive_has_a_kind_a_scope_and_a_text(text: str, kind: str, scope: str, words: str) -> None:
    """The text is on the line of the directive, or on the following lines up to a blank one."""
    [found], refused = accepted_directives(text)
    assert (found.kind, found.scope, found.text, refused) == (kind, scope, words, 0)


@pytest.mark.parametrize(
    "text", ["", "we prefer: nothing", "the decision was: none", "note", "preference:\n\nno", "url: x"]
)
def test_other_words_are_no_directive(text: str) -> None:
    """A directive must begin its line."""
    assert accepted_directives(text) == ([], 0)


@pytest.mark.parametrize(
    "text",
    [
        f"preference{' ' * 1_000_000}(user",
        f"preference (user){' ' * 1_000_000}x",
        "note:\n" * 100_000,
        " " * 1_000_000,
        "note: \t" + "\t" * 1_000_000,
    ],
    ids=["spaces", "spaces after a scope", "directives without words", "blank", "tabs"],
)
def test_a_long_message_is_read_in_linear_time(text: str) -> None:
    """In quadratic time, reading would block the event loop for hours."""
    assert accepted_directives(text) == ([], 0)


@pytest.mark.parametrize(
    "text", ["note: my password is hunter22", "remember: sk-abcdefghijkl", "note: -----BEGIN RSA PRIVATE KEY-----"]
)
def test_a_text_that_looks_like_a_secret_is_refused(text: str) -> None:
    assert accepted_directives(text) == ([], 1)
    with pytest.raises(InvalidInput, match="looks like a secret") as refused:
        Promotion("lesson_learned", text)
    assert "hunter22" not in str(refused.value)


async def test_a_promoted_fact_is_stored_and_sent_to_the_graph(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """With consent, the fact is sent as one episode, also if it is promoted again."""
    relations = (RelationOf("Billing", "DEPENDS_ON", "PostgreSQL"),)
    promotion = Promotion("decision", "Use PostgreSQL", key="database", relations=relations)
    async with opening() as memory:
        await allow(memory)
        kept = await memory.graphiti.promote(promotion, "shop")
        assert (kept.closed, kept.queued) == ("no_consent", 0)
        await allow(memory, "promoted_facts")
        for queued in (1, 0):
            kept = await memory.graphiti.promote(promotion, "shop")
            assert (kept.closed, kept.queued) == (None, queued)
        await deliver(memory, clock)
        [fact] = await memory.knowledge.facts(Scope("workspace", "shop"), key="database")
        assert (fact.value, fact.kind, fact.confirmed) == ("Use PostgreSQL", "decision", 3)
        [episode] = graphiti.stored[group_id_of(Scope("workspace", "shop"))]
        assert episode["content"] == (
            "user(user): Decision of workspace shop: Use PostgreSQL\nBilling DEPENDS_ON PostgreSQL."
        )


@pytest.mark.parametrize("given_up", ["consent_withdrawn", "dropped", "refused"])
async def test_a_dead_fact_is_queued_again_when_it_is_promoted(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock, given_up: str
) -> None:
    await allow(allowed, "promoted_facts")
    promotion = Promotion("decision", "Use PostgreSQL.")
    assert (await allowed.graphiti.promote(promotion, "shop")).queued == 1
    if given_up == "consent_withdrawn":
        await allowed.graphiti.decline(by="ann")
        await allow(allowed, "promoted_facts")
    elif given_up == "dropped":
        await allowed.graphiti.drop()
    else:
        graphiti.fail("status", "/messages", status=422)
        await deliver(allowed, clock, looks=1)
        graphiti.mend()
    assert (await allowed.graphiti.status()).counts["dead"] == 1
    assert (await allowed.graphiti.promote(promotion, "shop")).queued == 1
    await deliver(allowed, clock)
    assert len(graphiti.names(group_id_of(Scope("workspace", "shop")))) == 1
    assert (await allowed.graphiti.promote(promotion, "shop")).queued == 0


async def test_an_agent_promotes_into_the_workspace_of_the_options(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """If a run names no workspace, the workspace of the options is used, as for turns."""
    await allow(allowed, "promoted_facts")
    call = {"name": "promote", "args": {"kind": "decision", "text": "Use SQLite."}, "id": "1"}
    model = ScriptedModel([AIMessage("", tool_calls=[call]), "Stored."])
    tools = knowledge_tools(allowed, kinds=["promotions"])
    agent: Any = create_agent(model, tools, middleware=[SessionMemory(allowed)])
    await agent.ainvoke({"messages": [("user", "Store it.")]}, {"configurable": {"thread_id": "room:1"}})
    [fact] = await allowed.knowledge.facts(Scope("workspace", "shop"))
    await deliver(allowed, clock)
    assert fact_episode(fact.id) in graphiti.names(group_id_of(Scope("workspace", "shop")))


def test_an_unknown_relation_is_refused() -> None:
    with pytest.raises(InvalidInput, match="DEPENDS_ON"):
        Promotion("decision", "x", relations=(RelationOf("a", "LOVES", "b"),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "key", "relations"),
    [("hunter22", "password", ()), ("Use it.", None, (RelationOf("ghp_abcdefgh12", "USES", "git"),))],
)
def test_a_secret_is_refused_in_each_part_of_a_promotion(
    text: str, key: str | None, relations: tuple[RelationOf, ...]
) -> None:
    with pytest.raises(InvalidInput, match="looks like a secret"):
        Promotion("decision", text, key=key, relations=relations)


@pytest.mark.parametrize("backend", ["falkordb", "neo4j"])
async def test_undoing_a_promotion_deletes_the_fact_and_its_episode(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock, backend: Backend
) -> None:
    """A queued message is dropped, and a stored episode deleted; FalkorDB keeps it, which is reported."""
    graphiti.backend = backend
    await allow(allowed, "promoted_facts")
    shop = Scope("workspace", "shop")
    waiting = await allowed.graphiti.promote(Promotion("decision", "Use SQLite."), "shop")
    assert (await allowed.graphiti.undo_promotion(waiting.fact.id)).remains == ""
    assert await allowed.knowledge.facts(shop) == []
    await deliver(allowed, clock)
    assert graphiti.names(group_id_of(shop)) == []
    told = await allowed.graphiti.promote(Promotion("decision", "Use PostgreSQL."), "shop")
    await deliver(allowed, clock)
    assert len(graphiti.names(group_id_of(shop))) == 1
    remains = (await allowed.graphiti.undo_promotion(told.fact.id)).remains
    assert await allowed.knowledge.facts(shop) == []
    assert bool(remains) == (backend == "falkordb")
    assert len(graphiti.names(group_id_of(shop))) == (backend == "falkordb")
    assert (await allowed.graphiti.undo_promotion(told.fact.id)).remains == remains
    graphiti.backend = "neo4j"
    assert (await allowed.graphiti.undo_promotion(told.fact.id)).remains == ""
    assert graphiti.names(group_id_of(shop)) == []
    assert (await allowed.graphiti.status()).dead == {"undone": 2}


async def test_an_undo_reports_the_episode_that_stays_while_graphiti_is_off(
    opening: Opening, graphiti: FakeGraphiti, clock: SettableClock, database_url: str
) -> None:
    if database_url == "sqlite://":
        pytest.skip("A database in memory belongs to one memory.")
    async with opening() as memory:
        await allow(memory, "promoted_facts")
        promoted = await memory.graphiti.promote(Promotion("decision", "Use SQLite."), "shop")
        await deliver(memory, clock)
    async with opening(enabled=False) as memory:
        assert "off" in (await memory.graphiti.undo_promotion(promoted.fact.id)).remains
        assert await memory.knowledge.facts() == []
    assert len(graphiti.names(group_id_of(Scope("workspace", "shop")))) == 1


@pytest.mark.parametrize(
    ("how", "backend"),
    [("key", "falkordb"), ("key", "neo4j"), ("id", "neo4j"), ("owner", "neo4j"), ("person", "neo4j")],
)
async def test_forgetting_a_fact_deletes_its_episode(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock, backend: Backend, how: str
) -> None:
    """A queued message is dropped, and a stored episode deleted; the delivery reports if it stays."""
    graphiti.backend = backend
    await allow(allowed, "promoted_facts")
    ada = Scope("user", "ada")

    async def forget(fact_id: str) -> None:
        if how == "key":
            await allowed.knowledge.forget(ada, "diet")
        elif how == "id":
            await allowed.knowledge.forget_facts([fact_id])
        elif how == "owner":
            await allowed.knowledge.forget_all(ada)
        else:
            await allowed.persons.forget("ada")

    waiting = await allowed.graphiti.promote(Promotion("preference", "Vegan.", "user", "diet"), "ada")
    await forget(waiting.fact.id)
    await deliver(allowed, clock)
    assert graphiti.names(group_id_of(ada)) == []
    [given_up] = await allowed.graphiti.deliveries()
    assert (given_up.status, given_up.reason) == ("dead", "undone")
    told = await allowed.graphiti.promote(Promotion("preference", "Vegetarian.", "user", "diet"), "ada")
    await deliver(allowed, clock)
    assert len(graphiti.names(group_id_of(ada))) == 1
    await forget(told.fact.id)
    await deliver(allowed, clock)
    assert len(graphiti.names(group_id_of(ada))) == (backend == "falkordb")
    _, deleted = await allowed.graphiti.deliveries()
    assert (deleted.status, deleted.reason) == ("dead", "not_deleted" if backend == "falkordb" else "undone")
    graphiti.backend = "neo4j"
    await allowed.graphiti.retry()
    await deliver(allowed, clock)
    assert graphiti.names(group_id_of(ada)) == []


async def test_erasing_a_person_or_a_session_deletes_the_episodes_of_its_facts(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """An erase deletes facts of workspaces with evidence of the person; a session's facts are deleted with it."""
    graphiti.backend = "neo4j"
    await allow(allowed, "promoted_facts")
    shop, room = group_id_of(Scope("workspace", "shop")), group_id_of(Scope("session", "room:1"))
    await allowed.session("room:1", user_id="ann").append([Message(role="user", content="Use PostgreSQL.")])
    said = Evidence("room:1", 1)
    await allowed.graphiti.promote(Promotion("decision", "Use PostgreSQL."), "shop", evidence=said)
    await allowed.graphiti.promote(Promotion("decision", "Use Redis."), "shop")
    await deliver(allowed, clock)
    assert len(graphiti.names(shop)) == 2
    await allowed.graphiti.promote(Promotion("decision", "Use SQLite."), "shop", evidence=said)
    await allowed.session("room:2", user_id="bob").append([Message(role="user", content="hi")])
    await allowed.graphiti.promote(Promotion("decision", "Use files.", "session"), "room:2")
    await allowed.session("room:2", user_id="bob").delete()
    receipt = await allowed.erase(user_id="ann")
    assert any("1 episodes of facts in Graphiti" in one for one in receipt.not_reached)
    await deliver(allowed, clock)
    receipt = await allowed.erase(user_id="ann")
    assert not any("episodes of facts" in one for one in receipt.not_reached)
    assert [one["content"].partition("shop: ")[2] for one in graphiti.stored[shop]] == ["Use Redis."]
    assert graphiti.names(room) == graphiti.names(group_id_of(Scope("session", "room:2"))) == []


async def test_a_forgotten_fact_is_deleted_after_the_server_has_stored_it(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """The deletion survives an outage; without consent it is not sent, and can be retried after a grant."""
    graphiti.backend, graphiti.auto = "neo4j", False
    await allow(allowed, "promoted_facts")
    shop = Scope("workspace", "shop")
    await allowed.graphiti.promote(Promotion("decision", "Use SQLite.", key="database"), "shop")
    await deliver(allowed, clock, looks=1)
    await allowed.knowledge.forget(shop, "database")
    graphiti.fail("reset")
    await deliver(allowed, clock, looks=2)
    graphiti.mend()
    await allowed.graphiti.decline(by="ann")
    graphiti.ingest()
    asked = len(graphiti.requests)
    await deliver(allowed, clock, looks=2)
    assert len(graphiti.requests) == asked
    assert (await allowed.graphiti.status()).dead == {"not_deleted": 1}
    await allow(allowed, "promoted_facts")
    await allowed.graphiti.retry()
    await deliver(allowed, clock)
    assert graphiti.names(group_id_of(shop)) == []
    assert (await allowed.graphiti.status()).dead == {"undone": 1}


async def test_a_forgotten_fact_that_is_stored_late_is_deleted(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """The server may have many earlier messages, also of other programs, and needs seconds for each."""
    graphiti.backend, graphiti.auto = "neo4j", False
    await allow(allowed, "promoted_facts")
    shop = Scope("workspace", "shop")
    await allowed.graphiti.promote(Promotion("decision", "Use SQLite.", key="database"), "shop")
    await deliver(allowed, clock, looks=1)
    await allowed.knowledge.forget(shop, "database")
    await deliver(allowed, clock, looks=15)
    graphiti.ingest()
    assert len(graphiti.names(group_id_of(shop))) == 1
    await deliver(allowed, clock)
    assert graphiti.names(group_id_of(shop)) == []
    assert (await allowed.graphiti.status()).dead == {"undone": 1}


async def test_a_failing_deletion_is_repeated_and_delays_no_messages(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    graphiti.backend = "neo4j"
    await allow(allowed, "promoted_facts")
    shop = Scope("workspace", "shop")
    for key in ("database", "language"):
        await allowed.graphiti.promote(Promotion("decision", f"Use the {key}.", key=key), "shop")
    await deliver(allowed, clock)
    graphiti.fail("status", "/episode/", status=500)
    await allowed.knowledge.forget(shop, "database")
    [fact] = await allowed.knowledge.facts(shop)
    assert "failed" in (await allowed.graphiti.undo_promotion(fact.id)).remains
    await allowed.graphiti.promote(Promotion("decision", "Use PostgreSQL.", key="database"), "shop")
    await deliver(allowed, clock)
    assert len(graphiti.names(group_id_of(shop))) == 3
    graphiti.mend()
    await deliver(allowed, clock)
    assert (await allowed.graphiti.status()).counts == {"confirmed": 1, "dead": 2, "turns": 0}
    assert [one["content"].partition("shop: ")[2] for one in graphiti.stored[group_id_of(shop)]] == ["Use PostgreSQL."]


async def test_only_a_promoted_fact_can_be_undone(allowed: Memory) -> None:
    """An ordinary fact stays, and the error says the cure; a promoted fact that was forgotten can be undone."""
    await allow(allowed, "promoted_facts")
    fact = await allowed.knowledge.remember(Scope("workspace", "shop"), "database", "SQLite")
    with pytest.raises(InvalidInput, match="threadkeep facts forget"):
        await allowed.graphiti.undo_promotion(fact.id)
    assert await allowed.knowledge.facts() == [fact]
    promoted = await allowed.graphiti.promote(Promotion("decision", "Use PostgreSQL.", key="other"), "shop")
    await allowed.knowledge.forget_facts([promoted.fact.id])
    assert (await allowed.graphiti.undo_promotion(promoted.fact.id)).remains == ""


async def test_the_episode_of_a_directive_is_deleted_with_its_proposal(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    graphiti.backend = "neo4j"
    await allow(allowed, "promoted_facts")
    shop = Scope("workspace", "shop")
    await allowed.session("room:1", workspace="shop").append(
        [Message(role="user", content="decision: Use SQLite."), Message(role="assistant", content="Noted.")]
    )
    scopes: Any = {"workspace": shop}
    assert await allowed.learning.learn(LearningRequest("room:1", DirectiveLearner(), scopes, 1.0)) == 1
    await deliver(allowed, clock)
    facts = [name for name in graphiti.names(group_id_of(shop)) if name.startswith("threadkeep.fact.")]
    assert len(facts) == 1
    [proposal], _ = await allowed.proposals.page(ProposalQuery())
    await allowed.proposals.undo(proposal.id, by="ann")
    assert not [name for name in graphiti.names(group_id_of(shop)) if name.startswith("threadkeep.fact.")]
    assert await allowed.knowledge.facts(shop) == []


async def test_undoing_one_of_two_directives_leaves_the_episode(
    allowed: Memory, graphiti: FakeGraphiti, clock: SettableClock
) -> None:
    """The fact has another message as evidence, also if the server has not stored the episode yet."""
    graphiti.backend, graphiti.auto = "neo4j", False
    await allow(allowed, "promoted_facts")
    shop = Scope("workspace", "shop")
    scopes: Any = {"workspace": shop}
    for room in ("room:1", "room:2"):
        await allowed.session(room).append([Message(role="user", content="decision: Use SQLite.")])
        await allowed.learning.learn(LearningRequest(room, DirectiveLearner(), scopes, 1.0))
    await deliver(allowed, clock, looks=1)
    (first, second), _ = await allowed.proposals.page(ProposalQuery())
    await allowed.proposals.undo(first.id, by="ann")
    graphiti.ingest()
    await deliver(allowed, clock)
    assert len(graphiti.names(group_id_of(shop))) == len(await allowed.knowledge.facts(shop)) == 1
    await allowed.proposals.undo(second.id, by="ann")
    assert graphiti.names(group_id_of(shop)) == []
    assert await allowed.knowledge.facts(shop) == []
