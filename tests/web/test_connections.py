"""Tests of connections: those whose request arrives too slowly are closed, and slow answers are not."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
import uvloop

from tests.limits import HANG_SECONDS
from tests.web.services import opened_app, served, settings_for, streamed
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.web.server import ConnectionLimits

_HEAD = b"POST /api/v1/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 40\r\n\r\n"


@asynccontextmanager
async def limited(
    tmp_path: Path, limits: ConnectionLimits, model: ScriptedModel | None = None
) -> AsyncIterator[tuple[httpx2.AsyncClient, int]]:
    """Open a server with limits, and yield a client and the port."""
    async with (
        opened_app(model or ScriptedModel([]), settings_for(tmp_path)) as app,
        served(app, limits=limits) as (client, server),
    ):
        yield client, server.servers[0].sockets[0].getsockname()[1]


async def answer(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    """Return what a raw client receives that sends some parts and then waits for the end of the connection."""
    async with asyncio.timeout(HANG_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for part in parts:
                writer.write(part)
                await asyncio.sleep(pause)
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@pytest.mark.parametrize(
    "parts",
    [(), (b"GET /healthz HT",), (_HEAD, b'{"mess'), (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\r\n")],
    ids=["nothing", "half a line", "half a body", "an empty line after an answer"],
)
async def test_an_incomplete_request_is_closed(tmp_path: Path, parts: tuple[bytes, ...]) -> None:
    """An incomplete request is closed or answered with 408, wherever it stopped."""
    async with limited(tmp_path, ConnectionLimits(10, 0.2, 0.2)) as (_, port):
        got = await answer(port, *parts, pause=0.1)
        assert got == b"" or b"408 Request Timeout" in got


@pytest.mark.parametrize("path", ["/api/v1/chat", "/chatkit", "/console/sign-in"])
async def test_a_disconnect_during_the_body_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    async with limited(tmp_path, ConnectionLimits(10, 0.2, 0.2)) as (client, port):
        await client.post(path, content=b"{}")  # imports the modules of the path
        await answer(port, _HEAD.replace(b"/api/v1/chat", path.encode()), b'{"mess')
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_request_that_arrives_while_the_process_is_stopped_is_answered(tmp_path: Path) -> None:
    """A request that arrives in time is answered, although its timer fires before its bytes are read."""

    class Stops(asyncio.Protocol):
        """A protocol that blocks the event loop, so that its timers run before its sockets are read."""

        def data_received(self, _: bytes) -> None:
            late.send(b"TP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            time.sleep(1)

    async def got() -> bytes:
        async with limited(tmp_path, ConnectionLimits(10, 0.5, 0.5)) as (_, port):
            loop = asyncio.get_running_loop()
            stops = await loop.create_server(Stops, "127.0.0.1", 0)
            await asyncio.to_thread(late.connect, ("127.0.0.1", port))
            late.send(b"GET /healthz HT")
            await asyncio.sleep(0.1)
            _, writer = await asyncio.open_connection(*stops.sockets[0].getsockname())
            writer.write(b"now")
            async with asyncio.timeout(HANG_SECONDS):
                received = await asyncio.to_thread(late.recv, 1000)
            writer.close()
            stops.close()
            return received

    with socket.socket() as late, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(got()).startswith(b"HTTP/1.1 200")


async def test_single_bytes_do_not_extend_the_limit(tmp_path: Path) -> None:
    """The limit is for the whole request. uvicorn's own limit restarts with each byte."""
    async with limited(tmp_path, ConnectionLimits(10, 0.3, 0.3)) as (_, port):
        got = await answer(port, b"GET /healthz HTTP/1.1\r\nx-slow: ", *[b"a"] * 20, b"\r\n\r\n", pause=0.05)
        assert b"200 OK" not in got


@pytest.mark.parametrize("start", [b"GET /", b"GET /healthz HTTP/1.1\r\nx: ", b"GET /healthz HTTP/1.1\r\nx: y\r\n"])
async def test_endless_headers_are_refused(tmp_path: Path, start: bytes) -> None:
    """Headers over the limit close the connection, so that a client without a key cannot fill the memory."""
    limits = ConnectionLimits(10, HANG_SECONDS, HANG_SECONDS, header_bytes=4_000)
    async with limited(tmp_path, limits) as (client, port):
        more = b"a: b\r\n" * 100 if start.endswith(b"\n") else b"a" * 600
        got = await answer(port, start, *[more] * 10, pause=0.01)
        assert got == b"" or b"431 Request Header" in got
        assert (await client.get("/healthz", headers={"x": "y" * 2_000})).status_code == 200


async def test_a_head_that_begins_in_the_read_of_another_request_is_not_charged_for_it(tmp_path: Path) -> None:
    limits = ConnectionLimits(10, HANG_SECONDS, HANG_SECONDS, header_bytes=4_000)
    async with limited(tmp_path, limits) as (_, port):
        head = b"POST /console/sign-in HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000\r\n"
        rest = b"\r\n" + b"a" * 9_000 + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
        got = await answer(port, head, rest, b"connection: close\r\n\r\n", pause=0.05)
        assert (b"HTTP/1.1 401" in got, b"HTTP/1.1 200" in got, b" 431 " in got) == (True, True, False)


async def test_trailers_are_dropped(tmp_path: Path) -> None:
    async with limited(tmp_path, ConnectionLimits(10, HANG_SECONDS, HANG_SECONDS)) as (_, port):
        head = b"POST /console/sign-in HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        body = b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
        got = await answer(port, head + body, b"x-trailer: a\r\n", b"connection: keep-alive\r\n\r\n", pause=0.01)
        assert got.startswith(b"HTTP/1.1 401")


async def test_an_answer_may_take_longer_than_its_request(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel([["first", gate, " last"]])
    async with limited(tmp_path, ConnectionLimits(10, 0.2, 0.2), model) as (client, _):
        reading = asyncio.create_task(streamed(client, {"message": "hi", "session_id": "s1"}))
        await gate.reached()
        await asyncio.sleep(0.5)
        gate.open()
        assert "last" in str(await reading)


async def test_one_connection_too_many_is_refused(tmp_path: Path) -> None:
    """A connection beyond the limit gets 503 with `Retry-After`.

    After others are closed, new ones are accepted.
    """
    async with limited(tmp_path, ConnectionLimits(2, HANG_SECONDS, HANG_SECONDS)) as (client, port):
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        got = await answer(port)
        assert b"503 Service Unavailable" in got
        assert b"retry-after: 1" in got
        for _, writer in others:
            writer.close()
            await writer.wait_closed()
        # The server notices a closed connection a moment later.
        answers = [(await client.get("/healthz")).status_code for _ in range(20)]
        assert answers[-1] == 200


async def test_an_idle_connection_gives_way_to_a_new_one(tmp_path: Path) -> None:
    """Idle connections are open for longer than those of common proxies, but do not use up the limit."""
    request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with (
        opened_app(ScriptedModel([]), settings_for(tmp_path)) as app,
        served(app, limits=ConnectionLimits(2, HANG_SECONDS, HANG_SECONDS)) as (_, server),
        asyncio.timeout(HANG_SECONDS),
    ):
        port = server.servers[0].sockets[0].getsockname()[1]
        idle, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        assert b"200 OK" in await idle.readline()
        _, busy = await asyncio.open_connection("127.0.0.1", port)
        busy.write(request[:9])
        new, asking = await asyncio.open_connection("127.0.0.1", port)
        asking.write(request)
        assert b"200 OK" in await new.readline()
        assert (await idle.read()).endswith(b"}")
        for one in (writer, busy, asking):
            one.close()
        assert server.config.timeout_keep_alive > 60


async def test_the_connection_that_is_idle_for_longest_gives_way(tmp_path: Path) -> None:
    request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with (
        opened_app(ScriptedModel([]), settings_for(tmp_path)) as app,
        served(app, limits=ConnectionLimits(20, HANG_SECONDS, HANG_SECONDS)) as (_, server),
        asyncio.timeout(HANG_SECONDS),
    ):
        port = server.servers[0].sockets[0].getsockname()[1]
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for reader, writer in connections:
            writer.write(request)
            assert b"200 OK" in await reader.readline()
        for replaced, _ in connections[:5]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            assert b"200 OK" in await reader.readline()
            assert (await replaced.read()).endswith(b"}")
            connections.append((reader, writer))
        for _, writer in connections:
            writer.close()


@pytest.mark.slow
async def test_many_incomplete_requests_do_not_block_others(tmp_path: Path) -> None:
    """A message is answered while 1,500 connections have sent half a line, and all of them are closed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192) if hard > 0 else 8192, hard))
    model = ScriptedModel(["hello"])
    async with limited(tmp_path, ConnectionLimits(2000, 2.0, 2.0), model) as (client, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(1500)]
        for _, writer in opened:
            writer.write(b"GET /healthz HT")
        assert (await client.post("/api/v1/chat", json={"message": "hi"})).json()["response"] == "hello"
        async with asyncio.timeout(HANG_SECONDS):
            got = [await reader.read() for reader, _ in opened]
        assert all(answer == b"" or b"408" in answer for answer in got)
        for _, writer in opened:
            writer.close()


async def test_an_unknown_method_gets_a_problem_document(tmp_path: Path) -> None:
    async with limited(tmp_path, ConnectionLimits()) as (_, port):
        head, _, body = (await answer(port, b"FOO /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/problem+json" in head
    assert json.loads(body)["type"] == "urn:threadkeep:bad-request"
