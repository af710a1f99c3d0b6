"""ChatKit's page served by the service: threads are sessions, and answers are runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.web.services import client_of, listening, opened_app, settings_for, until
from threadkeep.app import App
from threadkeep.records import Message
from threadkeep.testing import Gate, ScriptedModel


def request_of(kind: str, /, **params: Any) -> dict[str, Any]:
    """Return a request as the page sends it."""
    return {"type": kind, "params": params, "metadata": {}}


def said(text: str) -> dict[str, Any]:
    """Return what a person typed."""
    content = [{"type": "input_text", "text": text}]
    return {"content": content, "attachments": [], "quoted_text": None, "inference_options": {}}


async def ask(client: httpx2.AsyncClient, request: dict[str, Any], user: str = "ann", **headers: str) -> Any:
    """Return the answer to a request: a document, or the list of its events."""
    response = await client.post("/chatkit", params={"user_id": user}, json=request, headers=headers)
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("application/json"):
        return response.json()
    lines = response.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def answer_in(events: list[dict[str, Any]]) -> str:
    """Return the text of the answer that a stream brought."""
    [item] = [event["item"] for event in events if event["type"] == "thread.item.done"][-1:]
    assert item["type"] == "assistant_message", events
    return str(item["content"][0]["text"])


async def items_of(client: httpx2.AsyncClient, thread_id: str, user: str = "ann") -> list[tuple[str, str]]:
    """Return kind and text of the items of a thread, oldest first."""
    page = await ask(client, request_of("items.list", thread_id=thread_id, order="asc", limit=100), user)
    return [(item["type"], item["content"][0]["text"]) for item in page["data"]]


async def test_a_thread_is_a_session_and_its_answers_are_runs(app: App, client: httpx2.AsyncClient) -> None:
    """The answer streams, the second one knows the first turn, and the transcript has each message once."""
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
    assert [message.role for message in stored if message.role != "system"] == ["user", "assistant"] * 2
    assert await items_of(client, thread["id"]) == [
        ("user_message" if message.role == "user" else "assistant_message", message.content)
        for message in stored
        if message.role != "system"
    ]
    runs = (await client.get("/api/v1/runs", params={"session_id": thread["id"]})).json()["runs"]
    assert [run["status"] for run in runs] == ["done", "done"]


async def test_an_answer_is_given_again_after_a_message(tmp_path: Path) -> None:
    """The old answer and what followed it stay in the history; the question keeps its id."""
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


async def test_a_repeated_request_with_its_key_gets_the_first_answer(app: App, client: httpx2.AsyncClient) -> None:
    """The page has no message ids: a key of the caller makes a request repeatable."""
    request = request_of("threads.create", input=said("My colour is teal."))
    first = await ask(client, request, **{"Idempotency-Key": "k1"})
    again = await ask(client, request, **{"Idempotency-Key": "k1"})
    other = await ask(client, request, **{"Idempotency-Key": "k2"})
    assert again[0]["thread"]["id"] == first[0]["thread"]["id"] != other[0]["thread"]["id"]
    assert len(await items_of(client, first[0]["thread"]["id"])) == 2


async def test_another_users_thread_is_not_found(app: App, client: httpx2.AsyncClient) -> None:
    """In every kind of request that names a thread; nothing of it changes."""
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


async def test_a_reader_who_goes_away_finds_the_answer(tmp_path: Path) -> None:
    """Closing the stream does not cancel the run."""
    gate = Gate()
    model = ScriptedModel([[gate, "the whole answer"]])
    async with opened_app(model, settings_for(tmp_path)) as app, listening(app) as client:
        request = request_of("threads.create", input=said("q"))
        thread_id = ""
        async with client.stream("POST", "/chatkit", params={"user_id": "ann"}, json=request) as response:
            async for line in response.aiter_lines():
                event = json.loads(line.removeprefix("data: ") or "{}")
                thread_id = event.get("thread", {}).get("id", thread_id)
                if event.get("type") == "thread.item.added":
                    break
        gate.open()

        async def answered() -> bool:
            return ("assistant_message", "the whole answer") in await items_of(client, thread_id)

        await until(answered)


async def test_pages_of_threads_have_no_gaps(app: App, client: httpx2.AsyncClient) -> None:
    """Also while a message moves a thread to the top."""
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
async def test_other_requests_are_refused_without_their_words(client: httpx2.AsyncClient, body: bytes) -> None:
    """422, and nothing of the body in it."""
    response = await client.post("/chatkit", content=body)
    assert response.status_code == 422
    assert "secret" not in response.text


async def test_a_failed_model_is_an_error_event(tmp_path: Path) -> None:
    """The question stays, and may be asked again."""
    model = ScriptedModel([RuntimeError("boom"), "fine"])
    async with opened_app(model, settings_for(tmp_path)) as app, client_of(app) as client:
        events = await ask(client, request_of("threads.create", input=said("q1")))
        assert events[-1]["type"] == "error"
        assert events[-1]["allow_retry"]
        assert "boom" not in json.dumps(events)
        thread_id, question_id = events[0]["thread"]["id"], events[1]["item"]["id"]
        retry = request_of("threads.retry_after_item", thread_id=thread_id, item_id=question_id)
        assert answer_in(await ask(client, retry)) == "fine"
