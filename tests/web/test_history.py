"""Tests of GET /api/v1/chat/history/{session_id}."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx2
import pytest

from tests.web.services import check_problem, history
from threadkeep.app import App
from threadkeep.records import Message


async def fill(app: App, session_id: str, count: int, **more: str) -> None:
    """Append messages `1`, `2`, … of user and assistant in turn to a session."""
    messages = [Message(role="user" if n % 2 else "assistant", content=str(n)) for n in range(1, count + 1)]
    await app.memory.session(session_id, **more).append(messages)


async def test_a_page_is_the_newest_and_leads_to_the_older(app: App, client: httpx2.AsyncClient) -> None:
    await fill(app, "s1", 7)
    pages = []
    before: int | None = None
    while True:
        parameters = {"limit": 3} if before is None else {"limit": 3, "before": before}
        page = (await client.get("/api/v1/chat/history/s1", params=parameters)).json()
        assert set(page) == {"session_id", "messages", "count", "next_before"}
        assert page["session_id"] == "s1"
        assert page["count"] == len(page["messages"])
        pages.append([message["seq"] for message in page["messages"]])
        if (before := page["next_before"]) is None:
            break
    assert pages == [[5, 6, 7], [2, 3, 4], [1]]


async def test_fifty_messages_unless_another_limit_is_given(app: App, client: httpx2.AsyncClient) -> None:
    """The default limit is 50, and the highest 200."""
    await fill(app, "s1", 210)
    assert [message["seq"] for message in await history(client, "s1")] == list(range(161, 211))
    assert len(await history(client, "s1", limit="200")) == 200


async def test_each_message_has_the_documented_fields(app: App, client: httpx2.AsyncClient) -> None:
    """Only answers have a confidence and an escalation. The timestamp is the sender's if it is known."""
    sent = datetime(2024, 1, 15, 10, 0, tzinfo=UTC)
    messages = [
        Message(role="system", content="a note"),
        Message(role="user", content="hi", sent_at=sent),
        Message(role="assistant", content="hello", confidence=0.92, status="interrupted"),
        Message(role="assistant", content="again", escalated=True),
    ]
    await app.memory.session("s1").append(messages)
    note, question, answer, second = await history(client, "s1")
    stored = (await app.memory.session("s1").tail(4))[0].created_at
    assert stored is not None
    assert note.pop("timestamp") == stored.isoformat().replace("+00:00", "Z")
    assert note.pop("id")
    assert note == {"seq": 1, "role": "system", "content": "a note", "status": "complete"}
    assert question["timestamp"] == "2024-01-15T10:00:00Z"
    assert "confidence" not in question
    assert "escalated" not in question
    assert (answer["confidence"], answer["escalated"], answer["status"]) == (0.92, False, "interrupted")
    assert "confidence" not in second
    assert second["escalated"] is True


async def test_a_missing_session_is_a_404(app: App, client: httpx2.AsyncClient) -> None:
    await fill(app, "s1", 2, user_id="ann")
    check_problem(await client.get("/api/v1/chat/history/unknown"), 404, "session-not-found")
    check_problem(await client.get("/api/v1/chat/history/s1?user_id=bob"), 404, "session-not-found")
    assert len(await history(client, "s1", user_id="ann")) == 2
    assert len(await history(client, "s1")) == 2


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=x", "limit=", "before=0", "before=-1", "before=x", f"before={2**53}", "user_id="],
)
async def test_invalid_limits_are_a_422(app: App, client: httpx2.AsyncClient, query: str) -> None:
    await fill(app, "s1", 2)
    problem = check_problem(await client.get(f"/api/v1/chat/history/s1?{query}"), 422, "invalid-request")
    assert [error["parameter"] for error in problem["errors"]] == [query.partition("=")[0]]
