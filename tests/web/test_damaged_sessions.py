"""Tests of damaged items in a graph store over HTTP: only their own session is affected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.databases import query
from tests.graph_store.damaging import DAMAGES, SAMPLE, SESSIONS
from tests.web.services import check_problem, client_of, history, opened_app, say, settings_for, until
from threadkeep.app import App
from threadkeep.testing import ScriptedModel

WELL = "well"
ANN = {"user_id": "ann"}


@asynccontextmanager
async def service(folder: Path, url: str) -> AsyncIterator[tuple[httpx2.AsyncClient, App]]:
    """Open a service with its transcripts in a graph store, and a damaged session of each kind."""
    settings = settings_for(folder, database_url=url, transcripts="graph_store")
    model = ScriptedModel(lambda messages: f"{len(messages)} seen" for _ in range(999))
    async with opened_app(model, settings) as app, client_of(app) as client:
        for session_id in (*SESSIONS, WELL):
            await say(client, f"remember {session_id}", session_id=session_id, **ANN)
        for session_id, kind in SESSIONS.items():
            await asyncio.to_thread(DAMAGES[kind].do, url, session_id)
        yield client, app


async def test_a_damaged_session_is_answered_and_its_turn_is_pending(shared_url: str, tmp_path: Path) -> None:
    """A damaged session is answered without memory and its turns are pending. Other sessions have their memory."""
    async with service(tmp_path, shared_url) as (client, app):
        heard: dict[str, list[str]] = {}
        for session_id, kind in SESSIONS.items():
            answers = [await say(client, "and?", session_id=session_id, message_id="m:1", **ANN) for _ in range(2)]
            heard[kind] = [answer["response"] for answer in answers]
        assert heard == {kind: ["1 seen"] * 2 for kind in SAMPLE}
        waiting = [entry.turn.session_id for entry in app.memory.pending.entries]
        assert sorted(waiting) == sorted([*SESSIONS, *SESSIONS])
        assert (await say(client, "and?", session_id=WELL, **ANN))["response"] == "3 seen"

        async def is_kept() -> bool:
            return len(await history(client, WELL)) == 4

        await until(is_kept)


async def test_a_damaged_session_is_named_to_its_user_only(shared_url: str, tmp_path: Path) -> None:
    """The history of a damaged session is a problem.

    Lists and searches name it to its user only and have the other sessions.
    """
    async with service(tmp_path, shared_url) as (client, _):
        reported: dict[str, str] = {}
        for session_id, kind in SESSIONS.items():
            response = await client.get(f"/api/v1/chat/history/{session_id}", params=ANN)
            problem = check_problem(response, 409, "session-damaged")
            assert problem["session_id"] == session_id
            assert "remember" not in str(problem)
            assert (
                await client.get(f"/api/v1/chat/history/{session_id}", params={"user_id": "bob"})
            ).status_code == 404
            reported[kind] = problem["item"]
        assert reported == {kind: DAMAGES[kind].reported for kind in SAMPLE}
        for parameters in ({}, ANN):
            found = (await client.get("/api/v1/search", params={"q": "remember", **parameters})).json()
            assert WELL in [hit["session_id"] for hit in found["hits"]]
            assert found["damaged"] == sorted(SESSIONS)
            listed = (await client.get("/api/v1/sessions", params={"limit": 200, **parameters})).json()
            assert WELL in [each["session_id"] for each in listed["sessions"]]
            assert listed["damaged"] == sorted(SESSIONS)
        assert "damaged" not in (await client.get("/api/v1/sessions", params={"user_id": "bob"})).json()
        pages: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = (
                await client.get("/api/v1/sessions", params={"limit": 1} | ({"cursor": cursor} if cursor else {}))
            ).json()
            pages += [each["session_id"] for each in page["sessions"]]
            cursor = page["next_cursor"]
        assert WELL in pages


async def test_a_search_for_threads_finds_those_beside_damaged_ones(shared_url: str, tmp_path: Path) -> None:
    async with service(tmp_path, shared_url) as (client, _):
        response = await client.post("/threads/search", json={"ids": [*SESSIONS, WELL]})
        values = {one["thread_id"]: one["values"] for one in response.json()}
        assert values.pop(WELL)["messages"][0]["content"] == f"remember {WELL}"
        assert set(values.values()) <= {None}


@pytest.mark.slow
async def test_a_damaged_session_is_erased(shared_url: str, tmp_path: Path) -> None:
    async with service(tmp_path, shared_url) as (client, app):
        for session_id in SESSIONS:
            await say(client, "and?", session_id=session_id, **ANN)
            assert (await client.delete(f"/api/v1/sessions/{session_id}", params={"user_id": "bob"})).status_code == 404
            assert (await client.delete(f"/api/v1/sessions/{session_id}", params=ANN)).status_code == 204
            assert (await client.get(f"/api/v1/chat/history/{session_id}")).status_code == 404
        await until(lambda: app.memory.pending.entries == ())
        assert "damaged" not in (await client.get("/api/v1/sessions")).json()
        assert "damaged" not in (await client.get("/api/v1/search", params={"q": "remember"})).json()
        left = await asyncio.to_thread(query, shared_url, "SELECT prefix, key FROM store")
        assert all(WELL in f"{prefix} {key}" for prefix, key in left)
        await say(client, "a new beginning", session_id=next(iter(SESSIONS)), **ANN)
        await until(lambda: app.memory.pending.entries == ())  # on a busy machine the turn may be answered first
        assert len(await history(client, next(iter(SESSIONS)))) == 2
