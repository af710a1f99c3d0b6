"""A Graphiti server for tests. It runs on a loopback port and can show the faults of real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

from langchain_core.utils.uuid import uuid7

type Backend = Literal["falkordb", "neo4j"]
type FaultKind = Literal[
    "status", "hang", "slow_body", "reset", "reset_after", "html", "truncated", "wrong_shape", "huge", "blackhole"
]

_PATHS = {"/messages": "post", "/search": "post", "/episodes/{group_id}": "get", "/group/{group_id}": "delete"}
_WORD = re.compile(r"\w{3,}")
_REASONS = {200: "OK", 202: "Accepted", 404: "Not Found", 422: "Unprocessable Content", 500: "Internal Server Error"}


@dataclass(frozen=True)
class Fault:
    """A fault of the server, for the next `times` requests (None: all) whose path begins with `path`.

    `status` responds with that status, `hang` never responds, and `slow_body` takes `seconds` to send the body. `reset`
    closes the connection before the request is processed, `reset_after` after it is processed. `blackhole` accepts
    messages but stores none. The other kinds respond with an unusable body.
    """

    kind: FaultKind
    path: str = "/"
    times: int | None = None
    status: int = 500
    seconds: float = 5.0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that the server received."""

    method: str
    path: str
    body: Any
    headers: Mapping[str, str]


class FakeGraphiti:
    """A fake of Graphiti's REST server with FalkorDB or Neo4j (`backend`).

    Messages wait in a queue, which `stop()` clears. If `auto` is False, only `ingest()` stores messages. A message that
    would stop the worker of the real server stops the worker here, too; the response is still 202. A stored message of
    a user becomes a fact, which a search finds by its words.

    ::

        async with FakeGraphiti() as graphiti:
            options = GraphitiOptions(endpoint=graphiti.url)
    """

    def __init__(self, *, backend: Backend = "falkordb", auto: bool = True) -> None:
        self.backend = backend
        self.auto = auto
        self.worker_dead = False
        self.queue: list[tuple[str, dict[str, Any]]] = []
        self.stored: dict[str, list[dict[str, Any]]] = {}
        self.facts: dict[str, list[dict[str, Any]]] = {}
        self.requests: list[ReceivedRequest] = []
        self.bytes_received = 0
        self._faults: list[Fault] = []
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        """Start listening."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening."""
        await self.stop()

    async def start(self) -> None:
        """Listen on a free port; after a restart, listen on the previous port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port, limit=2**24)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and close all connections. The queue is lost, as in the real server."""
        self.queue.clear()
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def restart(self) -> None:
        """Stop and start again. Unstored messages are lost, and the worker runs again."""
        await self.stop()
        self.worker_dead = False
        await self.start()

    def fail(self, kind: FaultKind, path: str = "/", **more: Any) -> None:
        """Add a fault for requests whose path begins with `path`; `more` are fields of `Fault`."""
        self._faults.append(Fault(kind, path, **more))

    def mend(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def add_fact(self, group_id: str, fact: str, **fields: object) -> str:
        """Add a fact to a group and return its id."""
        uuid = str(fields.pop("uuid", None) or uuid7())
        now = datetime.now(UTC).isoformat()
        values = {"uuid": uuid, "name": "SAYS", "fact": fact, "valid_at": now, "invalid_at": None, "created_at": now}
        self.facts.setdefault(group_id, []).append({**values, "expired_at": None, **fields})
        return uuid

    def ingest(self, count: int | None = None) -> int:
        """Store all waiting messages, or at most `count`, until one stops the worker; return their number."""
        done = 0
        while self.queue and not self.worker_dead and (count is None or done < count):
            group_id, message = self.queue.pop(0)
            if _is_poison(group_id, message):
                self.worker_dead = True
                break
            uuid = str(uuid7())
            episode = {"uuid": uuid, "name": message["name"], "group_id": group_id, "valid_at": message["timestamp"]}
            content = f"{message['role']}({message['role_type']}): {message['content']}"
            self.stored.setdefault(group_id, []).append({**episode, "content": content, "source": "message"})
            if message["role_type"] == "user":
                self.add_fact(group_id, message["content"], valid_at=message["timestamp"], episodes=[uuid])
            done += 1
        return done

    def names(self, group_id: str) -> list[str]:
        """Return the names of a group's episodes in the order in which they were stored."""
        return [episode["name"] for episode in self.stored.get(group_id, [])]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is None:
            return
        self._connections.add(task)
        try:
            while (request := await self._read(reader)) is not None:
                if not await self._answer(request, writer):
                    break
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> ReceivedRequest | None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.bytes_received += len(head) + len(body)
        request = ReceivedRequest(method, path, json.loads(body) if body else None, headers)
        self.requests.append(request)
        return request

    async def _answer(self, request: ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        """Respond to a request; return False if the connection must be closed afterwards."""
        fault = self._fault(request.path)
        if fault is not None and fault.kind == "reset":
            return False
        if fault is not None and fault.kind == "hang":
            await asyncio.Event().wait()
        if fault is not None and fault.kind == "status":
            await _write(writer, fault.status, b"Internal Server Error", headers=fault.headers)
            # Close the connection silently, as the real server does after a failure.
            return fault.status < 500
        status, value = self._handle(request, store=fault is None or fault.kind != "blackhole")
        if fault is not None and fault.kind == "reset_after":
            return False
        body = json.dumps(value).encode()
        kind = "application/json"
        if fault is not None and fault.kind in ("html", "wrong_shape", "huge"):
            status = 200 if fault.kind == "html" else status
            bodies = {
                "html": b"<html>Sign in</html>",
                "wrong_shape": b'["other"]',
                "huge": b'"%s"' % (b"x" * 9_000_000),
            }
            body, kind = bodies[fault.kind], "text/html" if fault.kind == "html" else kind
        if fault is not None and fault.kind == "truncated":
            await _write(writer, status, body[: len(body) // 2], length=len(body))
            return False
        if fault is not None and fault.kind == "slow_body":
            await _write(writer, status, body[:1], length=len(body))
            await asyncio.sleep(fault.seconds)
            writer.write(body[1:])
            await writer.drain()
            return True
        await _write(writer, status, body, kind=kind)
        return True

    def _fault(self, path: str) -> Fault | None:
        for index, fault in enumerate(self._faults):
            if path.startswith(fault.path):
                if fault.times is not None:
                    self._faults[index] = Fault(**{**vars(fault), "times": fault.times - 1})
                    if fault.times <= 1:
                        del self._faults[index]
                return fault
        return None

    def _handle(self, request: ReceivedRequest, *, store: bool) -> tuple[int, Any]:
        parts = urlsplit(request.path)
        status: int = 404
        answer: Any = {"detail": "Not Found"}
        match request.method, *parts.path.strip("/").split("/"):
            case "GET", "healthcheck":
                status, answer = 200, {"status": "healthy"}
            case "GET", "openapi.json":
                status, answer = 200, {"paths": {path: {verb: {}} for path, verb in _PATHS.items()}}
            case "POST", "messages":
                return self._take_messages(request.body, store=store)
            case "GET", "episodes", group_id:
                last = int(parse_qs(parts.query)["last_n"][0])
                found = sorted(self.stored.get(group_id, []), key=lambda one: str(one["valid_at"]))
                return 200, found[-last:] if last > 0 else []
            case "POST", "search":
                status, answer = 200, {"facts": self._search(request.body)}
            case "DELETE", "group", group_id:
                if self.backend == "neo4j":
                    self.stored.pop(group_id, None)
                    self.facts.pop(group_id, None)
                status, answer = 200, {"message": "Group deleted", "success": True}
            case "DELETE", "episode", uuid:
                return self._delete_episode(uuid)
            case "GET", "entity-edge", uuid:
                answer = {"detail": f"edge {uuid} not found"}
        return status, answer

    def _delete_episode(self, uuid: str) -> tuple[int, Any]:
        """Delete an episode, but not its facts. With FalkorDB, delete nothing, as the real server does."""
        for episodes in self.stored.values() if self.backend == "neo4j" else ():
            for episode in episodes:
                if episode["uuid"] == uuid:
                    episodes.remove(episode)
                    return 200, {"message": "Episode deleted", "success": True}
        return 404, {"detail": f"node {uuid} not found"}

    def _take_messages(self, body: Any, *, store: bool) -> tuple[int, Any]:
        for message in body["messages"]:
            if message.get("role_type") not in ("user", "assistant", "system") or "role" not in message:
                # Quote the request in the response, as the real server does.
                return 422, {"detail": [{"type": "literal_error", "loc": ["body"], "input": message}]}
        if store:
            self.queue += [(body["group_id"], message) for message in body["messages"]]
            if self.auto:
                self.ingest()
        return 202, {"message": "Messages added to processing queue", "success": True}

    def _search(self, body: Any) -> list[dict[str, Any]]:
        groups, most = body.get("group_ids"), body.get("max_facts", 10)
        if not groups:
            groups = list(self.facts) if self.backend == "neo4j" else []
        words = {word.lower() for word in _WORD.findall(body["query"])}
        found: list[dict[str, Any]] = []
        for group_id in groups:
            ranked = [(len(words & _words_of(fact)), fact) for fact in self.facts.get(group_id, [])]
            best = [fact for score, fact in sorted(ranked, key=lambda one: -one[0]) if score]
            found += best[:most] if self.backend == "falkordb" else best
        return found if self.backend == "falkordb" else found[:most]


def _words_of(fact: Mapping[str, Any]) -> set[str]:
    return {word.lower() for word in _WORD.findall(fact["fact"])}


def _is_poison(group_id: str, message: Mapping[str, Any]) -> bool:
    """Return True if a message stops the worker of the real server."""
    with contextlib.suppress(UnicodeEncodeError):
        message["content"].encode()
        return "uuid" in message or not re.fullmatch(r"[A-Za-z0-9_-]+", group_id)
    return True


async def _write(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    *,
    kind: str = "application/json",
    length: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    fields = {"Content-Type": kind, "Content-Length": str(len(body) if length is None else length), **(headers or {})}
    head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Other')}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(head.encode() + b"\r\n" + body)
    await writer.drain()
