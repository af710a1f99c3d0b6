"""The client of the MCP server: errors inside successful answers, connections that break."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from threadkeep.errors import GraphitiError, InvalidInput
from threadkeep.knowledge.graphiti.client import Episode
from threadkeep.knowledge.graphiti.mcp_server import McpClient

EPISODE = Episode(name="n", role="user", speaker="ann", content="the secret", said_at=datetime(2026, 1, 1, tzinfo=UTC))

type Answer = Callable[[str, dict[str, Any]], object]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], McpClient]:
    """Makes a client of a server that answers its tools by a function."""

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


async def test_messages_are_handed_over_one_by_one(answered: Callable[[Answer], McpClient]) -> None:
    """With who says them, as the REST server writes it; and no id."""
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
async def test_each_failure_is_ours_and_says_nothing_of_people(
    answered: Callable[[Answer], McpClient], result: object, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An error inside a successful answer is an error."""
    client = answered(lambda *_: result)
    with caplog.at_level(logging.DEBUG), pytest.raises(GraphitiError) as failed:
        await client.send("group", [EPISODE])
    assert failed.value.kind == kind
    assert "secret" not in caplog.text + str(failed.value) + repr(failed.value.__cause__)


async def test_after_one_that_was_taken_a_failure_is_uncertain(answered: Callable[[Answer], McpClient]) -> None:
    """The messages before it are on their way."""
    answers: list[dict[str, str]] = [{"message": "queued"}, {"error": "full"}]
    client = answered(lambda *_: answers.pop(0))
    with pytest.raises(GraphitiError) as failed:
        await client.send("group", [EPISODE, EPISODE])
    assert failed.value.uncertain


async def test_nothing_is_searched_without_a_group(answered: Callable[[Answer], McpClient]) -> None:
    """The server would take its default group, which others share."""
    client = answered(lambda *_: pytest.fail("asked"))
    assert await client.search([], "x", 3) == []
    with pytest.raises(InvalidInput):
        await client.search(["a.b"], "x", 3)


async def test_a_server_that_is_not_there_is_told() -> None:
    """As unreachable, and closing is safe."""
    client = McpClient("http://127.0.0.1:9", timeout_seconds=20)
    with pytest.raises(GraphitiError) as failed:
        await client.episodes("group", 5)
    assert failed.value.kind in ("unreachable", "broken")
    await client.close()
