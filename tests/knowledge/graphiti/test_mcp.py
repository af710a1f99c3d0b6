"""Tests of the client of the MCP server: errors inside successful responses, and broken connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.knowledge.graphiti.conftest import Opening, allow, deliver
from tests.knowledge.graphiti.mcp_graphiti import mcp_graphiti
from tests.limits import HANG_SECONDS
from threadkeep import Memory, Message, Scope
from threadkeep.errors import GraphitiError, InvalidInput
from threadkeep.knowledge.graphiti.client import Episode
from threadkeep.knowledge.graphiti.mcp_server import McpClient
from threadkeep.knowledge.promotion import Promotion
from threadkeep.testing import FakeGraphiti, SettableClock

EPISODE = Episode(name="n", role="user", speaker="ann", content="the secret", said_at=datetime(2026, 1, 1, tzinfo=UTC))

type Answer = Callable[[str, dict[str, Any]], object]


def connect_to(monkeypatch: pytest.MonkeyPatch, client: object) -> None:
    """Make each connection of an `McpClient` return this client of the protocol."""

    async def connected() -> object:
        return client

    def connection(*_: object) -> object:
        return SimpleNamespace(client=connected, close=_nothing, is_over=False, requests=0, failures=[])

    monkeypatch.setattr("threadkeep.knowledge.graphiti.mcp_server._Connection", connection)


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

        connect_to(monkeypatch, SimpleNamespace(call_tool=call_tool))
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


async def deliver_slowly(memory: Memory, clock: SettableClock) -> None:
    """Run the delivery 30 times, with minutes between, so that every pause after a failure ends."""
    for _ in range(30):
        await deliver(memory, clock, looks=1)
        clock.advance(300)


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

    connect_to(monkeypatch, server)
    async with opening(scopes=("session",), transport="mcp") as memory:
        await allow(memory)
        for number in (1, 2, 3):
            said = [Message(role="user", content=f"question {number}"), Message(role="assistant", content="answer")]
            await memory.session("room:1", workspace="shop").append(said)
        await deliver_slowly(memory, clock)
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

    graphiti.fail(fault, "/mcp", **more)
    async with opening(scopes=("session",), transport="mcp") as memory:
        await allow(memory)
        said = [Message(role="user", content="question"), Message(role="assistant", content="answer")]
        await memory.session("room:1", workspace="shop").append(said)
        for _ in range(12):
            await deliver(memory, clock, looks=1)
            clock.advance(300)
        assert (await memory.graphiti.status()).dead == {}
        connect_to(monkeypatch, server)
        for _ in range(6):
            await deliver(memory, clock, looks=1)
            clock.advance(300)
        assert [one.status for one in await memory.graphiti.deliveries()] == ["confirmed"] * 2
        assert len(server.stored) == 2


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "refused"), (413, "refused"), (422, "refused"), (404, "unreadable"), (429, "limited")]
)
async def test_a_proxy_can_refuse_one_message(status: int, kind: str) -> None:
    """With 400, 413 or 422 after the connection was opened, the message is at fault. Others are not affected."""
    async with mcp_graphiti() as server:
        client = McpClient(server.url, timeout_seconds=HANG_SECONDS)
        server.refused = lambda body: status if b"the secret" in body else None
        server.may_store.clear()
        other = replace(EPISODE, name="other", content="hello")
        sending = asyncio.create_task(client.send("group", [other]))
        await server.calls.acquire()
        with pytest.raises(GraphitiError) as failed:
            await client.send("group", [EPISODE])
        assert (failed.value.kind, failed.value.status, failed.value.uncertain) == (kind, status, False)
        server.may_store.set()
        assert await sending == 1
        assert [one.name for one in await client.episodes("group", 5)] == ["other"]
        await client.close()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("threadkeep-")]


async def test_status_400_for_one_request_blocks_no_others(opening: Opening, clock: SettableClock) -> None:
    """A refused message is given up after five attempts. The deletion of a fact is tried until it succeeds."""
    shop = Scope("workspace", "shop")
    async with mcp_graphiti() as server, opening(endpoint=server.url, transport="mcp") as memory:
        await allow(memory, "promoted_facts")
        await memory.graphiti.promote(Promotion("decision", "Use SQLite.", key="database"), "shop")
        await deliver(memory, clock, looks=2)
        server.refused = lambda body: 400 if b"question 1" in body or b'"delete_episode"' in body else None
        await memory.knowledge.forget(shop, "database")
        for number in (1, 2):
            said = [Message(role="user", content=f"question {number}"), Message(role="assistant", content="answer")]
            await memory.session("room:1", workspace="shop").append(said)
        await deliver_slowly(memory, clock)
        status = await memory.graphiti.status()
        assert (status.counts["confirmed"], status.dead) == (6, {"refused": 2})
        assert server.bodies.count("user(user): question 2") == 2
        assert "Use SQLite." in server.bodies[0]
        server.refused = lambda body: 400 if b'"tools/call"' in body else None
        await memory.session("room:1", workspace="shop").append([Message(role="user", content="question 3")])
        await memory.session("room:1", workspace="shop").append([Message(role="assistant", content="answer")])
        await deliver_slowly(memory, clock)
        server.refused = lambda _: None
        await deliver_slowly(memory, clock)
        status = await memory.graphiti.status()
        assert (status.counts["confirmed"], status.dead) == (10, {"refused": 2, "undone": 1})
        assert server.bodies.count("user(user): question 3") == 2
        assert not [body for body in server.bodies if "SQLite" in body]


async def test_lost_messages_are_sent_again_while_other_groups_make_progress(
    opening: Opening, clock: SettableClock
) -> None:
    """Each group has its own queue in the server, so messages of other groups are no progress."""
    async with mcp_graphiti() as server, opening(endpoint=server.url, transport="mcp", scopes=("session",)) as memory:
        await allow(memory)
        for number in range(1, 21):
            said = [Message(role="user", content=f"question {number}"), Message(role="assistant", content="answer")]
            await memory.session("room:1" if number == 1 else "room:2", workspace="shop").append(said)
            await deliver(memory, clock, looks=1)
            if number == 1:
                server.episodes.clear()
        assert server.bodies.count("user(user): question 1") == 1
        assert (await memory.graphiti.status()).repeats == 2


async def test_no_message_is_sent_again_while_its_group_makes_progress(opening: Opening, clock: SettableClock) -> None:
    async with mcp_graphiti() as server, opening(endpoint=server.url, transport="mcp", scopes=("session",)) as memory:
        await allow(memory)
        said = [Message(role="user", content="question"), Message(role="assistant", content="answer")]
        for _ in range(5):
            await memory.session("room:1", workspace="shop").append(said)
        await deliver(memory, clock, looks=1)
        stored, server.episodes = server.episodes, []
        for episode in stored:
            server.episodes.append(episode)
            await deliver(memory, clock, looks=2)
        status = await memory.graphiti.status()
        assert (status.counts["confirmed"], status.repeats) == (10, 0)


async def test_no_message_follows_a_withdrawal_of_consent(
    opening: Opening, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages marked as sent together are separate requests, which check consent again."""
    server = _Tools(failing=None, times=0)

    async def withdrawing(name: str, arguments: dict[str, Any]) -> object:
        if name == "add_memory":
            await memory.graphiti.decline(by="ann")
        return await _Tools.call_tool(server, name, arguments)

    connect_to(monkeypatch, server)
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
