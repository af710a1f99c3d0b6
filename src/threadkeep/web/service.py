"""The service: its application over an open `App`, and the process that runs it."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, TextIO

from fastapi import FastAPI

from threadkeep.app import App, open_app
from threadkeep.errors import ThreadkeepError
from threadkeep.observe.log import LogObserver, configure_logging
from threadkeep.runs.insisting import insist
from threadkeep.settings import Settings
from threadkeep.version import __version__
from threadkeep.web.access import Access
from threadkeep.web.api import chat, health, manifests, retention, runs, search, sessions, workflows
from threadkeep.web.description import describe
from threadkeep.web.headers import SafeHeaders
from threadkeep.web.limits import BodyLimit
from threadkeep.web.problems import Problem, answer_errors_with_problems
from threadkeep.web.server import Server, bind

HEARTBEAT_SECONDS = 15.0

_logger = logging.getLogger("threadkeep.web")

_DESCRIPTION = """
A chat that remembers. Every conversation is a **session**, kept for good; each call of the model sees the newest part
of it that fits. What answers is a workflow, and each time it does so is a **run**: it is waited for, read as it
happens, or left to others, and goes on elsewhere if its process dies. Errors are problem documents (RFC 9457): `type`
is for programs, `detail` says what to do.
"""


# What readers of /docs are told of keys. `Access` decides.
_KEYS: dict[str, dict[str, str]] = {
    "HTTPBearer": {"type": "http", "scheme": "bearer"},
    "APIKeyHeader": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


class Service(FastAPI):
    """A FastAPI application whose OpenAPI document knows problem documents, and keys where they are wanted."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        document = super().openapi()
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= {**problem.pop("$defs"), "Problem": problem}
        if self.state.app.settings.api_keys:
            document["components"]["securitySchemes"] = _KEYS
            for path, operations in document["paths"].items():
                for operation in operations.values() if path.startswith("/api/") else ():
                    operation["security"] = [{name: []} for name in _KEYS]
        return document


def create_service(app: App, *, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> FastAPI:
    """The application over an open App, which it neither opens nor closes.

    `heartbeat_seconds` is how long a stream may be silent before a comment keeps its connection open.
    """
    keys = [key.get_secret_value() for key in app.settings.api_keys.values()]
    service = Service(
        title="Threadkeep",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    service.state.app = app
    service.state.heartbeat_seconds = heartbeat_seconds
    # As they are: including a router would make each of its routes a second time, at the first request.
    for subject in (chat, sessions, manifests, retention, search, workflows, runs, health):
        service.router.routes.extend(subject.router.routes)
    describe(service)
    answer_errors_with_problems(service)
    service.add_middleware(BodyLimit, limit=app.settings.body_limit)
    service.add_middleware(Access, keys=keys)
    service.add_middleware(SafeHeaders)
    return service


async def serve(settings: Settings, *, output: TextIO = sys.stdout) -> None:
    """Run the service until SIGTERM or SIGINT, then let running turns finish within the settings' limit.

    Raises:
        InvalidSettings: the address or the model cannot be used.
        StoreUnavailable, SchemaTooNew: the database cannot be used.
    """
    configure_logging(settings.log_level, json=settings.log_json)
    with bind(settings.host, settings.port) as listening:
        host, port = listening.getsockname()[:2]

        def announce() -> None:
            output.write(announcement(settings, host, port))
            output.flush()

        async with open_app(settings, observers=[LogObserver()]) as app:
            server = Server(
                create_service(app), app.end_turns, shutdown_seconds=settings.shutdown_timeout, on_start=announce
            )
            working = asyncio.create_task(_work(app), name="threadkeep-worker")
            await server.serve(sockets=[listening])
            working.cancel()


async def _work(app: App) -> None:
    """Carry queued runs out, and those that other processes left: as soon as the database answers.

    What else keeps a service from that keeps no chat.
    """
    try:
        await insist(app.runs.service)
    except ThreadkeepError as error:
        _logger.error("queued runs are not carried out by this process: %s", error)


def announcement(settings: Settings, host: str, port: int) -> str:
    """What the service says when it is up: where everything is, and how to use a real model."""
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    model = f"  model     {settings.model}"
    if settings.model == "demo":
        model += "; for a real one set THREADKEEP_MODEL=openai:gpt-5-mini (with OPENAI_API_KEY), ollama:qwen3, or any"
        model += " name that LangChain's init_chat_model takes"
    lines = [
        f"Threadkeep {__version__} listens on {address} (Ctrl+C stops it)",
        f"  chat      POST {address}/api/v1/chat",
        f"  API docs  {address}/docs",
        f"  health    {address}/healthz and {address}/readyz",
        f"  metrics   {address}/metrics",
        f"  database  {settings.database}",
        model,
    ]
    return "\n".join(lines) + "\n"
