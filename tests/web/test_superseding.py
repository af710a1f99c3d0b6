"""Tests of superseding over HTTP: messages are taken back or edited, answers regenerated, and sessions branched."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.web.services import check_problem, client_of, events_of, history, opened_app, said, say, settings_for, until
from threadkeep import RunRetention
from threadkeep.app import App
from threadkeep.records import Message
from threadkeep.records.runs import RunQuery
from threadkeep.testing import Gate, ScriptedModel


async def fill(app: App, *words: str, session_id: str = "s1", user_id: str | None = None) -> None:
    """Append messages to a session.

    Each text is also the id, and texts that begin with `a` are the assistant's.
    """
    messages = [Message("assistant" if word.startswith("a") else "user", word, word) for word in words]
    await app.memory.session(session_id, user_id=user_id).append(messages)


async def post(client: httpx2.AsyncClient, verb: str, **body: object) -> dict[str, Any]:
    """Return the response to a request about the session `s1`, which must succeed."""
    response = await client.post(f"/api/v1/sessions/s1/{verb}", json=body)
    assert response.status_code in (200, 201), response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_the_newest_messages_are_taken_back(app: App, client: httpx2.AsyncClient) -> None:
    """Without a number, one message is taken back."""
    await fill(app, "q1", "a1", "q2", "a2")
    taken = await post(client, "take-back", n=2)
    assert (taken["session_id"], taken["count"]) == ("s1", 2)
    assert [(message["seq"], message["id"]) for message in taken["messages"]] == [(3, "q2"), (4, "a2")]
    response = await client.post("/api/v1/sessions/s1/take-back")
    assert [message["id"] for message in response.json()["messages"]] == ["a1"]
    assert [message["id"] for message in await history(client, "s1")] == ["q1"]
    session = (await client.get("/api/v1/sessions/s1")).json()
    assert (session["message_count"], session["revision"]) == (1, 2)
    assert (await post(client, "take-back", n=200))["count"] == 1
    assert await post(client, "take-back") == {"session_id": "s1", "messages": [], "count": 0}


async def test_simultaneous_requests_take_back_different_messages(app: App, client: httpx2.AsyncClient) -> None:
    await fill(app, *(f"q{number}" for number in range(6)))
    taken = await asyncio.gather(*(post(client, "take-back") for _ in range(6)))
    assert sorted(one["messages"][0]["id"] for one in taken) == [f"q{number}" for number in range(6)]


async def test_a_message_is_replaced(app: App, client: httpx2.AsyncClient) -> None:
    await fill(app, "q1", "a1", "q2")
    body = {"message_id": "q1", "message": "better", "new_message_id": "q1b"}
    edited = await post(client, "edit", **body)
    assert (edited["message"]["seq"], edited["message"]["id"], edited["message"]["content"]) == (4, "q1b", "better")
    assert await post(client, "edit", **body) == edited
    assert await history(client, "s1") == [edited["message"]]
    whole = await history(client, "s1", view="history")
    assert [message.get("superseded_by") for message in whole] == ["q1b", None, None, None]
    assert ["superseded_at" in message for message in whole] == [True, True, True, False]
    answer = await say(client, "and now?", session_id="s1")
    assert answer["context"]["messages"] == 2


async def test_a_session_is_branched(app: App, client: httpx2.AsyncClient) -> None:
    await fill(app, "q1", "a1", "q2", user_id="ann")
    response = await client.post("/api/v1/sessions/s1/branch?user_id=ann", json={"at": 2, "session_id": "b/1"})
    assert response.status_code == 201
    branch = response.json()
    assert (branch["session_id"], branch["user_id"], branch["message_count"]) == ("b/1", "ann", 2)
    assert (branch["parent_session_id"], branch["parent_seq"]) == ("s1", 2)
    assert [message["id"] for message in await history(client, "b%2F1")] == ["q1", "a1"]
    whole = await post(client, "branch")
    assert (whole["message_count"], whole["parent_seq"]) == (3, 3)
    await say(client, "other", session_id="b/1", user_id="ann")
    assert len(await history(client, "s1")) == 3
    listed = (await client.get("/api/v1/sessions?user_id=ann")).json()["sessions"]
    assert {one["session_id"] for one in listed} == {"s1", "b/1", whole["session_id"]}


@pytest.mark.parametrize(
    ("verb", "body"),
    [("take-back", {}), ("edit", {"message_id": "q1", "message": "x"}), ("branch", {})],
)
async def test_another_users_session_is_not_found(
    app: App, client: httpx2.AsyncClient, verb: str, body: dict[str, object]
) -> None:
    await fill(app, "q1", user_id="ann")
    for path in (f"s1/{verb}?user_id=bob", f"unknown/{verb}"):
        check_problem(await client.post(f"/api/v1/sessions/{path}", json=body), 404, "session-not-found")
    assert [message["id"] for message in await history(client, "s1")] == ["q1"]


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("take-back", {"n": 0}),
        ("take-back", {"n": 201}),
        ("take-back", {"count": 1}),
        ("edit", {}),
        ("edit", {"message_id": "q1", "message": ""}),
        ("edit", {"message_id": "q1", "message": "x", "new_message_id": "q2"}),
        ("branch", {"at": 0}),
        ("branch", {"at": 9}),
        ("branch", {"session_id": "s1"}),
        ("branch", {"session_id": ""}),
    ],
)
async def test_an_invalid_request_is_a_422(
    app: App, client: httpx2.AsyncClient, verb: str, body: dict[str, object]
) -> None:
    await fill(app, "q1", "q2")
    response = await client.post(f"/api/v1/sessions/s1/{verb}", json=body)
    assert response.status_code == 422, response.text
    assert [message["id"] for message in await history(client, "s1")] == ["q1", "q2"]


async def test_missing_and_superseded_messages_are_not_edited(app: App, client: httpx2.AsyncClient) -> None:
    """Editing a missing message returns 404, and editing a superseded one 409."""
    await fill(app, "q1", "a1")
    url = "/api/v1/sessions/s1/edit"
    check_problem(await client.post(url, json={"message_id": "q9", "message": "x"}), 404, "message-not-found")
    await post(client, "take-back")
    check_problem(await client.post(url, json={"message_id": "a1", "message": "x"}), 409, "message-superseded")
    assert (await client.get("/api/v1/chat/history/s1?view=all")).status_code == 422


async def test_an_answer_is_regenerated(tmp_path: Path) -> None:
    """A new run answers the message. A repeat returns the new answer, and the earlier one stays in the history."""
    model = ScriptedModel(["first", "second", "next", "third"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        first = await say(client, "q", session_id="s1", user_id="ann", message_id="m1", metadata={"page": "/a"})
        again = await post(client, "regenerate", run_id=first["run_id"])
        assert (again["response"], again["message_id"], again["session_id"]) == ("second", "m1", "s1")
        assert again["run_id"] != first["run_id"]
        assert said(await history(client, "s1")) == [("user", "q", "complete"), ("assistant", "second", "complete")]
        assert (await say(client, "q", session_id="s1", user_id="ann", message_id="m1"))["response"] == "second"
        await say(client, "q2", session_id="s1", user_id="ann")
        third = await post(client, "regenerate", run_id=again["run_id"])
        assert third["response"] == "third"
        assert [text for _, text, _ in said(await history(client, "s1"))] == ["q", "third"]
        whole = await history(client, "s1", view="history")
        assert [message["content"] for message in whole] == ["q", "first", "second", "q2", "next", "third"]
        assert [[message.content for message in call] for call in model.calls] == [
            ["q"],
            ["q"],
            ["q", "second", "q2"],
            ["q"],
        ]
        for run, answer in ((first, "first"), (again, "second"), (third, "third")):
            kept = (await client.get(f"/api/v1/runs/{run['run_id']}")).json()
            assert (kept["status"], kept["text"]) == ("done", answer)


async def test_a_regenerated_answer_is_streamed(tmp_path: Path) -> None:
    async with opened_app(ScriptedModel(["one", "two three"]), settings_for(tmp_path)) as app, client_of(app) as client:
        await say(client, "q", session_id="s1", message_id="m1")
        await post(client, "edit", message_id="m1", message="better", new_message_id="m2")
        async with client.stream("POST", "/api/v1/sessions/s1/regenerate/stream") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            events = [event async for event in events_of(response)]
        assert [event.name for event in events] == ["start", "token", "token", "end"]
        assert (events[-1].data["message_id"], events[-1].data["response"]) == ("m2", "two three")
        assert [text for _, text, _ in said(await history(client, "s1"))] == ["better", "two three"]


async def test_regenerating_during_a_turn_returns_its_answer(tmp_path: Path) -> None:
    """Regenerating during a turn returns its answer. Simultaneous requests to regenerate cause one model call."""
    gate = Gate()
    model = ScriptedModel([["slow", gate], "again"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        asking = asyncio.create_task(say(client, "q", session_id="s1", message_id="m1"))
        await gate.reached()
        again = asyncio.create_task(post(client, "regenerate", message_id="m1"))
        # The request waits for the running turn.
        assert await asyncio.wait([again], timeout=1.0) == (set(), {again})
        gate.open()
        assert await again == await asking
        both = await asyncio.gather(*(post(client, "regenerate", message_id="m1") for _ in range(3)))
        assert {answer["response"] for answer in both} == {"again"}
        assert len(model.calls) == 2
        assert [text for _, text, _ in said(await history(client, "s1"))] == ["q", "again"]


async def test_a_message_without_an_answer_is_retried(tmp_path: Path) -> None:
    """Regenerating a message without an answer retries its failed run."""
    model = ScriptedModel([RuntimeError("down"), "better"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        failed = await client.post("/api/v1/chat", json={"message": "q", "session_id": "s1", "message_id": "m1"})
        problem = check_problem(failed, 502, "model-failed")
        answer = await post(client, "regenerate")
        assert (answer["response"], answer["run_id"]) == ("better", problem["run_id"])
        assert [text for _, text, _ in said(await history(client, "s1"))] == ["q", "better"]


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
async def test_coalesced_messages_get_the_new_answer(tmp_path: Path, transcripts: str) -> None:
    """A repeat of any coalesced message returns the new answer, also after the first run was pruned."""
    gate = Gate()
    model = ScriptedModel([["zero", gate], "first", "second"])
    settings = settings_for(tmp_path, double_texting="coalesce", transcripts=transcripts)
    async with opened_app(model, settings) as app, client_of(app) as client:
        waiting = [asyncio.create_task(say(client, "q0", session_id="s1", message_id="m0"))]
        await gate.reached()
        for number in (1, 2):
            waiting.append(asyncio.create_task(say(client, f"q{number}", session_id="s1", message_id=f"m{number}")))
            await until(partial(inputs_of, app, "s1", number))
        gate.open()
        assert [answer["response"] for answer in await asyncio.gather(*waiting)] == ["zero", "first", "first"]
        for number in (1, 2):
            repeated = await say(client, f"q{number}", session_id="s1", message_id=f"m{number}")
            assert repeated["response"] == "first"
        assert (await post(client, "regenerate"))["response"] == "second"
        for _ in range(2):
            for number in (1, 2):
                repeated = await say(client, f"q{number}", session_id="s1", message_id=f"m{number}")
                assert (repeated["message_id"], repeated["response"]) == (f"m{number}", "second")
            await app.memory.run_retention.prune(RunRetention(keep_days=1e-9))
    assert len(model.calls) == 3


async def inputs_of(app: App, session_id: str, count: int) -> bool:
    """Return whether a number of messages of a session is queued."""
    [*found], _ = await app.memory.runs.records.runs(RunQuery(session_id=session_id, status="queued"))
    return sum(len(run.inputs) for run in found) == count


async def test_missing_and_superseded_answers_are_not_regenerated(app: App, client: httpx2.AsyncClient) -> None:
    """Regenerating a missing or superseded message fails with its own kind of problem, and supersedes nothing."""
    await say(client, "q", session_id="s1", user_id="ann", message_id="m1")
    url = "/api/v1/sessions/s1/regenerate"
    for body in ({"run_id": "nothing"}, {"message_id": "nothing"}):
        check_problem(await client.post(url, json=body), 404, "message-not-found")
    check_problem(await client.post(url, json={"run_id": "a", "message_id": "b"}), 422, "invalid-request")
    check_problem(await client.post(url, json={"workflow": "none"}), 404, "workflow-not-found")
    check_problem(await client.post(f"{url}?user_id=bob"), 404, "session-not-found")
    assert len(await history(client, "s1", view="history")) == 2
    await post(client, "take-back", n=2)
    check_problem(await client.post(url, json={"message_id": "m1"}), 409, "message-superseded")
    check_problem(await client.post(url), 404, "message-not-found")
    assert (await say(client, "q", session_id="s1", user_id="ann", message_id="m1"))["response"]
    assert await history(client, "s1") == []
