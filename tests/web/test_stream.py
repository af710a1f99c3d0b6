"""POST /api/v1/chat/stream: a turn as server-sent events, through a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

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
from threadkeep.runs.chat_turns import ChatEvent, ChatStarted, ChatTurn
from threadkeep.testing import Gate, ScriptedModel


def text_of(events: list[Event]) -> str:
    """What the tokens say together."""
    return "".join(event.data["text"] for event in events if event.name == "token")


async def test_a_stream_starts_speaks_and_ends(tmp_path: Path) -> None:
    """`start`, a `token` for each piece, `end` with all that the plain answer has."""
    model = ScriptedModel(["a few words of\nanswer"])
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        events = await streamed(client, {"message": "hi", "session_id": "s1", "message_id": "m1"})
        plain = await say(client, "hi", session_id="s1", message_id="m1")
    assert [event.name for event in events] == ["start", *["token"] * 5, "end"]
    assert events[0].data == {"session_id": "s1", "run_id": plain["run_id"], "message_id": "m1"}
    assert text_of(events) == "a few words of\nanswer"
    assert events[-1].data == plain


async def test_a_turn_streams_while_it_runs(tmp_path: Path) -> None:
    """The first words are there before the last are thought of."""
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
    """It comes as one piece, since nobody waits for it to be thought."""
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


async def test_who_joins_late_gets_all_of_it(tmp_path: Path) -> None:
    """A second stream of a running turn begins at the beginning."""
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


async def test_a_model_that_does_not_stream_speaks_at_once(tmp_path: Path) -> None:
    """Tokens joined are the answer, however it came."""
    model = ScriptedModel(["all of it"], disable_streaming=True)
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        assert text_of(await streamed(client, {"message": "hi"})) == "all of it"


async def test_a_failure_in_mid_stream_is_an_error_event_and_the_last(tmp_path: Path) -> None:
    """It carries the problem document, without what the provider said; the message can be sent again."""
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
async def test_what_fails_before_the_turn_begins_is_an_http_error(
    tmp_path: Path, body: dict[str, object], status: int, kind: str
) -> None:
    """A stream is opened for a turn that runs only."""
    async with opened_app(DemoModel(), settings_for(tmp_path)) as app, listening(app) as client:
        await say(client, "hi", session_id="s1", user_id="ann")
        check_problem(await client.post("/api/v1/chat/stream", json=body), status, kind)


async def test_heartbeats_keep_the_line_while_the_model_thinks(tmp_path: Path) -> None:
    """Comments, which readers of events do not see."""
    gate = Gate()
    async with (
        opened_app(ScriptedModel([[gate, "done"]]), settings_for(tmp_path)) as app,
        listening(app, heartbeat_seconds=0.02) as client,
    ):
        await app.runs.service()  # opened here, so that the turn does not wait for it
        async with client.stream("POST", "/api/v1/chat/stream", json={"message": "hi"}) as response:
            events = events_of(response)
            while (first := (await anext(events)).name) == "":
                pass  # the turn begins later than the first heartbeat where the machine has other work to do
            assert [first, *[(await anext(events)).name for _ in range(3)]] == ["start", "", "", ""]
            gate.open()
            rest = [event.name async for event in events if event.name]
    assert rest == ["token", "end"]


async def test_heartbeats_keep_the_line_while_a_turn_waits_for_the_one_before(tmp_path: Path) -> None:
    """The stream opens before the turn begins, once a heartbeat is due."""
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
            events = events_of(response)
            assert (await anext(events)).name == ""
            gate.open()
            assert [event.name async for event in events if event.name] == ["start", "token", "end"]
        await first


async def test_a_reader_who_goes_away_does_not_lose_the_turn(tmp_path: Path) -> None:
    """The answer is whole in the history, and the same message id gets it."""
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


async def test_a_caller_who_goes_away_does_not_lose_the_turn(tmp_path: Path) -> None:
    """Nor without a stream."""
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
    """A lone surrogate is replaced: it has no bytes."""
    model = ScriptedModel([AIMessage("half \ud83d"), AIMessage("half \ud83d")])
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        events = await streamed(client, {"message": "hi", "session_id": "s1"})
        assert text_of(events) == events[-1].data["response"] == "half \ufffd"
        assert (await say(client, "hi"))["response"] == "half \ufffd"


async def test_an_error_that_nobody_foresaw_ends_the_stream_with_an_error_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or it would look like a good end. The log has its class and its place: its sentence may quote people."""

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
