"""Tests of /api/v1/users: the export of a person, as lines that can be continued and as an archive."""

from __future__ import annotations

import io
import json
from zipfile import ZipFile

import httpx2
import pytest

from tests.web.services import check_problem, say
from threadkeep.app import App


async def test_a_person_is_exported(client: httpx2.AsyncClient) -> None:
    await say(client, "tell me about tea", session_id="room", user_id="ann/1")
    await say(client, "bob here", session_id="other", user_id="bob")
    archived = await client.get("/api/v1/users/ann%2F1")
    assert archived.headers["content-type"] == "application/zip"
    with ZipFile(io.BytesIO(archived.content)) as files:
        assert sorted(files.namelist()) == ["person.html", "person.jsonl"]
    response = await client.get("/api/v1/users/ann%2F1?format=jsonl")
    assert response.headers["content-type"].startswith("application/jsonl")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert "tell me about tea" in [line.get("content") for line in lines]
    assert {"run", "run_event", "model_call", "end"} <= {line["type"] for line in lines}
    assert "bob" not in response.text
    after = [line["after"] for line in lines if line["type"] == "position"][1]
    rest = (await client.get(f"/api/v1/users/ann%2F1?format=jsonl&after={after}")).text.splitlines()
    assert 0 < len(rest) < len(lines)
    check_problem(await client.get("/api/v1/users/ann?format=jsonl&after=x"), 422, "invalid-request")
    check_problem(await client.get(f"/api/v1/users/ann?after={after}"), 422, "invalid-request")


async def test_a_key_of_one_user_exports_that_user_only(
    app: App, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.web.callers.REFRESH_SECONDS", 0.0)
    await say(client, "hi", session_id="room", user_id="ann")
    new = await app.memory.api_keys.add("phone", scope="read", user_id="ann")
    headers = {"x-api-key": new.secret}
    assert (await client.get("/api/v1/users/ann", headers=headers)).status_code == 200
    check_problem(await client.get("/api/v1/users/bob", headers=headers), 404, "user-not-found")
