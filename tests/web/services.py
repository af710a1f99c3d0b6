"""Helpers that open services with a scripted model, called in process or through a socket."""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from langchain_core.language_models import BaseChatModel
from starlette.types import ASGIApp

from tests.limits import HANG_SECONDS
from threadkeep.app import App, chat_of, chat_options, load_workflows, resources_of, runs_of
from threadkeep.memory import open_memory
from threadkeep.observe.prometheus import PrometheusObserver
from threadkeep.settings import Settings, load_settings
from threadkeep.web.server import ConnectionLimits, Server, bind
from threadkeep.web.service import HEARTBEAT_SECONDS, create_service


def settings_for(folder: Path, **overrides: object) -> Settings:
    """Return settings whose files are below a folder. The database is in memory by default."""
    return load_settings(**{"database_url": "sqlite://", "pending_dir": folder / "pending", **overrides})


async def until(fact: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until a condition is true, in this process or in another one."""
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            answer = fact()
            if await answer if inspect.isawaitable(answer) else answer:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def opened_app(model: BaseChatModel, settings: Settings) -> AsyncIterator[App]:
    """Open an App whose chat uses this model, whatever the settings name."""
    metrics = PrometheusObserver(backend=settings.database.backend)
    url = settings.database_url.get_secret_value()
    async with open_memory(url, observers=[metrics], options=settings.memory_options()) as memory:
        workflows, resources = load_workflows(settings), resources_of(memory, model, chat_options(settings))
        runs = runs_of(settings, memory, workflows, resources)
        chat = chat_of(settings, memory, workflows, resources, runs)
        app = App(settings, memory, chat, workflows, runs, metrics)
        try:
            yield app
        finally:
            await app.end_turns(0)


def client_of(app: App) -> httpx2.AsyncClient:
    """Return a client that calls the service without a socket."""
    transport = httpx2.ASGITransport(create_service(app), raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700", timeout=HANG_SECONDS)


@asynccontextmanager
async def served(
    app: App,
    *,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    shutdown_seconds: float = 0.0,
    limits: ConnectionLimits | None = None,
    wrapped_in: Callable[[ASGIApp], ASGIApp] = lambda service: service,
) -> AsyncIterator[tuple[httpx2.AsyncClient, Server]]:
    """Open a server behind a real socket, and yield a client and the server.

    The server stops after the block, or before.
    """
    started = asyncio.Event()
    service = create_service(app, heartbeat_seconds=heartbeat_seconds)
    service.add_middleware(wrapped_in)
    with bind("127.0.0.1", 0) as bound:
        server = Server(service, app.end_turns, shutdown_seconds=shutdown_seconds, on_start=started.set, limits=limits)
        task = asyncio.create_task(server.serve(sockets=[bound]))
        await started.wait()
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        try:
            async with httpx2.AsyncClient(base_url=address, timeout=HANG_SECONDS, trust_env=False) as client:
                yield client, server
        finally:
            server.handle_exit(signal.SIGTERM, None)
            await task


@asynccontextmanager
async def listening(app: App, *, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> AsyncIterator[httpx2.AsyncClient]:
    """Open a server behind a real socket, and yield a client, for streams and for disconnects."""
    async with served(app, heartbeat_seconds=heartbeat_seconds) as (client, _):
        yield client


@dataclass(frozen=True)
class Event:
    """A server-sent event; a comment has no name."""

    name: str
    data: Mapping[str, Any] = field(default_factory=dict)


async def events_of(response: httpx2.Response, *, comments: bool = False) -> AsyncIterator[Event]:
    """Yield the events of a stream as they arrive; with `comments`, each comment is an event without a name."""
    name = ""
    async for line in response.aiter_lines():
        if line.startswith(":"):
            if comments:
                yield Event("")
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield Event(name, json.loads(line.removeprefix("data: ")))


async def streamed(client: httpx2.AsyncClient, body: Mapping[str, object]) -> list[Event]:
    """Return all events of a chat stream."""
    async with client.stream("POST", "/api/v1/chat/stream", json=body) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        return [event async for event in events_of(response)]


async def say(client: httpx2.AsyncClient, message: str, **more: object) -> dict[str, Any]:
    """Send a message, and return the answer."""
    response = await client.post("/api/v1/chat", json={"message": message, **more})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def history(client: httpx2.AsyncClient, session_id: str, **parameters: str) -> list[dict[str, Any]]:
    """Return the messages of a session."""
    response = await client.get(f"/api/v1/chat/history/{session_id}", params=parameters)
    assert response.status_code == 200, response.text
    messages: list[dict[str, Any]] = response.json()["messages"]
    return messages


def said(messages: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return the role, text and status of each message."""
    return [(message["role"], message["content"], message["status"]) for message in messages]


def check_problem(response: httpx2.Response, status: int, kind: str) -> dict[str, Any]:
    """Check the problem document of a response, and return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["type"] == f"urn:threadkeep:{kind}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"].endswith(".")
    return problem


class UnreadBody(AsyncIterator[bytes]):
    """A request body that fails if it is read."""

    async def __anext__(self) -> bytes:
        """Fail."""
        raise AssertionError("the body was read")
