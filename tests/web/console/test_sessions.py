"""Tests of the console's pages of sessions, without scripts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tests.web.console.pages import FORM, opened, sent
from tests.web.services import until
from threadkeep.app import App
from threadkeep.records import Message


async def said(client: httpx2.AsyncClient, session_id: str, *messages: str, user_id: str | None = "ana") -> None:
    """Send messages to a session, and wait for their answers."""
    for message in messages:
        body = {"session_id": session_id, "user_id": user_id, "message": message}
        assert (await client.post("/api/v1/chat", json=body)).status_code == 200


async def history(client: httpx2.AsyncClient, session_id: str) -> list[Mapping[str, Any]]:
    """Return the active messages of a session."""
    address = f"/api/v1/chat/history/{quote(session_id, safe='')}"
    messages: list[Mapping[str, Any]] = (await client.get(address)).json()["messages"]
    return messages


@pytest.mark.parametrize("address", ["sessions/gone", "runs/gone", "runs/gone/calls/1", "sessions/gone/calls"])
async def test_an_error_page_says_what_a_reader_can_do(client: httpx2.AsyncClient, address: str) -> None:
    """The page of a missing session, run or call names no address of the API."""
    page = await opened(client, f"/console/{address}", status=404)
    assert "GET /" not in page.words
    assert "/docs lists" not in page.words
    if address.endswith("calls/1"):
        assert "Call not found" in page.words


async def test_a_new_user_starts_a_conversation_on_the_first_page(client: httpx2.AsyncClient) -> None:
    """The form of the empty first page leads to the transcript with the answer."""
    first = await opened(client, "/")
    assert "No conversation yet" in first.words
    page = await sent(client, first.form("/console/say"), message="My cat is called Miso.", session_id="room:1")
    assert "My cat is called Miso." in page.words

    async def answered() -> bool:
        return "Noted. I see 1 message." in (await opened(client, "/console/sessions/room%3A1")).words

    await until(answered)
    assert "room:1" in (await opened(client, "/")).words


async def test_a_message_of_an_earlier_day_has_its_date(client: httpx2.AsyncClient, app: App) -> None:
    """The age alone does not say when something was said."""
    moment = datetime(2026, 1, 5, 14, 5, tzinfo=UTC)
    await app.memory.session("old").append([Message("user", "Hi.", sent_at=moment), Message("user", "Now.")])
    words = (await opened(client, "/console/sessions/old")).words
    assert "05 Jan 2026, 14:05 UTC Hi." in words
    assert "just now Now." in words


async def test_a_message_without_a_session_begins_one(client: httpx2.AsyncClient) -> None:
    """The form of the first page begins a new session, even if the API would continue the user's last one."""
    form = (await opened(client, "/")).form("/console/say")
    for message in ("My cat is called Miso.", "Something else."):
        assert message in (await sent(client, form, message=message, user_id="ana")).words
    listed = (await client.get("/api/v1/sessions", params={"user_id": "ana"})).json()["sessions"]
    assert {session["title"] for session in listed} == {"Something else.", "My cat is called Miso."}


async def test_a_form_that_is_sent_twice_stores_one_message(client: httpx2.AsyncClient) -> None:
    """A double click without scripts stores one message. A reloaded page sends a new message."""
    first = (await opened(client, "/")).form("/console/say")
    pages = await asyncio.gather(*[sent(client, first, message="One.", user_id="ana") for _ in range(2)])
    [listed] = (await client.get("/api/v1/sessions", params={"user_id": "ana"})).json()["sessions"]
    second = pages[0].form("/say")
    for form in (second, second, (await opened(client, f"/console/sessions/{listed['session_id']}")).form("/say")):
        await sent(client, form, message="Two.")

    async def answered() -> bool:
        return len(await history(client, listed["session_id"])) == 6

    await until(answered)
    users = [message["content"] for message in await history(client, listed["session_id"])][0::2]
    assert users == ["One.", "Two.", "Two."]


async def test_a_group_chat_names_its_speakers(client: httpx2.AsyncClient) -> None:
    for name in ("Ben", "Carla"):
        told = {"session_id": "telegram:1:2", "message": f"{name} was here.", "metadata": {"sender_name": name}}
        assert (await client.post("/api/v1/chat", json=told)).status_code == 200
    page = await opened(client, "/console/sessions/telegram:1:2")
    assert re.findall("<header><b>(.*?)</b>", page.text) == ["Ben", "assistant", "Carla", "assistant"]
    assert "· Ben" in (await opened(client, "/console/known?q=Ben")).words


async def test_sessions_are_searched_filtered_and_paged(client: httpx2.AsyncClient) -> None:
    for number in range(32):
        await said(client, f"room:{number}", f"Message {number}", user_id="ana" if number % 2 else "ben")
    first = await opened(client, "/")
    older = next(link for link in first.links if "cursor=" in link)
    second = await opened(client, f"/{older}")
    links = {link for link in first.links + second.links if link.startswith("/console/sessions/")}
    assert len(links) == 32
    assert "room:7" in (await opened(client, "/?q=Message+7&user=ana")).words
    assert "room:7 " not in (await opened(client, "/?q=Message+7&user=ben")).words
    await client.patch("/api/v1/sessions/room:7", json={"tags": ["vip"]})
    await said(client, "telegram:1:2", "Message 40")
    of_channel = await opened(client, "/?channel=telegram")
    assert [link for link in of_channel.links if "/sessions/" in link] == ["/console/sessions/telegram%3A1%3A2#end"]
    tagged = await opened(client, "/?tag=vip")
    assert (
        [link for link in tagged.links if "room" in link] == [link for link in tagged.links if "room%3A7" in link] != []
    )
    listed = (await client.get("/api/v1/sessions", params={"tag": "vip"})).json()["sessions"]
    assert [one["session_id"] for one in listed] == ["room:7"]


@pytest.mark.parametrize("session_id", ["a/b", "room 1?x#y", "räume:1", "<b>"])
async def test_every_session_id_has_its_page(client: httpx2.AsyncClient, session_id: str) -> None:
    await said(client, session_id, "Hello <script>alert(1)</script> & you")
    links = (await opened(client, "/")).links
    [link] = {link for link in links if link.startswith("/console/sessions/")}
    page = await opened(client, link)
    assert "Hello &lt;script&gt;alert(1)&lt;/script&gt; &amp; you" in page.text


async def test_a_message_is_edited_and_its_answer_regenerated(client: httpx2.AsyncClient) -> None:
    """Superseded messages stay on the page, marked."""
    await said(client, "s", "My cat is called Miso.", "What is my cat called?")
    page = await opened(client, "/console/sessions/s")
    page = await sent(client, page.form("/edit"), message="My dog is called Rex.")
    assert "taken back or replaced" in page.words

    async def answered() -> bool:
        return [message["content"] for message in await history(client, "s")] == [
            "My dog is called Rex.",
            "Noted. I see 1 message.",
        ]

    await until(answered)
    page = await opened(client, "/console/sessions/s")
    await sent(client, page.form("/regenerate"))

    async def again() -> bool:
        return [message["seq"] for message in await history(client, "s")] == [5, 7]

    await until(again)


async def test_taking_back_resetting_and_deleting(client: httpx2.AsyncClient) -> None:
    await said(client, "s", "One.", "Two.")
    page = await sent(client, (await opened(client, "/console/sessions/s")).form("/take-back"), n="2")
    assert [message["content"] for message in await history(client, "s")][0::2] == ["One."]
    page = await sent(client, page.form("/reset"))
    assert "Reset: the model sees only the messages below" in page.words
    page = await sent(client, page.form("/delete"))
    assert "No conversation yet" in page.words
    assert "Session not found" in (await opened(client, "/console/sessions/s", status=404)).words


async def test_taking_back_twice_from_one_page_takes_back_once(client: httpx2.AsyncClient) -> None:
    """A double click without scripts takes back once. A reloaded page takes back again."""
    await said(client, "s", "One.", "Two.", "Three.")
    form = (await opened(client, "/console/sessions/s")).form("/take-back")
    pages = [await sent(client, form, n="2") for _ in range(2)]
    assert [message["content"] for message in await history(client, "s")][0::2] == ["One.", "Two."]
    await sent(client, pages[0].form("/take-back"), n="2")
    assert [message["content"] for message in await history(client, "s")][0::2] == ["One."]


async def test_a_session_is_exported_with_its_whole_history(client: httpx2.AsyncClient) -> None:
    """The export is a file of JSON lines with the name of the session."""
    await said(client, "a/b", "One.")
    response = await client.get("/console/sessions/a%2Fb/export")
    assert "attachment; filename*=UTF-8''a-b.jsonl" in response.headers["content-disposition"]
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert len(lines) == 3


@pytest.mark.parametrize("path", ["say", "sessions/s/say", "sessions/s/reset", "sessions/s/delete", "sessions/s/edit"])
async def test_no_form_works_without_its_token(client: httpx2.AsyncClient, path: str) -> None:
    await said(client, "s", "One.")
    for content in ("message=x", "message=x&csrf=", "message=x&csrf=%C3%BC"):
        response = await client.post(f"/console/{path}", content=content, headers=FORM)
        assert response.status_code == 403
        assert "reload the page" in response.text
    assert len(await history(client, "s")) == 2


async def test_a_page_of_one_user_shows_that_users_sessions_only(client: httpx2.AsyncClient) -> None:
    """`?user=` filters as in the API."""
    await said(client, "s", "One.", user_id="ana")
    assert "One." in (await opened(client, "/console/sessions/s?user=ana")).words
    await opened(client, "/console/sessions/s?user=ben", status=404)


async def test_a_title_has_the_direction_of_its_own_text(client: httpx2.AsyncClient) -> None:
    """An Arabic title is isolated, so that its ellipsis is at its end on the left."""
    await said(client, "s", "مرحبا " * 20)
    title = f"{('مرحبا ' * 20)[:50].rstrip()}…"
    assert re.search(f'class="title"><bdi>{title}</bdi>', (await opened(client, "/")).text)
    assert f"<h1><bdi>{title}</bdi></h1>" in (await opened(client, "/console/sessions/s")).text


async def test_an_empty_message_is_refused_with_a_cure(client: httpx2.AsyncClient) -> None:
    form = (await opened(client, "/")).form("/console/say")
    response = await client.post("/console/say", content=f"csrf={form.fields['csrf']}&message=++", headers=FORM)
    assert response.status_code == 422
    assert "A message has 1 to 100,000 characters" in response.text


async def test_an_address_with_invalid_values_is_explained(client: httpx2.AsyncClient) -> None:
    """The page names the parameter, and no member of the API's problem document."""
    shown = (await opened(client, f"/?user={'x' * 600}", status=422)).text
    assert "The address has values that are not valid" in shown
    assert "<code>user</code>" in shown
    assert "errors" not in shown


async def test_older_messages_of_a_long_session_are_behind_a_link(client: httpx2.AsyncClient) -> None:
    session = [{"role": "user", "content": f"Line {number}."} for number in range(60)]
    await said(client, "s", *[str(one["content"]) for one in session])
    page = await opened(client, "/console/sessions/s")
    older = next(link for link in page.links if "before=" in link)
    assert "Line 5." not in page.words
    assert "Line 5." in (await opened(client, f"/console/sessions/s{older}")).words
