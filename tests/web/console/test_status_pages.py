"""Tests of the console's pages of knowledge, channels and health."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from tests.web.console.pages import opened, sent
from tests.web.console.test_sessions import said
from tests.web.services import client_of, opened_app, settings_for
from tests.web.test_tokens import AUDIENCE, ISSUER, SHARED, token
from threadkeep.agent.demo import DemoModel
from threadkeep.app import App
from threadkeep.knowledge.proposals import Proposed, Reading
from threadkeep.records.knowledge import ProposalQuery, Scope
from threadkeep.settings import Settings
from threadkeep.testing import FakeGraphiti, SettableClock


async def proposed(app: App, session_id: str, *facts: Proposed) -> None:
    """Propose facts that a model found in the first message of a session."""
    await app.memory.proposals.add(Reading(session_id, "model", "small-model", 0, 1), facts)


async def test_facts_are_shown_with_their_evidence(client: httpx2.AsyncClient) -> None:
    await said(client, "s", "I live in Lisbon.")
    fact = {"scope": "user", "owner": "ana", "key": "home_city", "value": "Lisbon"}
    await client.put("/api/v1/facts", json={**fact, "evidence": {"session_id": "s", "seq": 1}})
    page = await opened(client, "/console/knowledge?q=lisbon&user=ana")
    assert "home_city" in page.words
    assert "/console/sessions/s?user=ana&before=21#m1" in page.links
    assert "home_city" not in (await opened(client, "/console/knowledge?user=ben")).words
    everything = (await opened(client, "/console/knowledge")).words
    assert "Graphiti is off; nothing is sent to it." in everything


async def test_proposed_facts_are_accepted_and_rejected(client: httpx2.AsyncClient, app: App) -> None:
    """A decided proposal has the name of the caller and is not shown. A user sees only proposals about them."""
    await said(client, "s", "I live in Lisbon.")
    named = [Proposed(Scope("user", "ana"), key, "Lisbon", 1, confidence=0.6) for key in ("home_city", "office")]
    await proposed(app, "s", *named)
    assert "Proposed facts" not in (await opened(client, "/console/knowledge?user=ben")).words
    page = await opened(client, "/console/knowledge?user=ana")
    assert "/console/sessions/s?user=ana&before=21#m1" in page.links
    for decision in ("/accept", "/reject"):
        page = await sent(client, page.form(decision))
    assert "Proposed facts" not in page.words
    decided, _ = await app.memory.proposals.page(ProposalQuery())
    assert {(one.status, one.decided_by) for one in decided} == {("accepted", "local"), ("rejected", "local")}
    assert len(await app.memory.knowledge.facts(Scope("user", "ana"))) == 1


async def test_proposed_facts_are_paged(client: httpx2.AsyncClient, app: App) -> None:
    """A page has fifty proposals."""
    await said(client, "s", "I live in Lisbon.")
    keys = {f"key_{number:02}" for number in range(51)}
    await proposed(app, "s", *(Proposed(Scope("user", "ana"), key, "Lisbon", 1) for key in keys))
    first = await opened(client, "/console/knowledge?user=ana")
    [more] = [link for link in first.links if "proposals=" in link]
    following = await opened(client, f"/console/knowledge{more}")
    shown = [{key for key in keys if key in page.words} for page in (first, following)]
    assert (len(shown[0]), shown[1]) == (50, keys - shown[0])
    assert not [link for link in following.links if "proposals=" in link]


async def test_a_person_with_a_long_id_decides_with_a_token(tmp_path: Path) -> None:
    """The name of the caller is cut if the id in the token is too long."""
    person = "u" * 512
    values = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_key": SHARED}
    async with opened_app(DemoModel(), settings_for(tmp_path, **values)) as app, client_of(app) as client:
        client.headers.update(token(sub=person))
        await said(client, "s", "I live in Lisbon.", user_id=person)
        await proposed(app, "s", Proposed(Scope("user", person), "home_city", "Lisbon", 1))
        await sent(client, (await opened(client, "/console/knowledge")).form("/accept"))
        [one], _ = await app.memory.proposals.page(ProposalQuery())
        assert (one.status, one.decided_by) == ("accepted", f"token of {person}"[:512])


async def test_graphiti_names_the_commands_that_it_needs(tmp_path: Path) -> None:
    """The page names the commands for missing consent and trust, and for given-up messages. Granted consent is good."""
    async with FakeGraphiti(backend="neo4j") as graphiti:
        options = {"graphiti_enabled": True, "graphiti_endpoint": graphiti.url, "workspace": "shop"}
        async with opened_app(DemoModel(), settings_for(tmp_path, **options)) as app, client_of(app) as client:
            closed = await opened(client, "/console/knowledge")
            assert "threadkeep knowledge consent --grant" in closed.words
            assert "threadkeep knowledge trust" in closed.words
            await app.memory.graphiti.grant(["chat_text"], by="ops")
            await app.memory.graphiti.consents.trust("shop", by="ops")
            graphiti.fail("status", "/messages", status=400)
            await said(client, "s", "The gate opens with the tulip key.")
            await app.memory.graphiti.deliver()
            page = await opened(client, "/console/knowledge")
    assert "threadkeep knowledge consent" not in page.words
    assert "threadkeep knowledge trust" not in page.words
    assert 'class="badge good">granted' in page.text
    assert "threadkeep knowledge deliveries retry" in page.words


async def test_open_answers_of_bots_are_shown(client: httpx2.AsyncClient, app: App) -> None:
    """The page shows the open answers of each bot. Without a bot it explains how to add one."""
    assert "threadkeep channels add" in (await opened(client, "/console/channels")).words
    await said(client, "telegram:1", "Hello.")
    await app.memory.channels.outbox.add(
        "support", "telegram:1", "m1", address={"chat_id": 1}, content="Hi.", waits=False
    )
    page = await opened(client, "/console/channels")
    assert "support" in page.words
    assert "/console/sessions/telegram%3A1" in page.links


async def test_health_has_figures_and_charts(client: httpx2.AsyncClient) -> None:
    assert "every turn is written" in (await opened(client, "/console/health")).words
    await said(client, "s", "One.", "Two.")
    page = await opened(client, "/console/health")
    assert page.text.count('class="chart"') == 2
    assert "median duration of 2 turns" in page.words
    assert "0 failed of the newest 2 runs" in page.words


async def test_each_turn_is_in_one_column_of_the_chart(
    tmp_path: Path, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest turn is at the end of the last column, and the others are at the beginnings of columns."""
    given = Settings.memory_options
    monkeypatch.setattr(Settings, "memory_options", lambda self: replace(given(self), clock=clock))
    async with opened_app(DemoModel(), settings_for(tmp_path)) as app, client_of(app) as client:
        for _ in range(25):
            await said(client, "s", "Hello.")
            clock.advance(60)
        page = await opened(client, "/console/health")
    columns = [int(number) for number in re.findall(r"<title>[^<]* UTC: (\d+) turns</title>", page.text)]
    assert columns == [*[1] * 23, 2]
