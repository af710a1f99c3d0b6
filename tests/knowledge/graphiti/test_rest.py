"""Tests of the client of the REST server, with each kind of failure."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from threadkeep.errors import GraphitiError, InvalidInput
from threadkeep.knowledge.graphiti.client import Episode
from threadkeep.knowledge.graphiti.rest import RestClient
from threadkeep.testing import FakeGraphiti

SAID = "the secret of the garden"


def episode(name: str = "turn.1.user", content: str = SAID) -> Episode:
    """Return a message."""
    return Episode(name=name, role="user", speaker="ann", content=content, said_at=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
async def client(graphiti: FakeGraphiti) -> AsyncIterator[RestClient]:
    """Open a client with a short timeout, and close it after the test."""
    # The first client of a process imports its dependencies, which takes time.
    first = RestClient(graphiti.url)
    await first.episodes("group", 1)
    await first.close()
    graphiti.requests.clear()
    opened = RestClient(graphiti.url, api_key="k", timeout_seconds=1)
    yield opened
    await opened.close()


async def test_a_message_is_stored_and_found(graphiti: FakeGraphiti, client: RestClient) -> None:
    """A message has its name, speaker and time, but no id, which could be that of another one."""
    await client.send("group", [episode(), episode("turn.2.user", "more")])
    assert [seen.name for seen in await client.episodes("group", 5)] == ["turn.1.user", "turn.2.user"]
    [first, _] = graphiti.requests[0].body["messages"]
    assert first == {
        "content": SAID,
        "role_type": "user",
        "role": "ann",
        "name": "turn.1.user",
        "timestamp": "2026-01-01T00:00:00+00:00",
        "source_description": "",
    }
    assert graphiti.requests[0].headers["authorization"] == "Bearer k"
    [fact] = await client.search(["group"], "garden", 3)
    assert fact.fact == SAID
    assert fact.since == datetime(2026, 1, 1, tzinfo=UTC)
    assert not fact.superseded(datetime.now(UTC))


async def test_nothing_is_searched_without_a_group(graphiti: FakeGraphiti, client: RestClient) -> None:
    """Without a group the server would search the groups of everybody."""
    assert await client.search([], "garden", 3) == []
    for refused in (["a.b"], ["a", ""]):
        with pytest.raises(InvalidInput):
            await client.search(refused, "garden", 3)
    assert not graphiti.requests


@pytest.mark.parametrize(
    ("status", "kind"),
    [(500, "server"), (503, "server"), (429, "limited"), (408, "limited"), (401, "denied"), (403, "denied"),
     (422, "refused"), (404, "refused"), (307, "unreadable")],
)  # fmt: skip
async def test_each_status_is_a_kind_of_failure(
    graphiti: FakeGraphiti, client: RestClient, status: int, kind: str
) -> None:
    graphiti.fail("status", status=status, headers={"Retry-After": "7"})
    with pytest.raises(GraphitiError) as failed:
        await client.send("group", [episode()])
    assert (failed.value.kind, failed.value.status, failed.value.retry_after) == (kind, status, 7)
    assert str(status) in str(failed.value)


@pytest.mark.parametrize(
    ("fault", "kind", "uncertain"),
    [("hang", "timeout", True), ("slow_body", "timeout", True), ("reset", "broken", True),
     ("reset_after", "broken", True), ("html", "unreadable", True), ("truncated", "broken", True),
     ("wrong_shape", "unreadable", True), ("huge", "unreadable", True)],
)  # fmt: skip
async def test_each_fault_ends_in_time_without_message_texts(
    graphiti: FakeGraphiti,
    client: RestClient,
    fault: str,
    kind: str,
    uncertain: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the error nor any log has words of the message."""
    graphiti.fail(fault, "/messages")  # type: ignore[arg-type]
    started = time.monotonic()
    with caplog.at_level(logging.DEBUG), pytest.raises(GraphitiError) as failed:
        await client.send("group", [episode()])
    assert time.monotonic() - started < 10
    assert (failed.value.kind, failed.value.uncertain) == (kind, uncertain)
    assert "secret" not in caplog.text + str(failed.value) + repr(failed.value) + repr(failed.value.__cause__)


async def test_the_error_of_a_422_has_no_message_text(
    graphiti: FakeGraphiti, client: RestClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The body of a 422 has the message, so it is not in the error."""
    bad = Episode(name="n", role="tool", speaker="s", content=SAID, said_at=datetime.now(UTC))  # type: ignore[arg-type]
    with caplog.at_level(logging.DEBUG), pytest.raises(GraphitiError) as failed:
        await client.send("group", [bad])
    assert failed.value.is_final
    assert "secret" not in caplog.text + str(failed.value)


async def test_after_a_failure_of_the_server_the_next_call_works(graphiti: FakeGraphiti, client: RestClient) -> None:
    """The server closes the connection after a failure; the client opens another one."""
    for _ in range(10):
        graphiti.fail("status", "/search", times=1)
        with pytest.raises(GraphitiError, match="500"):
            await client.search(["group"], "x", 1)
        await client.send("group", [episode()])


async def test_an_unreachable_server_raises_at_once(graphiti: FakeGraphiti, client: RestClient) -> None:
    await graphiti.stop()
    with pytest.raises(GraphitiError) as failed:
        await client.send("group", [episode()])
    assert (failed.value.kind, failed.value.uncertain) == ("unreachable", False)


async def test_a_restarted_server_is_found_again(graphiti: FakeGraphiti, client: RestClient) -> None:
    """A read on a connection that the server closed is repeated."""
    await client.episodes("group", 1)
    await graphiti.restart()
    assert await client.episodes("group", 1) == []


async def test_concurrent_calls_do_not_affect_each_other(graphiti: FakeGraphiti, client: RestClient) -> None:
    graphiti.fail("status", "/search", times=5)
    results = await asyncio.gather(
        *(client.search(["group"], "x", 1) for _ in range(10)),
        *(client.episodes("group", 1) for _ in range(10)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, GraphitiError) for result in results) == 5


async def test_fields_that_are_missing_or_new_are_no_failure(graphiti: FakeGraphiti, client: RestClient) -> None:
    """Earlier servers have fewer fields, and later ones more; times without a zone are in UTC."""
    graphiti.add_fact("group", "Ann likes tea", valid_at="2026-01-01T00:00:00", invalid_at="2026-02-01", extra=1)
    graphiti.facts["group"].append({"fact": "tea without an id"})
    [fact] = await client.search(["group"], "tea", 5)
    assert fact.valid_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert fact.superseded(datetime.now(UTC))


async def test_the_checks_report_problems(graphiti: FakeGraphiti, client: RestClient) -> None:
    assert {name: await look() for name, look in client.checks()} == {
        "healthcheck": None,
        "paths": None,
        "unknown edge": None,
        "database": None,
    }
    graphiti.fail("status", "/episodes")
    graphiti.fail("status", "/entity-edge")
    found = {name: await look() for name, look in client.checks()}
    assert found["healthcheck"] is None
    assert "500" in str(found["database"])
    assert "500" in str(found["unknown edge"])
