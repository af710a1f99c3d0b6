"""Test of a service whose database is migrated by a newer Threadkeep: it continues, but cannot be started again."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.databases import execute, query
from tests.web.services import client_of, history, opened_app, say, settings_for, until
from threadkeep import SchemaTooNew, open_memory
from threadkeep.store.address import parse_address
from threadkeep.testing import ScriptedModel

_TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'chat\\_%' ESCAPE '\\'"
    " AND name NOT LIKE '%search%'",
    "postgres": "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
    " AND table_type = 'BASE TABLE' AND table_name LIKE 'chat\\_%'",
}


def migrate(url: str) -> None:
    """Add columns to all tables and a newer schema version, as a later version may do."""
    for (table,) in query(url, _TABLES[parse_address(url).backend]):
        execute(url, f"ALTER TABLE {table} ADD COLUMN of_a_newer_version TEXT DEFAULT 'new'")
    execute(url, "INSERT INTO threadkeep_migrations (version, name, applied_at) VALUES (9999, 'newer', '')")


async def use(client: httpx2.AsyncClient, turn: str) -> None:
    """Use turns, runs, lists, search, facts, edits and deletions of a service."""
    await say(client, f"zebra {turn}", session_id="room", user_id="ann")
    body = {"message": f"zebra run {turn}", "session_id": f"run-{turn}", "user_id": "ann", "mode": "background"}
    run_id = (await client.post("/api/v1/workflows/chat/runs", json=body)).json()["run_id"]

    async def is_done() -> bool:
        return bool((await client.get(f"/api/v1/runs/{run_id}")).json()["status"] == "done")

    await until(is_done)
    fact = {"scope": "user", "owner": "ann", "key": f"likes_{turn}", "value": "tea"}
    for response in (
        await client.put("/api/v1/facts", json=fact),
        await client.get("/api/v1/sessions?user_id=ann"),
        await client.get("/api/v1/chat/history/room"),
        await client.get("/api/v1/search?q=zebra"),
        await client.patch("/api/v1/sessions/room", json={"title": turn}),
        await client.post("/api/v1/sessions/room/reset"),
        await client.delete(f"/api/v1/sessions/run-{turn}"),
        await client.get("/readyz"),
    ):
        assert response.is_success, response.text


@pytest.mark.slow
async def test_a_service_continues_after_a_newer_migration(tmp_path: Path, shared_url: str) -> None:
    """The service continues, and a new process of its version is refused with the cure."""
    settings = settings_for(tmp_path, database_url=shared_url)
    async with opened_app(ScriptedModel(["ok"] * 9), settings) as app, client_of(app) as client:
        await use(client, "before")
        migrate(shared_url)
        await use(client, "after")
        with pytest.raises(SchemaTooNew, match="upgrade Threadkeep"):
            async with open_memory(shared_url, options=settings.memory_options()):
                pass
        said = await history(client, "room")
        assert [one["content"] for one in said if one["role"] == "user"] == ["zebra before", "zebra after"]
