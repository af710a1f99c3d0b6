"""Tests of other chat protocols against a listening service: OpenAI's client, the AI SDK's stream, and AG-UI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.limits import HANG_SECONDS
from tests.web.services import history, listening, opened_app, said, settings_for, until
from tests.web.test_langgraph_protocol import ASKING
from threadkeep.testing import Gate, ScriptedModel


@asynccontextmanager
async def service(folder: Path, model: ScriptedModel, **settings: object) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client of a listening service."""
    async with opened_app(model, settings_for(folder, **settings)) as app, listening(app) as client:
        yield client


def openai_options(client: httpx2.AsyncClient) -> dict[str, Any]:
    """Return the options of OpenAI's client. By default, it waits for a connection for only five seconds."""
    return {"base_url": f"{client.base_url}/v1", "api_key": "none", "timeout": HANG_SECONDS}


@asynccontextmanager
async def openai_client(client: httpx2.AsyncClient, *, max_retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    """Return OpenAI's own client with the address of the service."""
    async with openai.AsyncOpenAI(**openai_options(client), max_retries=max_retries) as found:
        yield found


async def data_of(response: httpx2.Response) -> AsyncIterator[Any]:
    """Yield the data of the unnamed events of a stream, and `[DONE]` unparsed."""
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


async def parts_of(client: httpx2.AsyncClient, path: str, body: Mapping[str, Any]) -> list[Any]:
    """Return the data of all events of a stream."""
    async with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        return [one async for one in data_of(response)]


def ui_message(text: str, message_id: str = "m1", role: str = "user") -> dict[str, Any]:
    """Return a message as `useChat` sends it."""
    return {"id": message_id, "role": role, "parts": [{"type": "text", "text": text}]}


async def test_openais_client_continues_the_session_that_it_names(tmp_path: Path) -> None:
    """Earlier messages of the request are not stored again, and the usage is that of the turn."""
    model = ScriptedModel(["Noted.", ["It is ", "teal."]])
    async with service(tmp_path, model) as client, openai_client(client) as given, asyncio.timeout(HANG_SECONDS):
        asked: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "I like teal."}]
        named = {"X-Session-Id": "room"}
        first = await given.chat.completions.create(model="chat", messages=asked, extra_headers=named)
        asked += [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": "Which colour?"}]
        stream = await given.chat.completions.create(
            model="chat", messages=asked, stream=True, stream_options={"include_usage": True}, extra_headers=named
        )
        chunks = [chunk async for chunk in stream]
        stored = await history(client, "room")
        models = await given.models.list()
        assert await given.models.retrieve("chat") == models.data[0]
    assert first.choices[0].message.content == "Noted."
    assert first.usage is not None
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens > 0
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "It is teal."
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert [text for _, text, _ in said(stored)] == ["I like teal.", "Noted.", "Which colour?", "It is teal."]
    assert [one.id for one in models.data] == ["chat"]


async def test_openais_client_without_a_session_begins_one_with_its_history(tmp_path: Path) -> None:
    """The response names the new session, which begins with the earlier messages.

    `user` continues the user's last session.
    """
    model = ScriptedModel(["one", "two", "three"])
    async with service(tmp_path, model) as client, openai_client(client) as given, asyncio.timeout(HANG_SECONDS):
        asked: list[Any] = [
            {"role": "user", "content": "I like teal."},
            {"role": "assistant", "content": "Noted."},
            {"role": "user", "content": [{"type": "text", "text": "Which colour?"}]},
        ]
        new = await given.chat.completions.with_raw_response.create(model="chat", messages=asked)
        stored = await history(client, new.headers["x-session-id"])
        sessions = []
        for _ in range(2):
            raw = await given.chat.completions.with_raw_response.create(
                model="chat", messages=[{"role": "user", "content": "hi"}], user="u1"
            )
            sessions.append(raw.headers["x-session-id"])
    assert [text for _, text, _ in said(stored)] == ["I like teal.", "Noted.", "Which colour?", "one"]
    assert [message.text for message in model.calls[0]][:2] == ["I like teal.", "Noted."]
    assert len(set(sessions)) == 1
    assert sessions[0] != new.headers["x-session-id"]


@pytest.mark.parametrize("arguments", ["", "not json", "[1]", '{"a": 1}'])
async def test_openais_client_may_send_tool_calls_of_its_history(tmp_path: Path, arguments: str) -> None:
    """Their arguments are the model's text and need not be JSON. A call or a refusal needs no content."""
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    messages: list[Any] = [
        {"role": "user", "content": "Find it."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
        {"role": "assistant", "refusal": "No."},
        {"role": "assistant", "content": "I found nothing.", "tool_calls": [call]},
        {"role": "user", "content": "Again."},
    ]
    async with service(tmp_path, ScriptedModel(["one"])) as client:
        response = await client.post("/v1/chat/completions", json={"model": "chat", "messages": messages})
        assert response.status_code == 200, response.text
        stored = await history(client, response.headers["x-session-id"])
    assert [text for _, text, _ in said(stored)] == ["Find it.", "No.", "I found nothing.", "Again.", "one"]


@pytest.mark.parametrize("session_id", ["Zürich", "room 😀"])
async def test_openais_client_names_sessions_in_every_script(tmp_path: Path, session_id: str) -> None:
    """The session header is UTF-8 in the request and the response, also for a session of another client."""
    async with service(tmp_path, ScriptedModel(["one", "two", "three"])) as client:
        await client.post("/api/v1/chat", json={"message": "a", "session_id": session_id, "user_id": "u1"})
        body: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "b"}], "user": "u1"}
        continued = await client.post("/v1/chat/completions", json=body)
        named = {b"X-Session-Id": session_id.encode()}
        streamed = await client.post("/v1/chat/completions", json={**body, "stream": True}, headers=named)
        stored = await history(client, session_id)
    for response in (continued, streamed):
        assert (response.status_code, response.headers["x-session-id"]) == (200, session_id)
    assert [text for _, text, _ in said(stored)] == ["a", "one", "b", "two", "b", "three"]


async def test_openais_client_shows_the_problem(tmp_path: Path) -> None:
    asked: list[Any] = [{"role": "user", "content": "hi"}]
    async with service(tmp_path, ScriptedModel([])) as client, openai_client(client) as given:
        with pytest.raises(openai.NotFoundError, match="This workflow does not exist"):
            await given.chat.completions.create(model="gpt-9", messages=asked)
        with pytest.raises(openai.UnprocessableEntityError, match="/messages: List should have at least 1 item"):
            await given.chat.completions.create(model="chat", messages=[])
    async with service(tmp_path, ScriptedModel([]), api_keys="one:k-one") as client, openai_client(client) as given:
        with pytest.raises(openai.AuthenticationError, match="No valid API key"):
            await given.chat.completions.create(model="chat", messages=asked)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "a" * 100_001}]}),
        (
            "/api/v1/ai-sdk/chat",
            {"id": "s", "message": {"role": "user", "parts": [{"type": "text", "text": "a" * 100_001}]}},
        ),
        ("/api/v1/ag-ui", {"threadId": "s", "runId": "r", "messages": [{"role": "user", "content": "a" * 100_001}]}),
        (
            "/threads/s/runs/wait",
            {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "a" * 100_001}]}},
        ),
        (
            "/chatkit",
            {
                "type": "threads.create",
                "params": {
                    "input": {
                        "content": [{"type": "input_text", "text": "a" * 100_001}],
                        "attachments": [],
                        "inference_options": {},
                    }
                },
            },
        ),
    ],
)
async def test_a_message_has_the_same_limit_in_each_protocol(tmp_path: Path, path: str, body: Any) -> None:
    async with service(tmp_path, ScriptedModel([])) as client:
        refused = await client.post(path, json=body)
    assert (refused.status_code, "100,000 characters" in refused.json()["detail"]) == (422, True)


async def test_unsupported_options_of_openais_client_are_refused(tmp_path: Path) -> None:
    async with service(tmp_path, ScriptedModel([])) as client, openai_client(client) as given:
        asked: list[Any] = [{"role": "user", "content": "hi"}]
        with pytest.raises(openai.UnprocessableEntityError):
            await given.chat.completions.create(model="chat", messages=asked, n=2)
        with pytest.raises(openai.UnprocessableEntityError):
            await given.chat.completions.create(
                model="chat", messages=asked, tools=[{"type": "function", "function": {"name": "a", "parameters": {}}}]
            )
        with pytest.raises(openai.NotFoundError, match=r"`available` lists the existing ones: chat\."):
            await given.chat.completions.create(model="gpt-9", messages=asked)
        with pytest.raises(openai.NotFoundError):
            await given.models.retrieve("gpt-9")
        with pytest.raises(openai.UnprocessableEntityError):
            await given.chat.completions.create(model="chat", messages=[{"role": "assistant", "content": "hi"}])


async def test_openais_client_asks_once_if_the_turn_fails_or_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not retry. A retry would store the message again, because it has no message id."""
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    model = ScriptedModel([ValueError("secret words")] * 8)
    async with service(tmp_path, model, workflows="asking=asking:graph") as client, asyncio.timeout(HANG_SECONDS):
        async with openai_client(client, max_retries=2) as given:
            for name, status in (("chat", 502), ("asking", 409)):
                asked: Any = {
                    "messages": [{"role": "user", "content": "Pay."}],
                    "extra_headers": {"X-Session-Id": name},
                }
                with pytest.raises(openai.APIStatusError) as failed:
                    await given.chat.completions.create(model=name, **asked)
                assert failed.value.status_code == status
        stored = [await history(client, name) for name in ("chat", "asking")]
    assert [[text for _, text, _ in said(one)] for one in stored] == [["Pay."], ["Pay."]]


class LosesFirstAnswer(httpx2.AsyncHTTPTransport):
    """A connection that breaks after the service has answered the first request."""

    lost = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raise a timeout instead of returning the first response."""
        response = await super().handle_async_request(request)
        if self.lost:
            return response
        self.lost = True
        await response.aread()
        raise httpx2.ReadTimeout("lost", request=request)


@pytest.mark.parametrize("named", [{"session": "room"}, {"user": "u1"}, {}], ids=["session", "user", "neither"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_openais_client_asks_once_with_an_idempotency_key(
    tmp_path: Path, shared_url: str, monkeypatch: pytest.MonkeyPatch, named: dict[str, str], stream: bool
) -> None:
    """A retry after a timeout gets the stored answer. Another key is a new message with the same text."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    model = ScriptedModel(["one", "two", "three"])
    lossy = httpx2.AsyncClient(transport=LosesFirstAnswer())
    async with service(tmp_path, model, database_url=shared_url) as client, asyncio.timeout(HANG_SECONDS):
        async with openai.AsyncOpenAI(**openai_options(client), max_retries=1, http_client=lossy) as given:
            texts, sessions = [], []
            for key in ("first", "first", "second"):
                headers = {"Idempotency-Key": key, **({"X-Session-Id": "room"} if "session" in named else {})}
                asked: Any = {"messages": [{"role": "user", "content": "Go on."}], "stream": stream}
                if "user" in named:
                    asked["user"] = named["user"]
                raw = await given.chat.completions.with_raw_response.create(
                    model="chat", **asked, extra_headers=headers
                )
                sessions.append(raw.headers["x-session-id"])
                answer: Any = raw.parse()
                if stream:
                    texts.append("".join([one.choices[0].delta.content or "" async for one in answer]))
                else:
                    texts.append(answer.choices[0].message.content)
        stored = await history(client, sessions[0])
    assert texts == ["one", "one", "two"]
    assert [text for _, text, _ in said(stored)] == ["Go on.", "one", *(["Go on.", "two"] if named else [])]
    assert len(set(sessions)) == (1 if named else 2)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/v1/ai-sdk/chat", "/api/v1/ag-ui"])
async def test_a_stream_whose_model_fails_ends_with_an_error(tmp_path: Path, path: str) -> None:
    """The last event is an error in the form of the protocol, without the text of the exception."""
    bodies: dict[str, Any] = {
        "/v1/chat/completions": {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hi"}]},
        "/api/v1/ai-sdk/chat": {"id": "room", "messages": [ui_message("hi")]},
        "/api/v1/ag-ui": {"threadId": "room", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "hi"}]},
    }
    async with service(tmp_path, ScriptedModel([ConnectionError("secret words")] * 8)) as client:
        parts = await parts_of(client, path, bodies[path])
    told = [one for one in parts if one != "[DONE]"][-1]
    assert told.get("error") or told["type"] in ("error", "RUN_ERROR")
    assert "secret" not in json.dumps(parts)


async def test_a_chat_of_the_ai_sdk_is_answered_in_its_stream(tmp_path: Path) -> None:
    """The header and the parts are those of the UI message stream, and a repeat gets the same answer."""
    async with service(tmp_path, ScriptedModel([["It is ", "teal."], "again"])) as client:
        body = {"id": "room", "messages": [ui_message("Which?")], "trigger": "submit-message"}
        async with client.stream("POST", "/api/v1/ai-sdk/chat", json=body) as response:
            header = response.headers["x-vercel-ai-ui-message-stream"]
            parts = [one async for one in data_of(response)]
        repeated = await parts_of(client, "/api/v1/ai-sdk/chat", body)
        read = (await client.get("/api/v1/ai-sdk/chat/room")).json()
        regenerated = await parts_of(client, "/api/v1/ai-sdk/chat", {**body, "trigger": "regenerate-message"})
        stored = await history(client, "room")
    kinds = [one if isinstance(one, str) else one["type"] for one in parts]
    assert header == "v1"
    assert kinds[:3] == ["start", "start-step", "text-start"]
    assert kinds[-4:] == ["text-end", "finish-step", "finish", "[DONE]"]
    assert text_of(parts) == text_of(repeated) == "It is teal."
    answer_id = read["messages"][1]["id"]
    assert [one["messageId"] for one in (parts[0], repeated[0])] == [answer_id, answer_id]
    assert {one["id"] for one in parts[2:-3]} == {answer_id}
    assert [one["parts"][0]["text"] for one in read["messages"]] == ["Which?", "It is teal."]
    assert text_of(regenerated) == "again"
    assert [text for _, text, _ in said(stored)] == ["Which?", "again"]


async def test_an_edited_message_of_the_ai_sdk_gets_an_answer_of_its_own(tmp_path: Path) -> None:
    """`sendMessage({text, messageId})` keeps the id of the message. Each new text replaces the stored one once."""
    path = "/api/v1/ai-sdk/chat"

    def edit(text: str) -> dict[str, Any]:
        return {"id": "room", "messages": [ui_message(text)], "trigger": "submit-message", "messageId": "m1"}

    async with service(tmp_path, ScriptedModel(["teal", "later", "red", "redder", "teal again"])) as client:
        await parts_of(client, path, {**edit("Which?"), "messageId": None})
        await parts_of(client, path, {"id": "room", "messages": [ui_message("And?", "m2")]})
        told = [text_of(await parts_of(client, path, edit(text))) for text in ("Which red?", "Which red?")]
        again = {**edit("Which red?"), "trigger": "regenerate-message", "messageId": "a1"}
        told.append(text_of(await parts_of(client, path, again)))
        told.append(text_of(await parts_of(client, path, edit("Which?"))))
        stored = await history(client, "room")
        taken_back = {**edit("New?"), "messages": [ui_message("New?", "m2")], "messageId": "m2"}
        gone = await client.post(path, json=taken_back)
    assert told == ["red", "red", "redder", "teal again"]
    assert [text for _, text, _ in said(stored)] == ["Which?", "teal again"]
    assert gone.status_code == 409


async def test_a_message_with_unstorable_characters_is_edited_and_repeated(tmp_path: Path) -> None:
    """NUL and half of a surrogate pair are replaced before texts are compared, so a repeated text is not an edit."""
    path = "/api/v1/ai-sdk/chat"

    async def send(client: httpx2.AsyncClient, text: str, message_id: str | None) -> int:
        body = {"id": "room", "messages": [ui_message(text)], "messageId": message_id}
        headers = {"Content-Type": "application/json"}
        return (await client.post(path, content=json.dumps(body), headers=headers)).status_code

    async with service(tmp_path, ScriptedModel(["one", "two"])) as client:
        statuses = [await send(client, "a\0", None), await send(client, "a\0", "m1")]
        repeated = said(await history(client, "room"))
        statuses += [await send(client, "b\ud83d", "m1"), await send(client, "b\ud83d", "m1")]
        edited = said(await history(client, "room"))
    assert statuses == [200] * 4
    assert [text for _, text, _ in repeated] == ["a\ufffd", "one"]
    assert [text for _, text, _ in edited] == ["b\ufffd", "two"]


async def test_a_reloaded_page_gets_the_running_answer(tmp_path: Path) -> None:
    gate = Gate()
    async with service(tmp_path, ScriptedModel([["It is ", gate, "teal."]])) as client, asyncio.timeout(HANG_SECONDS):
        before = await client.get("/api/v1/ai-sdk/chat/room/stream")
        body = {"id": "room", "messages": [ui_message("Which?")]}
        first = asyncio.create_task(parts_of(client, "/api/v1/ai-sdk/chat", body))
        await gate.reached()
        async with client.stream("GET", "/api/v1/ai-sdk/chat/room/stream") as response:
            assert response.status_code == 200
            gate.open()
            resumed = [one async for one in data_of(response)]
        await first
        after = await client.get("/api/v1/ai-sdk/chat/room/stream")
    assert (before.status_code, after.status_code) == (204, 204)
    assert text_of(resumed) == "It is teal."


async def test_a_reloaded_page_has_the_message_that_waits_for_a_turn(tmp_path: Path) -> None:
    """The page also gets the answer to this message, and each message once."""
    gate = Gate()
    path = "/api/v1/ai-sdk/chat"
    async with service(tmp_path, ScriptedModel([["one", gate], "two"])) as client, asyncio.timeout(HANG_SECONDS):
        first = asyncio.create_task(parts_of(client, path, {"id": "room", "messages": [ui_message("First.", "m1")]}))
        await gate.reached()
        second = asyncio.create_task(parts_of(client, path, {"id": "room", "messages": [ui_message("Next.", "m2")]}))
        await until(lambda: is_queued(client))
        shown = (await client.get(f"{path}/room")).json()["messages"]
        resumed = asyncio.create_task(resumed_texts(client))
        gate.open()
        text, _, _ = await asyncio.gather(resumed, first, second)
        after = (await client.get(f"{path}/room")).json()["messages"]
    assert [(one["id"], one["role"], one["parts"][0]["text"]) for one in shown] == [
        ("m1", "user", "First."),
        ("m2", "user", "Next."),
    ]
    assert text == "two"
    assert [one["parts"][0]["text"] for one in after] == ["First.", "one", "Next.", "two"]


async def resumed_texts(client: httpx2.AsyncClient) -> str:
    """Return the text that a reloaded page receives."""
    async with client.stream("GET", "/api/v1/ai-sdk/chat/room/stream") as response:
        return text_of([one async for one in data_of(response)])


async def test_a_reloaded_page_lacks_the_older_version_of_an_edited_message(tmp_path: Path) -> None:
    """The turn of the older version still runs, but its message is superseded."""
    gate = Gate()
    async with service(tmp_path, ScriptedModel([["one", gate], "two"])) as client, asyncio.timeout(HANG_SECONDS):
        path, sent = "/api/v1/ai-sdk/chat", [{"id": "room", "messages": [ui_message(text)]} for text in ("hi", "hello")]
        first = asyncio.create_task(parts_of(client, path, sent[0]))
        await gate.reached()
        second = asyncio.create_task(parts_of(client, path, sent[1] | {"messageId": "m1"}))
        await until(lambda: is_queued(client))
        shown = (await client.get(f"{path}/room")).json()["messages"]
        gate.open()
        await asyncio.gather(first, second)
    assert [part["text"] for one in shown for part in one["parts"]] == ["hello"]


async def test_a_reloaded_page_does_not_repeat_a_run_without_a_message_id(tmp_path: Path) -> None:
    """Such a run cannot be joined, so there is nothing to resume."""
    gate = Gate()
    model = ScriptedModel([["one", gate], "two"])
    async with service(tmp_path, model) as client, asyncio.timeout(HANG_SECONDS):
        body = {"message": "Go.", "session_id": "room"}
        running = asyncio.create_task(client.post("/api/v1/workflows/chat/runs", json=body))
        await gate.reached()
        resumed = await client.get("/api/v1/ai-sdk/chat/room/stream")
        gate.open()
        assert (await running).json()["status"] == "done"
        stored = await history(client, "room")
    assert resumed.status_code == 204
    assert [text for _, text, _ in said(stored)] == ["Go.", "one"]


@pytest.mark.parametrize("path", ["/api/v1/ai-sdk/chat", "/api/v1/ag-ui"])
async def test_a_message_without_an_answer_is_not_answered_again(tmp_path: Path, path: str) -> None:
    """A failed message that the client sends again before the next one is not answered."""
    async with service(tmp_path, ScriptedModel([RuntimeError("broken"), "fine"])) as client:
        for count in (1, 2):
            sent = [(f"m{number}", f"Question {number}.") for number in range(1, count + 1)]
            if "ag-ui" in path:
                messages = [{"id": name, "role": "user", "content": text} for name, text in sent]
                await parts_of(client, path, {"threadId": "s", "runId": f"r{count}", "messages": messages})
            else:
                await parts_of(client, path, {"id": "s", "messages": [ui_message(text, name) for name, text in sent]})
        stored = await history(client, "s")
    assert [text for _, text, _ in said(stored)] == ["Question 1.", "Question 2.", "fine"]


async def test_a_thread_of_ag_ui_is_merged_by_message_id(tmp_path: Path) -> None:
    """The client sends all messages each time. Snapshots before and after the answer return the transcript."""
    async with service(tmp_path, ScriptedModel(["one", ["tw", "o"]])) as client:
        messages: list[Any] = [{"id": "a", "role": "user", "content": "first"}]
        first = await parts_of(client, "/api/v1/ag-ui", run_input(messages))
        messages = first[-2]["messages"] + [{"id": "b", "role": "user", "content": "second"}]
        second = await parts_of(client, "/api/v1/ag-ui", run_input(messages, "r2"))
        stored = await history(client, "room")
    assert [one["type"] for one in second] == [
        "RUN_STARTED",
        "MESSAGES_SNAPSHOT",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "MESSAGES_SNAPSHOT",
        "RUN_FINISHED",
    ]
    assert second[0] == {"type": "RUN_STARTED", "threadId": "room", "runId": "r2"}
    # A client drops messages that a snapshot lacks. Both snapshots have the user message at its position.
    assert [one["content"] for one in first[1]["messages"]] == ["first"]
    assert [one["content"] for one in second[1]["messages"]] == ["first", "one", "second"]
    assert [one["content"] for one in second[-2]["messages"]] == ["first", "one", "second", "two"]
    assert [text for _, text, _ in said(stored)] == ["first", "one", "second", "two"]
    assert [one["id"] for one in second[-2]["messages"]][::2] == ["a", "b"]
    assert [one["messageId"] for one in second[2:6]] == [second[-2]["messages"][3]["id"]] * 4
    assert [one["messageId"] for one in first if "messageId" in one] == [first[-2]["messages"][1]["id"]] * 3


async def test_a_repeated_request_of_ag_ui_sends_the_text_of_its_answer_once(tmp_path: Path) -> None:
    """A client appends each piece to the message with this id, so the first snapshot must not have this message."""
    async with service(tmp_path, ScriptedModel(["one"])) as client:
        body = run_input([{"id": "a", "role": "user", "content": "first"}])
        await parts_of(client, "/api/v1/ag-ui", body)
        parts = await parts_of(client, "/api/v1/ag-ui", body)
    assert [one["content"] for one in parts[1]["messages"]] == ["first"]
    assert "".join(one.get("delta", "") for one in parts) == "one"
    assert [one["content"] for one in parts[-2]["messages"]] == ["first", "one"]


async def test_a_repeated_older_question_of_ag_ui_does_not_double_its_answer(tmp_path: Path) -> None:
    """The first snapshot has the answer at its position, so its text is not sent again."""
    async with service(tmp_path, ScriptedModel(["one", "two"])) as client:
        first, second = ({"id": name, "role": "user", "content": name} for name in "ab")
        await parts_of(client, "/api/v1/ag-ui", run_input([first]))
        await parts_of(client, "/api/v1/ag-ui", run_input([first, second]))
        parts = await parts_of(client, "/api/v1/ag-ui", run_input([first]))
    assert [one["content"] for one in parts[1]["messages"]] == ["a", "one", "b", "two"]
    assert [one["type"] for one in parts[2:]] == ["MESSAGES_SNAPSHOT", "RUN_FINISHED"]


SPEAKING = """
from threadkeep.testing import ScriptedModel

async def speak(state):
    return {"messages": [await ScriptedModel([["Let me ", "see."]]).ainvoke(state["messages"])]}
""" + ASKING.replace(
    'add_edge(START, "ask")', 'add_node("speak", speak).add_edge(START, "speak").add_edge("speak", "ask")'
)


@asynccontextmanager
async def asking_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, httpx2.AsyncClient]]:
    """Yield a function that sends a request of AG-UI to a workflow that asks a person, and a client."""
    (folder / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(folder)
    async with (
        service(folder, ScriptedModel([]), workflows="asking=asking:graph") as client,
        asyncio.timeout(HANG_SECONDS),
    ):

        async def send(*resume: dict[str, Any], **more: Any) -> list[Any]:
            body = {**run_input([{"id": "a", "role": "user", "content": "Pay."}]), **more}
            body = {**body, "forwardedProps": {"workflow": "asking"}, **({"resume": resume} if resume else {})}
            return await parts_of(client, "/api/v1/ag-ui", body)

        yield send, client


async def test_a_run_of_ag_ui_that_asks_a_person_is_interrupted_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated request gets the same question, and a repeated answer the same result."""
    async with asking_thread(tmp_path, monkeypatch) as (send, client):
        asked, repeated = await send(), await send()
        outcome = asked[-1]["outcome"]
        [question] = outcome["interrupts"]
        answer = {"interruptId": question["id"], "status": "resolved", "payload": "yes"}
        body = run_input([{"id": "b", "role": "user", "content": "And?"}]) | {"resume": [answer]}
        beside = await client.post("/api/v1/ag-ui", json=body)
        wrong = [
            await client.post("/api/v1/ag-ui", json=run_input([]) | {"resume": [answer | {"interruptId": "x"} | more]})
            for more in ({}, {"status": "cancelled"})
        ]
        empty = await send(resume=[])
        resumed, again = await send(answer), await send(answer)
        stored = await history(client, "room")
    assert [one["type"] for one in asked] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert [one["content"] for one in asked[-2]["messages"]] == ["Pay."]
    assert question == {
        "id": question["id"],
        "reason": "input_required",
        "message": "Ship it?",
        "metadata": {"value": "Ship it?"},
    }
    assert (outcome["type"], repeated, empty) == ("interrupt", asked, asked)
    assert [one.status_code for one in (beside, *wrong)] == [422, 422, 422]
    for parts in (resumed, again):
        assert "".join(one.get("delta", "") for one in parts) == "You said yes."
        assert parts[-1]["outcome"] == {"type": "success"}
        assert [one["content"] for one in parts[-2]["messages"]] == ["Pay.", "You said yes."]
    assert [text for _, text, _ in said(stored)] == ["Pay.", "You said yes."]


async def test_text_before_a_question_of_ag_ui_stays_in_the_last_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client drops messages that a snapshot lacks, and the person would not see what the question is about.

    The client sends the text back: a repeated request gets the same question, and a repeated answer the same result.
    """
    (tmp_path / "speaking.py").write_text(SPEAKING)
    monkeypatch.syspath_prepend(tmp_path)
    async with service(tmp_path, ScriptedModel([]), workflows="speaking=speaking:graph") as client:
        body = run_input([{"id": "a", "role": "user", "content": "Go."}]) | {"forwardedProps": {"workflow": "speaking"}}
        parts = await parts_of(client, "/api/v1/ag-ui", body)
        body = body | {"messages": parts[-2]["messages"]}
        repeated = await parts_of(client, "/api/v1/ag-ui", body)
        [question] = parts[-1]["outcome"]["interrupts"]
        body = body | {"resume": [{"interruptId": question["id"], "status": "resolved", "payload": "yes"}]}
        resumed, again = [(await parts_of(client, "/api/v1/ag-ui", body))[-2:] for _ in range(2)]
        unknown = await client.post("/api/v1/ag-ui", json=body | {"threadId": "other", "resume": None})
    assert (repeated[-1], again) == (parts[-1], resumed)
    assert [one["content"] for one in resumed[0]["messages"]] == ["Go.", "You said yes."]
    assert unknown.status_code == 422
    streamed_id = next(one["messageId"] for one in parts if "messageId" in one)
    assert parts[-1]["outcome"]["type"] == "interrupt"
    assert [(one["id"], one["content"]) for one in parts[-2]["messages"]] == [
        ("a", "Go."),
        (streamed_id, "Let me see."),
    ]


async def test_a_question_of_ag_ui_that_is_no_text_is_shown_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asking_size.py").write_text(ASKING.replace("'Ship it?'", "{'größe': 2}"))
    monkeypatch.syspath_prepend(tmp_path)
    async with service(tmp_path, ScriptedModel([]), workflows="size=asking_size:graph") as client:
        body = run_input([{"id": "a", "role": "user", "content": "Go."}]) | {"forwardedProps": {"workflow": "size"}}
        [question] = (await parts_of(client, "/api/v1/ag-ui", body))[-1]["outcome"]["interrupts"]
    assert (question["message"], question["metadata"]) == ('{"größe": 2}', {"value": {"größe": 2}})


async def test_a_cancelled_interrupt_of_ag_ui_cancels_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking_thread(tmp_path, monkeypatch) as (send, client):
        [question] = (await send())[-1]["outcome"]["interrupts"]
        cancelled = await send({"interruptId": question["id"], "status": "cancelled"})
        [run] = (await client.get("/api/v1/runs", params={"session_id": "room"})).json()["runs"]
    assert cancelled[0]["type"] == "RUN_STARTED"
    assert cancelled[-1]["outcome"] == {"type": "cancelled"}
    assert run["status"] == "cancelled"


async def test_a_run_that_answers_several_messages_is_resumed_in_ag_ui(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends all messages, and the newest one is not the first message of the run."""
    gate = Gate()
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    model = ScriptedModel([["one", gate]])
    async with service(tmp_path, model, workflows="asking=asking:graph") as client, asyncio.timeout(HANG_SECONDS):
        asked = [{"id": name, "role": "user", "content": name} for name in "abc"]
        first = asyncio.create_task(parts_of(client, "/api/v1/ag-ui", run_input(asked[:1])))
        await gate.reached()
        for one in asked[1:]:
            run = {"assistant_id": "asking", "multitask_strategy": "coalesce", "input": {"messages": [one]}}
            assert (await client.post("/threads/room/runs", json=run)).status_code == 200
        gate.open()
        await first
        body = run_input(asked[1:]) | {"forwardedProps": {"workflow": "asking"}}
        [question] = (await parts_of(client, "/api/v1/ag-ui", body))[-1]["outcome"]["interrupts"]
        answer = {"interruptId": question["id"], "status": "resolved", "payload": "yes"}
        resumed = await parts_of(client, "/api/v1/ag-ui", body | {"resume": [answer]})
    assert resumed[-1]["outcome"] == {"type": "success"}
    assert [one["content"] for one in resumed[-2]["messages"]] == ["a", "one", "b", "c", "You said yes."]


async def test_a_queued_run_of_ag_ui_begins_with_the_answer_before_it(tmp_path: Path) -> None:
    """A client that has aborted a run, and sends its next message meanwhile, shows the messages in their order.

    The client appends messages that a later snapshot adds. A message with an image keeps the image.
    """
    gate = Gate()
    image = {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}}
    seen: list[Any] = [{"id": "a", "role": "user", "content": [{"type": "text", "text": "first"}, image]}]
    async with service(tmp_path, ScriptedModel([["one", gate, " more"], "two"])) as client:
        async with client.stream("POST", "/api/v1/ag-ui", json=run_input(seen)) as response:
            async for part in data_of(response):
                if part["type"] == "TEXT_MESSAGE_CONTENT":
                    break
        asked = [*seen, {"id": "b", "role": "user", "content": "second"}]
        second = asyncio.create_task(parts_of(client, "/api/v1/ag-ui", run_input(asked, "r2")))
        await until(lambda: is_queued(client))
        gate.open()
        parts = await second
    assert [one["content"] for one in parts[1]["messages"]] == [seen[0]["content"], "one more", "second"]
    assert [one["content"] for one in parts[-2]["messages"]] == [seen[0]["content"], "one more", "second", "two"]


async def is_queued(client: httpx2.AsyncClient) -> bool:
    """Return whether a run is queued."""
    return bool((await client.get("/api/v1/runs", params={"status": "queued"})).json()["runs"])


async def test_a_message_ends_before_the_next_one_of_its_node_begins(tmp_path: Path) -> None:
    """A message also ends if the model sets the ids of its pieces and marks no piece as the last."""
    body = {**run_input([{"id": "m1", "role": "user", "content": "hi"}]), "forwardedProps": {"workflow": "in-turn"}}
    async with service(tmp_path, ScriptedModel([]), workflows="in-turn=tests.web.at_once:in_turn") as client:
        parts = [part for part in await parts_of(client, "/api/v1/ag-ui", body) if isinstance(part, dict)]
    spoken = [(part["type"].rpartition("_")[2], part["messageId"]) for part in parts if part["type"].startswith("TEXT")]
    kinds = ("START", "CONTENT", "CONTENT", "END")
    assert spoken == [(kind, name) for name in ("first", "second") for kind in kinds]


async def test_a_tool_call_ends_no_message_that_streams_at_the_same_time(tmp_path: Path) -> None:
    """A tool call has no text and its own id."""
    body = {**run_input([{"id": "m1", "role": "user", "content": "hi"}]), "forwardedProps": {"workflow": "beside"}}
    async with service(tmp_path, ScriptedModel([]), workflows="beside=tests.web.at_once:beside_tools") as client:
        parts = [part for part in await parts_of(client, "/api/v1/ag-ui", body) if isinstance(part, dict)]
    kinds = [part["type"].rpartition("_")[2] for part in parts if part.get("messageId") == "first"]
    assert kinds == ["START", "CONTENT", "CONTENT", "END"]


async def test_messages_that_stream_at_once_end_each_on_its_own(tmp_path: Path) -> None:
    """No piece is lost, and none follows the end of its message."""
    async with service(tmp_path, ScriptedModel([]), workflows="twice=tests.web.at_once:graph") as client:
        ag_ui = {**run_input([{"id": "m1", "role": "user", "content": "hi"}]), "forwardedProps": {"workflow": "twice"}}
        sdk = {"id": "s2", "messages": [ui_message("hi")], "workflow": "twice"}
        found = {
            name: await parts_of(client, f"/api/v1/{path}", body)
            for name, path, body in (("messageId", "ag-ui", ag_ui), ("id", "ai-sdk/chat", sdk))
        }
    for name, parts in found.items():
        spoken: dict[str, list[str]] = {}
        for part in parts:
            kind = str(part["type"] if isinstance(part, dict) else "").lower().replace("_", "-")
            if kind.removeprefix("text-message-").removeprefix("text-") in ("start", "content", "delta", "end"):
                spoken.setdefault(part.get(name), []).append(part.get("delta") or kind.rpartition("-")[2])
        spoken.pop(None, None)  # type: ignore[call-overload]  # the start of the whole stream
        assert sorted(spoken.values()) == [
            ["start", "one", " three", "end"], ["start", "two", " four", "end"],
        ]  # fmt: skip


def run_input(messages: list[Any], run_id: str = "r1") -> dict[str, Any]:
    """Return a request of an AG-UI client."""
    return {"threadId": "room", "runId": run_id, "messages": messages, "tools": [], "context": [], "state": {}}


def text_of(parts: list[Any]) -> str:
    """Return the text of a UI message stream."""
    return "".join(one["delta"] for one in parts if one != "[DONE]" and one["type"] == "text-delta")


async def test_images_and_files_are_marks_in_each_protocol(tmp_path: Path) -> None:
    """A message that has only an image gets an answer, as with OpenAI's client."""
    image, pdf = ({"type": "file", "mediaType": kind, "url": "data:,x"} for kind in ("image/png", "application/pdf"))
    asked = {
        "image": [image],
        "files": [image, {"type": "text", "text": "Compare."}, pdf],
    }
    binary = [{"type": "text", "text": "Which?"}, {"type": "binary", "mimeType": "image/png", "data": "AAAA"}]
    async with service(tmp_path, ScriptedModel(["1", "2", "3"])) as client:
        for chat, parts in asked.items():
            message = {"id": f"m-{chat}", "role": "user", "parts": parts}
            await parts_of(client, "/api/v1/ai-sdk/chat", {"id": chat, "messages": [message]})
        body = {"threadId": "binary", "runId": "r", "messages": [{"id": "m", "role": "user", "content": binary}]}
        await parts_of(client, "/api/v1/ag-ui", body)
        stored = [(await history(client, chat))[0]["content"] for chat in (*asked, "binary")]
    assert stored == ["[image]", "Compare.\n[image] [file]", "Which?\n[image]"]


@pytest.mark.parametrize("message_id", ["a\ud800", "a\x00", "a" * 600], ids=["half a pair", "nul", "long"])
async def test_a_message_id_that_cannot_be_stored_is_known_again(
    tmp_path: Path, shared_url: str, message_id: str
) -> None:
    """A repeat of an id that cannot be stored is recognized by its hash."""
    message = {"role": "user", "content": "Hi", "id": message_id}
    body = json.dumps({"threadId": "s", "runId": "r", "messages": [message]})
    headers = {"content-type": "application/json"}
    async with service(tmp_path, ScriptedModel(["Hello."]), database_url=shared_url) as client:
        for _ in range(2):
            response = await client.post("/api/v1/ag-ui", content=body, headers=headers)
            assert (response.status_code, "RUN_ERROR" in response.text) == (200, False)
        history = (await client.get("/api/v1/chat/history/s")).json()["messages"]
    assert [message["content"] for message in history] == ["Hi", "Hello."]
