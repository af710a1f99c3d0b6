"""Tests of turns and recall with the real Graphiti server, in the environment of `make foreign`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent

from tests.foreign.graphiti_server import MISSING, ROOT, RealGraphiti, is_there, running_graphiti
from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import KnownFacts, Memory, MemoryOptions, Message, Scope, SessionMemory, open_memory
from threadkeep.knowledge.graphiti.recall import RecallQuestion
from threadkeep.knowledge.graphiti.service import GraphitiStatus
from threadkeep.knowledge.graphiti.turns import group_id_of
from threadkeep.knowledge.promotion import Promotion
from threadkeep.observe import GraphRecalled
from threadkeep.records.graphiti import GraphitiOptions
from threadkeep.testing import ScriptedModel

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(900)]

TALK = [
    text for number in range(1, 21) for text in (f"Question {number} is about Garden {number}.", f"Answer {number}.")
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGraphiti]:
    """Start the REST server with its database and a model, and stop them after the module."""
    if not is_there():
        pytest.skip(MISSING)
    with running_graphiti(tmp_path_factory.mktemp("graphiti")) as started:
        yield started


@asynccontextmanager
async def opened(server: RealGraphiti | str, url: str, **changes: Any) -> AsyncIterator[Memory]:
    """Open a memory with background delivery and consent, and close it after the block."""
    endpoint = server if isinstance(server, str) else server.rest
    options = GraphitiOptions(**{"endpoint": endpoint, "workspace": "shop", "poll_seconds": 0.1, **changes})
    async with open_memory(url, options=MemoryOptions(graphiti=options)) as memory:
        await memory.graphiti.grant(["chat_text"], by="ops")
        await memory.graphiti.consents.trust("shop", by="ops")
        yield memory


async def say(memory: Memory, session_id: str, *turns: tuple[str, str], user_id: str = "ann") -> None:
    """Append turns to a session."""
    session = memory.session(session_id, user_id=user_id, workspace="shop")
    for asked, answered in turns:
        await session.append([Message(role="user", content=asked), Message(role="assistant", content=answered)])


def pairs(first: int, last: int) -> list[tuple[str, str]]:
    """Return the turns with these numbers."""
    return [(f"Question {n} is about Garden {n}.", f"Answer {n}.") for n in range(first, last + 1)]


async def until(memory: Memory, condition: Callable[[GraphitiStatus], bool]) -> GraphitiStatus:
    """Wait until a condition holds for the status, and return the status."""
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            if condition(status := await memory.graphiti.status()):
                return status
            await asyncio.sleep(0.2)


def confirmed(count: int) -> Callable[[GraphitiStatus], bool]:
    """Return a condition: this many messages are confirmed, and none is queued."""
    return lambda status: {**status.counts, "turns": 0} == {"confirmed": count, "turns": 0}


def episodes(server: RealGraphiti, scope: Scope) -> list[str]:
    """Return the texts that the server has for a scope, oldest first."""
    address = f"{server.rest}/episodes/{group_id_of(scope)}?last_n=500"
    with urllib.request.urlopen(address, timeout=HANG_SECONDS) as response:  # noqa: S310 - loopback
        return [str(one["content"]).partition("): ")[2] for one in json.load(response)]


async def test_a_conversation_of_twenty_turns_arrives_in_order_and_once(server: RealGraphiti, sqlite_url: str) -> None:
    """Each scope's group gets forty episodes, and the number of confirmed messages only rises."""
    async with opened(server, sqlite_url) as memory:
        await say(memory, "whole", *pairs(1, 20))
        seen = []
        status = await memory.graphiti.status()
        while not confirmed(80)(status):
            seen.append(status.counts.get("confirmed", 0))
            await asyncio.sleep(0.2)
            status = await memory.graphiti.status()
        assert seen == sorted(seen)
        assert (status.repeats, status.dead) == (0, {})
        assert episodes(server, Scope("session", "whole")) == TALK
        assert episodes(server, Scope("workspace", "shop")) == TALK


def talk_and_die(url: str, endpoint: str, turns: int) -> None:
    """Run another process that appends turns and delivers; kill it after a number of stored turns."""
    command = [sys.executable, str(Path(__file__).with_name("talk_to_graphiti.py")), url, endpoint, "20"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as talking:
        assert talking.stdout is not None
        for line in talking.stdout:
            if int(line) == turns:
                break
        talking.kill()


async def test_delivery_survives_a_kill_of_the_process(server: RealGraphiti, sqlite_url: str) -> None:
    """The next process delivers the remaining turns, and repeats none."""
    async with opened(server, sqlite_url, scopes=("session",)):
        pass
    for stored_before_the_end in (7, 14, 20):
        await asyncio.to_thread(talk_and_die, sqlite_url, server.rest, stored_before_the_end)
    async with opened(server, sqlite_url) as memory:
        status = await until(memory, confirmed(80))
        assert status.repeats == 0
    assert episodes(server, Scope("session", "room:1")) == TALK


async def test_delivery_survives_a_restart_of_the_server(server: RealGraphiti, sqlite_url: str) -> None:
    """Messages lost with the server's queue are sent again after the timeout, and no others."""
    async with opened(server, sqlite_url, scopes=("session",), confirm_seconds=3, confirm_seconds_each=0.2) as memory:
        server.control(latency_ms=100)
        await say(memory, "restarted", *pairs(1, 20))
        await until(memory, lambda status: status.counts.get("confirmed", 0) >= 3)
        server.restart("rest")
        server.control(latency_ms=0)
        status = await until(memory, confirmed(40))
        found = episodes(server, Scope("session", "restarted"))
        assert list(dict.fromkeys(found)) == TALK
        assert len(found) <= 40 + status.repeats
        assert 0 < status.repeats <= 40


def poison(server: RealGraphiti) -> None:
    """Send a group id that ends the server's worker, as another client may do."""
    body = {"group_id": "a.b", "messages": [{"content": "x", "role_type": "user", "role": "x"}]}
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.rest}/messages", json.dumps(body).encode(), head)  # noqa: S310 - loopback
    urllib.request.urlopen(request, timeout=HANG_SECONDS).close()  # noqa: S310 - loopback


async def test_delivery_survives_a_dead_worker_of_the_server(server: RealGraphiti, sqlite_url: str) -> None:
    """The server still accepts messages, but none is confirmed until it is restarted."""
    await asyncio.to_thread(poison, server)
    async with opened(server, sqlite_url, scopes=("session",), confirm_seconds=2, confirm_seconds_each=0) as memory:
        await say(memory, "dead", *pairs(1, 2))
        status = await until(memory, lambda status: status.repeats > 0)
        assert status.counts.get("confirmed", 0) == 0
        server.restart("rest")
        await until(memory, confirmed(4))
        assert list(dict.fromkeys(episodes(server, Scope("session", "dead")))) == TALK[:4]


async def test_recall_finds_facts_of_the_same_user_only(server: RealGraphiti, sqlite_url: str) -> None:
    """Facts of the user's other sessions are found by the words of the question."""
    recall = {"recall_enabled": True, "recall_timeout_seconds": HANG_SECONDS, "recall_scopes": ("user",)}
    async with opened(server, sqlite_url, scopes=("user",), **recall) as memory:
        await say(memory, "telegram:1", ("The Garden Gate has the code Tulip.", "Noted."), user_id="ann")
        await say(memory, "telegram:2", ("The Garden Gate has the code Rose.", "Noted."), user_id="bob")
        await until(memory, confirmed(4))
        for person, code, other in (("ann", "Tulip", "Rose"), ("bob", "Rose", "Tulip")):
            question = RecallQuestion("Which code has the Garden Gate?", {"user": Scope("user", person)})
            told = " ".join(fact.text for fact in (await memory.graphiti.recall(question)).facts)
            assert code in told
            assert other not in told


async def test_a_hanging_or_stopped_server_costs_the_deadline_once(server: RealGraphiti, sqlite_url: str) -> None:
    """No turn is lost while the server hangs or is stopped."""
    recall = {"recall_enabled": True, "recall_timeout_seconds": 1.0, "recall_scopes": ("session",)}
    question = RecallQuestion("Which code?", {"session": Scope("session", "paused")})
    async with opened(server, sqlite_url, scopes=("session",), timeout_seconds=2, **recall) as memory:
        server.pause("rest")
        waited = []
        for number in range(1, 4):
            started = time.monotonic()
            [scope] = (await memory.graphiti.recall(question)).scopes
            waited.append(time.monotonic() - started)
            assert scope.outcome == ("deadline" if number == 1 else "breaker_open")
            await say(memory, "paused", *pairs(number, number))
        assert waited[0] < 2
        assert max(waited[1:]) < 0.5
        server.kill("rest")
        await say(memory, "paused", *pairs(4, 4))
        server.start("rest")
        await until(memory, confirmed(8))
    assert list(dict.fromkeys(episodes(server, Scope("session", "paused")))) == TALK[:8]


type Relay = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def proxy_with(relay: Relay) -> AsyncIterator[str]:
    """Start a proxy that serves each connection with ``relay``; yield its URL, and close it after the block."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await relay(reader, writer)
        finally:
            await close(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def connection_to(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection to a local port, and close it after the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection and wait for it; the other side may have broken it before."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward bytes until the sender ends."""
    while data := await reader.read(65_536):
        writer.write(data)


class FaultyProxy:
    """A proxy before the server that forwards requests, or fails in a chosen way."""

    def __init__(self, port: int) -> None:
        self.fault = "none"
        self._port = port

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection with one request."""
        fault = self.fault
        head = await reader.readuntil(b"\r\n\r\n")
        while fault == self.fault == "hangs":  # noqa: ASYNC110 - the test sets the fault
            await asyncio.sleep(0.05)
        if fault == "slow":
            await asyncio.sleep(5)
        if fault in ("none", "slow"):
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            async with connection_to(self._port) as (back, forth):
                forth.write(b"\r\n".join([lines[0], b"Connection: close", *lines[1:]]))
                up = asyncio.create_task(pump(reader, forth))
                try:
                    await pump(back, writer)
                finally:
                    up.cancel()
        elif fault == "html":
            page = b"<html>Sign in</html>"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(page) + page)
        elif fault == "500":
            writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("fault", ["stopped", "hangs", "slow", "html", "500"])
async def test_a_fault_costs_a_chat_turn_the_deadline_once_and_loses_no_turn(
    server: RealGraphiti, sqlite_url: str, fault: str
) -> None:
    """Three turns of an agent during the failure arrive when the server works again."""
    events = RecordedEvents()
    proxy = FaultyProxy(server.ports["rest"])
    session_id = f"fault-{fault}"
    config: Any = {"configurable": {"thread_id": session_id, "user_id": "ann", "workspace": "shop"}}
    async with proxy_with(proxy.relay) as endpoint:
        options = GraphitiOptions(
            endpoint=endpoint,
            workspace="shop",
            scopes=("session",),
            poll_seconds=0.1,
            timeout_seconds=10,
            recall_enabled=True,
            recall_timeout_seconds=1.0,
            recall_scopes=("session",),
            first_pause_seconds=0.1,
            longest_pause_seconds=1.0,
        )
        async with open_memory(sqlite_url, observers=[events], options=MemoryOptions(graphiti=options)) as memory:
            await memory.graphiti.grant(["chat_text"], by="ops")
            await memory.graphiti.consents.trust("shop", by="ops")
            proxy.fault = fault
            middleware = [SessionMemory(memory, sources=[KnownFacts(memory)])]
            agent: Any = create_agent(ScriptedModel(f"Answer {n}." for n in range(1, 9)), [], middleware=middleware)
            for number in range(1, 4):
                await agent.ainvoke({"messages": [("user", f"Question {number} is about Garden {number}.")]}, config)
            first, *later = [event.milliseconds for event in events.of(GraphRecalled)]
            assert first < 1_500
            assert len(later) == 2
            assert max(later) < 250
            assert [event.outcome for event in events.of(GraphRecalled)][1:] == ["breaker_open"] * 2
            assert await memory.session(session_id, user_id="ann").count() == 6
            proxy.fault = "none"
            await until(memory, confirmed(6))
    assert list(dict.fromkeys(episodes(server, Scope("session", session_id)))) == TALK[:6]


async def test_with_consent_withdrawn_no_byte_is_sent(server: RealGraphiti, sqlite_url: str) -> None:
    """A proxy before the server counts the bytes."""
    counted = 0

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal counted
        async with connection_to(server.ports["rest"]) as (back, forth):

            async def upwards() -> None:
                nonlocal counted
                while data := await reader.read(65_536):
                    counted += len(data)
                    forth.write(data)
                forth.write_eof()

            up = asyncio.create_task(upwards())
            try:
                await pump(back, writer)
            finally:
                up.cancel()

    async with proxy_with(relay) as endpoint:
        recall = {"recall_enabled": True, "recall_scopes": ("session",)}
        async with opened(endpoint, sqlite_url, scopes=("session",), **recall) as memory:
            await say(memory, "withdrawn", *pairs(1, 2))
            await until(memory, confirmed(4))
            assert counted > 0
            await memory.graphiti.decline(by="ann")
            counted = 0
            await say(memory, "withdrawn", *pairs(3, 5))
            await memory.graphiti.recall(RecallQuestion("Garden 1?", {"session": Scope("session", "withdrawn")}))
            await asyncio.sleep(2)
            assert counted == 0
    assert episodes(server, Scope("session", "withdrawn")) == TALK[:4]


@pytest.fixture(scope="module")
def mcp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGraphiti]:
    """Start the MCP server with its database and a model, and stop them after the module."""
    if not is_there():
        pytest.skip(MISSING)
    with running_graphiti(tmp_path_factory.mktemp("mcp"), transports=("mcp",)) as started:
        yield started


async def test_the_mcp_server_stores_finds_and_deletes(mcp_server: RealGraphiti, sqlite_url: str) -> None:
    options = {"transport": "mcp", "scopes": ("session",), "recall_enabled": True, "recall_scopes": ("session",)}
    scope = Scope("session", "over-mcp")
    async with opened(mcp_server.mcp, sqlite_url, recall_timeout_seconds=HANG_SECONDS, **options) as memory:
        checks = await memory.graphiti.test(smoke=True)
        assert [check.problem for check in checks if not check.ok] == []
        await say(memory, "over-mcp", *pairs(1, 20))
        status = await until(memory, confirmed(40))
        assert status.repeats == 0
        recalled = await memory.graphiti.recall(RecallQuestion("What is Question 7 about?", {"session": scope}))
        assert recalled.facts
        assert (await memory.graphiti.purge(scope)).remains == ""


async def test_the_mcp_server_deletes_a_forgotten_fact(mcp_server: RealGraphiti, sqlite_url: str) -> None:
    scope = Scope("workspace", "shop")
    async with opened(mcp_server.mcp, sqlite_url, transport="mcp", confirm_seconds=5.0) as memory:
        await memory.graphiti.grant(["chat_text", "promoted_facts"], by="ops")
        await memory.graphiti.promote(Promotion("decision", "Garden 7 depends on Garden 8.", key="garden"), "shop")
        await until(memory, confirmed(1))
        found = await memory.graphiti.client().search([group_id_of(scope)], "Garden", 5)
        assert found
        await memory.knowledge.forget(scope, "garden")
        await until(memory, lambda status: status.dead == {"undone": 1})
        assert await memory.graphiti.client().episodes(group_id_of(scope), 5) == []
        assert await memory.graphiti.client().search([group_id_of(scope)], "Garden", 5) == []


async def test_the_missing_deletion_of_the_rest_server_is_detected(server: RealGraphiti, sqlite_url: str) -> None:
    async with opened(server, sqlite_url, scopes=("session",)) as memory:
        checks = {check.name: check.problem for check in await memory.graphiti.test(smoke=True)}
        assert {name for name, problem in checks.items() if problem} == {"see it gone"}
        assert "FalkorDB" in str(checks["see it gone"])
        await say(memory, "purged", *pairs(1, 1))
        await until(memory, confirmed(2))
        assert "2 episodes" in (await memory.graphiti.purge(Scope("session", "purged"))).remains
