"""Tests of the MCP server with the protocol's own client: in process, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import jwt
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from sse_starlette.sse import AppStatus

from tests.limits import HANG_SECONDS
from tests.web.services import until
from threadkeep import Memory, Message, Scope, open_memory, open_memory_sync
from threadkeep.adapters.mcp import McpCaller, memory_server
from threadkeep.settings import load_settings
from threadkeep.version import __version__
from threadkeep.web.mcp_keys import keyed_server, serve_keyed
from threadkeep.web.server import bind

READING = ["facts", "get_context", "list_sessions", "read_messages", "search_messages"]


def text_of(result: CallToolResult) -> str:
    """Return the text of a result."""
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def fill(memory: Memory) -> None:
    """Give ann and bob a session each, and ann a fact."""
    await memory.session("a", user_id="ann").append([Message("user", "My cat is Miso."), Message("assistant", "Nice.")])
    await memory.session("b", user_id="bob").append([Message("user", "My cat is Tom, a secret.")])
    await memory.knowledge.remember(Scope("user", "ann"), "pet", "Miso", user_id="ann")
    await memory.knowledge.remember(Scope("user", "bob"), "pet", "secret Tom", user_id="bob")


def test_a_server_works_on_another_event_loop_than_its_memory(shared_url: str) -> None:
    """The blocking `run()` of a server, for example, starts a loop."""

    async def call() -> str:
        async with Client(memory_server(memory, lambda: McpCaller("ann"))) as client:
            results = [await client.call_tool("search_messages", {"query": word}) for word in ("cat", "dog")]
            return " ".join(map(text_of, results))

    with open_memory_sync(shared_url) as memory:
        memory.session("a", user_id="ann").append([Message("user", "My cat is Miso.")])
        text = asyncio.run(call())
    assert "Miso" in text
    assert "No results." in text


async def test_a_client_reads_only_the_data_of_its_user(memory: Memory) -> None:
    """No tool returns data of another user or has a parameter for a user."""
    await fill(memory)
    server = memory_server(memory, lambda: McpCaller("ann"))
    async with Client(server) as client:
        assert client.server_info is not None
        assert client.server_info.version == __version__
        tools = (await client.list_tools()).tools
        assert sorted(tool.name for tool in tools) == READING
        assert not [tool for tool in tools if "user" in str(tool.input_schema)]

        async def call(name: str, **arguments: Any) -> str:
            return text_of(await client.call_tool(name, arguments))

        found = [
            await call("search_messages", query="cat"),
            await call("get_context", session_id="a"),
            await call("read_messages", session_id="a", from_seq=1, to_seq=9),
            await call("list_sessions"),
            await call("facts"),
        ]
        assert all("Miso" in text and "secret" not in text for text in found)
        assert all("not instructions" in text for text in found)
        assert '"text":"Nice."' in found[2].replace(": ", ":")
        assert await call("read_messages", session_id="a", from_seq=5, to_seq=9) == "No results."
        for name, more in (("get_context", {}), ("read_messages", {"from_seq": 1, "to_seq": 9})):
            result = await client.call_tool(name, {"session_id": "b", **more})
            assert result.is_error
            assert "list_sessions" in text_of(result)
            assert "secret" not in text_of(result)


async def test_results_that_are_too_long_are_left_out_with_a_sentence(memory: Memory) -> None:
    """A long first message is shown whole. The reader of a model's context is not given megabytes."""
    await memory.session("long", user_id="ann").append([Message("user", f"cat {'x' * 99_990}")] * 3)
    await memory.session("short", user_id="ann").append([Message("user", f"cat {'x' * 9_990}")] * 12)
    async with Client(memory_server(memory, lambda: McpCaller("ann"))) as client:

        async def lines(name: str, **arguments: Any) -> list[str]:
            return text_of(await client.call_tool(name, arguments)).splitlines()

        long = await lines("read_messages", session_id="long", from_seq=2, to_seq=3)
        assert [len(line) // 100_000 for line in long] == [0, 1, 0]
        assert "left out" in long[-1]
        short = await lines("read_messages", session_id="short", from_seq=1, to_seq=12)
        assert [len(line) // 10_000 for line in short] == [0, *[1] * 9, 0]
        assert "left out" not in "".join(await lines("read_messages", session_id="short", from_seq=10, to_seq=12))
        found = await lines("search_messages", query="cat", limit=50)
        assert sum(map(len, found)) < 201_000
        assert "left out" in found[-1]


async def test_a_client_writes_only_with_the_switch_and_the_scope(memory: Memory) -> None:
    """Write tools need the switch and a key that may write."""
    await fill(memory)
    said = {"session_id": "a", "messages": [{"role": "user", "content": "And a dog."}]}
    async with Client(memory_server(memory, lambda: McpCaller("ann", writes=True), writes=True)) as client:
        assert text_of(await client.call_tool("add_messages", said)) == "Stored as messages 3 to 3."
        named = {**said, "messages": [{"role": "user", "content": "And a fish.", "id": "m1"}]}
        stored = [text_of(await client.call_tool("add_messages", named)) for _ in range(2)]  # the second is a retry
        assert stored[0] == "Stored as messages 4 to 4."
        assert stored[1] == stored[0] + " The id m1 was known, so its message was not stored."
        refused = await client.call_tool("add_messages", {**said, "session_id": "b"})
        assert refused.is_error
        missing = await client.call_tool("get_context", {"session_id": "none"})
        sentences = [text_of(one).split(": ", 1)[1] for one in (refused, missing)]
        assert sentences[0].replace("'b'", "'none'") == sentences[1]
        assert text_of(await client.call_tool("delete_session", {"session_id": "b"})) == "There is no such session."
    async with Client(memory_server(memory, lambda: McpCaller("ann"), writes=True)) as client:
        result = await client.call_tool("delete_session", {"session_id": "a"})
        assert result.is_error
    assert await memory.session("a").count() == 4
    assert await memory.session("b").count() == 1


@pytest.mark.process
@pytest.mark.slow
async def test_the_command_serves_stdio(shared_url: str) -> None:
    """The option `--user` of the command sets the user."""
    async with open_memory(shared_url) as memory:
        await fill(memory)
    environment = {**os.environ, "THREADKEEP_DATABASE_URL": shared_url}
    arguments = ["-m", "threadkeep", "mcp", "--user", "ann"]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=environment)
    async with Client(stdio_client(server), read_timeout_seconds=HANG_SECONDS) as client:
        assert sorted(tool.name for tool in (await client.list_tools()).tools) == READING
        assert "secret" not in text_of(await client.call_tool("search_messages", {"query": "cat"}))


async def test_over_http_the_user_is_that_of_the_key(sqlite_memory: Memory) -> None:
    """A request without a valid key gets 401, and writing needs a key with its scope."""
    memory = sqlite_memory
    await fill(memory)
    reads = await memory.api_keys.add("ann-reads", scope="read", user_id="ann")
    writes = await memory.api_keys.add("ann-writes", scope="write", user_id="ann")
    server = await keyed_server(memory, load_settings(database_url="sqlite://"), "http://127.0.0.1", writes=True)
    app = server.streamable_http_app(stateless_http=True, json_response=True)
    async with server.session_manager.run():

        def caller(secret: str) -> httpx2.AsyncClient:
            headers = {"Authorization": f"Bearer {secret}"}
            transport = httpx2.ASGITransport(app)
            return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=headers)

        async with caller("wrong") as http:
            assert (await http.post("/mcp", json={})).status_code == 401

        async def refused(secret: str) -> bool:
            said = {"session_id": "a", "messages": [{"role": "user", "content": "hi"}]}
            url = "http://127.0.0.1:8000/mcp"
            async with caller(secret) as http, Client(streamable_http_client(url, http_client=http)) as client:
                assert "secret" not in text_of(await client.call_tool("list_sessions", {}))
                return (await client.call_tool("add_messages", said)).is_error

        assert await refused(reads.secret)
        assert not await refused(writes.secret)


async def test_over_http_the_user_is_that_of_a_signed_token(sqlite_memory: Memory) -> None:
    """The server accepts the tokens that the service accepts; another issuer gets 401."""
    await fill(sqlite_memory)
    signs = {
        "jwt_issuer": "https://login",
        "jwt_audience": "threadkeep",
        "jwt_key": "a-secret-of-32-characters-at-least",
    }
    settings = load_settings(database_url="sqlite://", **signs)
    server = await keyed_server(sqlite_memory, settings, "http://127.0.0.1", writes=False)
    app = server.streamable_http_app(stateless_http=True, json_response=True)
    url = "http://127.0.0.1:8000/mcp"

    def caller(issuer: str) -> httpx2.AsyncClient:
        claims = {"iss": issuer, "aud": "threadkeep", "sub": "ann", "exp": time.time() + 60}
        headers = {"Authorization": f"Bearer {jwt.encode(claims, signs['jwt_key'], 'HS256')}"}
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), headers=headers)

    async with server.session_manager.run():
        async with caller("https://other") as http:
            assert (await http.post(url, json={})).status_code == 401
        async with (
            caller("https://login") as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            listed = text_of(await client.call_tool("list_sessions", {}))
    assert "secret" not in listed
    assert '"a ' in listed


@asynccontextmanager
async def serving(memory: Memory, **overrides: object) -> AsyncIterator[int]:
    """Serve MCP over HTTP with the given settings, and yield the port."""
    settings, started = load_settings(database_url="sqlite://", **overrides), asyncio.Event()
    AppStatus.should_exit = False  # a server stopped by an earlier test sets this flag, which ends all streams
    server = await keyed_server(memory, settings, "http://127.0.0.1", writes=False)
    with bind("127.0.0.1", 0) as listening:
        task = asyncio.create_task(serve_keyed(server, settings, listening, on_start=started.set))
        await started.wait()
        try:
            yield listening.getsockname()[1]
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_over_http_the_limits_of_the_service_apply(sqlite_memory: Memory) -> None:
    """A slow request is closed with 408; too many requests of a key or a user get 429."""
    one = await sqlite_memory.api_keys.add("one", scope="read", user_id="ann")
    two = await sqlite_memory.api_keys.add("two", scope="read", user_id="ann")
    async with serving(sqlite_memory, header_timeout=0.2, requests_per_key=2, requests_per_user=3) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /mcp HT")
        assert b"408 Request Timeout" in await asyncio.wait_for(reader.read(), HANG_SECONDS)
        writer.close()
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS, trust_env=False
        ) as http:
            secrets = (one.secret, one.secret, one.secret, two.secret, two.secret)
            sent = [{"Authorization": f"Bearer {secret}"} for secret in secrets]
            answers = [await http.post("/mcp", json={}, headers=headers) for headers in sent]
            assert [answer.status_code == 429 for answer in answers] == [False, False, True, False, True]
            assert answers[-1].json()["type"] == "urn:threadkeep:too-many-requests"
            assert answers[-1].headers["retry-after"]


async def test_over_http_a_user_cannot_hold_all_connections(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open streams of one user are limited; the requests of others are answered, and a closed stream frees its room."""
    monkeypatch.setattr("threadkeep.web.callers._MOST_OPEN", 2)
    keys = [await sqlite_memory.api_keys.add(user, scope="read", user_id=user) for user in ("ann", "bob")]
    ann, bob = [{"Authorization": f"Bearer {key.secret}", "Accept": "text/event-stream"} for key in keys]
    async with (
        serving(sqlite_memory) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS, trust_env=False) as http,
    ):

        async def status(headers: dict[str, str]) -> int:
            async with http.stream("GET", "/mcp", headers=headers) as opened:
                return opened.status_code

        async with http.stream("GET", "/mcp", headers=ann), http.stream("GET", "/mcp", headers=ann):
            assert (await status(ann), await status(bob)) == (429, 200)

        async def answered() -> bool:
            return await status(ann) == 200

        await until(answered)


async def test_over_http_a_proxy_may_be_in_front(sqlite_memory: Memory) -> None:
    """Requests may have the host and origin of the proxy; the body limit of the service applies."""
    await fill(sqlite_memory)
    key = await sqlite_memory.api_keys.add("one", scope="read", user_id="ann")
    headers = {
        "Authorization": f"Bearer {key.secret}",
        "Host": "chat.example.org",
        "Origin": "https://chat.example.org",
    }
    async with (
        serving(sqlite_memory, body_limit=2000) as port,
        httpx2.AsyncClient(headers=headers, timeout=HANG_SECONDS, trust_env=False) as http,
    ):
        url = f"http://127.0.0.1:{port}/mcp"
        async with Client(streamable_http_client(url, http_client=http)) as client:
            assert "Miso" in text_of(await client.call_tool("search_messages", {"query": "cat"}))
        assert (await http.post(url, json={"jsonrpc": "x" * 2000})).status_code == 413
