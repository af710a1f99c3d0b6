"""Tests of retention over HTTP: limits of a session, ownership, and the remains of pruned runs."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.web.services import check_problem, client_of, opened_app, say, settings_for, until
from threadkeep.app import App
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.retention_rounds import RunRetention
from threadkeep.records import Message, Retention, RetentionLimits
from threadkeep.testing import ScriptedModel

PATH = "/api/v1/sessions/s1/retention"
NONE = {"max_age_days": None, "max_messages": None, "max_idle_days": None}
NO_LIMITS = {"archive": NONE, "delete": NONE}


async def test_a_session_has_no_limits_of_its_own_at_first(client: httpx2.AsyncClient) -> None:
    """The response has the rules of the service and the newest pruned seqs."""
    await say(client, "hi", session_id="s1")
    told = (await client.get(PATH)).json()
    assert told == {"session_id": "s1", "own": None, "rules": NO_LIMITS, "archived_seq": 0, "deleted_seq": 0}


async def test_limits_are_set_and_deleted(client: httpx2.AsyncClient, app: App) -> None:
    """`PUT` replaces all limits of a session, an empty one keeps it for ever, and after `DELETE` the rules apply."""
    await say(client, "hi", session_id="s1")
    given = await client.put(PATH, json={"archive": {"max_age_days": 30}, "delete": {"max_messages": 500}})
    assert given.status_code == 200
    own = {"archive": {**NONE, "max_age_days": 30}, "delete": {**NONE, "max_messages": 500}}
    assert given.json()["own"] == own
    assert (await client.get(PATH)).json() == given.json()
    expected = Retention(RetentionLimits(max_age_days=30), RetentionLimits(max_messages=500))
    assert await app.memory.retention.of("s1") == expected
    assert (await client.put(PATH, json={})).json()["own"] == NO_LIMITS
    assert await app.memory.retention.of("s1") == Retention()
    assert (await client.delete(PATH)).json()["own"] is None
    assert await app.memory.retention.of("s1") is None


async def test_pruned_seqs_are_reported(client: httpx2.AsyncClient, app: App) -> None:
    for number in range(4):
        await say(client, f"hi {number}", session_id="s1")
    await client.put(PATH, json={"archive": {"max_messages": 2}, "delete": {"max_messages": 4}})
    await app.memory.retention.prune()
    told = (await client.get(PATH)).json()
    assert (told["archived_seq"], told["deleted_seq"]) == (6, 4)
    history = (await client.get("/api/v1/chat/history/s1", params={"limit": 4})).json()
    assert [message["seq"] for message in history["messages"]] == [5, 6, 7, 8]
    assert history["next_before"] is None
    assert (await client.get("/api/v1/sessions/s1")).json()["message_count"] == 4


async def test_an_agents_own_conversation_has_no_limits(client: httpx2.AsyncClient, app: App) -> None:
    """An agent's own conversation follows the rules; its own limits cannot be set or deleted."""
    beside = await app.memory.namespace(GraphLayout(), await app.memory.graph_store())
    await beside.session("s1", user_id="ann").append([Message(role="user", content="Hi")])
    told = (await client.get(PATH)).json()
    assert told == {"session_id": "s1", "own": None, "rules": NO_LIMITS, "archived_seq": 0, "deleted_seq": 0}
    for change in (client.put(PATH, json={}), client.delete(PATH)):
        problem = check_problem(await change, 422, "invalid-request")
        assert "rules apply to it" in problem["detail"]
    check_problem(await client.put(f"{PATH}?user_id=bob", json={}), 404, "session-not-found")


async def test_another_users_session_is_not_found(client: httpx2.AsyncClient) -> None:
    await say(client, "hi", session_id="s1", user_id="ann")
    for path in (f"{PATH}?user_id=ben", "/api/v1/sessions/nobody/retention"):
        for response in (await client.get(path), await client.put(path, json={}), await client.delete(path)):
            check_problem(response, 404, "session-not-found")
    assert (await client.put(f"{PATH}?user_id=ann", json={})).status_code == 200


async def test_the_service_prunes_by_itself(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, retention_delete_max_messages=2, retention_interval_hours=1e-6)
    async with opened_app(ScriptedModel(["One.", "Two."]), settings) as app, client_of(app) as client:
        await say(client, "first", session_id="s1")
        await say(client, "second", session_id="s1")

        async def are_gone_and_counted() -> bool:
            """Return whether they are deleted and counted: the count follows at the end of the round."""
            gone = (await client.get(PATH)).json()["deleted_seq"] == 2
            metrics = (await client.get("/metrics")).text
            return gone and 'threadkeep_pruned_messages_total{action="delete"} 2.0' in metrics

        await until(are_gone_and_counted)
        assert (await client.get("/api/v1/sessions/s1")).json()["message_count"] == 2


@pytest.mark.parametrize(
    "body",
    [
        {"archive": {"max_age_days": 0}},
        {"delete": {"max_messages": 0}},
        {"delete": {"max_messages": 1.5}},
        {"delete": {"max_idle_days": 40_000}},
        {"keep": {}},
        {"delete": {"max_words": 3}},
        [],
    ],
)
async def test_an_invalid_limit_is_refused(client: httpx2.AsyncClient, body: object) -> None:
    await say(client, "hi", session_id="s1")
    check_problem(await client.put(PATH, json=body), 422, "invalid-request")
    assert (await client.get(PATH)).json()["own"] is None


async def test_a_message_is_answered_once_after_its_run_was_pruned(tmp_path: Path) -> None:
    """A repeat of a message whose run was pruned returns the stored answer without a model call, streamed or not."""
    model = ScriptedModel(["hello", "not this"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        body = {"message": "hi", "session_id": "s1", "message_id": "m1"}
        first = (await client.post("/api/v1/chat", json=body)).json()
        assert (await app.memory.run_retention.prune(RunRetention(keep_days=0.0))).runs == 1
        again = (await client.post("/api/v1/chat", json=body)).json()
        same = ("session_id", "run_id", "message_id", "response", "escalated")
        assert [again[name] for name in same] == [first[name] for name in same]
        assert '"response": "hello"' in (await client.post("/api/v1/chat/stream", json=body)).text
        assert (await client.get("/api/v1/chat/history/s1")).json()["count"] == 2
    assert len(model.calls) == 1
