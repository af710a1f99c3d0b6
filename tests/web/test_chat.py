"""Tests of POST /api/v1/chat: answers with memory, repeats of message ids, and the order of turns."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import httpx2
import pytest
from langchain_core.messages import AIMessage

from tests.web.services import check_problem, client_of, history, opened_app, said, say, settings_for, until
from threadkeep.app import App
from threadkeep.testing import Gate, ScriptedModel

ANSWER_FIELDS = {
    "session_id",
    "run_id",
    "message_id",
    "response",
    "confidence",
    "escalated",
    "usage",
    "context",
}


async def test_an_answer_has_exactly_the_documented_fields(client: httpx2.AsyncClient) -> None:
    answer = await say(client, "My name is Ann.", session_id="session-123", message_id="m1")
    assert set(answer) == ANSWER_FIELDS
    assert set(answer["usage"]) == {"input_tokens", "output_tokens"}
    assert set(answer["context"]) == {"messages", "tokens", "dropped"}
    assert (answer["session_id"], answer["message_id"]) == ("session-123", "m1")
    assert answer["confidence"] is None
    assert answer["escalated"] is False
    assert answer["run_id"]


async def test_a_session_remembers_its_earlier_turns(client: httpx2.AsyncClient) -> None:
    await say(client, "My name is Ann.", session_id="s1")
    answer = await say(client, "What is my name?", session_id="s1")
    assert "My name is Ann." in answer["response"]
    assert answer["context"]["messages"] == 3


async def test_a_session_does_not_see_the_turns_of_another(client: httpx2.AsyncClient) -> None:
    await say(client, "My name is Ann.", session_id="s1")
    assert "Ann" not in (await say(client, "What is my name?", session_id="s2"))["response"]


async def test_without_a_session_id_a_session_begins(client: httpx2.AsyncClient) -> None:
    first = await say(client, "My name is Ann.")
    second = await say(client, "What is my name?", session_id=first["session_id"])
    assert "Ann" in second["response"]
    assert first["session_id"] != (await say(client, "hello"))["session_id"]


async def test_the_same_message_id_gets_the_first_answer_again(tmp_path: Path) -> None:
    model = ScriptedModel(["first", "second"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        answers = [await say(client, "hi", session_id="s1", message_id="m1") for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        assert len(model.calls) == 1
        assert said(await history(client, "s1")) == [("user", "hi", "complete"), ("assistant", "first", "complete")]


async def test_the_same_message_id_at_the_same_time_is_one_turn(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel([["one ", gate, "answer"]])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        asking = [asyncio.create_task(say(client, "hi", session_id="s1", message_id="m1")) for _ in range(10)]
        await gate.reached()
        gate.open()
        answers = await asyncio.gather(*asking)
    assert all(answer == answers[0] for answer in answers)
    assert len(model.calls) == 1


async def test_the_same_words_twice_are_two_turns(client: httpx2.AsyncClient) -> None:
    """Only a message id identifies a repeat."""
    for _ in range(2):
        await say(client, "ok", session_id="s1")
    assert [message["content"] for message in await history(client, "s1")][::2] == ["ok", "ok"]


async def test_twenty_at_once_on_one_session_are_answered_in_order_of_arrival(tmp_path: Path) -> None:
    model = ScriptedModel(lambda messages: f"to {messages[-1].text}" for _ in range(20))
    settings = settings_for(tmp_path, history_max_messages=100)
    async with opened_app(model, settings) as app, client_of(app) as client:
        await asyncio.gather(*(say(client, f"q{n}", session_id="s1") for n in range(20)))
        messages = await history(client, "s1")
    turns = [[("user", f"q{n}", "complete"), ("assistant", f"to q{n}", "complete")] for n in range(20)]
    assert said(messages) == list(itertools.chain(*turns))
    assert [message["seq"] for message in messages] == list(range(1, 41))
    assert [len(call) for call in model.calls] == list(range(1, 41, 2))


async def test_a_later_message_does_not_overtake_a_waiting_one(tmp_path: Path) -> None:
    gates = [Gate(), Gate(), Gate()]
    model = ScriptedModel([[f"answer {n}", gate] for n, gate in enumerate(gates)])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        first = asyncio.create_task(say(client, "q0", session_id="s1"))
        await gates[0].reached()
        second = asyncio.create_task(say(client, "q1", session_id="s1"))
        await until(lambda: app.chat.running == 2)
        gates[0].open()
        await first
        await gates[1].reached()
        third = asyncio.create_task(say(client, "q2", session_id="s1"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await gates[2].reached()
        gates[1].open()
        gates[2].open()
        await asyncio.gather(second, third)
        contents = [message["content"] for message in await history(client, "s1")]
    assert contents == ["q0", "answer 0", "q1", "answer 1", "q2", "answer 2"]


async def test_sessions_run_in_parallel(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel([["slow ", gate, "answer"], "quick answer"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        slow = asyncio.create_task(say(client, "hi", session_id="s1"))
        await gate.reached()
        assert (await say(client, "hi", session_id="s2"))["response"] == "quick answer"
        gate.open()
        assert (await slow)["response"] == "slow answer"


async def test_a_failing_model_is_a_502_without_a_stored_answer(tmp_path: Path) -> None:
    """The message is stored without an answer, and a repeat of its id succeeds later."""
    model = ScriptedModel([ValueError("secret of the provider"), "now it works"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        body = {"message": "hi", "session_id": "s1", "message_id": "m1"}
        response = await client.post("/api/v1/chat", json=body)
        problem = check_problem(response, 502, "model-failed")
        assert "secret" not in response.text
        assert (problem["session_id"], problem["message_id"]) == ("s1", "m1")
        assert said(await history(client, "s1")) == [("user", "hi", "complete")]
        assert (await say(client, "hi", session_id="s1", message_id="m1"))["response"] == "now it works"
        assert [message["content"] for message in await history(client, "s1")] == ["hi", "now it works"]


async def test_a_failure_names_the_generated_ids(tmp_path: Path) -> None:
    """A caller without its own ids can send the message again with the ids of the problem."""
    model = ScriptedModel([ValueError(), "now it works"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        problem = check_problem(await client.post("/api/v1/chat", json={"message": "hi"}), 502, "model-failed")
        again = {"session_id": problem["session_id"], "message_id": problem["message_id"]}
        assert (await say(client, "hi", **again))["response"] == "now it works"
        assert [message["content"] for message in await history(client, problem["session_id"])] == [
            "hi",
            "now it works",
        ]


async def test_confidence_and_escalation_are_returned(tmp_path: Path) -> None:
    answer = AIMessage("Let me ask.", response_metadata={"confidence": 0.25, "escalated": True})
    async with opened_app(ScriptedModel([answer]), settings_for(tmp_path)) as app, client_of(app) as client:
        told = await say(client, "hi", session_id="s1")
        assert (told["confidence"], told["escalated"]) == (0.25, True)
        stored = (await history(client, "s1"))[1]
        assert (stored["confidence"], stored["escalated"]) == (0.25, True)


async def test_metadata_is_stored_with_the_message(app: App, client: httpx2.AsyncClient) -> None:
    await say(client, "hi", session_id="s1", metadata={"page": "/pricing", "tries": [1, 2.5, None]})
    [question, _] = await app.memory.session("s1").tail(2)
    assert question.metadata == {"page": "/pricing", "tries": [1, 2.5, None]}


async def test_a_session_belongs_to_its_user(client: httpx2.AsyncClient) -> None:
    await say(client, "My name is Ann.", session_id="s1", user_id="ann")
    body = {"message": "What is my name?", "session_id": "s1", "user_id": "bob"}
    check_problem(await client.post("/api/v1/chat", json=body), 404, "session-not-found")
    assert len(await history(client, "s1", user_id="ann")) == 2


async def test_another_users_message_id_does_not_join_the_turn(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel([["an", gate, " answer"]])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        body = {"message": "hi", "session_id": "s1", "message_id": "m1"}
        asking = asyncio.create_task(say(client, user_id="ann", **body))
        await gate.reached()
        check_problem(await client.post("/api/v1/chat", json=body | {"user_id": "bob"}), 404, "session-not-found")
        gate.open()
        assert (await asking)["response"] == "an answer"
        assert app.chat.running == 0


@pytest.mark.parametrize("message", ["nul \x00 here", "half \ud83d here"])
async def test_characters_that_no_database_keeps_are_replaced(tmp_path: Path, message: str) -> None:
    """The model gets the text that is stored."""
    model = ScriptedModel([lambda messages: f"You said: {messages[-1].text}"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        content = b'{"session_id": "s1", "message": "%s"}' % message.encode("unicode-escape").replace(b"\\x", b"\\u00")
        response = await client.post("/api/v1/chat", content=content, headers={"content-type": "application/json"})
        kept = message.replace("\x00", "\ufffd").replace("\ud83d", "\ufffd")
        assert response.json()["response"] == f"You said: {kept}"
        assert (await history(client, "s1"))[0]["content"] == kept


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"message": ""},
        {"message": "x" * 100_001},
        {"message": 5},
        {"message": None},
        {"message": "hi", "unknown": 1},
        {"message": "hi", "session_id": ""},
        {"message": "hi", "session_id": "telegram:"},
        {"message": "hi", "session_id": " "},
        {"message": "hi", "session_id": "s1\n"},
        {"message": "hi", "session_id": "x" * 257},
        {"message": "hi", "user_id": ""},
        {"message": "hi", "user_id": " "},
        {"message": "hi", "user_id": "a\nb"},
        {"message": "hi", "message_id": ""},
        {"message": "hi", "message_id": "x" * 513},
        {"message": "hi", "message_id": "\u0000"},
        {"message": "hi", "metadata": []},
        {
            "message": "hi",
            "metadata": {"a": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]},
        },
        [],
        "hi",
        None,
    ],
)
async def test_an_invalid_message_is_a_422(client: httpx2.AsyncClient, body: object) -> None:
    """An invalid request stores nothing."""
    response = await client.post("/api/v1/chat", json=body)
    assert check_problem(response, 422, response.json()["type"].rpartition(":")[2])["detail"]
    assert (await client.get("/api/v1/sessions")).json()["sessions"] == []


@pytest.mark.parametrize("character", ["x", "长", "🙂"])
@pytest.mark.parametrize("ascii_only", [True, False])
async def test_the_longest_message_is_taken(client: httpx2.AsyncClient, character: str, ascii_only: bool) -> None:
    """100,000 characters of any script are accepted. An escaped emoji has twelve bytes of JSON."""
    content = json.dumps({"message": character * 100_000, "session_id": "s1"}, ensure_ascii=ascii_only).encode()
    response = await client.post("/api/v1/chat", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 200
    assert (await history(client, "s1"))[0]["content"] == character * 100_000


async def test_a_session_id_that_names_nothing_is_refused_with_its_reason(client: httpx2.AsyncClient) -> None:
    """The reason is that of an invalid key."""
    response = await client.post("/api/v1/chat", json={"message": "hi", "session_id": "telegram:"})
    assert check_problem(response, 422, "invalid-session-id")["reason"] == "empty_part"


async def test_numbers_that_json_does_not_have_are_refused(client: httpx2.AsyncClient) -> None:
    """`NaN` is refused: Python would read it, but a database would not store it."""
    content = b'{"message": "hi", "metadata": {"a": NaN}}'
    response = await client.post("/api/v1/chat", content=content, headers={"content-type": "application/json"})
    check_problem(response, 422, "invalid-request")


@pytest.mark.parametrize("workflow", [None, "chat"])
async def test_the_default_workflow_is_chat(client: httpx2.AsyncClient, workflow: str | None) -> None:
    await say(client, "hi", workflow=workflow)


async def test_an_unknown_workflow_is_a_404_with_the_available_ones(client: httpx2.AsyncClient) -> None:
    response = await client.post("/api/v1/chat", json={"message": "hi", "workflow": "research"})
    assert check_problem(response, 404, "workflow-not-found")["available"] == ["chat"]
    assert (await client.get("/api/v1/sessions")).json()["sessions"] == []
