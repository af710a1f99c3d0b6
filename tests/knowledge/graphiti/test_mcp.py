"""Tests of the client of the MCP server: errors inside successful responses, and broken connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from tests.knowledge.graphiti.conftest import Opening, allow, deliver
from tests.limits import HANG_SECONDS
from threadkeep import Message
from threadkeep.errors import GraphitiError, InvalidInput
from threadkeep.knowledge.graphiti.client import Episode
from threadkeep.knowledge.graphiti.mcp_server import McpClient
from threadkeep.testing import FakeGraphiti, SettableClock

EPISODE = Episode(name="n", role="user", speaker="ann", content="the secret", said_at=datetime(2026, 1, 1, tzinfo=UTC))

type Answer = Callable[[str, dict[str, Any]], object]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], McpClient]:
    """Return a function that creates a client of a server whose tools are answered by a callback."""

    def make(answer: Answer) -> McpClient:
        async def call_tool(name: str, arguments: dict[str, Any]) -> object:
            result = answer(name, arguments)
            if isinstance(result, BaseException):
                raise result
            if result == "slow":
                await asyncio.Event().wait()
            return SimpleNamespace(is_error=False, structured_content={"result": result})

        async def connected(_: McpClient) -> object:
            return SimpleNamespace(call_tool=call_tool)

        monkeypatch.setattr(McpClient, "_connected", connected)
        return McpClient("http://graph:8000", timeout_seconds=0.2)

    return make


async def test_messages_are_sent_one_by_one(answered: Callable[[Answer], McpClient]) -> None:
    calls: list[dict[str, Any]] = []

    def take(_: str, arguments: dict[str, Any]) -> object:
        calls.append(arguments)
        return {"message": "queued"}

    client = answered(take)
    await client.send("group", [EPISODE, EPISODE])
    assert (
        calls
        == [
            {
                "name": "n",
                "episode_body": "ann(user): the secret",
                "group_id": "group",
                "source": "message",
                "source_description": "",
                "reference_time": "2026-01-01T00:00:00+00:00",
            }
        ]
        * 2
    )


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        ({"error": "failed at: the secret"}, "server"),
        ("other", "unreadable"),
        (None, "unreadable"),
        (ConnectionResetError("the secret"), "broken"),
        (ExceptionGroup("many", [TimeoutError()]), "timeout"),
        ("slow", "timeout"),
    ],
    ids=["error", "text", "nothing", "broken", "group", "slow"],
)
async def test_each_failure_raises_an_error_without_message_texts(
    answered: Callable[[Answer], McpClient], result: object, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = answered(lambda *_: result)
    with caplog.at_level(logging.DEBUG), pytest.raises(GraphitiError) as failed:
        await client.send("group", [EPISODE])
    assert failed.value.kind == kind
    assert "secret" not in caplog.text + str(failed.value) + repr(failed.value.__cause__)


async def _nothing() -> None:
    """Do nothing."""


class _Tools:
    """The tools of a server in memory, which refuses or fails for messages with a certain text."""

    def __init__(self, *, failing: object, times: int) -> None:
        self.failing = failing
        self.times = times
        self.stored: list[str] = []

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> object:
        """Store a message, or return the stored ones."""
        if name == "get_episodes":
            episodes = [{"uuid": str(place), "name": one} for place, one in enumerate(self.stored)]
            return SimpleNamespace(is_error=False, structured_content={"result": {"episodes": episodes}})
        if "question 2" in arguments["episode_body"] and self.times:
            self.times -= 1
            if isinstance(self.failing, Exception):
                raise self.failing
            return self.failing
        self.stored.append(arguments["name"])
        return SimpleNamespace(is_error=False, structured_content={"result": {"message": "queued"}})


_REFUSED = SimpleNamespace(is_error=True, structured_content=None)
_ERROR = SimpleNamespace(is_error=False, structured_content={"result": {"error": "no database"}})


@pytest.mark.parametrize(
    ("failing", "times", "dead"),
    [
        (_REFUSED, 100, {"refused": 1}),
        (MCPError(-32602, "invalid"), 100, {"refused": 1}),
        (_REFUSED, 3, {}),
        (_ERROR, 8, {}),
        (ConnectionResetError(), 2, {}),
    ],
    ids=["refused", "invalid parameters", "refused for a moment", "failing", "broken"],
)
async def test_only_a_refused_message_becomes_a_dead_letter(
    opening: Opening, clock: SettableClock, monkeypatch: pytest.MonkeyPatch, failing: object, times: int, dead: object
) -> None:
    """Other messages arrive once, in order. Outages count no attempt, however long they are."""
    server = _Tools(failing=failing, times=times)

    async def connected(_: McpClient) -> object:
        return server

    monkeypatch.setattr(McpClient, "_connected", connected)
    async with opening(scopes=("session",), transport="mcp") as memory:
        await allow(memory)
        for number in (1, 2, 3):
            said = [Message(role="user", content=f"question {number}"), Message(role="assistant", content="answer")]
            await memory.session("room:1", workspace="shop").append(said)
        for _ in range(30):
            await deliver(memory, clock, looks=1)
            clock.advance(300)
        status = await memory.graphiti.status()
        assert status.dead == dead
        assert len(server.stored) == len(set(server.stored)) == 6 - len(status.dead)
        queued = [one.name for one in await memory.graphiti.deliveries() if one.status == "confirmed"]
        assert server.stored == queued


@pytest.mark.parametrize(
    ("fault", "more"),
    [("status", {"status": 404}), ("status", {"status": 307}), ("status", {"status": 422}), ("html", {})],
    ids=["404", "307", "422", "html"],
)
async def test_a_wrong_endpoint_delays_messages_as_a_missing_server_does(
    opening: Opening,
    clock: SettableClock,
    graphiti: FakeGraphiti,
    monkeypatch: pytest.MonkeyPatch,
    fault: Any,
    more: Any,
) -> None:
    """No message becomes a dead letter, and all arrive once the endpoint is repaired."""
    server = _Tools(failing=None, times=0)

    async def connected(_: McpClient) -> object:
        return server

    graphiti.fail(fault, "/mcp", **more)
    async with opening(scopes=("session",), transport="mcp") as memory:
        await allow(memory)
        said = [Message(role="user", content="question"), Message(role="assistant", content="answer")]
        await memory.session("room:1", workspace="shop").append(said)
        for _ in range(12):
            await deliver(memory, clock, looks=1)
            clock.advance(300)
        assert (await memory.graphiti.status()).dead == {}
        monkeypatch.setattr(McpClient, "_connected", connected)
        for _ in range(6):
            await deliver(memory, clock, looks=1)
            clock.advance(300)
        assert [one.status for one in await memory.graphiti.deliveries()] == ["confirmed"] * 2
        assert len(server.stored) == 2


async def test_a_proxy_can_refuse_one_message(
    answered: Callable[[Answer], McpClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With status 413 or 422 after the connection was opened, the message is at fault; with 404 it is the endpoint."""
    for status, kind in ((413, "refused"), (422, "refused"), (404, "unreadable"), (400, "unreadable")):
        connection = SimpleNamespace(failed=None, close=_nothing)

        def refuse(_: str, __: object, status: int = status, connection: Any = connection) -> object:
            connection.failed = httpx2.Response(status, request=httpx2.Request("POST", "http://graph"))
            return MCPError(-32603, "Server returned an error response")

        client = answered(refuse)
        monkeypatch.setattr(client, "_connection", connection)
        with pytest.raises(GraphitiError) as failed:
            await client.send("group", [EPISODE])
        assert (failed.value.kind, failed.value.status, failed.value.uncertain) == (kind, status, False)


async def test_no_message_follows_a_withdrawal_of_consent(
    opening: Opening, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages marked as sent together are separate requests, which check consent again."""
    server = _Tools(failing=None, times=0)

    async def connected(_: McpClient) -> object:
        return server

    async def withdrawing(name: str, arguments: dict[str, Any]) -> object:
        if name == "add_memory":
            await memory.graphiti.decline(by="ann")
        return await _Tools.call_tool(server, name, arguments)

    monkeypatch.setattr(McpClient, "_connected", connected)
    monkeypatch.setattr(server, "call_tool", withdrawing)
    async with opening(scopes=("session",), transport="mcp") as memory:
        await allow(memory)
        said = [Message(role="user", content="question"), Message(role="assistant", content="answer")]
        await memory.session("room:1", workspace="shop").append(said)
        await deliver(memory, clock)
        assert len(server.stored) == 1
        assert (await memory.graphiti.status()).dead == {"consent_withdrawn": 2}


async def test_nothing_is_searched_without_a_group(answered: Callable[[Answer], McpClient]) -> None:
    """Without a group the server would search its default group, which others share."""
    client = answered(lambda *_: pytest.fail("the server was called"))
    assert await client.search([], "x", 3) == []
    with pytest.raises(InvalidInput):
        await client.search(["a.b"], "x", 3)


async def test_an_unreachable_server_raises() -> None:
    client = McpClient("http://127.0.0.1:9", timeout_seconds=20)
    with pytest.raises(GraphitiError) as failed:
        await client.episodes("group", 5)
    assert failed.value.kind in ("unreachable", "broken")
    await client.close()


@pytest.mark.parametrize(
    ("status", "kind", "uncertain"),
    [(401, "denied", False), (403, "denied", False), (429, "limited", False), (503, "server", True),
     (404, "unreadable", False), (405, "unreadable", False), (307, "unreadable", False), (422, "unreadable", False)],
)  # fmt: skip
async def test_the_status_of_a_refusing_proxy_and_its_pause_are_kept(
    graphiti: FakeGraphiti, status: int, kind: str, uncertain: bool
) -> None:
    """The MCP library raises one error for all of them, without the status."""
    graphiti.fail("status", "/mcp", status=status, headers={"Retry-After": "120"})
    client = McpClient(graphiti.url, timeout_seconds=HANG_SECONDS)
    with pytest.raises(GraphitiError) as failed:
        await client.send("group", [EPISODE])
    await client.close()
    error = failed.value
    assert (error.kind, error.status, error.retry_after, error.uncertain) == (kind, status, 120.0, uncertain)
