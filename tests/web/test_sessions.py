"""Tests of /api/v1/sessions: listing, reading, changing, resetting and deleting, with the ownership of users."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.web.services import check_problem, client_of, history, opened_app, say, settings_for
from threadkeep.app import App
from threadkeep.records import Message
from threadkeep.testing import Gate, ScriptedModel

SESSION_FIELDS = {
    "session_id",
    "user_id",
    "title",
    "last_message",
    "message_count",
    "reset_seq",
    "active",
    "tags",
    "metadata",
    "created_at",
    "updated_at",
}


async def listed(client: httpx2.AsyncClient, **parameters: str) -> list[str]:
    """Return the ids of the listed sessions."""
    response = await client.get("/api/v1/sessions", params=parameters)
    assert response.status_code == 200, response.text
    return [session["session_id"] for session in response.json()["sessions"]]


async def test_a_session_has_the_documented_fields(client: httpx2.AsyncClient) -> None:
    answer = await say(client, "x" * 51, session_id="s1", user_id="ann")
    session = (await client.get("/api/v1/sessions/s1")).json()
    assert set(session) == SESSION_FIELDS
    assert (session["session_id"], session["user_id"], session["message_count"]) == ("s1", "ann", 2)
    assert session["title"] == "x" * 50 + "…"
    assert session["last_message"] == answer["response"]
    assert (session["active"], session["tags"], session["metadata"], session["reset_seq"]) == (True, [], {}, 0)
    assert session["created_at"] <= session["updated_at"]


async def test_sessions_are_listed_newest_activity_first_page_by_page(app: App, client: httpx2.AsyncClient) -> None:
    for number in range(7):
        await app.memory.session(f"s{number}").append([Message(role="user", content="hi")])
    await app.memory.session("s2").append([Message(role="user", content="again")])
    found: list[str] = []
    cursor: str | None = None
    while True:
        parameters = {"limit": "3"} if cursor is None else {"limit": "3", "cursor": cursor}
        page: dict[str, Any] = (await client.get("/api/v1/sessions", params=parameters)).json()
        assert set(page) == {"sessions", "next_cursor"}
        assert all(set(session) == SESSION_FIELDS for session in page["sessions"])
        found += [session["session_id"] for session in page["sessions"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert found == ["s2", "s6", "s5", "s4", "s3", "s1", "s0"]


async def test_the_list_is_filtered(client: httpx2.AsyncClient) -> None:
    await say(client, "About refunds", session_id="s1", user_id="ann")
    await say(client, "About shipping", session_id="s2", user_id="ann")
    await say(client, "About refunds too", session_id="s3", user_id="bob")
    await client.patch("/api/v1/sessions/s2", json={"active": False})
    assert await listed(client, user_id="ann") == ["s2", "s1"]
    assert await listed(client, query="REFUND") == ["s3", "s1"]
    assert await listed(client, query="refund", user_id="ann") == ["s1"]
    assert await listed(client, active="false") == ["s2"]
    assert await listed(client, active="true", user_id="ann") == ["s1"]
    assert await listed(client, user_id="nobody") == []
    assert await listed(client, query="100%_\x00") == []


def cursor_of(value: object) -> str:
    """Return a cursor in the form of the service, with any value."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "nonsense",
        "ä",
        "====",
        cursor_of("text"),
        cursor_of([1, 2]),
        cursor_of(["sessions", "2026-01-01T00:00:00+00:00"]),
        cursor_of(["sessions", "2026-01-01T00:00:00+00:00", "a\x00b"]),
        cursor_of(["sessions", "yesterday", "s1"]),
        cursor_of(["sessions", "0001-01-01T00:00:00+14:00", "s1"]),
        cursor_of(["runs", "2026-01-01T00:00:00+00:00", "s1"]),
        "x" * 1001,
    ],
)
async def test_an_invalid_cursor_is_a_422(client: httpx2.AsyncClient, cursor: str) -> None:
    """A cursor is opaque: an invalid one is refused, not interpreted."""
    response = await client.get("/api/v1/sessions", params={"cursor": cursor})
    check_problem(response, 422, "invalid-request")


async def test_a_cursor_of_another_list_is_a_422(client: httpx2.AsyncClient) -> None:
    """Each list refuses the cursors of other lists. It returned a wrong page before."""
    for session_id in ("s1", "s2"):
        await say(client, "hi", session_id=session_id)
    lists = ("sessions", "runs", "facts", "facts/proposals", "procedures", "persons", "sessions/s1/manifests")
    pages = {name: (await client.get(f"/api/v1/{name}", params={"limit": 1})).json() for name in lists}
    cursors = {name: page["next_cursor"] for name, page in pages.items() if page["next_cursor"]}
    assert {"sessions", "runs"} <= cursors.keys()
    for name in lists:
        for origin, cursor in cursors.items():
            response = await client.get(f"/api/v1/{name}", params={"cursor": cursor})
            assert response.status_code == (200 if name == origin else 422), (name, origin)


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "user_id=", "active=perhaps", f"query={'x' * 201}"])
async def test_invalid_parameters_are_a_422(client: httpx2.AsyncClient, query: str) -> None:
    """An empty user id is refused, because it must not list everybody's sessions."""
    problem = check_problem(await client.get(f"/api/v1/sessions?{query}"), 422, "invalid-request")
    assert problem["errors"][0]["parameter"] == query.partition("=")[0]


async def test_a_session_is_changed(client: httpx2.AsyncClient) -> None:
    await say(client, "hi", session_id="s1")
    before = (await client.get("/api/v1/sessions/s1")).json()
    changes = {"title": "Refund 退款", "tags": ["a", "b"], "metadata": {"order": 17}}
    response = await client.patch("/api/v1/sessions/s1", json=changes)
    assert response.status_code == 200
    assert response.json() == before | changes
    again = await client.patch("/api/v1/sessions/s1", json={"active": False, "title": None})
    assert again.json() == before | changes | {"active": False}
    assert (await client.get("/api/v1/sessions/s1")).json() == again.json()
    assert len(await history(client, "s1")) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"owner": "bob"},
        {"user_id": "bob"},
        {"title": 1},
        {"tags": "a"},
        {"tags": [""]},
        {"metadata": [1]},
        {"active": 7},
    ],
)
async def test_invalid_changes_are_a_422(client: httpx2.AsyncClient, changes: dict[str, object]) -> None:
    await say(client, "hi", session_id="s1")
    before = (await client.get("/api/v1/sessions/s1")).json()
    check_problem(await client.patch("/api/v1/sessions/s1", json={"title": "new", **changes}), 422, "invalid-request")
    assert (await client.get("/api/v1/sessions/s1")).json() == before


async def test_after_a_reset_the_model_begins_anew(client: httpx2.AsyncClient) -> None:
    """After a reset, the model does not see the earlier messages, which stay in the transcript."""
    await say(client, "My name is Ann.", session_id="s1")
    response = await client.post("/api/v1/sessions/s1/reset")
    assert response.status_code == 200
    assert response.json()["reset_seq"] == 2
    assert "Ann" not in (await say(client, "What is my name?", session_id="s1"))["response"]
    assert len(await history(client, "s1")) == 4


async def test_a_session_is_deleted(client: httpx2.AsyncClient) -> None:
    await say(client, "My name is Ann.", session_id="s1", message_id="m1")
    response = await client.delete("/api/v1/sessions/s1")
    assert (response.status_code, response.content) == (204, b"")
    assert await listed(client) == []
    assert (await client.get("/api/v1/search?q=Ann")).json()["hits"] == []
    check_problem(await client.get("/api/v1/chat/history/s1"), 404, "session-not-found")
    check_problem(await client.delete("/api/v1/sessions/s1"), 404, "session-not-found")
    assert "Ann" not in (await say(client, "What is my name?", session_id="s1", message_id="m1"))["response"]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/reset")], ids=lambda value: value or "-"
)
async def test_another_users_session_is_not_found(client: httpx2.AsyncClient, method: str, path: str) -> None:
    await say(client, "My name is Ann.", session_id="s1", user_id="ann")
    before = (await client.get("/api/v1/sessions/s1")).json()
    body = {"title": "mine"} if method == "PATCH" else None
    theirs = await client.request(method, f"/api/v1/sessions/s1{path}?user_id=bob", json=body)
    nobodys = await client.request(method, f"/api/v1/sessions/s2{path}?user_id=bob", json=body)
    check_problem(theirs, 404, "session-not-found")
    assert theirs.content == nobodys.content
    assert (await client.get("/api/v1/sessions/s1?user_id=ann")).json() == before
    response = await client.request(method, f"/api/v1/sessions/s1{path}?user_id=ann", json=body)
    assert response.is_success


@pytest.mark.parametrize("method", ["POST", "DELETE"], ids=["reset", "delete"])
async def test_a_reset_or_deletion_waits_for_the_running_turn(tmp_path: Path, method: str) -> None:
    """A reset or deletion waits for the running turn. Otherwise the answer would be stored after it."""
    gate = Gate()
    model = ScriptedModel([["first", gate], "second"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        asking = asyncio.create_task(say(client, "q1", session_id="s1", user_id="ann"))
        await gate.reached()
        path = "/api/v1/sessions/s1" + ("/reset" if method == "POST" else "")
        check_problem(await client.request(method, f"{path}?user_id=bob"), 404, "session-not-found")
        ending = asyncio.create_task(client.request(method, path))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await asyncio.shield(ending)
        gate.open()
        assert (await asking)["response"] == "first"
        response = await ending
        assert response.is_success
        if method == "DELETE":
            assert await listed(client) == []
        else:
            assert response.json()["reset_seq"] == 2
        await say(client, "q2", session_id="s1", user_id="ann")
        assert [message.text for message in model.calls[1]] == ["q2"]


async def test_a_person_is_erased_over_http(client: httpx2.AsyncClient) -> None:
    """The receipt contains neither the name of the person nor any text."""
    run_id = (await say(client, "canary", session_id="s1", user_id="ann"))["run_id"]
    fact = {"scope": "workspace", "owner": "shop", "key": "told", "value": "canary", "evidence": {"run_id": run_id}}
    assert (await client.put("/api/v1/facts", json=fact)).status_code == 200
    plan = (await client.delete("/api/v1/users/ann", params={"dry_run": True})).json()
    assert (plan["sessions"], plan["complete"]) == (1, False)
    assert {"name": "chat_facts", "before": 1, "after": 1} in plan["stores"]
    exported = (await client.get("/api/v1/users/ann?format=jsonl")).text
    assert exported.count('"type": "fact"') == 1
    done = await client.delete("/api/v1/users/ann")
    assert (await client.get("/api/v1/facts?scope=workspace&owner=shop&past=true")).json()["facts"] == []
    assert (done.status_code, done.json()["complete"]) == (200, True)
    assert "ann" not in done.text.replace("channel", "")
    assert "canary" not in done.text
    assert (await client.get("/api/v1/sessions", params={"user_id": "ann"})).json()["sessions"] == []
