"""Tests of services as processes: two on one database, stopped or killed during an answer, and restarted."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langgraph_sdk import get_client

from tests.limits import HANG_SECONDS
from tests.web.processes import running
from tests.web.provider import Provider, providing
from tests.web.services import events_of, history, said, say, streamed, until

pytestmark = pytest.mark.process


@pytest.fixture
def provider() -> Iterator[Provider]:
    """Return a provider for the processes."""
    with providing() as started:
        yield started


async def test_one_message_id_in_two_processes_is_answered_once(
    tmp_path: Path, shared_url: str, provider: Provider
) -> None:
    """Requests with one message id at two processes cause one model call, and all get the same answer."""
    thought = threading.Event()
    provider.answer = lambda _: [thought, "the only answer"]
    environment = {**provider.environment, "THREADKEEP_DATABASE_URL": shared_url}
    async with (
        running(tmp_path / "one", environment) as (one, _),
        running(tmp_path / "two", environment) as (two, _),
    ):
        body = {"session_id": "s1", "message_id": "m1"}
        asking = [asyncio.create_task(say(client, "hi", **body)) for client in (one, two) for _ in range(3)]
        asking_streams = [asyncio.create_task(streamed(client, {"message": "hi", **body})) for client in (one, two)]
        await until(lambda: len(provider.requests) > 0)
        for client in (one, two):
            assert (await client.get("/readyz")).status_code == 200
        thought.set()
        answers = await asyncio.gather(*asking)
        answers += [dict(events[-1].data) for events in await asyncio.gather(*asking_streams)]
        assert all(answer == answers[0] for answer in answers)
        assert answers[0]["response"] == "the only answer"
        assert said(await history(two, "s1")) == [
            ("user", "hi", "complete"),
            ("assistant", "the only answer", "complete"),
        ]
        assert await say(two, "hi", **body) == answers[0]
    assert len(provider.requests) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_service_that_is_stopped_during_an_answer(
    tmp_path: Path, sqlite_url: str, provider: Provider, number: signal.Signals
) -> None:
    """A stopped service stores the partial answer, ends the stream with an error, and exits with 0.

    The next process answers a repeat.
    """
    provider.answer = lambda text: ["half an", threading.Event(), " answer"] if text == "hi" else ["fine"]
    environment = {
        **provider.environment,
        "THREADKEEP_DATABASE_URL": sqlite_url,
        "THREADKEEP_SHUTDOWN_TIMEOUT": "0.2",
    }
    body = {"message": "hi", "session_id": "s1", "message_id": "m1"}
    async with running(tmp_path / "first", environment) as (client, process):
        await say(client, "My name is Ann.", session_id="s1")
        async with client.stream("POST", "/api/v1/chat/stream", json=body) as response:
            events = events_of(response)
            assert [(await anext(events)).name for _ in range(2)] == ["start", "token"]
            stopping = asyncio.create_task(process.stop(number))
            [last] = [event async for event in events]
        assert (last.name, last.data["type"]) == ("error", "urn:threadkeep:interrupted")
        assert await stopping == 0
    before = [("user", "My name is Ann.", "complete"), ("assistant", "fine", "complete")]
    broken = [("user", "hi", "complete"), ("assistant", "half an", "interrupted")]
    provider.answer = lambda _: ["a whole answer"]
    async with running(tmp_path / "second", environment) as (client, process):
        assert said(await history(client, "s1")) == before + broken
        assert (await say(client, **body))["response"] == "a whole answer"
        assert provider.messages[:2] == [("user", "My name is Ann."), ("assistant", "fine")]
        await say(client, "again", session_id="s1")
        assert [text for _, text in provider.messages][:3] == ["My name is Ann.", "fine", "hi"]
        assert await process.stop(signal.SIGINT) == 0
    assert len(provider.requests) == 4


async def test_a_service_that_is_killed_during_an_answer(tmp_path: Path, shared_url: str, provider: Provider) -> None:
    """The other process takes over the turn of a killed one without a repeat, and then answers the next message."""
    provider.answer = lambda text: ["half an", threading.Event(), " answer"] if text == "one" else ["fine"]
    environment = {
        **provider.environment,
        "THREADKEEP_DATABASE_URL": shared_url,
        "THREADKEEP_RUN_DEAD_SECONDS": "2",
    }
    async with (
        running(tmp_path / "first", environment) as (first, process),
        running(tmp_path / "second", environment) as (second, _),
    ):
        body = {"message": "one", "session_id": "s1", "message_id": "m1"}
        async with first.stream("POST", "/api/v1/chat/stream", json=body) as response:
            events = events_of(response)
            assert [(await anext(events)).name for _ in range(2)] == ["start", "token"]
            behind = asyncio.create_task(say(second, "two", session_id="s1"))
            process.child.kill()
            provider.answer = lambda text: [f"to {text}"]
            assert (await behind)["response"] == "to two"
        texts = [("user", "one"), ("assistant", "to one"), ("user", "two"), ("assistant", "to two")]
        assert [(role, text) for role, text, _ in said(await history(second, "s1"))] == texts
        again = await say(second, "one", session_id="s1", message_id="m1")
        assert again["response"] == "to one"
        listed = (await second.get("/api/v1/runs?session_id=s1")).json()["runs"]
        assert [run["status"] for run in listed] == ["done", "done"]


@pytest.mark.slow
async def test_clients_of_langgraph_continue_after_a_kill(tmp_path: Path, shared_url: str, provider: Provider) -> None:
    """After a kill, the other process continues the streams from `Last-Event-ID` and `since` to the end of the run."""
    provider.answer = lambda _: ["half an", threading.Event(), " answer"]
    environment = {
        **provider.environment,
        "THREADKEEP_DATABASE_URL": shared_url,
        "THREADKEEP_RUN_DEAD_SECONDS": "2",
    }
    numbers: list[int] = []
    async with (
        running(tmp_path / "first", environment) as (first, process),
        running(tmp_path / "second", environment) as (second, _),
    ):
        body = {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "hi"}]}}
        command = {"id": 1, "method": "run.start", "params": body}
        run_id = (await first.post("/threads/t1/commands", json=command)).json()["result"]["run_id"]
        choice = {"channels": ["lifecycle", "messages", "values"]}
        async with first.stream("POST", "/threads/t1/stream/events", json=choice) as response:
            async for event in protocol_events(response):
                numbers.append(event["seq"])
                if "delta" in event["params"]["data"]:
                    process.child.kill()
                    break
        provider.answer = lambda _: ["a whole answer"]
        again: list[dict[str, Any]] = []
        async with second.stream(
            "POST", "/threads/t1/stream/events", json={**choice, "since": numbers[-1]}
        ) as response:
            async for event in protocol_events(response):
                again.append(event)
                if event["params"]["data"].get("event") in ("completed", "failed"):
                    break
        langgraph = get_client(url=str(second.base_url), timeout=HANG_SECONDS)
        parts = [
            part
            async for part in langgraph.runs.join_stream(
                "t1", run_id, stream_mode=["values", "messages-tuple"], last_event_id=str(numbers[-1])
            )
        ]
        await langgraph.aclose()
    assert [event["seq"] for event in again] == sorted({event["seq"] for event in again} - set(numbers))
    assert min(event["seq"] for event in again) > numbers[-1]
    assert again[-1]["params"]["data"]["event"] == "completed"
    *_, values = [event["params"]["data"]["messages"] for event in again if event["method"] == "values"]
    assert [one["content"] for one in values] == ["hi", "a whole answer"]
    *_, state = [part.data["messages"] for part in parts if part.event == "values"]
    assert [one["content"] for one in state] == ["hi", "a whole answer"]
    assert parts[-1].event == "end"


async def protocol_events(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a thread's stream."""
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
