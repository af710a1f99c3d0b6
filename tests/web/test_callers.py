"""Tests of what a key may do: its scope, the user that it is limited to, and its rate limit."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from fastapi.routing import APIRoute

from scripts.write_reference import openapi_document
from tests.limits import HANG_SECONDS
from tests.web.bodies import body_of
from tests.web.console.pages import FORM, page_of
from tests.web.services import check_problem, client_of, listening, opened_app, say, settings_for, until
from tests.web.test_tokens import AUDIENCE, ISSUER, SHARED, token
from threadkeep.agent.demo import DemoModel
from threadkeep.app import App
from threadkeep.knowledge.proposals import Proposed, Reading
from threadkeep.records.knowledge import ProposalQuery, Scope
from threadkeep.store.api_keys import KeyScope
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.web.callers import PUBLIC, READS, Buckets, Caller
from threadkeep.web.middleware import CALLBACKS, OPEN_PATHS
from threadkeep.web.service import create_service

CANARY = "canary-of-ann"


@pytest.fixture(autouse=True)
def _keys_are_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep.web.callers.REFRESH_SECONDS", 0.0)


@pytest.fixture
async def ann(app: App, client: httpx2.AsyncClient) -> dict[str, str]:
    """Return the ids of Ann's data, for the parameters of all paths."""
    answer = await say(client, CANARY, session_id="room", user_id="ann")
    fact = {"scope": "user", "owner": "ann", "key": "note", "value": CANARY}
    stored = (await client.put("/api/v1/facts", json=fact)).json()
    taught = {"scope": "user", "owner": "ann", "name": "mend", "goal_contains": ["x"], "content": CANARY}
    procedure = (await client.put("/api/v1/procedures", json=taught)).json()
    proposed = [Proposed(Scope("user", "ann"), "home_city", CANARY, 1)]
    await app.memory.proposals.add(Reading("room", "model", "small-model", 0, 1), proposed)
    [proposal], _ = await app.memory.proposals.page(ProposalQuery())
    return {
        "session_id": "room",
        "thread_id": "room",
        "chat_id": "room",
        "user_id": "ann",
        "person_id": "ann",
        "run_id": answer["run_id"],
        "fact_id": stored["id"],
        "procedure_id": procedure["id"],
        "proposal_id": proposal.id,
        "decision": "accept",
        "call": "1",
    }


async def key(app: App, *, scope: KeyScope = "write", user_id: str | None = None) -> dict[str, str]:
    """Return the headers with a new key."""
    new = await app.memory.api_keys.add(f"{scope}-{user_id}", scope=scope, user_id=user_id)
    return {"authorization": f"Bearer {new.secret}"}


async def data_of(app: App, user_id: str) -> list[str]:
    """Return the export of a user, without its times: sessions, messages, runs, model calls, facts and procedures."""
    return [line async for line in app.memory.export(user_id=user_id)][1:-1]


async def test_from_the_first_key_on_each_request_needs_one(app: App, client: httpx2.AsyncClient) -> None:
    """A running service requires a key after the first is added. Revoking it does not open the service again."""
    assert (await client.get("/api/v1/sessions")).status_code == 200
    headers = await key(app, scope="read")
    check_problem(await client.get("/api/v1/sessions"), 401, "api-key-needed")
    assert (await client.get("/api/v1/sessions", headers=headers)).status_code == 200

    async def used() -> bool:
        return (await app.memory.api_keys.all())[0].last_used_at is not None

    await until(used)
    await app.memory.api_keys.revoke("read-None")
    check_problem(await client.get("/api/v1/sessions", headers=headers), 401, "api-key-needed")
    check_problem(await client.get("/api/v1/sessions"), 401, "api-key-needed")


async def test_a_read_key_changes_nothing(app: App, client: httpx2.AsyncClient, ann: dict[str, str]) -> None:
    """A key with the scope `read` is refused by every route that changes something, before the request is validated."""
    headers = await key(app, scope="read")
    refused = 0
    for route, method in routes_of(app):
        if method != "GET" and "x-access" not in (route.openapi_extra or {}):
            response = await client.request(method, route.path.format(**ids_of(route, ann)), headers=headers)
            check_problem(response, 403, "scope-missing")
            refused += 1
    assert refused > 15
    stream = f"/threads/room/runs/{ann['run_id']}/stream"
    assert (await client.get(stream, headers=headers)).status_code == 200
    check_problem(await client.get(f"{stream}?cancel_on_disconnect=true", headers=headers), 403, "scope-missing")
    assert (await client.get("/api/v1/sessions/room", headers=headers)).json()["message_count"] == 2


async def test_a_write_key_does_not_administer(app: App, client: httpx2.AsyncClient) -> None:
    """Erasing a person and consent require the scope `admin`."""
    headers = await key(app)
    check_problem(await client.delete("/api/v1/users/ann", headers=headers), 403, "scope-missing")
    check_problem(await client.put("/api/v1/knowledge/consent", json={}, headers=headers), 403, "scope-missing")
    more = await key(app, scope="admin")
    assert (await client.delete("/api/v1/users/ann", headers=more)).status_code == 200


async def test_head_answers_as_get_does_without_its_body(
    app: App, client: httpx2.AsyncClient, ann: dict[str, str]
) -> None:
    """Every route with GET answers HEAD, for keys that may read the resource and for others."""
    for headers in (await key(app, scope="read"), await key(app, scope="read", user_id="bob")):
        for path in [route.path.format(**ids_of(route, ann)) for route, method in routes_of(app) if method == "GET"]:
            head, whole = [await client.request(method, path, headers=headers) for method in ("HEAD", "GET")]
            assert (head.status_code, head.content) == (whole.status_code, b""), path
            assert head.headers.get("content-type") == whole.headers.get("content-type")


@pytest.mark.parametrize("user", [None, "ann"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chatkit"])
async def test_callers_share_no_answer_by_an_idempotency_key(
    app: App, client: httpx2.AsyncClient, path: str, user: str | None
) -> None:
    """Requests of different keys with the same idempotency key are separate, even for the same user."""
    said = {"content": [{"type": "input_text", "text": "hi"}], "attachments": [], "inference_options": {}}
    body: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "user": user}
    if path == "/chatkit":
        body = {"type": "threads.create", "params": {"input": said}}
    messages, sessions = [], []
    for headers in [await key(app), await key(app, scope="admin")] * 2:
        query = {"user_id": user} if user and path == "/chatkit" else {}
        more = {**headers, "Idempotency-Key": "k1"}
        assert (await client.post(path, params=query, json=body, headers=more)).status_code == 200
        found = (await client.get("/api/v1/sessions", headers=headers)).json()["sessions"]
        messages.append(sum(one["message_count"] for one in found))
        sessions.append(len(found))
    assert messages == (
        [3, 6, 6, 6] if path == "/chatkit" else [2, 4, 4, 4]
    )  # a new thread also has an item for its creation
    assert sessions == ([1, 1, 1, 1] if user and path != "/chatkit" else [1, 2, 2, 2])


@pytest.mark.parametrize("scope", ["read", pytest.param("write", marks=pytest.mark.slow)])
async def test_a_key_of_one_user_reads_nothing_of_another(
    app: App, client: httpx2.AsyncClient, ann: dict[str, str], scope: KeyScope
) -> None:
    """Valid requests and forms with Ann's ids change none of her data, and no response tells that they exist."""
    headers, before = await key(app, scope=scope, user_id="bob"), await data_of(app, "ann")
    document, known = await asyncio.to_thread(openapi_document), {**ann, "owner": "ann"}
    forms = page_of(await client.get("/", headers=headers)).forms
    tokens = [form.fields["csrf"] for form in forms if form.method == "post"]
    assert len(tokens) == (scope == "write")
    form = {**ann, "csrf": "".join(tokens), "message": "hi", "answer:x": "yes"}
    seen, invalid, found = set(), set(), set()
    for route, method in routes_of(app):
        path, is_form = route.path.format(**ids_of(route, ann)), route.path.startswith("/console/") and method == "POST"
        body = None if method == "GET" else body_of(document, route.path, method, known)
        sent: dict[str, Any] = {"content": urlencode(form), "headers": {**headers, **FORM}}
        for query in ({"q": "canary"}, {"q": "canary", "user_id": "ann"}):
            given = sent if is_form else {"json": body, "headers": headers}
            response = await client.request(method, path, params=query, **given)
            assert CANARY not in response.text, path
            seen.add(response.status_code)
            if response.status_code == 422:
                invalid.add((method, route.path))
            if path != route.path and response.status_code not in (403, 404, 422):
                found.add((route.path, response.text[:15]))
    assert seen <= {200, 201, 204, 303, 403, 404, 409, 422}
    # Every other request is valid, so that its route has checked the user.
    assert invalid <= {("GET", "/threads/{thread_id}/state/{checkpoint_id}")}
    assert found <= {
        ("/threads/{thread_id}/history", "[]"),
        ("/threads/{thread_id}/commands", '{"type":"error"'),
        ("/api/v1/ai-sdk/chat/{chat_id}/stream", ""),
    }
    assert await data_of(app, "ann") == before


async def test_a_key_of_one_user_changes_nothing_of_another(
    app: App, client: httpx2.AsyncClient, ann: dict[str, str]
) -> None:
    """A key of Bob cannot find or change Ann's data, and its own data belong to Bob."""
    headers, before = await key(app, user_id="bob"), await data_of(app, "ann")
    question = (await app.memory.session("room").tail(2))[0].id
    asked = {"id": question, "role": "user", "parts": [{"type": "text", "text": "hi"}]}
    edited = {"id": "room", "messages": [asked], "messageId": question}
    taught = {"name": "mend", "goal_contains": ["x"], "content": "x"}
    decided = f"/api/v1/facts/proposals/{ann['proposal_id']}"
    owned = [
        ("POST", "/api/v1/chat", {"message": "hi", "session_id": "room"}, "session-not-found"),
        ("POST", "/api/v1/chat", {"message": "hi", "user_id": "ann"}, "user-not-found"),
        ("POST", "/api/v1/workflows/chat/runs", {"message": "hi", "user_id": "ann"}, "user-not-found"),
        ("POST", "/api/v1/workflows/chat/runs", {"message": "hi", "session_id": "room"}, "session-not-found"),
        ("POST", "/api/v1/ai-sdk/chat", edited, "session-not-found"),
        ("POST", "/api/v1/ai-sdk/chat", {**edited, "trigger": "regenerate-message"}, "session-not-found"),
        ("DELETE", "/api/v1/sessions/room", None, "session-not-found"),
        ("PATCH", "/api/v1/sessions/room", {"title": "mine"}, "session-not-found"),
        ("POST", "/api/v1/sessions/room/take-back", None, "session-not-found"),
        ("POST", f"/api/v1/runs/{ann['run_id']}/cancel", None, "run-not-found"),
        ("DELETE", f"/api/v1/facts/{ann['fact_id']}", None, "knowledge-not-found"),
        ("POST", "/api/v1/facts/forget", {"scope": "user", "owner": "ann", "keys": ["note"]}, "knowledge-not-found"),
        ("DELETE", "/api/v1/persons/ann", None, "knowledge-not-found"),
        ("PUT", "/api/v1/facts", {"scope": "user", "owner": "ann", "key": "note", "value": "x"}, "knowledge-not-found"),
        ("PUT", "/api/v1/procedures", {**taught, "scope": "user", "owner": "ann"}, "knowledge-not-found"),
        *(
            ("POST", decided, {"decision": one, "by": "bob"}, "knowledge-not-found")
            for one in ("accept", "reject", "undo")
        ),
    ]
    for method, path, body, kind in owned:
        check_problem(await client.request(method, path, json=body, headers=headers), 404, kind)
    for route, method in routes_of(app):
        if method != "GET" and route.openapi_extra not in (PUBLIC, READS):
            response = await client.request(method, route.path.format(**ids_of(route, ann)), headers=headers)
            assert response.status_code >= 400, route.path
    assert await data_of(app, "ann") == before
    closed = [("PUT", "/api/v1/persons"), ("POST", "/api/v1/persons/ann/merge"), ("GET", "/metrics")]
    for method, path in closed:
        check_problem(await client.request(method, path, headers=headers), 403, "key-of-one-user")
    answer = (await client.post("/api/v1/chat", json={"message": "hi"}, headers=headers)).json()
    info = await client.get(f"/api/v1/sessions/{answer['session_id']}", headers=headers)
    assert info.json()["user_id"] == "bob"
    listed = (await client.get("/api/v1/sessions", headers=headers)).json()["sessions"]
    assert [session["session_id"] for session in listed] == [answer["session_id"]]


async def test_requests_are_limited_by_key_and_by_user(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, api_keys="web:one,bot:two", requests_per_key=4, requests_per_user=2)
    async with opened_app(DemoModel(), settings) as app, client_of(app) as client:
        web, bot = {"x-api-key": "one"}, {"x-api-key": "two"}
        statuses = [
            (await client.get(f"/api/v1/sessions?user_id={user}", headers=web)).status_code
            for user in ("ann", "ann", "ann", "bob", "bob")
        ]
        assert statuses == [200, 200, 429, 200, 429]
        response = await client.get("/api/v1/sessions", headers=bot)
        assert response.status_code == 200
        response = await client.get("/api/v1/sessions?user_id=ann", headers=bot)
        check_problem(response, 429, "too-many-requests")
        assert 0 < int(response.headers["retry-after"]) <= 30


async def test_a_user_cannot_hold_all_connections(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open streams of one user are limited; the requests of others are answered, and a closed stream frees its room."""
    monkeypatch.setattr("threadkeep.web.callers._MOST_OPEN", 2)
    ann, bob = await key(app, user_id="ann"), await key(app, user_id="bob")
    async with listening(app) as client:
        await client.post("/threads", json={"thread_id": "room"}, headers=ann)
        body = {"channels": ["messages"]}
        async with contextlib.AsyncExitStack() as streams:
            for _ in range(2):
                opened = client.stream("POST", "/threads/room/stream/events", json=body, headers=ann)
                assert (await streams.enter_async_context(opened)).status_code == 200
            refused = await client.get("/api/v1/sessions", headers=ann)
            check_problem(refused, 429, "too-many-requests")
            assert refused.headers["retry-after"] == "1"
            assert (await client.get("/api/v1/sessions", headers=bob)).status_code == 200

        async def answered() -> bool:
            return (await client.get("/api/v1/sessions", headers=ann)).status_code == 200

        await until(answered)


MESSAGE = {"role": "user", "content": "hi", "id": "m1"}
STREAMS: dict[str, dict[str, Any]] = {
    "/api/v1/chat/stream": {"message": "hi"},
    "/api/v1/workflows/chat/runs": {"message": "hi", "mode": "stream"},
    "/threads/room/runs/stream": {"assistant_id": "chat", "input": {"messages": [MESSAGE]}},
    "/threads/room/stream/events": {"channels": ["messages"]},
    "/v1/chat/completions": {"model": "chat", "stream": True, "messages": [MESSAGE]},
    "/api/v1/ag-ui": {"threadId": "room", "runId": "r1", "messages": [MESSAGE]},
    "/api/v1/ai-sdk/chat": {
        "id": "room",
        "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
    },
    "/chatkit": {
        "type": "threads.create",
        "params": {
            "input": {
                "content": [{"type": "input_text", "text": "hi"}],
                "attachments": [],
                "quoted_text": None,
                "inference_options": {},
            }
        },
        "metadata": {},
    },
}


@pytest.mark.parametrize("path", STREAMS)
async def test_an_open_stream_ends_when_its_key_is_revoked(tmp_path: Path, path: str) -> None:
    """The last event says so. The run continues, and streams of other keys stay open."""
    gate = Gate()
    model = ScriptedModel([["first", gate, " last"]])
    async with (
        opened_app(model, settings_for(tmp_path)) as app,
        listening(app, heartbeat_seconds=0.02) as client,
        asyncio.timeout(HANG_SECONDS),
    ):
        mine, other = await key(app), await key(app, scope="read")
        await client.post("/threads", json={"thread_id": "room"}, headers=mine)
        watched = client.stream("POST", "/threads/room/stream/events", json={"channels": ["values"]}, headers=other)
        async with watched as watching, client.stream("POST", path, json=STREAMS[path], headers=mine) as response:
            assert response.status_code == 200
            if not path.endswith("events"):
                await gate.reached()
            await app.memory.api_keys.revoke("write-None")
            data = [line for line in [line async for line in response.aiter_lines()] if line.startswith("data: ")]
            assert "The API key was revoked or has expired" in "".join(data[-2:])
            assert (await client.get("/api/v1/sessions", headers=mine)).status_code == 401
            comments = watching.aiter_lines()
            assert [await anext(comments) for _ in range(20)]
        gate.open()
        await until(lambda: app.chat.running == 0)


@pytest.mark.parametrize("path", STREAMS)
async def test_an_open_stream_ends_when_its_token_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The last event says so. The run continues, and streams with later tokens stay open."""
    gate, passed = Gate(), timedelta()
    settings = settings_for(tmp_path, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_key=SHARED)
    async with opened_app(ScriptedModel([["first", gate, " last"]]), settings) as app:
        monkeypatch.setattr(app.memory, "clock", lambda: datetime.now(UTC) + passed)
        async with listening(app, heartbeat_seconds=0.02) as client, asyncio.timeout(HANG_SECONDS):
            mine, later = token(), token(exp=time.time() + 3600)
            await client.post("/threads", json={"thread_id": "room"}, headers=mine)
            watched = client.stream("POST", "/threads/room/stream/events", json={"channels": ["values"]}, headers=later)
            async with watched as watching, client.stream("POST", path, json=STREAMS[path], headers=mine) as response:
                assert response.status_code == 200
                if not path.endswith("events"):
                    await gate.reached()
                passed = timedelta(seconds=80)
                data = [line for line in [line async for line in response.aiter_lines()] if line.startswith("data: ")]
                assert "The token has expired" in "".join(data[-2:])
                comments = watching.aiter_lines()
                assert [await anext(comments) for _ in range(20)]
            gate.open()
            await until(lambda: app.chat.running == 0)


async def test_a_run_that_a_disconnect_cancels_outlives_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service ends the stream, but the client has not gone away. With a new token, it reads the end of the run."""
    gate, passed = Gate(), timedelta()
    settings = settings_for(tmp_path, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_key=SHARED)
    body = {**STREAMS["/threads/room/runs/stream"], "on_disconnect": "cancel", "if_not_exists": "create"}
    async with opened_app(ScriptedModel([["first", gate, " last"]]), settings) as app:
        monkeypatch.setattr(app.memory, "clock", lambda: datetime.now(UTC) + passed)
        async with listening(app, heartbeat_seconds=0.02) as client, asyncio.timeout(HANG_SECONDS):
            async with client.stream("POST", "/threads/room/runs/stream", json=body, headers=token()) as response:
                await gate.reached()
                passed = timedelta(seconds=80)
                assert "The token has expired" in (await response.aread()).decode()
            gate.open()
            later = token(exp=time.time() + 3600)
            joined = await client.get(response.headers["location"], headers=later)
            run = (await client.get(response.headers["content-location"], headers=later)).json()
    assert '"status": "success"' in joined.text
    assert run["status"] == "success"


async def test_a_stream_reads_no_keys_for_a_caller_without_a_key_in_the_database(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such streams are not delayed by a slow database."""
    keys, reads = create_service(app).state.keys, 0

    async def refresh() -> None:
        nonlocal reads
        reads += 1

    monkeypatch.setattr(keys, "refresh", refresh)
    await keys.check(Caller("ops", "admin"))
    assert reads == 0


def test_a_bucket_is_refilled_evenly() -> None:
    """A bucket allows a minute's requests at once, and then one for each part of the minute."""
    now = 0.0
    bucket = Buckets(60, clock=lambda: now)
    assert [bucket.take("a") for _ in range(60)] == [0.0] * 60
    assert bucket.take("a") == pytest.approx(1.0)
    assert bucket.take("b") == 0.0
    now = 1.5
    assert bucket.take("a") == 0.0
    assert bucket.take("a") == pytest.approx(0.5)
    assert [Buckets(0).take("a") for _ in range(3)] == [0.0] * 3


def routes_of(app: App) -> list[tuple[APIRoute, str]]:
    """Return all routes that require a key, with each of their methods."""
    routes = [route for route in create_service(app).routes if isinstance(route, APIRoute)]
    guarded = [route for route in routes if route.path not in OPEN_PATHS and not route.path.startswith(CALLBACKS)]
    return [(route, method) for route in guarded for method in sorted(route.methods or ())]


def ids_of(route: APIRoute, known: dict[str, str]) -> dict[str, str]:
    """Return the parameters of a path: Ann's ids, or a name that does not exist."""
    names = [part[1:-1].partition(":")[0] for part in route.path.split("/") if part.startswith("{")]
    return {name: known.get(name, "nothing") for name in names}
