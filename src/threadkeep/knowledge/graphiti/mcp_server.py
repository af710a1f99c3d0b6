"""A client of Graphiti's MCP server. Unlike the REST server, it deletes reliably, and its workers survive failures.

Errors arrive inside successful responses and may quote messages, so their text is not passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context, ContextVar

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import GraphitiError
from threadkeep.knowledge.graphiti.client import Episode, GraphFact, MayContinue, SeenEpisode, Step, episode_in, fact_in
from threadkeep.knowledge.graphiti.rest import failure_of
from threadkeep.records import Json
from threadkeep.records.graphiti import check_group_id

_TOOLS = ("add_memory", "get_episodes", "search_memory_facts", "clear_graph", "get_status")
_STOP_SECONDS = 5.0
# The JSON-RPC error code that the server returns if it refuses a message.
_INVALID_PARAMETERS = -32602
# The codes of an unreadable response, an invalid request and an unknown method. Redirects and status 404 also cause
# them, so they are faults of the endpoint and not of one message.
_NOT_MCP = (-32700, -32600, -32601, -32602)
# With these HTTP statuses, a proxy refuses one request, but not every request. A restarted server also returns 400, but
# only once, so a refused message or deletion is tried again.
_REFUSING_STATUSES = (400, 413, 422)

_failures: ContextVar[list[httpx2.Response]] = ContextVar("failures")
"""The unsuccessful responses to the current request. The library sends a request in the context of its caller."""


class McpClient:
    """A Graphiti server over MCP, with one connection, which is opened again after a failure."""

    newest_first = False
    """The server returns episodes in no order, so all are read to find one."""
    stores_in_order = False
    """Each group has its own queue."""

    def __init__(self, endpoint: str, *, api_key: str | None = None, timeout_seconds: float = 10.0) -> None:
        self._url = endpoint if endpoint.endswith("/mcp") else f"{endpoint}/mcp"
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._seconds = timeout_seconds
        self._connection: _Connection | None = None

    def __repr__(self) -> str:
        """Return a text without secrets."""
        return f"McpClient({self._url!r})"

    async def send(self, group_id: str, episodes: Sequence[Episode], *, may_continue: MayContinue | None = None) -> int:
        """Send messages one by one. The server queues them in memory."""
        check_group_id(group_id)
        for position, one in enumerate(episodes):
            if position and may_continue is not None and not await may_continue():
                return position
            arguments: dict[str, Json] = {
                "name": one.name,
                "episode_body": f"{one.speaker}({one.role}): {one.content}",
                "group_id": group_id,
                "source": "message",
                "source_description": one.source,
                "reference_time": one.said_at.isoformat(),
            }
            try:
                await self._call("add_memory", arguments)
            except GraphitiError as error:
                error.accepted = position
                raise
        return len(episodes)

    async def episodes(self, group_id: str, last: int) -> list[SeenEpisode]:
        """Return up to `last` messages of a group, unordered."""
        arguments: dict[str, Json] = {"group_ids": [check_group_id(group_id)], "max_episodes": last}
        values = (await self._call("get_episodes", arguments)).get("episodes")
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise GraphitiError("unreadable")
        return [seen for value in values if (seen := episode_in(value)) is not None]

    async def search(
        self, group_ids: Sequence[str], query: str, limit: int, *, seconds: float | None = None
    ) -> list[GraphFact]:
        """Return up to `limit` facts of some groups that match a query."""
        if not group_ids:
            return []
        groups: list[Json] = [check_group_id(group_id) for group_id in group_ids]
        arguments: dict[str, Json] = {"query": query, "group_ids": groups, "max_facts": max(limit, 1)}
        values = (await self._call("search_memory_facts", arguments, seconds=seconds)).get("facts")
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise GraphitiError("unreadable")
        return [fact for value in values if (fact := fact_in(value)) is not None][:limit]

    async def delete_episode(self, group_id: str, uuid: str) -> None:
        """Delete a message, and the facts that come only from it."""
        await self._call("delete_episode", {"uuid": uuid, "group_id": check_group_id(group_id)})

    async def delete_group(self, group_id: str) -> None:
        """Delete all data of a group."""
        await self._call("clear_graph", {"group_ids": [check_group_id(group_id)]})

    def checks(self) -> list[tuple[str, Step]]:
        """Return the checks of the server's tools and of its database."""
        return [("tools", self._missing_tools), ("database", self._database_problem)]

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _missing_tools(self) -> str | None:
        listed = await self._request(lambda client: client.list_tools())
        missing = [name for name in _TOOLS if name not in {tool.name for tool in listed.tools}]
        problem = f"It has no {', '.join(missing)}; use Graphiti's MCP server of version 0.31 or later."
        return problem if missing else None

    async def _database_problem(self) -> str | None:
        status = (await self._call("get_status", {})).get("status")
        return None if status == "ok" else "It cannot read its database; check its log and the database."

    async def _call(self, tool: str, arguments: dict[str, Json], *, seconds: float | None = None) -> Mapping[str, Json]:
        """Call a tool and return its result.

        Raises:
            GraphitiError: the response is not a success.
        """
        answer = await self._request(lambda client: client.call_tool(tool, arguments), seconds=seconds)
        if answer.is_error:
            raise GraphitiError("refused")  # all other failures arrive in successful responses
        content = answer.structured_content
        result = content.get("result", content) if isinstance(content, Mapping) else None
        if not isinstance(result, Mapping):
            raise GraphitiError("unreadable", uncertain=True)
        if "error" in result:
            raise GraphitiError("server")
        return result

    async def _request[T](self, send: Callable[[Client], Awaitable[T]], *, seconds: float | None = None) -> T:
        connection = self._connection
        if connection is None or connection.is_over:
            connection = self._connection = _Connection(self._url, self._headers)
        connection.requests += 1
        failures: list[httpx2.Response] = []
        unset = _failures.set(failures)
        is_connected = False
        try:
            # The library also raises errors of its transport, some in exception groups.
            with ErrorBoundary() as attempt:
                async with asyncio.timeout(self._seconds if seconds is None else seconds):
                    client = await connection.client()
                    is_connected = True
                    return await send(client)
            if self._connection is connection:
                self._connection = None  # later requests open another one
            failed = next(reversed(failures if is_connected else connection.failures), None)
            raise _failure_of(attempt.caught, failed, is_connected=is_connected)
        finally:
            _failures.reset(unset)
            connection.requests -= 1
            if connection is not self._connection and not connection.requests:
                await connection.close()


class _Connection:
    """A connection with its own task, because the task that opens a connection must also close it."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.failures: list[httpx2.Response] = []
        """The unsuccessful responses while the connection was opened."""
        self.requests = 0
        """The number of requests that use the connection."""
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(url, headers), context=Context(), name="threadkeep-graphiti-mcp")

    @property
    def is_over(self) -> bool:
        """True if the connection has ended."""
        return self._task.done()

    async def client(self) -> Client:
        """Return the client once it has connected."""
        return await asyncio.shield(self._opened)

    async def close(self) -> None:
        self._stop.set()
        if not self._opened.done():
            self._task.cancel()
        _, late = await asyncio.wait([self._task], timeout=_STOP_SECONDS)
        for task in late:
            task.cancel()
            await asyncio.wait([task])

    async def _hold(self, url: str, headers: Mapping[str, str]) -> None:
        _failures.set(self.failures)
        try:
            with ErrorBoundary(self._fail):
                async with (
                    httpx2.AsyncClient(
                        headers=dict(headers),
                        timeout=httpx2.Timeout(30.0, read=300.0),
                        event_hooks={"response": [_record_failure]},
                    ) as http,
                    Client(streamable_http_client(url, http_client=http)) as client,
                ):
                    self._opened.set_result(client)
                    await self._stop.wait()
        finally:
            self._fail(GraphitiError("broken"))  # the task was cancelled before it was connected

    def _fail(self, error: Exception) -> None:
        """Pass an error to the caller that waits for the connection to open, if there is one."""
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # otherwise asyncio logs the error if the caller is gone


async def _record_failure(response: httpx2.Response) -> None:
    # Ignore GET requests: a server without an event stream rejects them with 405, which is no failure.
    if not response.is_success and response.request.method == "POST":
        _failures.get().append(response)


def _failure_of(error: BaseException, failed: httpx2.Response | None, *, is_connected: bool) -> GraphitiError:
    """Convert an error of the MCP library into a `GraphitiError`. From an exception group, take the first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, GraphitiError):
        return error
    if isinstance(error, MCPError):
        return _failure_of_answer(error.code, failed, is_connected=is_connected)
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return GraphitiError("unreachable")
    return GraphitiError("timeout" if isinstance(error, TimeoutError) else "broken", uncertain=True)


def _failure_of_answer(code: int, failed: httpx2.Response | None, *, is_connected: bool) -> GraphitiError:
    """Convert the `code` of a JSON-RPC error, and the HTTP response that caused it, if any, into a `GraphitiError`.

    The kind `refused` means that the server refused a message, which is possible only once the client is connected.
    """
    if code == _INVALID_PARAMETERS and is_connected:
        return GraphitiError("refused")
    if failed is None:
        return GraphitiError("unreadable" if code in _NOT_MCP else "broken", uncertain=is_connected)
    failure = failure_of(failed)
    if failure.kind == "refused" and not (is_connected and failed.status_code in _REFUSING_STATUSES):
        return GraphitiError("unreadable", status=failure.status, retry_after=failure.retry_after)
    failure.uncertain |= failed.status_code >= 500  # the tool may have run
    return failure
