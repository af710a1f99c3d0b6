"""Tests of the server process: its socket, its announcement, and its shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sqlite3
import weakref
from pathlib import Path

import httpx2
import pytest

from tests.limits import HANG_SECONDS
from tests.runs.desk import living_process
from tests.web.services import (
    check_problem,
    client_of,
    events_of,
    history,
    opened_app,
    said,
    say,
    served,
    settings_for,
    streamed,
    until,
)
from threadkeep.app import App
from threadkeep.errors import InvalidSettings
from threadkeep.records.runs import NewRun, RunQuery
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.web.server import bind
from threadkeep.web.service import announcement, create_service


def test_an_unused_service_is_freed(app: App) -> None:
    """FastAPI's caches, which last as long as the process, hold no reference to the service."""
    service = weakref.ref(create_service(app))
    gc.collect()
    assert service() is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_the_socket_has_the_protocol_tcp(host: str) -> None:
    """Without IPPROTO_TCP, asyncio does not set TCP_NODELAY, and every request takes 40 ms more."""
    with bind(host, 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP
        assert bound.getsockname()[1] > 0


def test_a_used_port_is_refused_with_the_cure() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(InvalidSettings, match=r"stop the process .* THREADKEEP_PORT") as caught:
            bind("127.0.0.1", taken.getsockname()[1])
    assert caught.value.variable == "THREADKEEP_PORT"


def test_an_unknown_host_is_refused_with_the_cure() -> None:
    with pytest.raises(InvalidSettings, match="THREADKEEP_HOST is not an address of this machine"):
        bind("no.such.host.invalid", 8700)


def test_the_announcement_has_the_urls(tmp_path: Path) -> None:
    """The announcement has the URLs and how to use a real model, and no password or key."""
    url = "postgresql://ann:canary-secret@db/threads"
    settings = settings_for(tmp_path, database_url=url, api_keys="web:canary-key")
    lines = announcement(settings, "127.0.0.1", 8700)
    for path in ("/api/v1/chat", "/docs", "/healthz", "/readyz", "/metrics"):
        assert f"http://127.0.0.1:8700{path}" in lines
    [line] = [line for line in lines.splitlines() if "THREADKEEP_MODEL" in line]
    assert "THREADKEEP_MODEL=openai:gpt-5-mini" in line
    assert "canary" not in lines
    assert "http://[::1]:8700/docs" in announcement(settings, "::1", 8700)
    assert "THREADKEEP_MODEL" not in announcement(settings_for(tmp_path, model="openai:x"), "127.0.0.1", 8700)


async def test_a_shutdown_lets_a_running_turn_finish(tmp_path: Path) -> None:
    """During a shutdown the running turn ends within the limit, and new connections are refused."""
    gate = Gate()
    model = ScriptedModel([["first", gate, " last"]])
    async with (
        opened_app(model, settings_for(tmp_path)) as app,
        served(app, shutdown_seconds=HANG_SECONDS) as (client, server),
    ):
        reading = asyncio.create_task(streamed(client, {"message": "hi", "session_id": "s1"}))
        await gate.reached()
        server.handle_exit(signal.SIGTERM, None)
        await until(lambda: not server.servers[0].is_serving())
        with pytest.raises(httpx2.ConnectError):
            await client.get("/healthz")
        gate.open()
        events = await reading
        assert events[-1].name == "end"
        assert [message.content for message in await app.memory.session("s1").tail(9)] == ["hi", "first last"]


async def test_a_shutdown_ends_requests_that_wait_for_other_processes(tmp_path: Path) -> None:
    """A request that waits behind the turn of another process gets a problem document, not the status 500."""
    async with (
        living_process() as other,
        opened_app(ScriptedModel([]), settings_for(tmp_path)) as app,
        served(app, shutdown_seconds=0.1) as (client, server),
    ):
        active = NewRun(run_id="r1", workflow="chat", input={"text": "hi"}, session_id="s1", message_id="m1")
        await app.memory.runs.order.add(active, owner=other)
        body = {"message": "and?", "session_id": "s1", "message_id": "m2"}
        waiting = asyncio.create_task(client.post("/api/v1/workflows/chat/runs", json=body))

        async def is_queued() -> bool:
            return bool((await app.memory.runs.records.runs(RunQuery(status="queued")))[0])

        await until(is_queued)
        server.handle_exit(signal.SIGTERM, None)
        check_problem(await waiting, 503, "interrupted")


async def test_a_shutdown_ends_requests_that_wait_for_the_database(tmp_path: Path) -> None:
    """A request that cannot store its run within the time of a shutdown gets a problem document."""
    database = tmp_path / "test.db"
    settings = settings_for(tmp_path, database_url=f"sqlite:///{database}", lock_timeout=HANG_SECONDS)
    async with opened_app(ScriptedModel([]), settings) as app, served(app) as (client, server):
        await app.runs.service()
        server.config.timeout_graceful_shutdown = 0
        with contextlib.closing(sqlite3.connect(database)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(client.post("/api/v1/workflows/chat/runs", json={"message": "hi"}))
            await until(lambda: bool(server.server_state.tasks))
            running = {*server.server_state.tasks}
            server.handle_exit(signal.SIGTERM, None)
            await until(lambda: any(task.cancelling() for task in running))
        # The request ends when its wait for the lock ends, which must be after the shutdown began.
        check_problem(await waiting, 503, "interrupted")


async def test_a_shutdown_stores_partial_answers(tmp_path: Path) -> None:
    """A turn beyond the limit stores its partial answer and ends with an error.

    The next process answers a repeat.
    """
    model = ScriptedModel([["half an", Gate(), " answer"], "the whole answer"])
    settings = settings_for(tmp_path, database_url=f"sqlite:///{tmp_path}/threadkeep.db")
    body = {"message": "hi", "session_id": "s1", "message_id": "m1"}
    async with (
        opened_app(model, settings) as app,
        served(app, shutdown_seconds=0.1) as (client, server),
        client.stream("POST", "/api/v1/chat/stream", json=body) as response,
    ):
        events = events_of(response)
        assert [(await anext(events)).name for _ in range(3)] == ["start", "token", "token"]
        server.handle_exit(signal.SIGTERM, None)
        [last] = [event async for event in events]
    assert (last.name, last.data["type"], last.data["status"]) == ("error", "urn:threadkeep:interrupted", 503)
    async with opened_app(model, settings) as app, client_of(app) as client:
        stored = [("user", "hi", "complete"), ("assistant", "half an", "interrupted")]
        assert said(await history(client, "s1")) == stored
        assert (await say(client, **body))["response"] == "the whole answer"
        assert said(await history(client, "s1")) == [stored[0], ("assistant", "the whole answer", "complete")]
