"""Tests of a service whose PostgreSQL stops: messages are answered, and each turn is stored once afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.limits import HANG_SECONDS
from tests.web.services import (
    check_problem,
    client_of,
    history,
    opened_app,
    said,
    say,
    settings_for,
    until,
)
from threadkeep.testing import Gate, ScriptedModel

if TYPE_CHECKING:
    import httpx2

    from tests.servers import Postgres

# The tests stop and start the same server, so they must not run at the same time.
pytestmark = pytest.mark.xdist_group("unsteady_postgres")


async def pending(client: httpx2.AsyncClient) -> int:
    """Return the number of pending writes in the metrics."""
    [line] = [
        line
        for line in (await client.get("/metrics")).text.splitlines()
        if line.startswith("threadkeep_agent_history_pending_writes{")
    ]
    return int(float(line.split()[-1]))


@pytest.fixture
def unsteady_url(unsteady_postgres: Postgres) -> Iterator[str]:
    """Return an empty database whose server can be stopped."""
    with unsteady_postgres.database() as url:
        yield url


@pytest.mark.slow
async def test_an_outage_loses_no_answer_and_no_turn(
    tmp_path: Path, unsteady_postgres: Postgres, unsteady_url: str
) -> None:
    """The chat answers during an outage with the context in memory, and each turn is stored once.

    Readiness and metrics report the outage.
    """
    settings = settings_for(tmp_path, database_url=unsteady_url, postgres_pool_timeout=1.0, write_timeout=0.5)
    model = ScriptedModel(lambda messages: f"to {messages[-1].text}" for _ in range(9))
    async with opened_app(model, settings) as app, client_of(app) as client:
        await say(client, "before", session_id="s1", user_id="ann")
        await asyncio.to_thread(unsteady_postgres.stop)
        started = time.monotonic()
        first = await say(client, "during 1", session_id="s1", user_id="ann", message_id="m1")
        second = await say(client, "during 2", session_id="s1", user_id="ann", message_id="m2")
        other = await say(client, "during 3", session_id="s2")
        assert time.monotonic() - started < HANG_SECONDS
        assert [one["response"] for one in (first, second, other)] == [f"to during {n}" for n in (1, 2, 3)]
        assert [message.text for message in model.calls[2]] == ["during 1", "to during 1", "during 2"]
        problem = check_problem(await client.get("/readyz"), 503, "database-unavailable")
        assert problem["pending_writes"] == await pending(client) == 6
        check_problem(await client.get("/api/v1/sessions"), 503, "database-unavailable")
        await asyncio.to_thread(unsteady_postgres.start)
        await until(lambda: is_ready(client))
        assert [each[:2] for each in said(await history(client, "s1", user_id="ann"))] == [
            ("user", "before"),
            ("assistant", "to before"),
            ("user", "during 1"),
            ("assistant", "to during 1"),
            ("user", "during 2"),
            ("assistant", "to during 2"),
        ]
        assert [message["content"] for message in await history(client, "s2")] == ["during 3", "to during 3"]
        again = await say(client, "during 1", session_id="s1", user_id="ann", message_id="m1")
        assert again["response"] == first["response"]
        assert len(await history(client, "s1", user_id="ann")) == 6
        assert len(model.calls) == 4


async def test_an_outage_during_a_turn_loses_no_answer(
    tmp_path: Path, unsteady_postgres: Postgres, unsteady_url: str
) -> None:
    settings = settings_for(tmp_path, database_url=unsteady_url, postgres_pool_timeout=1.0, write_timeout=0.5)
    gate = Gate()
    model = ScriptedModel(["ok", [gate, "the answer"]])
    async with opened_app(model, settings) as app, client_of(app) as client:
        await say(client, "before", session_id="s1")
        asking = asyncio.create_task(say(client, "during", session_id="s1", message_id="m1"))
        await gate.reached()
        await asyncio.to_thread(unsteady_postgres.stop)
        started = time.monotonic()
        gate.open()
        assert (await asking)["response"] == "the answer"
        assert time.monotonic() - started < HANG_SECONDS
        await asyncio.to_thread(unsteady_postgres.start)
        await until(lambda: is_ready(client))
        run_id = asking.result()["run_id"]

        async def is_recorded() -> bool:
            return bool((await client.get(f"/api/v1/runs/{run_id}")).json()["status"] == "done")

        await until(is_recorded)
        contents = [message["content"] for message in await history(client, "s1")]
        assert contents == ["before", "ok", "during", "the answer"]
        again = await say(client, "during", session_id="s1", message_id="m1")
        assert (again["run_id"], again["response"]) == (run_id, "the answer")
        assert len(model.calls) == 2


async def test_an_outage_discloses_no_session_of_another_user(
    tmp_path: Path, unsteady_postgres: Postgres, unsteady_url: str
) -> None:
    """During an outage, a message to another user's session is answered without its messages.

    It is not stored in it.
    """
    settings = settings_for(tmp_path, database_url=unsteady_url, postgres_pool_timeout=1.0, write_timeout=0.5)
    model = ScriptedModel("ok" for _ in range(9))
    async with opened_app(model, settings) as app, client_of(app) as client:
        await say(client, "before", session_id="s1", user_id="ann")
        await asyncio.to_thread(unsteady_postgres.stop)
        await say(client, "during", session_id="s1", user_id="ann")
        await say(client, "whose is it?", session_id="s1", user_id="bob")
        assert [message.text for message in model.calls[2]] == ["whose is it?"]
        await asyncio.to_thread(unsteady_postgres.start)
        await until(lambda: is_settled(client, waiting=2))
        contents = [message["content"] for message in await history(client, "s1")]
        assert contents == ["before", "ok", "during", "ok"]
        body = {"message": "whose is it?", "session_id": "s1", "user_id": "bob"}
        check_problem(await client.post("/api/v1/chat", json=body), 404, "session-not-found")


async def is_settled(client: httpx2.AsyncClient, *, waiting: int) -> bool:
    """Return whether the database answers and a number of turns is pending, which it refuses."""
    response = await client.get("/readyz")
    return response.status_code == 200 and response.json()["pending_writes"] == waiting


async def is_ready(client: httpx2.AsyncClient) -> bool:
    """Return whether the database answers and no turn is pending."""
    response = await client.get("/readyz")
    return response.status_code == 200 and response.json()["pending_writes"] == await pending(client) == 0
