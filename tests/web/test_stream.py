"""Tests of POST /api/v1/chat/stream: a turn as server-sent events, through a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from tests.web.services import (
    Event,
    check_problem,
    events_of,
    history,
    listening,
    opened_app,
    said,
    say,
    settings_for,
    streamed,
    until,
)
from threadkeep.agent.demo import DemoModel
from threadkeep.errors import SessionNotFound
from threadkeep.runs.chat_turns import ChatEvent, ChatStarted, ChatTurn
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.web.problems import ProblemRaised, make_problem
from threadkeep.web.streams import with_keepalives


def text_of(events: list[Event]) -> str:
    """Return the joined text of the tokens."""
    return "".join(event.data["text"] for event in events if event.name == "token")


async def test_a_stream_has_start_tokens_and_end(tmp_path: Path) -> None:
    model = ScriptedModel(["a few words of\nanswer"])
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        events = await streamed(client, {"message": "hi", "session_id": "s1", "message_id": "m1"})
        plain = await say(client, "hi", session_id="s1", message_id="m1")
    assert [event.name for event in events] == ["start", *["token"] * 5, "end"]
    assert events[0].data == {"session_id": "s1", "run_id": plain["run_id"], "message_id": "m1"}
    assert text_of(events) == "a few words of\nanswer"
    assert events[-1].data == plain


async def test_a_turn_streams_while_it_runs(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        opened_app(ScriptedModel([["first", gate, " last"]]), settings_for(tmp_path)) as app,
        listening(app) as client,
        client.stream("POST", "/api/v1/chat/stream", json={"message": "hi"}) as response,
    ):
        events = events_of(response)
        assert [(await anext(events)).name, (await anext(events)).data["text"]] == ["start", "first"]
        gate.open()
        assert [event.name async for event in events] == ["token", "end"]


async def test_the_same_message_id_streams_the_first_answer_again(tmp_path: Path) -> None:
    """The stored answer is streamed as one token, without a model call."""
    model = ScriptedModel(["a few words"])
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        first, again = [
            await streamed(client, {"message": "hi", "session_id": "s1", "message_id": "m1"}) for _ in range(2)
        ]
    assert [event.name for event in again] == ["start", "token", "end"]
    assert again[0] == first[0]
    assert again[-1] == first[-1]
    assert text_of(again) == text_of(first) == "a few words"
    assert len(model.calls) == 1


async def test_a_late_stream_has_all_events(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel([["first", gate, " last"]])
    body = {"message": "hi", "session_id": "s1", "message_id": "m1"}
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        first = asyncio.create_task(streamed(client, body))
        await gate.reached()
        async with client.stream("POST", "/api/v1/chat/stream", json=body) as response:
            late = events_of(response)
            assert (await anext(late)).name == "start"
            gate.open()
            assert [event.name async for event in late] == ["token", "token", "end"]
        assert text_of(await first) == "first last"


async def test_the_answer_of_a_model_without_streaming_is_streamed(tmp_path: Path) -> None:
    model = ScriptedModel(["all of it"], disable_streaming=True)
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        assert text_of(await streamed(client, {"message": "hi"})) == "all of it"


async def test_a_failure_in_mid_stream_is_an_error_event_and_the_last(tmp_path: Path) -> None:
    """The last event is the problem document without the provider's text, and the message can be sent again."""
    model = ScriptedModel([["some", ValueError("secret of the provider")], "all of it"])
    body = {"message": "hi", "session_id": "s1", "message_id": "m1"}
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        events = await streamed(client, body)
        again = await streamed(client, body)
    assert [event.name for event in events] == ["start", "token", "error"]
    problem = events[-1].data
    assert (problem["type"], problem["status"]) == ("urn:threadkeep:model-failed", 502)
    assert (problem["session_id"], problem["message_id"]) == ("s1", "m1")
    assert "secret" not in str(problem)
    assert again[-1].data["response"] == "all of it"


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"message": ""}, 422, "invalid-request"),
        ({"message": "hi", "session_id": "telegram:"}, 422, "invalid-session-id"),
        ({"message": "hi", "workflow": "research"}, 404, "workflow-not-found"),
        ({"message": "hi", "session_id": "s1", "user_id": "bob"}, 404, "session-not-found"),
    ],
)
async def test_a_failure_before_the_turn_is_an_http_error(
    tmp_path: Path, body: dict[str, object], status: int, kind: str
) -> None:
    async with opened_app(DemoModel(), settings_for(tmp_path)) as app, listening(app) as client:
        await say(client, "hi", session_id="s1", user_id="ann")
        check_problem(await client.post("/api/v1/chat/stream", json=body), status, kind)


async def test_heartbeats_are_sent_during_a_model_call(tmp_path: Path) -> None:
    """Comments, which clients ignore, are sent while the model call runs."""
    gate = Gate()
    async with (
        opened_app(ScriptedModel([[gate, "done"]]), settings_for(tmp_path)) as app,
        listening(app, heartbeat_seconds=0.02) as client,
    ):
        await app.runs.service()  # opened here, so that the turn does not wait for it
        async with client.stream("POST", "/api/v1/chat/stream", json={"message": "hi"}) as response:
            events = events_of(response, comments=True)
            while (first := (await anext(events)).name) == "":
                pass  # on a busy machine the first heartbeat precedes the turn
            assert [first, *[(await anext(events)).name for _ in range(3)]] == ["start", "", "", ""]
            gate.open()
            rest = [event.name async for event in events if event.name]
    assert rest == ["token", "end"]


async def test_events_do_not_delay_the_check_of_a_key() -> None:
    """An event at 0.75 periods does not move the check from 1 to 1.75 periods, so the event at 1.5 is not sent."""
    loop, seconds = asyncio.get_running_loop(), 0.2
    arrivals = [loop.create_future() for _ in range(2)]
    for count, arrival in enumerate(arrivals, 1):
        loop.call_later(0.75 * count * seconds, arrival.set_result, count)

    async def check(caller: object) -> None:
        raise ProblemRaised(make_problem(401, "api-key-revoked", "It was revoked."))

    async def events() -> AsyncGenerator[int]:
        for arrival in arrivals:
            yield await arrival

    sent = list[int | None]()
    with suppress(ProblemRaised):
        async for event in with_keepalives(events(), _request(seconds, check)):
            sent.append(event)
    assert 2 not in sent


def _request(heartbeat_seconds: float, check: Callable[[object], Awaitable[None]]) -> Any:
    state = SimpleNamespace(heartbeat_seconds=heartbeat_seconds, keys=SimpleNamespace(check=check))
    return SimpleNamespace(app=SimpleNamespace(state=state), state=SimpleNamespace(caller=None))


async def _is_valid(caller: object) -> None:
    pass


async def test_the_error_of_a_stream_comes_after_its_events() -> None:
    async def events() -> AsyncGenerator[int]:
        yield 1
        yield 2
        raise SessionNotFound("s")

    sent = list[int | None]()

    async def read() -> None:
        async for event in with_keepalives(events(), _request(60, _is_valid)):
            sent.append(event)

    with pytest.raises(SessionNotFound):
        await read()
    assert sent == [1, 2]


async def test_a_closed_stream_has_closed_its_events() -> None:
    """The events are closed whether the next one is awaited or ready."""
    ended = list[str]()

    async def events(name: str, ready: int) -> AsyncGenerator[int]:
        try:
            for number in range(ready):
                yield number
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    for name, ready in (("waits", 1), ("is ready", 1_000)):
        stream = with_keepalives(events(name, ready), _request(60, _is_valid))
        assert await anext(stream) == 0
        await stream.aclose()
        assert ended.pop() == name


async def test_a_slow_client_bounds_what_is_read_for_it() -> None:
    read = list[int]()

    async def events() -> AsyncGenerator[int]:
        for number in range(1_000):
            read.append(number)
            yield number

    stream = with_keepalives(events(), _request(60, _is_valid))
    for _ in range(5):
        await anext(stream)
        await asyncio.sleep(0)
    assert len(read) < 20
    assert [number async for number in stream][-1] == 999


async def test_heartbeats_are_sent_while_a_turn_waits(tmp_path: Path) -> None:
    """The stream opens before its turn begins, when the first heartbeat is due."""
    gate = Gate()
    model = ScriptedModel([["one", gate], "two"])
    async with (
        opened_app(model, settings_for(tmp_path)) as app,
        listening(app, heartbeat_seconds=0.02) as client,
    ):
        first = asyncio.create_task(say(client, "q1", session_id="s1"))
        await gate.reached()
        body = {"message": "q2", "session_id": "s1"}
        async with client.stream("POST", "/api/v1/chat/stream", json=body) as response:
            events = events_of(response, comments=True)
            assert (await anext(events)).name == ""
            gate.open()
            assert [event.name async for event in events if event.name] == ["start", "token", "end"]
        await first


async def test_a_disconnected_reader_does_not_lose_the_turn(tmp_path: Path) -> None:
    """After a disconnect the turn ends, its answer is in the history, and a repeat returns it."""
    gate = Gate()
    model = ScriptedModel([["first", gate, " last"]])
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        body = {"message": "hi", "session_id": "s1", "message_id": "m1"}
        async with client.stream("POST", "/api/v1/chat/stream", json=body) as response:
            assert (await anext(events_of(response))).name == "start"
            await gate.reached()
        gate.open()
        await until(lambda: app.chat.running == 0)
        assert said(await history(client, "s1")) == [
            ("user", "hi", "complete"),
            ("assistant", "first last", "complete"),
        ]
        assert (await say(client, "hi", session_id="s1", message_id="m1"))["response"] == "first last"
    assert len(model.calls) == 1


async def test_a_disconnected_caller_does_not_lose_the_turn(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel([["first", gate, " last"]])
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        asking = asyncio.create_task(say(client, "hi", session_id="s1"))
        await gate.reached()
        asking.cancel()
        await asyncio.wait([asking])
        gate.open()
        await until(lambda: app.chat.running == 0)
        assert [message["content"] for message in await history(client, "s1")] == ["hi", "first last"]


async def test_half_a_character_from_the_model_can_be_sent(tmp_path: Path) -> None:
    """A lone surrogate in an answer is replaced, because it has no encoding."""
    model = ScriptedModel([AIMessage("half \ud83d"), AIMessage("half \ud83d")])
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        events = await streamed(client, {"message": "hi", "session_id": "s1"})
        assert text_of(events) == events[-1].data["response"] == "half \ufffd"
        assert (await say(client, "hi"))["response"] == "half \ufffd"


async def test_an_unexpected_error_ends_the_stream_with_an_error_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The event and the log do not contain the text of the error. The log has its class."""

    async def broken(turn: ChatTurn) -> AsyncIterator[ChatEvent]:
        yield ChatStarted(turn.session_id, turn.run_id, turn.message_id)
        raise RuntimeError("inside")

    monkeypatch.setattr(ChatTurn, "follow", broken)
    async with opened_app(DemoModel(), settings_for(tmp_path)) as app, listening(app) as client:
        [_, event] = await streamed(client, {"message": "hi"})
    assert (event.name, event.data["type"]) == ("error", "urn:threadkeep:internal-error")
    assert "inside" not in str(event.data)
    assert "RuntimeError" in caplog.text
    assert "inside" not in caplog.text
