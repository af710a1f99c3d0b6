"""GET /api/v1/search: what was said is found, in any script, each user their own."""

from __future__ import annotations

import httpx2
import pytest

from tests.web.services import check_problem, say


async def test_what_was_said_a_moment_ago_is_found(client: httpx2.AsyncClient) -> None:
    """With its place and how well it fits."""
    await say(client, "I want a refund of order 17.", session_id="s1")
    await say(client, "Good morning", session_id="s2")
    found = (await client.get("/api/v1/search?q=refund")).json()
    assert found["count"] == len(found["hits"]) == 1
    [hit] = found["hits"]
    assert set(hit) == {"session_id", "score", "message"}
    assert hit["session_id"] == "s1"
    assert (hit["message"]["seq"], hit["message"]["content"]) == (1, "I want a refund of order 17.")


async def test_chinese_is_found(client: httpx2.AsyncClient) -> None:
    """Words without spaces between them."""
    await say(client, "我想申请退款，订单号是十七。", session_id="s1")
    hits = (await client.get("/api/v1/search", params={"q": "申请退款"})).json()["hits"]
    assert [hit["session_id"] for hit in hits] == ["s1"]


async def test_a_user_finds_their_own(client: httpx2.AsyncClient) -> None:
    """And at most as many as they ask for."""
    await say(client, "refund one", session_id="s1", user_id="ann")
    await say(client, "refund two", session_id="s2", user_id="bob")
    hits = (await client.get("/api/v1/search?q=refund&user_id=ann")).json()["hits"]
    assert [hit["session_id"] for hit in hits] == ["s1"]
    assert (await client.get("/api/v1/search?q=refund&limit=1")).json()["count"] == 1


@pytest.mark.parametrize("q", ['"', "refund OR", "a" * 1000, "%", "\x00", "NEAR(", "*", "''", " "])
async def test_any_text_can_be_searched_for(client: httpx2.AsyncClient, q: str) -> None:
    """Nothing in it is taken for a command."""
    response = await client.get("/api/v1/search", params={"q": q})
    assert (response.status_code, response.json()) == (200, {"hits": [], "count": 0, "unindexed": 0})


async def test_a_search_that_could_not_look_at_all_says_so(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how many messages it missed, of the user who asks."""

    async def nothing_done(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr("threadkeep.store.search.SearchIndex.catch_up", nothing_done)
    monkeypatch.setattr("threadkeep.store.search.SearchIndex.unindexed", unindexed)
    found = (await client.get("/api/v1/search?q=refund&user_id=ann")).json()
    assert found == {"hits": [], "count": 0, "unindexed": 3}


async def unindexed(_: object, *, user_id: str | None = None, session_id: str | None = None) -> int:
    """As many as the user's name has letters."""
    return len(user_id or "")


@pytest.mark.parametrize(
    ("query", "parameter"), [("", "q"), ("q=", "q"), (f"q={'x' * 1001}", "q"), ("q=a&limit=0", "limit")]
)
async def test_searches_that_cannot_be_made_are_a_422(client: httpx2.AsyncClient, query: str, parameter: str) -> None:
    """The problem names the parameter."""
    problem = check_problem(await client.get(f"/api/v1/search?{query}"), 422, "invalid-request")
    assert problem["errors"][0]["parameter"] == parameter
