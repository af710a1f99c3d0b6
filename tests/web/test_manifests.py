"""Tests of the manifests of runs and sessions over HTTP, with the ownership of users."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scripts.write_reference import openapi_document
from tests.databases import execute
from tests.web.services import check_problem, client_of, opened_app, say, settings_for
from tests.web.test_sessions import cursor_of
from tests.workflows.test_agent_history import BOT, telegram
from threadkeep import rebuild
from threadkeep.app import App
from threadkeep.context.manifest import ContextManifest
from threadkeep.errors import RecordUnreadable
from threadkeep.testing import ScriptedModel


async def calls_of(client: httpx2.AsyncClient, path: str, **parameters: str) -> list[dict[str, Any]]:
    """Return the manifests of a list."""
    response = await client.get(f"/api/v1/{path}/manifests", params=parameters)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["manifests"]
    return found


async def test_the_calls_of_a_run_are_listed(client: httpx2.AsyncClient, app: App) -> None:
    """A manifest has the number of its call and the tokens of each section, and no text."""
    await say(client, "My cat is called Miso.", session_id="s1")
    run_id = (await say(client, "What is my cat called?", session_id="s1"))["run_id"]
    [call] = await calls_of(client, f"runs/{run_id}")
    assert (call["run_id"], call["session_id"], call["call"]) == (run_id, "s1", 1)
    assert [entry["seq"] for entry in call["entries"]] == [1, 2, 3]
    assert call["sections"] == {
        "window": sum(entry["tokens"] for entry in call["entries"][:2]),
        "input": call["entries"][2]["tokens"],
    }
    assert call["reported"]["input_tokens"] > 0
    [stored] = await app.memory.manifests.of_run(run_id)
    assert call == {**stored.manifest, "call": 1}
    assert ContextManifest.from_dict(call).to_dict() == call
    assert "Miso" not in str(call)


@pytest.mark.parametrize("content", ["28b52ffd00", "5b5d", "7b7d", "7b22656e7472696573223a317d"])
async def test_a_damaged_manifest_is_listed_with_a_note(tmp_path: Path, content: str) -> None:
    """The other model calls are listed as before, in the console, too, and exported. All but the first are JSON."""
    url = f"sqlite:///{tmp_path}/threadkeep.db"
    settings = settings_for(tmp_path, database_url=url)
    async with opened_app(ScriptedModel(["One.", "Two."]), settings) as app, client_of(app) as client:
        runs = [(await say(client, "hi", session_id="s1", user_id="ann"))["run_id"] for _ in range(2)]
        newest, oldest = await calls_of(client, "sessions/s1")
        execute(url, f"UPDATE chat_manifests SET manifest = x'{content}' WHERE run_id = '{runs[0]}'")
        listed, damaged = await calls_of(client, "sessions/s1")
        kept = {name: oldest[name] for name in ("session_id", "run_id", "call")}
        found = {**kept, "counter": "", "notes": ["record_unreadable"], "sections": {}}
        assert (listed, damaged) == (newest, {**found, "created_at": damaged["created_at"]})
        assert await calls_of(client, f"runs/{runs[0]}") == [damaged]
        [stored] = await app.memory.manifests.of_run(runs[0])
        for record in (stored, damaged):
            with pytest.raises(RecordUnreadable, match="The record of this model call is damaged"):
                await rebuild(record, app.memory)
        assert "record unreadable" in (await client.get(f"/console/runs/{runs[0]}/calls/1")).text
        assert runs[0] in (await client.get("/console/sessions/s1/calls")).text
        exported = [json.loads(line) async for line in app.memory.export(user_id="ann")]
        assert [line["run_id"] for line in exported if line["type"] == "model_call"] == [runs[1], runs[0]]


def test_the_schema_has_the_formats_of_dates() -> None:
    """The OpenAPI document has the formats of dates, and requires the time of a call."""
    schemas = openapi_document()["components"]["schemas"]
    since = schemas["FactReference"]["properties"]["since"]
    assert [one.get("format") for one in since["anyOf"]] == ["date", None]
    assert {"call", "created_at"} <= set(schemas["ContextManifest"]["required"])
    created_at = schemas["ContextManifest"]["properties"]["created_at"]
    assert (created_at["type"], created_at["format"]) == ("string", "date-time")


async def test_a_manifest_rebuilds_its_call(tmp_path: Path) -> None:
    model = ScriptedModel(["One.", "Two."])
    settings = settings_for(tmp_path, system_prompt="Be brief.")
    async with opened_app(model, settings) as app, client_of(app) as client:
        await say(client, "first", session_id="s1")
        await say(client, "second", session_id="s1")
        newest, oldest = await calls_of(client, "sessions/s1")
        for call, sent in ((oldest, model.calls[0]), (newest, model.calls[1])):
            rebuilt = await rebuild(call, app.memory)
            assert [(one.type, one.content) for one in rebuilt] == [(one.type, one.content) for one in sent]


async def test_the_calls_of_a_session_come_page_by_page_newest_first(client: httpx2.AsyncClient) -> None:
    runs = [(await say(client, f"question {number}", session_id="s1"))["run_id"] for number in range(5)]
    found: list[str] = []
    parameters: dict[str, str] = {"limit": "2"}
    while True:
        page = (await client.get("/api/v1/sessions/s1/manifests", params=parameters)).json()
        assert set(page) == {"session_id", "manifests", "next_cursor"}
        assert 0 < len(page["manifests"]) <= 2
        found += [call["run_id"] for call in page["manifests"]]
        if page["next_cursor"] is None:
            break
        parameters["cursor"] = page["next_cursor"]
    assert found == runs[::-1]


async def test_the_calls_of_an_agents_own_conversation_are_paged_and_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "bot.yaml"
    path.write_text(BOT % "")
    asked = {"message": "Hi", "user_id": "ann", "sessionless": True, "results": telegram(bot_id="b", chat_id=7)}
    model = ScriptedModel(["One.", "Two."])
    async with opened_app(model, settings_for(tmp_path, workflows=[str(path)])) as app, client_of(app) as client:
        for _ in range(2):
            assert (await client.post("/api/v1/workflows/bot/runs", json=asked)).json()["status"] == "done"
        [newest] = await calls_of(client, "sessions/telegram:b:7", user_id="ann", limit="1")
        _, oldest = await calls_of(client, "sessions/telegram:b:7")
        assert newest["conversation"]["key"] == oldest["conversation"]["key"] == "telegram:b:7"
        for call, sent in ((oldest, model.calls[0]), (newest, model.calls[1])):
            rebuilt = await rebuild(call, app.memory)
            assert [(one.type, one.content) for one in rebuilt] == [(one.type, one.content) for one in sent]
        theirs = await client.get("/api/v1/sessions/telegram:b:7/manifests?user_id=bob")
        check_problem(theirs, 404, "session-not-found")


async def test_a_damaged_manifest_of_an_agents_own_conversation_is_listed_with_a_note(tmp_path: Path) -> None:
    path, url = tmp_path / "bot.yaml", f"sqlite:///{tmp_path}/threadkeep.db"
    path.write_text(BOT % "")
    asked = {"message": "Hi", "user_id": "ann", "sessionless": True, "results": telegram(bot_id="b", chat_id=7)}
    settings = settings_for(tmp_path, workflows=[str(path)], database_url=url)
    async with opened_app(ScriptedModel(["One."]), settings) as app, client_of(app) as client:
        assert (await client.post("/api/v1/workflows/bot/runs", json=asked)).json()["status"] == "done"
        [kept] = await calls_of(client, "sessions/telegram:b:7")
        content = b'{"conversation":{"key":"telegram:b:7"},"entries":1}'
        execute(url, f"UPDATE chat_run_manifests SET manifest = x'{content.hex()}'")
        [damaged] = await calls_of(client, "sessions/telegram:b:7")
    assert (kept["run_id"], ["record_unreadable"]) == (damaged["run_id"], damaged["notes"])


async def test_another_users_calls_are_not_found(client: httpx2.AsyncClient) -> None:
    run_id = (await say(client, "hi", session_id="s1", user_id="ann"))["run_id"]
    for kind, there, elsewhere in (("run", f"runs/{run_id}", "runs/r0"), ("session", "sessions/s1", "sessions/s0")):
        theirs = await client.get(f"/api/v1/{there}/manifests?user_id=bob")
        nobodys = await client.get(f"/api/v1/{elsewhere}/manifests?user_id=bob")
        check_problem(theirs, 404, f"{kind}-not-found")
        assert theirs.content == nobodys.content
        assert len(await calls_of(client, there, user_id="ann")) == 1
        assert len(await calls_of(client, there)) == 1


async def test_a_deleted_session_has_no_calls(client: httpx2.AsyncClient) -> None:
    run_id = (await say(client, "hi", session_id="s1"))["run_id"]
    await client.delete("/api/v1/sessions/s1")
    check_problem(await client.get(f"/api/v1/runs/{run_id}/manifests"), 404, "run-not-found")
    check_problem(await client.get("/api/v1/sessions/s1/manifests"), 404, "session-not-found")


async def test_without_retention_a_session_has_no_calls(tmp_path: Path) -> None:
    """The problem names the setting that disables manifests."""
    settings = settings_for(tmp_path, manifest_retention_days=0)
    async with opened_app(ScriptedModel(["hi"]), settings) as app, client_of(app) as client:
        run_id = (await say(client, "hi", session_id="s1"))["run_id"]
        assert await calls_of(client, "sessions/s1") == []
        problem = check_problem(await client.get(f"/api/v1/runs/{run_id}/manifests"), 404, "run-not-found")
        assert "THREADKEEP_MANIFEST_RETENTION_DAYS" in problem["detail"]


@pytest.mark.parametrize(
    "cursor",
    [
        "nonsense",
        cursor_of(["calls", "2026-01-01T00:00:00+00:00", "r1"]),
        cursor_of(["calls", "2026-01-01T00:00:00+00:00", "r1", "1"]),
        cursor_of(["calls", "2026-01-01T00:00:00+00:00", "r1", True]),
        cursor_of(["calls", "2026-01-01T00:00:00+00:00", "r1", 2**31]),
        cursor_of(["calls", "2026-01-01T00:00:00+00:00", "a\x00b", 1]),
        cursor_of(["calls", "yesterday", "r1", 1]),
    ],
)
async def test_an_invalid_cursor_is_a_422(client: httpx2.AsyncClient, cursor: str) -> None:
    """A cursor is opaque: an invalid one is refused, not interpreted."""
    await say(client, "hi", session_id="s1")
    response = await client.get("/api/v1/sessions/s1/manifests", params={"cursor": cursor})
    check_problem(response, 422, "invalid-request")


@pytest.mark.parametrize("path", ["runs/a%00b", f"runs/{'x' * 513}", "sessions/a%0A"])
async def test_invalid_ids_are_a_422(client: httpx2.AsyncClient, path: str) -> None:
    response = await client.get(f"/api/v1/{path}/manifests")
    assert response.status_code == 422
