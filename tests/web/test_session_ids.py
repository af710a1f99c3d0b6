"""Tests of session ids over HTTP: any text is returned unchanged, and a path has %2F for a slash."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from tests.web.services import check_problem, client_of, listening, opened_app, say, settings_for
from threadkeep.agent.demo import DemoModel

IDS = [
    "me@example.com",
    "C024.1700000000.12",
    "+351912345678",
    "a/b",
    "a%2Fb",
    "/",
    "sessions/reset",
    "🙂",
    "a::b c?d#e",
]


@pytest.fixture(params=["in-process", "socket", "graph-store"])
async def any_client(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client over each transport, and one of a service with its transcripts in a graph store."""
    overrides = {"transcripts": "graph_store"} if request.param == "graph-store" else {}
    async with (
        opened_app(DemoModel(), settings_for(tmp_path, **overrides)) as app,
        listening(app) if request.param == "socket" else client_of(app) as client,
    ):
        yield client


@pytest.mark.parametrize("session_id", IDS)
async def test_every_endpoint_of_a_session_accepts_any_id(any_client: httpx2.AsyncClient, session_id: str) -> None:
    other = "b" if session_id != "b" else "c"
    await say(any_client, "an umbrella", session_id=other)
    said = await say(any_client, "a parasol", session_id=session_id)
    assert said["session_id"] == session_id
    path = quote(session_id, safe="")
    history = (await any_client.get(f"/api/v1/chat/history/{path}")).json()
    assert (history["session_id"], history["messages"][0]["content"]) == (session_id, "a parasol")
    assert (await any_client.get(f"/api/v1/sessions/{path}")).json()["session_id"] == session_id
    changed = await any_client.patch(f"/api/v1/sessions/{path}", json={"title": "Sun"})
    assert (changed.json()["session_id"], changed.json()["title"]) == (session_id, "Sun")
    assert (await any_client.post(f"/api/v1/sessions/{path}/reset")).json()["reset_seq"] == 2
    manifests = (await any_client.get(f"/api/v1/sessions/{path}/manifests")).json()
    assert (manifests["session_id"], len(manifests["manifests"])) == (session_id, 1)
    retention = await any_client.get(f"/api/v1/sessions/{path}/retention")
    assert retention.json()["session_id"] == session_id
    runs = (await any_client.get("/api/v1/runs", params={"session_id": session_id})).json()["runs"]
    assert session_id in {run["session_id"] for run in runs}
    hits = (await any_client.get("/api/v1/search", params={"q": "parasol"})).json()["hits"]
    assert session_id in {hit["session_id"] for hit in hits}
    first = (await any_client.get("/api/v1/sessions", params={"limit": 1})).json()
    second = (await any_client.get("/api/v1/sessions", params={"cursor": first["next_cursor"]})).json()
    assert {one["session_id"] for one in (*first["sessions"], *second["sessions"])} == {session_id, other}
    assert (await any_client.delete(f"/api/v1/sessions/{path}")).status_code == 204
    left = (await any_client.get("/api/v1/sessions")).json()["sessions"]
    assert [one["session_id"] for one in left] == [other]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("telegram:", "empty_part"),
        ("%20", "empty"),
        ("a%0Ab", "invalid_chars"),
        ("a%00", "invalid_chars"),
        ("%FF", "invalid_chars"),
        ("%7B%7Bchat_id%7D%7D", "unresolved_template"),
        ("x" * 257, "too_long"),
    ],
)
async def test_an_invalid_session_id_is_a_422(any_client: httpx2.AsyncClient, path: str, reason: str) -> None:
    """The problem names no Python function, and nothing is stored."""
    for response in (
        await any_client.get(f"/api/v1/chat/history/{path}"),
        await any_client.delete(f"/api/v1/sessions/{path}"),
    ):
        problem = check_problem(response, 422, "invalid-session-id")
        assert problem["reason"] == reason
        assert "threadkeep." not in problem["detail"]
        assert "()" not in problem["detail"]
    assert (await any_client.get("/api/v1/sessions")).json()["sessions"] == []


@pytest.mark.parametrize("session_id", ["%FF", "%ED%A0%80", "a%00"])
async def test_an_id_that_cannot_be_stored_is_no_server_error(tmp_path: Path, shared_url: str, session_id: str) -> None:
    settings = settings_for(tmp_path, database_url=shared_url)
    async with opened_app(DemoModel(), settings) as app, client_of(app) as client:
        for method, path in (
            ("GET", f"/threads/{session_id}"),
            ("GET", f"/threads/{session_id}/runs"),
            ("GET", f"/threads/{session_id}/stream"),
            ("POST", f"/threads/{session_id}/history"),
            ("GET", f"/api/v1/ai-sdk/chat/{session_id}/stream"),
            ("PUT", f"/api/v1/sessions/{session_id}/retention"),
            ("DELETE", f"/api/v1/sessions/{session_id}/retention"),
            ("GET", f"/api/v1/runs?session_id={session_id}"),
        ):
            response = await client.request(method, path, json={} if method in ("POST", "PUT") else None)
            assert response.status_code in (200, 204, 404, 422), (method, path, response.text)
