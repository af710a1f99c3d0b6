"""Tests of agent-chat-ui, the chat page for LangGraph's server, in a real browser against a service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from tests.foreign.chat_page import IS_BUILT, page_address, serving_page
from tests.web.console.test_browser import CHROMIUM, playwright, tab
from tests.web.services import listening, opened_app, settings_for, until
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.skipif(
        not IS_BUILT or CHROMIUM is None,
        reason="agent-chat-ui is not built; `make foreign` builds it if npm and Chromium exist.",
    ),
]


@pytest.fixture
def origin() -> Iterator[str]:
    """Serve the built page, and return its origin."""
    with serving_page() as found:
        yield found


async def _ask(state: WorkflowState) -> dict[str, Any]:
    allowed = {f"allow_{name}": True for name in ("respond", "accept", "edit", "ignore")}
    action = {"action": "refund", "args": {"order": "4711"}}
    (answer,) = interrupt([{"action_request": action, "config": allowed, "description": "May I refund it?"}])
    return {"messages": [AIMessage(f"A person chose {answer['type']}.")]}


refund = StateGraph(WorkflowState, context_schema=RunContext)
refund.add_node("ask", _ask)
refund.add_edge(START, "ask")
refund.add_edge("ask", END)


async def _say(page: Any, text: str) -> None:
    await _written(page)
    await page.get_by_placeholder("Type your message...").fill(text)
    await page.keyboard.press("Enter")


async def _press(page: Any, button: Any) -> None:
    # The page may scroll to its newest message, and a click at a position can miss a moving button; a key does not.
    await _written(page)
    await button.press("Enter")


async def _written(page: Any) -> None:
    # While an answer is streamed, the page has a button to cancel instead, and cannot send.
    await page.get_by_role("button", name="Send", exact=True).wait_for()


async def _shown(page: Any, text: str) -> None:
    # While the page loads the state of a finished run, it may show the last answer twice.
    await playwright.expect(page.get_by_text(text, exact=True)).to_have_count(1, timeout=30_000)


async def _history(client: httpx2.AsyncClient, thread_id: str) -> list[tuple[str, str]]:
    messages = (await client.get(f"/api/v1/chat/history/{thread_id}")).json()["messages"]
    return [(one["content"], one["status"]) for one in messages]


async def test_users_chat_edit_regenerate_and_cancel(tmp_path: Path, origin: str) -> None:
    """Answers are streamed, and the conversation is shown again after a reload."""
    gate = Gate()
    model = ScriptedModel(["One.", "Two.", "Two again.", "Another two.", ["Slowly ", gate, "three."]])
    settings = settings_for(tmp_path, cors_origins=origin)
    async with opened_app(model, settings) as app, listening(app) as client, tab(origin) as page:
        await page.goto(page_address(origin, str(client.base_url), "chat"))
        await _say(page, "First")
        await _shown(page, "One.")
        await _say(page, "Second")
        await _shown(page, "Two.")
        await page.reload()
        await _shown(page, "Two.")
        await _press(page, page.get_by_role("button", name="Edit").last)
        await page.locator("textarea").first.fill("Second, please")
        await _press(page, page.get_by_role("button", name="Submit"))
        await _shown(page, "Two again.")
        await _press(page, page.get_by_role("button", name="Refresh").last)
        await _shown(page, "Another two.")
        await _say(page, "Third")
        await _shown(page, "Slowly")
        await page.get_by_role("button", name="Cancel").press("Enter")
        thread_id = page.url.partition("threadId=")[2].partition("&")[0]

        async def stopped() -> bool:
            return len(await _history(client, thread_id)) == 6

        await until(stopped)
        asked = ["First", "One.", "Second, please", "Another two."]
        stopped_at = [("Third", "complete"), ("Slowly ", "interrupted")]
        assert await _history(client, thread_id) == [*((text, "complete") for text in asked), *stopped_at]


async def test_an_interrupt_of_a_run_is_answered(tmp_path: Path, origin: str) -> None:
    """A user accepts an interrupt of a run, also after a reload."""
    settings = settings_for(tmp_path, cors_origins=origin, workflows=f"refund={__name__}:refund")
    async with opened_app(ScriptedModel([]), settings) as app, listening(app) as client, tab(origin) as page:
        await page.goto(page_address(origin, str(client.base_url), "refund"))
        await _say(page, "I want my money back.")
        await page.get_by_role("button", name="Accept").wait_for()
        await page.reload()
        await _press(page, page.get_by_role("button", name="Accept"))
        await _shown(page, "A person chose accept.")
