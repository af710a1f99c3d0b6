"""Tests of Graphiti over HTTP: consent, deliveries, and the operations of a person."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.web.services import opened_app, settings_for
from threadkeep.agent.demo import DemoModel
from threadkeep.app import App
from threadkeep.testing import FakeGraphiti

K = "/api/v1/knowledge"


@pytest.fixture
async def graphiti() -> AsyncIterator[FakeGraphiti]:
    """Return a server that stores at once."""
    async with FakeGraphiti(backend="neo4j") as server:
        yield server


@pytest.fixture
async def app(tmp_path: Path, graphiti: FakeGraphiti) -> AsyncIterator[App]:
    """Return a service that is configured to send turns to Graphiti."""
    settings = settings_for(
        tmp_path,
        graphiti_enabled=True,
        graphiti_endpoint=graphiti.url,
        graphiti_recall_enabled=True,
        graphiti_recall_timeout_ms=60_000,
        workspace="shop",
    )
    async with opened_app(DemoModel(), settings) as opened:
        yield opened


async def allow(client: httpx2.AsyncClient, *more: str) -> None:
    """Grant consent for the text of chats and more, and trust the workspace."""
    grant = {"decision": "grant", "data_classes": ["chat_text", *more], "by": "ops"}
    assert (await client.put(f"{K}/consent", json=grant)).status_code == 200
    trust = {"workspace": "shop", "by": "ops"}
    assert (await client.put(f"{K}/trust", json=trust)).json() == {"trusted": ["shop"]}


async def chat(client: httpx2.AsyncClient, message: str, session_id: str = "web-1") -> None:
    """Send a message."""
    said = await client.post("/api/v1/chat", json={"message": message, "session_id": session_id})
    assert said.status_code == 200, said.text


async def test_a_chat_arrives_and_is_recalled_in_another_session(
    client: httpx2.AsyncClient, app: App, graphiti: FakeGraphiti
) -> None:
    """A turn is delivered, listed as confirmed, and its fact is in the manifest of a call in another session."""
    await allow(client)
    await chat(client, "The garden gate opens with the tulip key")
    while (await client.get(f"{K}/status")).json()["counts"] != {"confirmed": 4, "turns": 0}:
        await app.memory.graphiti.deliver()
    listed = (await client.get(f"{K}/deliveries", params={"limit": 3})).json()
    assert [one["status"] for one in listed["deliveries"]] == ["confirmed"] * 3
    rest = await client.get(f"{K}/deliveries", params={"after": listed["next_after"]})
    assert len(rest.json()["deliveries"]) == 1
    await chat(client, "Which key opens the garden gate?", "web-2")
    await app.memory.manifests.flush()
    [manifest] = (await client.get("/api/v1/sessions/web-2/manifests")).json()["manifests"]
    facts = [fact for entry in manifest["entries"] for fact in entry.get("facts", [])]
    assert [(fact["source"], fact["scope"], fact["rank"]) for fact in facts] == [("graphiti", "workspace", 1)]
    assert {one["scope"]: one.get("shown", 0) for one in manifest["graph"]} == {"session": 0, "workspace": 1}
    assert [one.path for one in graphiti.requests].count("/messages") == 2


async def test_without_consent_nothing_is_sent_and_a_backfill_is_refused(
    client: httpx2.AsyncClient, graphiti: FakeGraphiti
) -> None:
    await chat(client, "hello")
    refused = await client.post(f"{K}/backfill", json={})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:threadkeep:graphiti-closed")
    assert "consent --grant" in refused.json()["detail"]
    assert graphiti.bytes_received == 0
    decided = (await client.put(f"{K}/consent", json={"decision": "decline", "by": "ann"})).json()
    assert decided["decision"] == "declined"
    assert [one["decided_by"] for one in (await client.get(f"{K}/consent")).json()["consents"]] == ["ann"]


async def test_a_person_promotes_backfills_tests_and_purges(
    client: httpx2.AsyncClient, app: App, graphiti: FakeGraphiti, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.knowledge.graphiti.maintenance._GONE_SECONDS", 0)
    await chat(client, "hello")
    await allow(client, "backfill", "promoted_facts")
    assert (await client.post(f"{K}/backfill", json={"session_ids": ["web-1"]})).json() == {"queued": 1, "left": 0}
    fact = {"kind": "decision", "text": "Use PostgreSQL.", "scope": "workspace", "owner": "shop"}
    promoted = (await client.post(f"{K}/promote", json=fact)).json()
    assert (promoted["queued"], promoted["closed"], promoted["fact"]["kind"]) == (1, None, "decision")
    secret = await client.post(f"{K}/promote", json={**fact, "text": "my password is hunter22"})
    assert secret.status_code == 422
    assert "hunter22" not in secret.text
    tested = (await client.post(f"{K}/test", json={"smoke": True})).json()
    assert tested["ok"], tested
    while (await client.get(f"{K}/status")).json()["counts"].get("confirmed", 0) < 5:
        await app.memory.graphiti.deliver()
    purged = (await client.post(f"{K}/purge", json={"scope": "session", "owner": "web-1"})).json()
    assert (purged["dropped"], purged["remains"]) == (0, "")
    graphiti.fail("status", "/healthcheck")
    tested = (await client.post(f"{K}/test", json={})).json()
    assert not tested["ok"]


async def test_dead_messages_are_retried_and_dropped(client: httpx2.AsyncClient, graphiti: FakeGraphiti) -> None:
    graphiti.fail("status", "/messages", status=503)
    await allow(client)
    await chat(client, "hello")
    await client.put(f"{K}/consent", json={"decision": "decline", "by": "ann"})
    dead = (await client.get(f"{K}/deliveries", params={"status": "dead"})).json()["deliveries"]
    assert {one["reason"] for one in dead} == {"consent_withdrawn"}
    number = dead[0]["number"]
    assert (await client.post(f"{K}/deliveries/drop", json={"number": number})).json() == {"changed": 1}
    assert (await client.post(f"{K}/deliveries/drop", json={"number": 999})).status_code == 404
    assert (await client.post(f"{K}/deliveries/retry", json={})).status_code == 409
    await allow(client)
    assert (await client.post(f"{K}/deliveries/retry", json={})).json() == {"changed": 3}
