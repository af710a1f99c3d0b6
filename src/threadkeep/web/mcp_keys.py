"""The MCP server over HTTP. Its bearer tokens are the keys of the service and users' tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from http import HTTPStatus
from socket import socket

from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.types import ASGIApp, Receive, Scope, Send

from threadkeep.adapters.mcp import McpCaller, memory_server
from threadkeep.errors import InvalidSettings
from threadkeep.memory import Memory
from threadkeep.settings import Settings
from threadkeep.store.api_keys import KEY_SCOPES
from threadkeep.web.callers import Credentials
from threadkeep.web.problems import ProblemRaised, problem_response
from threadkeep.web.server import ConnectionLimits, Server

_request: ContextVar[ExitStack | None] = ContextVar("request", default=None)
"""The exit stack of the current request; `KeyVerifier` enters contexts that last until the request ends."""


class KeyVerifier:
    """A verifier of bearer tokens: the keys of the service, and the signed tokens of its users."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the owner of a valid key or token, and count the request.

        Raises:
            ProblemRaised: 429 after too many requests or with too many open requests; 503 if keys cannot be read.
        """
        try:
            caller = await self._credentials.caller(token.encode("utf-8", "surrogateescape"))
        except ProblemRaised as refused:
            if refused.problem.status == HTTPStatus.UNAUTHORIZED:
                return None
            raise
        if caller is None:
            return None
        caller.count()
        if caller.user_id is not None and (request := _request.get()) is not None:
            request.enter_context(caller.limits.opened(caller.user_id))
        scopes: list[str] = [*KEY_SCOPES[: KEY_SCOPES.index(caller.scope) + 1]]
        return AccessToken(token="", client_id=caller.name, scopes=scopes, subject=caller.user_id)


async def keyed_server(memory: Memory, settings: Settings, address: str, *, writes: bool) -> MCPServer[object]:
    """Return an MCP server that accepts keys of the service and tokens of users.

    Raises:
        InvalidSettings: no API key exists, and no issuer of users' tokens is configured.
    """
    credentials = Credentials(settings, memory)
    await credentials.keys.refresh()
    if not credentials.keys.in_use and credentials.tokens is None:
        sentence = "Over HTTP each client needs a key; create one with `threadkeep keys add NAME --user ID`."
        raise InvalidSettings(sentence, variable="THREADKEEP_API_KEYS")
    auth = AuthSettings(issuer_url=AnyHttpUrl(address), resource_server_url=None)
    return memory_server(memory, _caller, writes=writes, auth=auth, verifier=KeyVerifier(credentials))


async def serve_keyed(
    server: MCPServer[object], settings: Settings, listening: socket, *, on_start: Callable[[], None]
) -> None:
    """Run the MCP server on a bound socket until a signal to stop, with the connection limits of the HTTP service."""
    app = server.streamable_http_app(
        stateless_http=True,
        json_response=True,
        max_request_body_size=settings.body_limit,
        # Accept any host name, such as a proxy's. Pages of other sites can do no harm, because they have no key.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    app.add_middleware(Requests)
    limits = ConnectionLimits(settings.max_connections, settings.header_timeout, settings.body_timeout)
    seconds = settings.shutdown_timeout
    async with app.router.lifespan_context(app):
        service = Server(app, _nothing, shutdown_seconds=seconds, on_start=on_start, limits=limits)
        await service.serve(sockets=[listening])


class Requests:
    """Middleware that counts the open requests of users, and responds to errors with problem documents."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and respond to a `ProblemRaised` with its problem document."""
        try:
            with ExitStack() as request:
                _request.set(request)
                await self._app(scope, receive, send)
        except ProblemRaised as error:
            await problem_response(error.problem, error.headers)(scope, receive, send)


async def _nothing(_: float) -> None:
    """Return at once: MCP requests start no turns, so there are no turns to end."""


def _caller() -> McpCaller:
    token = get_access_token()
    if token is None:
        raise RuntimeError("A request without a token reached a tool.")
    return McpCaller(token.subject, writes="write" in token.scopes)
