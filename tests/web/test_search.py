"""Tests of GET /api/v1/search: messages in any script, with the ownership of users."""

from __future__ import annotations

import httpx2
import pytest

from tests.web.services import check_problem, say


async def test_a_new_message_is_found_at_once(client: httpx2.AsyncClient) -> None:
    await say(client, "I want a refund of order 17.", session_id="s1")
    await say(client, "Good morning", session_id="s2")
    found = (await client.get("/api/v1/search?q=refund")).json()
    assert found["count"] == len(found["hits"]) == 1
    [hit] = found["hits"]
    assert set(hit) == {"session_id", "score", "message"}
    assert hit["session_id"] == "s1"
    assert (hit["message"]["seq"], hit["message"]["content"]) == (1, "I want a refund of order 17.")


async def test_chinese_is_found(client: httpx2.AsyncClient) -> None:
    await say(client, "我想申请退款，订单号是十七。", session_id="s1")
    hits = (await client.get("/api/v1/search", params={"q": "申请退款"})).json()["hits"]
    assert [hit["session_id"] for hit in hits] == ["s1"]


async def test_a_user_finds_only_their_own_messages(client: httpx2.AsyncClient) -> None:
    await say(client, "refund one", session_id="s1", user_id="ann")
    await say(client, "refund two", session_id="s2", user_id="bob")
    hits = (await client.get("/api/v1/search?q=refund&user_id=ann")).json()["hits"]
    assert [hit["session_id"] for hit in hits] == ["s1"]
    assert (await client.get("/api/v1/search?q=refund&limit=1")).json()["count"] == 1


@pytest.mark.parametrize("q", ['"', "refund OR", "a" * 1000, "%", "\x00", "NEAR(", "*", "''", " "])
async def test_any_text_can_be_searched_for(client: httpx2.AsyncClient, q: str) -> None:
    """No text is interpreted as query syntax."""
    response = await client.get("/api/v1/search", params={"q": q})
    assert (response.status_code, response.json()) == (200, {"hits": [], "count": 0, "unindexed": 0})


async def test_an_incomplete_search_is_reported(client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response has the number of the user's messages that are not indexed yet."""

    async def nothing_done(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr("threadkeep.store.search.SearchIndex.catch_up", nothing_done)
    monkeypatch.setattr("threadkeep.store.search.SearchIndex.unindexed", unindexed)
    found = (await client.get("/api/v1/search?q=refund&user_id=ann")).json()
    assert found == {"hits": [], "count": 0, "unindexed": 3}


async def unindexed(_: object, *, user_id: str | None = None, session_id: str | None = None) -> int:
    """Return the number of letters of the user's name."""
    return len(user_id or "")


@pytest.mark.parametrize(
    ("query", "parameter"), [("", "q"), ("q=", "q"), (f"q={'x' * 1001}", "q"), ("q=a&limit=0", "limit")]
)
async def test_invalid_searches_are_a_422(client: httpx2.AsyncClient, query: str, parameter: str) -> None:
    problem = check_problem(await client.get(f"/api/v1/search?{query}"), 422, "invalid-request")
    assert problem["errors"][0]["parameter"] == parameter
