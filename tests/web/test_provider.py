"""End-to-end tests of the requests that a provider with OpenAI's protocol receives."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from langchain_core.messages import convert_to_messages

from tests.web.provider import Provider, providing
from tests.web.services import check_problem, history, listening, said, say, settings_for, streamed
from threadkeep.agent.counting import count_tokens
from threadkeep.agent.provider_messages import NO_ANSWER, OPENING
from threadkeep.app import App, open_app
from threadkeep.records import Message


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """Return a provider that the environment names."""
    with providing() as started:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        yield started


@asynccontextmanager
async def chatting(folder: Path, **overrides: object) -> AsyncIterator[tuple[App, httpx2.AsyncClient]]:
    """Open a service with the model that the environment names."""
    async with open_app(settings_for(folder, **overrides)) as app, listening(app) as client:
        yield app, client


async def store(app: App, count: int, text: str = "message {}", times: int = 1) -> list[tuple[str, str]]:
    """Store messages 1, 2, … of user and assistant in turn, and return their roles and texts."""
    messages = [
        Message(role="user" if n % 2 else "assistant", content=text.format(n) * times) for n in range(1, count + 1)
    ]
    await app.memory.session("s1").append(messages)
    return [(message.role, message.content) for message in messages]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_the_newest_twenty_messages_are_sent(tmp_path: Path, provider: Provider, stream: bool) -> None:
    """The request has the system prompt, an opening, messages 6 to 25 and the input, streamed or not."""
    provider.answer = lambda _: ["so ", "it ", "is"]
    async with chatting(tmp_path, system_prompt="Be brief.") as (app, client):
        stored = await store(app, 25)
        if stream:
            events = await streamed(client, {"message": "and now?", "session_id": "s1"})
            assert [event.data["text"] for event in events if event.name == "token"] == ["so ", "it ", "is"]
            answer = events[-1].data
        else:
            answer = await say(client, "and now?", session_id="s1")
        assert answer["response"] == "so it is"
        assert provider.messages == [("system", "Be brief."), ("user", OPENING), *stored[5:], ("user", "and now?")]
        assert (answer["context"]["messages"], answer["context"]["dropped"]) == (22, 5)
        assert provider.requests[-1]["path"] == "/v1/chat/completions"
        assert provider.requests[-1]["model"] == "gpt-test"
        assert len(provider.requests) == 1
        assert said(await history(client, "s1"))[-2:] == [
            ("user", "and now?", "complete"),
            ("assistant", "so it is", "complete"),
        ]


async def test_a_request_keeps_the_budget(tmp_path: Path, provider: Provider) -> None:
    """The request fits the token budget, and one more message would not."""
    async with chatting(tmp_path, system_prompt="Be brief.", history_max_tokens=400) as (app, client):
        stored = await store(app, 25, "This is message number {}. ", times=6)
        answer = await say(client, "and now?", session_id="s1")
    tokens = count_tokens(convert_to_messages(provider.requests[-1]["messages"]))
    assert answer["context"]["tokens"] == tokens <= 400
    kept = provider.messages[1:-1]
    assert kept == stored[-len(kept) :]
    assert tokens + count_tokens(stored[-len(kept) - 1][1]) > 400
    assert answer["context"]["dropped"] == 25 - len(kept)


async def test_an_input_above_the_budget_is_cut_visibly(tmp_path: Path, provider: Provider) -> None:
    """Only the cut input is sent, and the transcript has it whole."""
    message = "word " * 1000
    async with chatting(tmp_path, history_max_tokens=50) as (app, client):
        await store(app, 4)
        await say(client, message, session_id="s1")
        assert (await history(client, "s1"))[-2]["content"] == message
    [(role, sent)] = provider.messages
    assert role == "user"
    assert sent.startswith("word word")
    assert sent.endswith("… [cut]")
    assert count_tokens(sent) <= 50


@pytest.mark.parametrize("off", [{"history_enabled": False}, {"history_max_messages": 0}, {"history_max_tokens": 0}])
async def test_no_history_is_sent_if_it_is_off(tmp_path: Path, provider: Provider, off: dict[str, object]) -> None:
    """Without history only the input is sent, and the transcript is still stored."""
    async with chatting(tmp_path, **off) as (app, client):
        await store(app, 4)
        await say(client, "and now?", session_id="s1")
        assert provider.messages == [("user", "and now?")]
        assert len(await history(client, "s1")) == 6


async def test_system_messages_are_not_sent(tmp_path: Path, provider: Provider) -> None:
    """System messages of a transcript are not sent, and do not count as messages."""
    async with chatting(tmp_path, history_max_messages=2) as (app, client):
        await store(app, 4)
        await app.memory.session("s1").append([Message(role="system", content="a note")] * 5)
        await say(client, "and now?", session_id="s1")
    assert provider.messages == [("user", "message 3"), ("assistant", "message 4"), ("user", "and now?")]


async def test_a_failed_message_is_sent_again_by_a_repeat(tmp_path: Path, provider: Provider) -> None:
    """A failed call stores the message without an answer.

    A repeat of its id calls the provider again and stores no second message.
    """
    provider.answer = lambda _: 400
    async with chatting(tmp_path) as (app, client):
        stored = await store(app, 2)
        body = {"message": "canary-71f2", "session_id": "s1", "message_id": "m1"}
        response = await client.post("/api/v1/chat", json=body)
        check_problem(response, 502, "model-failed")
        assert "canary" not in response.text
        assert said(await history(client, "s1"))[2:] == [("user", "canary-71f2", "complete")]
        failed = await streamed(client, body)
        assert [event.name for event in failed] == ["start", "error"]
        assert failed[-1].data["status"] == 502
        provider.answer = lambda _: ["now ", "it works"]
        assert (await say(client, **body))["response"] == "now it works"
        assert said(await history(client, "s1"))[2:] == [
            ("user", "canary-71f2", "complete"),
            ("assistant", "now it works", "complete"),
        ]
        calls = len(provider.requests)
        assert (await say(client, **body))["response"] == "now it works"
    assert len(provider.requests) == calls == 3
    assert all(request["messages"][-1]["content"] == "canary-71f2" for request in provider.requests)
    assert provider.messages == [*stored, ("user", "canary-71f2")]


async def test_a_model_that_takes_too_long_has_failed(tmp_path: Path, provider: Provider) -> None:
    """A model call that exceeds its timeout fails, and its partial answer is not the answer."""
    waiting = threading.Event()
    provider.answer = lambda _: ["half an", waiting, " answer"]
    async with chatting(tmp_path, model_timeout_seconds=0.3) as (_, client):
        response = await client.post("/api/v1/chat", json={"message": "hi", "session_id": "s1"})
        waiting.set()
        assert "TimeoutError" in check_problem(response, 502, "model-failed")["detail"]
        assert said(await history(client, "s1"))[0] == ("user", "hi", "complete")


async def test_an_unanswered_message_gets_a_placeholder(tmp_path: Path, provider: Provider) -> None:
    provider.answer = lambda _: 400
    async with chatting(tmp_path) as (_, client):
        await client.post("/api/v1/chat", json={"message": "first", "session_id": "s1"})
        provider.answer = lambda _: ["ok"]
        await say(client, "second", session_id="s1")
    assert provider.messages == [("user", "first"), ("assistant", NO_ANSWER), ("user", "second")]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("reported", [False, True], ids=["silent", "reported"])
async def test_estimated_usage_is_marked(tmp_path: Path, provider: Provider, stream: bool, reported: bool) -> None:
    """The answer, the run and the OpenAI response mark estimated usage.

    Streamed calls ask the provider for usage.
    """
    provider.reports_usage = reported
    async with chatting(tmp_path) as (_, client):
        if stream:
            answer = (await streamed(client, {"message": "hi there", "session_id": "s1"}))[-1].data
            assert provider.requests[-1]["stream_options"] == {"include_usage": True}
        else:
            answer = await say(client, "hi there", session_id="s1")
        run = (await client.get(f"/api/v1/runs/{answer['run_id']}")).json()
        asked = {"model": "chat", "messages": [{"role": "user", "content": "hi there"}], "stream": stream}
        completion = await client.post("/v1/chat/completions", json=asked | {"stream_options": {"include_usage": True}})
    counted = count_tokens("hi there"), count_tokens("ok")
    numbers = {"input_tokens": 812, "output_tokens": 12}
    if not reported:
        numbers = {"input_tokens": counted[0], "output_tokens": counted[1], "estimated": True}
    assert answer["usage"] == numbers
    assert ('"estimated"' in completion.text) is not reported
    assert {name: value for name, value in run["usage"].items() if name not in ("models", "cost")} == numbers
