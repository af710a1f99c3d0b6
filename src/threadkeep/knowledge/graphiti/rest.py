"""The REST client of Graphiti.

A status of 202 only means that a message is in an in-memory queue. Error bodies may quote messages, so they are not
read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from ssl import SSLContext
from typing import NamedTuple
from urllib.parse import quote

import httpx2

from threadkeep.boundary import retry_after
from threadkeep.errors import GraphitiError, GraphitiFailure
from threadkeep.knowledge.graphiti.client import Episode, GraphFact, MayContinue, SeenEpisode, Step, episode_in, fact_in
from threadkeep.records import Json
from threadkeep.records.graphiti import check_group_id

_MOST_BYTES = 8_000_000
_LONGEST_PAUSE_SECONDS = 300.0
_PATHS = {"/messages": "post", "/search": "post", "/episodes/{group_id}": "get", "/group/{group_id}": "delete"}
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


class _Answer(NamedTuple):
    status: int
    body: bytes

    def json(self) -> Json:
        """Return the JSON value of the body.

        Raises:
            GraphitiError: the body is not JSON.
        """
        try:
            value: Json = json.loads(self.body)
        except (ValueError, RecursionError):
            raise GraphitiError("unreadable", status=self.status, uncertain=True) from None
        return value


class RestClient:
    """A Graphiti server over its REST API.

    Each request has its own connection, because the server closes connections silently, after a failure or five idle
    seconds.
    """

    newest_first = True
    stores_in_order = True

    def __init__(self, endpoint: str, *, api_key: str | None = None, timeout_seconds: float = 10.0) -> None:
        self._endpoint = endpoint
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._seconds = timeout_seconds
        self._http: httpx2.AsyncClient | None = None

    def __repr__(self) -> str:
        """Return a text without secrets."""
        return f"RestClient({self._endpoint!r})"

    async def send(self, group_id: str, episodes: Sequence[Episode], *, may_continue: MayContinue | None = None) -> int:
        """Send messages in one request. The server queues them in memory (status 202)."""
        messages: list[Json] = [
            {
                "content": one.content,
                "role_type": one.role,
                "role": one.speaker,
                "name": one.name,
                "timestamp": one.said_at.isoformat(),
                "source_description": one.source,
            }
            for one in episodes
        ]
        answer = await self._call("POST", "/messages", {"group_id": check_group_id(group_id), "messages": messages})
        taken = answer.json()
        if answer.status != 202 or not isinstance(taken, Mapping) or taken.get("success") is not True:
            raise GraphitiError("unreadable", status=answer.status, uncertain=True)
        return len(episodes)

    async def episodes(self, group_id: str, last: int) -> list[SeenEpisode]:
        """Return up to `last` of the newest messages of a group."""
        answer = await self._call("GET", f"/episodes/{check_group_id(group_id)}?last_n={last}")
        values = answer.json()
        if not isinstance(values, list):
            raise GraphitiError("unreadable", status=answer.status)
        return [seen for value in values if (seen := episode_in(value)) is not None]

    async def search(
        self, group_ids: Sequence[str], query: str, limit: int, *, seconds: float | None = None
    ) -> list[GraphFact]:
        """Return facts of some groups that match a query."""
        if not group_ids:
            return []
        groups: list[Json] = [check_group_id(group_id) for group_id in group_ids]
        body: dict[str, Json] = {"group_ids": groups, "query": query, "max_facts": limit}
        answer = await self._call("POST", "/search", body, seconds=seconds)
        values = answer.json()
        facts = values.get("facts") if isinstance(values, Mapping) else None
        if not isinstance(facts, list):
            raise GraphitiError("unreadable", status=answer.status)
        return [fact for value in facts if (fact := fact_in(value)) is not None]

    async def delete_episode(self, group_id: str, uuid: str) -> None:
        """Delete a message. If the server's database is FalkorDB, the server does not find it and deletes nothing."""
        check_group_id(group_id)
        await self._call("DELETE", f"/episode/{quote(uuid, safe='')}")

    async def delete_group(self, group_id: str) -> None:
        """Delete a group. If the server's database is FalkorDB, nothing is deleted."""
        await self._call("DELETE", f"/group/{check_group_id(group_id)}")

    def checks(self) -> list[tuple[str, Step]]:
        """Return the checks of the server: health, paths, error handling and database."""
        return [
            ("healthcheck", partial(self._failure, "/healthcheck")),
            ("paths", self._missing_paths),
            ("unknown edge", partial(self._failure, "/entity-edge/not-a-real-edge", expected=404)),
            ("database", partial(self._failure, "/episodes/threadkeep_connection_test?last_n=1")),
        ]

    async def close(self) -> None:
        """Close the connections to the server."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def _failure(self, path: str, expected: int = 200) -> str | None:
        try:
            status = (await self._call("GET", path)).status
        except GraphitiError as error:
            return None if error.status == expected else str(error)
        return None if status == expected else f"It returned status {status} instead of {expected}."

    async def _missing_paths(self) -> str | None:
        document = (await self._call("GET", "/openapi.json")).json()
        paths = document.get("paths") if isinstance(document, Mapping) else None
        if not isinstance(paths, Mapping):
            return "It has no OpenAPI document; check which service runs at the endpoint."
        known = {path: verbs for path, verbs in paths.items() if isinstance(verbs, Mapping)}
        missing = [path for path, verb in _PATHS.items() if verb not in known.get(path, ())]
        return f"It has no {', '.join(missing)}; use Graphiti's server of version 0.29.3 or later." if missing else None

    async def _call(self, method: str, path: str, body: Json = None, *, seconds: float | None = None) -> _Answer:
        """Send a request and read the response within one time limit.

        Raises:
            GraphitiError: the response is not a success.
        """
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        if self._http is None:
            # Read the trusted certificates in an OS thread, and only once. Plain HTTP needs none.
            is_plain = not self._endpoint.startswith("https:")
            verify = False if is_plain else await asyncio.to_thread(httpx2.create_ssl_context)
            self._http = self._http or self._open(verify)
        try:
            async with (
                asyncio.timeout(self._seconds if seconds is None else seconds),
                self._http.stream(method, f"{self._endpoint}{path}", content=content, headers=headers) as response,
            ):
                if not response.is_success:
                    raise failure_of(response)
                return _Answer(response.status_code, await _read(response))
        except TimeoutError:
            raise GraphitiError("timeout", uncertain=True) from None
        except _NOT_SENT:
            raise GraphitiError("unreachable") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError):
            raise GraphitiError("broken", uncertain=True) from None

    def _open(self, verify: SSLContext | bool) -> httpx2.AsyncClient:
        unlimited = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx2.AsyncClient(headers=self._headers, verify=verify, timeout=None, limits=unlimited)


async def _read(response: httpx2.Response) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > _MOST_BYTES:
            raise GraphitiError("unreadable", status=response.status_code, uncertain=True)
        chunks.append(chunk)
    return b"".join(chunks)


def failure_of(response: httpx2.Response) -> GraphitiError:
    """Return the error for an unsuccessful response.

    A server that returns 500 or 503 has accepted nothing; after 502 or 504 from a proxy this is uncertain.
    """
    status = response.status_code
    kind: GraphitiFailure = "refused"
    if status in (401, 403):
        kind = "denied"
    elif status in (408, 429):
        kind = "limited"
    elif status >= 500:
        kind = "server"
    elif status < 400:
        kind = "unreadable"
    pause = retry_after(response.headers, longest=_LONGEST_PAUSE_SECONDS)
    return GraphitiError(kind, status=status, retry_after=pause, uncertain=status in (502, 504))
