"""The client of the REST server, against each way in which that fails."""

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
    """A message."""
    return Episode(name=name, role="user", speaker="ann", content=content, said_at=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
async def client(graphiti: FakeGraphiti) -> AsyncIterator[RestClient]:
    """A client of the server, which does not wait long."""
    # The first one of a process imports what it needs.
    first = RestClient(graphiti.url)
    await first.episodes("group", 1)
    await first.close()
    graphiti.requests.clear()
    opened = RestClient(graphiti.url, api_key="k", timeout_seconds=1)
    yield opened
    await opened.close()


async def test_a_message_is_stored_and_found(graphiti: FakeGraphiti, client: RestClient) -> None:
    """With its name, its speaker and its time; and no id, which would mean another one's."""
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
    """The server would search the groups of everybody."""
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
    """With the status, and with the pause that the server asks for."""
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
async def test_each_fault_ends_in_time_and_says_nothing_of_people(
    graphiti: FakeGraphiti,
    client: RestClient,
    fault: str,
    kind: str,
    uncertain: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the error nor the log has a word of the message, at any level."""
    graphiti.fail(fault, "/messages")  # type: ignore[arg-type]
    started = time.monotonic()
    with caplog.at_level(logging.DEBUG), pytest.raises(GraphitiError) as failed:
        await client.send("group", [episode()])
    assert time.monotonic() - started < 10
    assert (failed.value.kind, failed.value.uncertain) == (kind, uncertain)
    assert "secret" not in caplog.text + str(failed.value) + repr(failed.value) + repr(failed.value.__cause__)


async def test_a_refusal_that_quotes_the_message_is_not_told(
    graphiti: FakeGraphiti, client: RestClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The body of a 422 has what was sent."""
    bad = Episode(name="n", role="tool", speaker="s", content=SAID, said_at=datetime.now(UTC))  # type: ignore[arg-type]
    with caplog.at_level(logging.DEBUG), pytest.raises(GraphitiError) as failed:
        await client.send("group", [bad])
    assert failed.value.is_final
    assert "secret" not in caplog.text + str(failed.value)


async def test_after_a_failure_of_the_server_the_next_call_works(graphiti: FakeGraphiti, client: RestClient) -> None:
    """The server closes the connection without a word: another one is opened, and it counts as one outage."""
    for _ in range(10):
        graphiti.fail("status", "/search", times=1)
        with pytest.raises(GraphitiError, match="500"):
            await client.search(["group"], "x", 1)
        await client.send("group", [episode()])


async def test_a_server_that_is_not_there_is_told_at_once(graphiti: FakeGraphiti, client: RestClient) -> None:
    """Nothing was sent then."""
    await graphiti.stop()
    with pytest.raises(GraphitiError) as failed:
        await client.send("group", [episode()])
    assert (failed.value.kind, failed.value.uncertain) == ("unreachable", False)


async def test_a_restarted_server_is_found_again(graphiti: FakeGraphiti, client: RestClient) -> None:
    """A read on a connection that the server closed meanwhile is done again."""
    await client.episodes("group", 1)
    await graphiti.restart()
    assert await client.episodes("group", 1) == []


async def test_calls_at_once_do_not_hurt_each_other(graphiti: FakeGraphiti, client: RestClient) -> None:
    """One that fails closes no connection that another one uses."""
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


async def test_the_checks_say_what_is_wrong(graphiti: FakeGraphiti, client: RestClient) -> None:
    """A server that lives, and whose database does not."""
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
