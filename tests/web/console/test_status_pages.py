"""The console's pages of knowledge, channels and health."""

from __future__ import annotations

import httpx2

from tests.web.console.pages import opened, sent
from tests.web.console.test_sessions import said
from threadkeep.app import App
from threadkeep.knowledge.proposals import Proposed, Reading
from threadkeep.records.knowledge import ProposalQuery, Scope


async def test_facts_are_shown_with_their_evidence(client: httpx2.AsyncClient) -> None:
    """Searched, and of one user."""
    await said(client, "s", "I live in Lisbon.")
    fact = {"scope": "user", "owner": "ana", "key": "home_city", "value": "Lisbon"}
    await client.put("/api/v1/facts", json={**fact, "evidence": {"session_id": "s", "seq": 1}})
    page = await opened(client, "/console/knowledge?q=lisbon&user=ana")
    assert "home_city" in page.words
    assert "/console/sessions/s?user=ana&before=21#m1" in page.links
    assert "home_city" not in (await opened(client, "/console/knowledge?user=ben")).words
    everything = (await opened(client, "/console/knowledge")).words
    assert "Graphiti is off: nothing goes there." in everything


async def test_proposed_facts_are_accepted_and_rejected(client: httpx2.AsyncClient, app: App) -> None:
    """By the caller; a decided one is not shown any more, and a user sees those about them alone."""
    await said(client, "s", "I live in Lisbon.")
    named = [Proposed(Scope("user", "ana"), key, "Lisbon", 1, confidence=0.6) for key in ("home_city", "office")]
    await app.memory.proposals.add(Reading("s", "model", "small-model", 0, 1), named)
    assert "Proposed facts" not in (await opened(client, "/console/knowledge?user=ben")).words
    page = await opened(client, "/console/knowledge?user=ana")
    assert "/console/sessions/s?user=ana&before=21#m1" in page.links
    for decision in ("/accept", "/reject"):
        page = await sent(client, page.form(decision))
    assert "Proposed facts" not in page.words
    decided, _ = await app.memory.proposals.page(ProposalQuery())
    assert {(one.status, one.decided_by) for one in decided} == {("accepted", "local"), ("rejected", "local")}
    assert len(await app.memory.knowledge.facts(Scope("user", "ana"))) == 1


async def test_open_answers_of_bots_are_shown(client: httpx2.AsyncClient, app: App) -> None:
    """With the numbers of each bot; before the first one the page says how to add one."""
    assert "threadkeep channels add" in (await opened(client, "/console/channels")).words
    await said(client, "telegram:1", "Hello.")
    await app.memory.channels.outbox.add(
        "support", "telegram:1", "m1", address={"chat_id": 1}, content="Hi.", waits=False
    )
    page = await opened(client, "/console/channels")
    assert "support" in page.words
    assert "/console/sessions/telegram%3A1" in page.links


async def test_health_has_figures_and_charts(client: httpx2.AsyncClient) -> None:
    """Turns over time and their durations, also when there are none yet."""
    assert "every turn is written" in (await opened(client, "/console/health")).words
    await said(client, "s", "One.", "Two.")
    page = await opened(client, "/console/health")
    assert page.text.count('class="chart"') == 2
    assert "median turn of 2" in page.words
