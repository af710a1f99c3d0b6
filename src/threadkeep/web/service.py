"""The FastAPI application over an open `App`, with readiness and metrics, and the process that runs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from threadkeep.app import App, open_app
from threadkeep.errors import DatabaseFileReplaced, StoreError, ThreadkeepError
from threadkeep.observe.log import LogObserver, configure_logging
from threadkeep.runs.streams import retry_until_available
from threadkeep.settings import Settings, unknown_variables
from threadkeep.store.migrations import known_migrations
from threadkeep.version import __version__
from threadkeep.web.api import chat, facts, persons, runs, sessions, workflows
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.callers import PUBLIC, Credentials
from threadkeep.web.chat_protocols import ag_ui, ai_sdk, openai
from threadkeep.web.console import calls, sign_in, status
from threadkeep.web.console import runs as console_runs
from threadkeep.web.console import sessions as console_sessions
from threadkeep.web.langgraph import assistants, commands, store, threads
from threadkeep.web.langgraph import runs as thread_runs
from threadkeep.web.middleware import (
    CALLBACKS,
    CONSOLE_FILES,
    DOCS,
    DOCS_FILES,
    DOCS_PAGE,
    OPEN_PATHS,
    Access,
    SafeResponses,
)
from threadkeep.web.problems import Problem, ProblemRaised, answer_errors_with_problems, documented, make_problem
from threadkeep.web.schemas import Health, Readiness
from threadkeep.web.server import ConnectionLimits, Server, address_of, bind

HEARTBEAT_SECONDS = 5.0
_PREFLIGHT_SECONDS = 600

_logger = logging.getLogger("threadkeep.web")
_print = partial(print, flush=True)

_DESCRIPTION = """
A chat with memory. Every conversation is a **session**, which is stored permanently; each model call sees the newest
part of it that fits. A workflow answers, and each answer is a **run**. A client waits for the run, streams it, or lets
it continue in the background; if its process dies, another one continues it. Errors are problem documents (RFC 9457):
`type` is for programs, `detail` says what to do.
"""


# For the OpenAPI document; `Access` checks the keys.
_KEYS: dict[str, dict[str, str]] = {
    "HTTPBearer": {"type": "http", "scheme": "bearer"},
    "APIKeyHeader": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_REFUSALS = (401, 403, 429)


class Service(FastAPI):
    """A FastAPI application whose OpenAPI document describes problem documents and API keys."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        document = super().openapi()
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= {**problem.pop("$defs"), "Problem": problem}
        needed = self.state.app.settings.needs_keys or self.state.keys.in_use
        if needed:
            document["components"]["securitySchemes"] = _KEYS
        for path, operations in document["paths"].items():
            for operation in operations.values() if path not in OPEN_PATHS else ():
                if needed and not path.startswith(CALLBACKS):
                    operation["security"] = [{name: []} for name in _KEYS]
                responses = {str(status): response for status, response in documented(*_REFUSALS).items()}
                operation["responses"] = dict(sorted({**responses, **operation["responses"]}.items()))
        return document


_health = APIRouter(tags=["health"])

PATIENCE_SECONDS = 2.0


@_health.get("/healthz", summary="Is the service alive?")
async def healthz() -> Health:
    """Return 200 as long as the process responds. No key is needed."""
    return Health()


@_health.get("/readyz", summary="Can the service work?", responses=documented(503), openapi_extra=PUBLIC)
async def readyz(app: AppInUse) -> Readiness:
    """Return 200 if the database responds within two seconds; otherwise 503, because the chat would have no history."""
    backend = app.settings.database.backend
    state = Readiness(
        backend=backend,
        # The database has the newest schema, because it was migrated when the memory was opened.
        schema_version=known_migrations(backend)[-1][0],
        pending_writes=app.memory.pending.count,
        unreadable_writes=len(await app.memory.pending.damaged()),
    )
    sentence: str | None = None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await app.memory.check_database()
    except DatabaseFileReplaced as error:
        sentence = error.CURE
    except (StoreError, TimeoutError):
        sentence = "The database does not answer; check that it runs. Turns are kept until it does."
    if sentence is not None:
        problem = make_problem(503, "database-unavailable", sentence)
        raise ProblemRaised(problem.model_copy(update={**state.model_dump(), "ready": False}))
    return state


@_health.get("/metrics", summary="Get the metrics", response_class=PlainTextResponse, responses=documented(404))
async def metrics(app: AppInUse) -> Response:
    """Return all metrics in the text format of Prometheus."""
    if app.metrics is None:
        sentence = "Metrics are not installed: pip install 'threadkeep[metrics]', and restart the service."
        raise ProblemRaised(make_problem(404, "not-measured", sentence))
    counts: Mapping[str, int] | None = None
    with suppress(StoreError, TimeoutError):  # without an answer in time, there are no counts
        async with asyncio.timeout(PATIENCE_SECONDS):
            counts = asdict(await app.memory.runs.records.counts())
    app.metrics.set_runs(counts)
    return Response(app.metrics.render(), media_type=app.metrics.content_type)


def create_service(app: App, *, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> FastAPI:
    """Return the FastAPI application over an open App. The caller closes the App.

    A silent stream sends a comment every `heartbeat_seconds`, so that its connection stays open.
    """
    settings = app.settings
    credentials = Credentials(settings, app.memory)
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
    # Do not use `include_router`, which would build each of these routes again at the first request.
    api = (chat.router, sessions.router, sessions.contexts_router, workflows.router, runs.router, facts.router)
    around = (persons.router, facts.graphiti_router, chat.channels_router, _health)
    others = (chat.chatkit_router, sessions.search_router, facts.procedures_router, persons.users_router)
    protocols = (assistants, threads, commands, thread_runs, store, openai, ai_sdk, ag_ui)
    for router in (*api, *around, *others, *(part.router for part in protocols)):
        service.router.routes.extend(router.routes)
    for route in service.router.routes:
        if isinstance(route, APIRoute):
            # Generated clients use operation ids as function names, and FastAPI's ids would contain the whole path.
            route.operation_id = route.operation_id or route.name
    # Serve Swagger UI from local files. The routes of fastapi-swagger would add other pages.
    service.mount(DOCS_FILES, StaticFiles(packages=[("fastapi_swagger", "resources")]))
    service.get(DOCS, include_in_schema=False)(_docs_page)
    answer_errors_with_problems(service)
    service.mount(CONSOLE_FILES, StaticFiles(packages=[("threadkeep.web.console", "static")]))
    for pages in (console_sessions, calls, console_runs, status, sign_in):
        service.router.routes.extend(pages.router.routes)
    service.add_exception_handler(HTTPException, sign_in.respond_to_browsers)
    service.state.keys = credentials.keys
    service.add_middleware(
        Access,
        credentials=credentials,
        needed=settings.needs_keys,
        routes=service.router.routes,
        body_limit=settings.body_limit,
        origins=settings.cors_origins,
    )
    if settings.cors_origins:
        # Run this before `Access`, which would reject a browser's preflight without a key.
        service.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["*"],
            # Chrome requires this header if a public page calls a service in a private network.
            allow_private_network=True,
            expose_headers=["Content-Location", "Location", "Retry-After", "X-Session-Id"],
            max_age=_PREFLIGHT_SECONDS,
        )
    service.add_middleware(SafeResponses)
    return service


async def _docs_page(request: Request) -> HTMLResponse:
    # FastAPI caches every endpoint for the life of the process, so an endpoint that refers to its service would keep
    # the service in memory.
    service: FastAPI = request.app
    script, style, icon = DOCS_PAGE
    return get_swagger_ui_html(
        openapi_url=service.openapi_url or "",
        title=service.title,
        swagger_js_url=script,
        swagger_css_url=style,
        swagger_favicon_url=icon,
    )


async def serve(settings: Settings, announce: Callable[[str], object] = _print) -> None:
    """Run the service until a signal to stop, then wait for running turns within the configured time.

    On startup, `announce` gets the startup message; by default, it is printed.

    Raises:
        InvalidSettings, InvalidWorkflow: a setting, such as the address or the model, or a workflow is invalid.
        StoreUnavailable, SchemaTooNew: the database cannot be used.
    """
    configure_logging(settings.log_level, json=settings.log_json)
    for sentence in unknown_variables():
        _logger.warning(sentence)
    with bind(settings.host, settings.port) as listening:
        host, port = listening.getsockname()[:2]

        def on_start() -> None:
            with suppress(OSError):  # stdout may be closed or full
                announce(announcement(settings, host, port, app.channels.names if app.channels is not None else ()))

        async with open_app(settings, observers=[LogObserver()], bots=True) as app:
            limits = ConnectionLimits(settings.max_connections, settings.header_timeout, settings.body_timeout)
            service = create_service(app)
            await service.state.keys.refresh()  # read the keys now, so that they stay valid if the database fails later
            server = Server(
                service, app.end_turns, shutdown_seconds=settings.shutdown_timeout, on_start=on_start, limits=limits
            )
            working = asyncio.create_task(_work(app), name="threadkeep-worker")
            await server.serve(sockets=[listening])
            working.cancel()


async def _work(app: App) -> None:
    """Start executing queued runs and runs of dead processes. Retry until the database responds.

    Any other error of Threadkeep is logged, and the process continues, but does not execute these runs.
    """
    try:
        await retry_until_available(app.runs.service)
    except ThreadkeepError as error:
        _logger.error("this process does not execute queued runs: %s", error)


def announcement(settings: Settings, host: str, port: int, bots: Sequence[str] = ()) -> str:
    """Return the startup message: the version, the addresses, the database, the model and the bots."""
    address = address_of(host, port)
    model = f"  model     {settings.model}"
    if settings.model == "demo":
        model += "; for a real one set THREADKEEP_MODEL=openai:gpt-5-mini (with OPENAI_API_KEY), ollama:qwen3, or any"
        model += " name that LangChain's init_chat_model takes"
    lines = [
        f"Threadkeep {__version__} listens on {address} (Ctrl+C stops it)",
        f"  console   {address}/",
        f"  chat      POST {address}/api/v1/chat",
        f"  API docs  {address}/docs",
        f"  health    {address}/healthz and {address}/readyz",
        f"  metrics   {address}/metrics",
        f"  database  {settings.database}",
        model,
        *([f"  bots      {', '.join(bots)}"] if bots else []),
    ]
    return "\n".join(lines)
