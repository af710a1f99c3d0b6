"""Tests of the page that shows for each found message whether a model call included it, and why not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from tests.web.console.pages import opened
from tests.web.console.test_sessions import history, said
from tests.web.services import client_of, opened_app, settings_for, until
from threadkeep import ContextPlan, Message, SessionMemory
from threadkeep.agent.demo import DemoModel
from threadkeep.app import App


@asynccontextmanager
async def service(folder: Path, **options: object) -> AsyncIterator[httpx2.AsyncClient]:
    """Open a service with these settings, and yield a client."""
    async with opened_app(DemoModel(), settings_for(folder, **options)) as app, client_of(app) as client:
        yield client


async def verdicts(client: httpx2.AsyncClient, words: str, session: str = "s", **query: str) -> str:
    """Return the text of the page about the messages that contain the words."""
    params = httpx2.QueryParams({"q": words, "session": session, **query})
    page = await opened(client, f"/console/known?{params}")
    return page.words.partition("newest call")[2] or page.words


async def test_messages_in_the_window_and_the_input_are_marked(client: httpx2.AsyncClient) -> None:
    await said(client, "s", "My cat is called Miso.", "Where does Ada live?")
    assert "in the window" in await verdicts(client, "cat Miso")
    assert "the input of the call" in await verdicts(client, "Where Ada live")


async def test_a_message_that_is_sent_in_another_form_is_in_the_call(app: App, client: httpx2.AsyncClient) -> None:
    """A repeated question is sent with its count, and an image is sent although only its text is stored."""
    session = app.memory.session("s", user_id="ana")
    for _ in range(2):
        await session.append(
            [Message(role="user", content="Ping the sea."), Message(role="assistant", content="Done.")]
        )
    agent = create_agent(DemoModel(), [], middleware=[SessionMemory(app.memory, plan=ContextPlan(fold_repeats=True))])
    image = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
    asked = HumanMessage([{"type": "text", "text": "Look at this picture."}, image])
    await agent.ainvoke({"messages": [asked]}, {"configurable": {"thread_id": "s", "user_id": "ana"}})
    found = await verdicts(client, "Ping sea", user="ana")
    assert "in the window, in another form than stored" in found
    assert "repeated later in the same words, and counted there" in found
    assert "the input of the call, in another form than stored" in await verdicts(client, "picture", user="ana")


async def test_a_message_before_a_reset_and_one_after_the_call(client: httpx2.AsyncClient) -> None:
    """The page gives the reason for messages before a reset and for those after the call."""
    await said(client, "s", "My cat is called Miso.")
    await client.post("/api/v1/sessions/s/reset")
    await said(client, "s", "Hello.")
    assert "before the reset" in await verdicts(client, "cat Miso")
    run = (await client.get("/api/v1/sessions/s/manifests")).json()["manifests"][1]["run_id"]
    assert "said after this call" in await verdicts(client, "Hello", run=run, call="1")


async def test_a_message_that_was_taken_back_is_found_in_its_session(client: httpx2.AsyncClient) -> None:
    """A superseded message is not in the search index, but is found with its session."""
    await said(client, "s", "My cat is called Miso.")
    await client.post("/api/v1/sessions/s/take-back", json={"n": 2})
    await said(client, "s", "What is my cat called?")
    assert "taken back, or replaced by a later version" in await verdicts(client, "cat Miso")


async def test_a_recalled_message_has_its_rank_and_another_users_is_not_recalled(tmp_path: Path) -> None:
    async with service(tmp_path, recall="user") as client:
        await said(client, "old", "My cat is called Miso.")
        await said(client, "foreign", "My parrot is called Miso.", user_id="ben")
        await said(client, "s", "What is my cat called?")
        assert "recalled at rank 1 of" in await verdicts(client, "cat Miso")
        assert "another user's (ben)" in await verdicts(client, "parrot Miso")


async def test_a_message_in_a_session_without_a_user_is_not_recalled(client: httpx2.AsyncClient) -> None:
    await said(client, "open", "My parrot is called Miso.", user_id=None)
    await said(client, "s", "What is my parrot called?")
    found = await verdicts(client, "parrot Miso")
    assert "in a session without a user, so it is never recalled here" in found
    assert "nobody" not in found


async def test_a_summarised_message(tmp_path: Path) -> None:
    """The page names the range of the summary that replaces the message."""
    async with service(tmp_path, summary_trigger="messages:8", summary_keep="messages:4") as client:
        await said(client, "s", *[f"Day {number}: we walked far." for number in range(8)])

        async def summarised() -> bool:
            return "Summary of 1–" in (await opened(client, "/console/sessions/s")).words

        await until(summarised)
        await said(client, "s", "Hello.")
        assert "in the summary of 1–" in await verdicts(client, "Day 0")


async def test_a_message_over_the_budget(tmp_path: Path) -> None:
    async with service(tmp_path, history_max_tokens=60, history_window="sliding") as client:
        await said(client, "s", "My cat is called Miso.", "Tell me about the sea. " * 12, "Hello.")
        assert "over the budget of 60 tokens" in await verdicts(client, "cat Miso")


async def test_a_user_sees_no_messages_of_another(client: httpx2.AsyncClient) -> None:
    await said(client, "s", "My cat is called Miso.", user_id="ana")
    assert "cat is called" not in await verdicts(client, "Miso", session="", user="ben")
    assert "cat is called" in await verdicts(client, "Miso", session="", user="ana")
    assert len(await history(client, "s")) == 2


async def test_an_unknown_session_is_a_404(client: httpx2.AsyncClient) -> None:
    assert "Session not found" in (await opened(client, "/console/known?q=x&session=nope", status=404)).words
