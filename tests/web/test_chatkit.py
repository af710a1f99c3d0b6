"""Tests of ChatKit's protocol: threads are sessions, and answers are runs."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chatkit.store import NotFoundError
from chatkit.types import FileAttachment

from tests.databases import query
from tests.limits import HANG_SECONDS
from tests.web.processes import running
from tests.web.services import client_of, listening, opened_app, settings_for, until
from threadkeep.agent.demo import DemoModel
from threadkeep.app import App
from threadkeep.chatkit import ThreadkeepStore
from threadkeep.records import Message
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.web import chatkit_server


def request_of(kind: str, /, **params: Any) -> dict[str, Any]:
    """Return a request as the page sends it."""
    return {"type": kind, "params": params, "metadata": {}}


def said(text: str, *attachments: str) -> dict[str, Any]:
    """Return the content of a user message, with the ids of attachments."""
    content = [{"type": "input_text", "text": text}]
    return {"content": content, "attachments": attachments, "quoted_text": None, "inference_options": {}}


async def ask(client: httpx2.AsyncClient, request: dict[str, Any], user: str = "ann", **headers: str) -> Any:
    """Return the answer to a request: a document, or the list of its events."""
    response = await client.post("/chatkit", params={"user_id": user}, json=request, headers=headers)
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("application/json"):
        return response.json()
    lines = response.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def answer_in(events: list[dict[str, Any]]) -> str:
    """Return the text of the answer in a stream."""
    [item] = [event["item"] for event in events if event["type"] == "thread.item.done"][-1:]
    assert item["type"] == "assistant_message", events
    return str(item["content"][0]["text"])


async def test_messages_of_several_agents_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stored message is an item under its id, and none is removed from the stream."""
    monkeypatch.setattr(chatkit_server, "CHAT", "team")
    settings = settings_for(tmp_path, workflows="team=tests.web.at_once:team")
    async with opened_app(ScriptedModel([]), settings) as app, client_of(app) as client:
        events = await ask(client, request_of("threads.create", input=said("Write.")))
        thread_id = events[0]["thread"]["id"]
        stored = [m for m in await app.memory.session(thread_id, user_id="ann").tail(9) if m.role == "assistant"]
        assert [(message.author, message.content) for message in stored] == [
            ("writer", "A draft."), ("editor", "A text."),
        ]  # fmt: skip
        done = [event["item"] for event in events if event["type"] == "thread.item.done"]
        told = {item["id"]: item["content"][0]["text"] for item in done if item["type"] == "assistant_message"}
        assert told == {message.id: message.content for message in stored}
        assert await items_of(client, thread_id) == [
            ("user_message", "Write."), ("assistant_message", "A draft."), ("assistant_message", "A text."),
        ]  # fmt: skip


async def items_of(client: httpx2.AsyncClient, thread_id: str, user: str = "ann") -> list[tuple[str, str]]:
    """Return kind and text of the items of a thread, oldest first."""
    page = await ask(client, request_of("items.list", thread_id=thread_id, order="asc", limit=100), user)
    return [(item["type"], item["content"][0]["text"]) for item in page["data"]]


async def test_the_log_has_errors_of_chatkit_by_class_only(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their texts can quote people. A request for an unknown thread is no error of the service."""
    [created, *_] = await ask(client, request_of("threads.create", input=said("Hello.")))
    caplog.clear()
    request = request_of("threads.add_user_message", thread_id="canary", input=said("canary"))
    assert (await client.post("/chatkit", params={"user_id": "ann"}, json=request)).status_code == 404
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []

    async def failing(*arguments: object, **named: object) -> None:
        raise RuntimeError(f"canary {arguments} {named}")

    monkeypatch.setattr(chatkit_server.RunStore, "add_thread_item", failing)
    request["params"]["thread_id"] = created["thread"]["id"]
    assert (await client.post("/chatkit", params={"user_id": "ann"}, json=request)).status_code == 422
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "RuntimeError" in record.getMessage()
    assert "canary" not in caplog.text


async def test_a_thread_is_a_session_and_its_answers_are_runs(app: App, client: httpx2.AsyncClient) -> None:
    """The answer is streamed, the second turn has the first in its context, and each message is stored once.

    The ids of streamed items are the ids of the stored messages, so that the page can continue from them.
    """
    events = await ask(client, request_of("threads.create", input=said("My cat is called Miso.")))
    kinds = [event["type"] for event in events]
    assert kinds[:5] == [
        "thread.created",
        "thread.item.done",
        "stream_options",
        "thread.item.added",
        "thread.item.updated",
    ]
    assert kinds[-2:] == ["thread.item.done", "thread.updated"]
    deltas = [event["update"]["delta"] for event in events if event.get("update", {}).get("delta")]
    answer = answer_in(events)
    assert "".join(deltas) == answer
    thread = events[-1]["thread"]
    assert thread["title"] == "My cat is called Miso."

    again = request_of("threads.add_user_message", thread_id=thread["id"], input=said("What is my cat called?"))
    events = await ask(client, again)
    assert "Miso" in answer_in(events)
    stored = await app.memory.session(thread["id"], user_id="ann").tail(10)
    streamed = {event["item"]["id"] for event in events if event["type"] in ("thread.item.added", "thread.item.done")}
    assert streamed == {message.id for message in stored[-2:]}
    older = request_of("items.list", thread_id=thread["id"], order="desc", after=str(stored[-1].id))
    assert (await ask(client, older))["data"][0]["id"] == stored[-2].id
    assert [message.role for message in stored if message.role != "system"] == ["user", "assistant"] * 2
    assert await items_of(client, thread["id"]) == [
        ("user_message" if message.role == "user" else "assistant_message", message.content)
        for message in stored
        if message.role != "system"
    ]
    runs = (await client.get("/api/v1/runs", params={"session_id": thread["id"]})).json()["runs"]
    assert [run["status"] for run in runs] == ["done", "done"]


async def test_an_answer_is_given_again_after_a_message(tmp_path: Path) -> None:
    """A retry supersedes the old answer and the turns after it. The user message keeps its id."""
    model = ScriptedModel(["one", "two", "three"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        events = await ask(client, request_of("threads.create", input=said("q1")))
        thread_id, question_id = events[0]["thread"]["id"], events[1]["item"]["id"]
        await ask(client, request_of("threads.add_user_message", thread_id=thread_id, input=said("q2")))
        retry = request_of("threads.retry_after_item", thread_id=thread_id, item_id=question_id)
        assert answer_in(await ask(client, retry)) == "three"
        assert await items_of(client, thread_id) == [("user_message", "q1"), ("assistant_message", "three")]
        history = (await app.memory.session(thread_id).page(view="history")).messages
        said_then = [message.content for message in history if message.role != "system"]
        assert said_then == ["q1", "one", "q2", "two", "three"]
        assert [one.text for one in model.calls[-1] if one.type != "system"] == ["q1"]


async def test_the_quoted_text_of_a_message_is_in_the_context(tmp_path: Path) -> None:
    """The quoted text is in the context, also after a retry, but is no part of the message."""
    model = ScriptedModel(["one", "two"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        asked = {**said("Why?"), "quoted_text": "The parcel is late."}
        events = await ask(client, request_of("threads.create", input=asked))
        thread_id, question_id = events[0]["thread"]["id"], events[1]["item"]["id"]
        await ask(client, request_of("threads.retry_after_item", thread_id=thread_id, item_id=question_id))
        assert await items_of(client, thread_id) == [("user_message", "Why?"), ("assistant_message", "two")]
    assert ["The parcel is late." in str(call) for call in model.calls] == [True, True]


async def test_an_answer_after_an_unknown_message_is_not_found(app: App, client: httpx2.AsyncClient) -> None:
    [created, *_] = await ask(client, request_of("threads.create", input=said("q1")))
    thread_id = created["thread"]["id"]
    before = await items_of(client, thread_id)
    retry = request_of("threads.retry_after_item", thread_id=thread_id, item_id="msg_unknown")
    response = await client.post("/chatkit", params={"user_id": "ann"}, json=retry)
    assert response.status_code == 404
    assert await items_of(client, thread_id) == before


async def test_a_title_has_the_length_that_the_api_allows(app: App, client: httpx2.AsyncClient) -> None:
    [created, *_] = await ask(client, request_of("threads.create", input=said("q1")))
    thread_id = created["thread"]["id"]
    await ask(client, request_of("threads.update", thread_id=thread_id, title="x" * 200))
    longer = request_of("threads.update", thread_id=thread_id, title="x" * 201)
    response = await client.post("/chatkit", params={"user_id": "ann"}, json=longer)
    assert response.status_code == 422
    assert "200 characters" in response.text
    assert (await ask(client, request_of("threads.get_by_id", thread_id=thread_id)))["title"] == "x" * 200


async def test_a_repeated_request_with_its_key_gets_the_first_answer(app: App, client: httpx2.AsyncClient) -> None:
    """The page has no message ids, so a key of the caller identifies a repeat."""
    request = request_of("threads.create", input=said("My colour is teal."))
    first = await ask(client, request, **{"Idempotency-Key": "k1"})
    again = await ask(client, request, **{"Idempotency-Key": "k1"})
    other = await ask(client, request, **{"Idempotency-Key": "k2"})
    assert again[0]["thread"]["id"] == first[0]["thread"]["id"] != other[0]["thread"]["id"]
    thread_id = first[0]["thread"]["id"]
    assert len(await items_of(client, thread_id)) == 2
    await app.memory.session(thread_id, user_id="ann").take_back(2)
    await ask(client, request, **{"Idempotency-Key": "k1"})
    assert await items_of(client, thread_id) == []


async def test_another_users_thread_is_not_found(app: App, client: httpx2.AsyncClient) -> None:
    [created, done, *_] = await ask(client, request_of("threads.create", input=said("secret")))
    thread_id, item_id = created["thread"]["id"], done["item"]["id"]
    before = await items_of(client, thread_id)
    action = {"type": "a", "payload": None}
    named: dict[str, dict[str, Any]] = {
        "threads.get_by_id": {},
        "threads.update": {"title": "x"},
        "threads.delete": {},
        "items.list": {"order": "asc", "limit": 5},
        "threads.add_user_message": {"input": said("x")},
        "threads.add_client_tool_output": {"result": "x"},
        "threads.add_structured_input": {"item_id": item_id, "input": {"status": "skipped", "answers": {}}},
        "threads.retry_after_item": {"item_id": item_id},
        "threads.custom_action": {"item_id": item_id, "action": action},
        "threads.sync_custom_action": {"item_id": item_id, "action": action},
        "items.feedback": {"item_ids": [item_id], "kind": "positive"},
    }
    for kind, params in named.items():
        request = request_of(kind, thread_id=thread_id, **params)
        response = await client.post("/chatkit", params={"user_id": "bob"}, json=request)
        assert response.status_code == 404, (kind, response.text)
        assert "secret" not in response.text
    assert (await ask(client, request_of("threads.list", limit=5, order="desc"), "bob"))["data"] == []
    assert await items_of(client, thread_id) == before
    assert (await ask(client, request_of("threads.get_by_id", thread_id=thread_id)))["id"] == thread_id


def attachments_of(app: App) -> ThreadkeepStore[str | None]:
    """Return the store to which the operator's upload adds attachments. Its contexts are user ids."""
    return ThreadkeepStore[str | None](app.memory, user_id=lambda user: user)


async def test_another_users_attachment_is_not_found(app: App, client: httpx2.AsyncClient) -> None:
    """A request with another user's attachment or a missing one returns 404, stores nothing and deletes nothing."""
    store, file = attachments_of(app), FileAttachment(id="atc_1", name="a.txt", mime_type="text/plain")
    await store.save_attachment(file, "ann")
    [created, *_] = await ask(client, request_of("threads.create", input=said("hi")), "bob")
    thread_id = created["thread"]["id"]
    before = await items_of(client, thread_id, "bob")
    for attachment_id in ("atc_1", "atc_2"):
        for request in (
            request_of("threads.create", input=said("x", attachment_id)),
            request_of("threads.add_user_message", thread_id=thread_id, input=said("x", attachment_id)),
            request_of("attachments.delete", attachment_id=attachment_id),
        ):
            response = await client.post("/chatkit", params={"user_id": "bob"}, json=request)
            assert response.status_code == 404, (request, response.text)
            assert response.json()["type"] == "urn:threadkeep:thread-not-found"
    assert await items_of(client, thread_id, "bob") == before
    threads = await ask(client, request_of("threads.list", limit=5, order="desc"), "bob")
    assert [thread["id"] for thread in threads["data"]] == [thread_id]
    assert await store.load_attachment("atc_1", "ann") == file
    with pytest.raises(NotFoundError):
        await store.load_attachment("atc_1", "bob")


async def test_an_attachment_is_sent_and_deleted_by_its_user(app: App, client: httpx2.AsyncClient) -> None:
    """A sent attachment belongs to its thread. Uploads of files are refused."""
    store, file = attachments_of(app), FileAttachment(id="atc_1", name="a.txt", mime_type="text/plain")
    await store.save_attachment(file, "ann")
    events = await ask(client, request_of("threads.create", input=said("Look.", "atc_1")))
    assert [one["id"] for one in events[1]["item"]["attachments"]] == ["atc_1"]
    assert answer_in(events)
    assert (await store.load_attachment("atc_1", "ann")).thread_id == events[0]["thread"]["id"]
    assert await ask(client, request_of("attachments.delete", attachment_id="atc_1")) == {}
    with pytest.raises(NotFoundError):
        await store.load_attachment("atc_1", "ann")
    create = request_of("attachments.create", name="b.txt", size=1, mime_type="text/plain")
    response = await client.post("/chatkit", params={"user_id": "ann"}, json=create)
    assert response.status_code == 422


@pytest.mark.parametrize(("text", "stored"), [("", "[file]"), ("Look.", "Look.\n[file]")])
async def test_attachments_are_marks_in_the_transcript(
    app: App, client: httpx2.AsyncClient, text: str, stored: str
) -> None:
    """A message that has only attachments is answered, and the page gets it back as it was sent."""
    file = FileAttachment(id="atc_1", name="a.txt", mime_type="text/plain")
    await attachments_of(app).save_attachment(file, "ann")
    given = said(text, "atc_1") if text else said("", "atc_1") | {"content": []}
    events = await ask(client, request_of("threads.create", input=given))
    assert answer_in(events)
    thread_id = events[0]["thread"]["id"]
    messages = await app.memory.session(thread_id, user_id="ann").tail(9)
    assert [one.content for one in messages if one.role == "user"] == [stored]
    items = await ask(client, request_of("items.list", thread_id=thread_id, order="asc"))
    assert [part["text"] for part in items["data"][0]["content"]] == [text][: len(text)]


async def test_a_disconnected_reader_finds_the_answer(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel([[gate, "the whole answer"]])
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        request = request_of("threads.create", input=said("q"))
        thread_id = ""
        async with client.stream("POST", "/chatkit", params={"user_id": "ann"}, json=request) as response:
            async for line in response.aiter_lines():
                event = json.loads(line.removeprefix("data: ") or "{}")
                thread_id = event.get("thread", {}).get("id", thread_id)
                if event.get("type") == "stream_options":  # the answer has not begun yet
                    break
        gate.open()

        async def answered() -> bool:
            return ("assistant_message", "the whole answer") in await items_of(client, thread_id)

        await until(answered)


def tables_with(url: str, word: str) -> set[str]:
    """Return the tables with a row that contains a word."""
    if url.startswith("postgres"):
        names = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
    else:
        names = "SELECT name FROM sqlite_master WHERE type = 'table'"
    tables = [str(name) for (name,) in query(url, names)]
    return {table for table in tables if word in str(query(url, f"SELECT * FROM {table}"))}


async def test_the_model_sees_the_newest_of_a_long_thread(tmp_path: Path) -> None:
    model = ScriptedModel(["fine"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        old = [Message(("user", "assistant")[number % 2], f"item {number}") for number in range(250)]
        await app.memory.session("t1", user_id="ann").append(old)
        await ask(client, request_of("threads.add_user_message", thread_id="t1", input=said("And now?")))
        newest = await ask(client, request_of("items.list", thread_id="t1", order="desc", limit=3))
    seen = [str(message.content) for message in model.calls[-1] if message.type != "system"]
    assert seen[-3:] == ["item 248", "item 249", "And now?"]
    assert "item 0" not in seen
    assert [item["content"][0]["text"] for item in newest["data"]] == ["fine", "And now?", "item 249"]


@pytest.mark.process
@pytest.mark.slow
async def test_a_thread_is_the_same_in_another_process(shared_url: str, tmp_path: Path) -> None:
    environment = {
        "THREADKEEP_DATABASE_URL": shared_url,
        "THREADKEEP_MODEL": "demo",
        "THREADKEEP_PENDING_DIR": str(tmp_path / "pending"),
    }
    async with running(tmp_path / "a", environment) as (a, _), running(tmp_path / "b", environment) as (b, _):
        [created, *_] = await ask(a, request_of("threads.create", input=said("My cat is called Miso.")))
        thread_id = created["thread"]["id"]
        again = request_of("threads.add_user_message", thread_id=thread_id, input=said("What is my cat called?"))
        assert "Miso" in answer_in(await ask(b, again))
        page = request_of("items.list", thread_id=thread_id, order="asc", limit=100)
        items = [await ask(client, page) for client in (a, b)]
    assert items[0] == items[1]
    assert [item["type"] for item in items[0]["data"]] == ["user_message", "assistant_message"] * 2


@pytest.mark.parametrize("deleted_by", ["ann", None])
async def test_a_deleted_thread_leaves_no_row(shared_url: str, tmp_path: Path, deleted_by: str | None) -> None:
    """The messages, items, attachments and runs are deleted, by the user and by an operator."""
    whose = {} if deleted_by is None else {"user_id": deleted_by}
    async with (
        opened_app(DemoModel(), settings_for(tmp_path, database_url=shared_url)) as app,
        client_of(app) as client,
    ):
        file = FileAttachment(id="atc_1", name="canary.txt", mime_type="text/plain")
        await attachments_of(app).save_attachment(file, "ann")
        [created, done, *_] = await ask(client, request_of("threads.create", input=said("A canary.", "atc_1")))
        thread_id = created["thread"]["id"]
        feedback = request_of("items.feedback", thread_id=thread_id, item_ids=[done["item"]["id"]], kind="positive")
        await ask(client, feedback)
        assert "chat_channel_state" in tables_with(shared_url, "canary")
        delete = request_of("threads.delete", thread_id=thread_id)
        response = await client.post("/chatkit", params=whose, json=delete)
        assert (response.status_code, response.json()) == (200, {})
        assert tables_with(shared_url, "canary") == set()
        assert (await client.post("/chatkit", params=whose, json=delete)).status_code == 404


async def test_pages_of_threads_have_no_gaps(app: App, client: httpx2.AsyncClient) -> None:
    for number in range(5):
        await app.memory.session(f"t{number}", user_id="ann").append([Message("user", f"q{number}")])
    seen: list[str] = []
    after: str | None = None
    while True:
        page = await ask(client, request_of("threads.list", limit=2, order="desc", after=after))
        seen += [thread["id"] for thread in page["data"]]
        if not page["has_more"]:
            break
        after = page["after"]
        await app.memory.session("t4", user_id="ann").append([Message("user", "again")])
    assert set(seen) == {f"t{number}" for number in range(5)}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"type": "secret"}', b'{"type": "threads.get_by_id"}'])
async def test_invalid_requests_are_refused_without_their_text(client: httpx2.AsyncClient, body: bytes) -> None:
    response = await client.post("/chatkit", content=body)
    assert response.status_code == 422
    assert "secret" not in response.text


class HeldImport(MetaPathFinder):
    """A finder that holds the import of the server until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def find_spec(self, fullname: str, *_: object) -> None:
        """Find nothing: other finders import the module."""
        if fullname == chatkit_server.__name__:
            self.begun.set()
            assert self.released.wait(HANG_SECONDS)


@pytest.mark.parametrize("kind", ["threads.custom_action", "threads.sync_custom_action"])
async def test_an_action_of_a_widget_is_refused_and_not_logged(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """The response says what to do instead."""
    thread_id = (await ask(client, request_of("threads.create", input=said("hi"))))[0]["thread"]["id"]
    action = {"type": "buy", "payload": {"order": 1}}
    request = request_of(kind, thread_id=thread_id, item_id=None, action=action)
    response = await client.post("/chatkit", params={"user_id": "ann"}, json=request)
    assert response.status_code == 422
    assert "ThreadkeepStore" in response.json()["detail"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_others_are_answered_during_the_import(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests do not wait for the first one, which imports ChatKit for seconds."""
    held = HeldImport()
    monkeypatch.setattr(sys, "meta_path", [held, *sys.meta_path])
    monkeypatch.delitem(sys.modules, chatkit_server.__name__)
    first = asyncio.create_task(client.post("/chatkit", content=b"{}"))
    await until(held.begun.is_set)
    assert (await client.get("/healthz")).status_code == 200
    assert not first.done()
    held.released.set()
    assert (await first).status_code == 422


async def test_a_failed_model_is_an_error_event(tmp_path: Path) -> None:
    """The error event allows a retry, which answers the stored message."""
    model = ScriptedModel([RuntimeError("boom"), "fine"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        events = await ask(client, request_of("threads.create", input=said("q1")))
        assert events[-1]["type"] == "error"
        assert events[-1]["allow_retry"]
        assert "boom" not in json.dumps(events)
        thread_id, question_id = events[0]["thread"]["id"], events[1]["item"]["id"]
        retry = request_of("threads.retry_after_item", thread_id=thread_id, item_id=question_id)
        assert answer_in(await ask(client, retry)) == "fine"
