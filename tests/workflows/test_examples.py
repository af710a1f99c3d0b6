"""Tests of the examples: each is valid and runs with the demo model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.workflows.desk import Desk, spoken
from threadkeep.agent.demo import DemoModel
from threadkeep.testing import ScriptedModel
from threadkeep.workflows.registry import Workflows

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def demo(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a desk with all examples and the demo model."""
    monkeypatch.chdir(ROOT)
    desk.model = cast("ScriptedModel", DemoModel())
    desk.workflows = Workflows.load(["examples", "in_python=examples.in_python:graph"])
    return desk


async def last_words(desk: Desk, name: str, text: str, **given: Any) -> str:
    """Run a workflow, and return its answer."""
    return spoken((await desk.run(name, text, **given))["messages"])[-1][1]


def test_all_examples_are_listed_in_their_readme() -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [
        path.name for path in EXAMPLES.iterdir() if path.suffix in (".yaml", ".py") and path.name not in readme
    ] == ["__init__.py"]


async def test_the_support_bot_sees_passages_and_earlier_turns(demo: Desk) -> None:
    await last_words(demo, "support_bot", "I sent my parcel abroad.", session_id="room:1")
    context = demo.context("support_bot", session_id="room:1")
    state = await demo.run("support_bot", "How long does the parcel take?", context=context)
    assert state["results"]["search"]["passages"][0]["id"] == "shipping"
    [manifest] = await demo.memory.manifests.of_run(context.run_id)
    sections = cast("dict[str, int]", manifest.manifest["sections"])
    assert {"system", "window", "snippets", "input"} <= sections.keys()


async def test_the_agent_with_tools_answers(demo: Desk) -> None:
    """The agent remembers the session. The demo model calls no tools."""
    await last_words(demo, "agent_with_tools", "My order is 4711.", session_id="room:1")
    assert "4711" in await last_words(demo, "agent_with_tools", "What is my order?", session_id="room:1")


async def test_the_known_user_is_known_in_another_session(demo: Desk) -> None:
    told = demo.context("known_user", session_id="room:1", user_id="ada")
    await demo.run("known_user", "I live in Lisbon", context=told)
    for user_id, known in (("ada", True), ("bob", False)):
        context = demo.context("known_user", session_id=f"room:of-{user_id}", user_id=user_id)
        state = await demo.run("known_user", "Where do I live?", context=context)
        assert state["user_context"]["is_new_user"] is not known
        assert ("Lisbon" in state["results"]["known"]["text"]) is known


async def test_the_router_has_its_branches(demo: Desk) -> None:
    assert (await last_words(demo, "router", "I want a refund")).startswith("A person looks into")
    state = await demo.run("router", "Where is my order?")
    assert state["results"]["choose"]["next"] == "order"
    assert (await demo.run("router", "Hello"))["results"]["choose"]["next"] == "anything"


async def test_the_parent_puts_both_children_together(demo: Desk) -> None:
    state = await demo.run("parent", "How long do parcels take?", session_id="room:1")
    facts, feelings = (state["results"][name] for name in ("facts", "feelings"))
    assert (facts["status"], feelings["status"]) == ("done", "done")
    last = spoken(state["messages"])[-1][1]
    assert facts["output"]["text"] in last
    assert feelings["output"]["text"] in last
    assert [role for role, _ in await demo.transcript("room:1")] == ["user", "assistant"]


async def test_the_candidate_is_proposed(demo: Desk) -> None:
    state = await demo.run("candidate", inputs={"event": {"message": {"id": "42", "text": "The code is 4711."}}})
    assert state["node_outputs"]["build"]["status"] == "proposed"


async def test_the_telegram_bot_keeps_chats_apart(demo: Desk) -> None:
    def of_chat(chat: int) -> dict[str, Any]:
        return {"telegram_events_parser": {"bot_id": "b", "chat_id": chat}}

    for chat in (1, 2):
        await last_words(demo, "telegram_bot", f"My code is 471{chat}.", results=of_chat(chat))
    answer = await last_words(demo, "telegram_bot", "What is my code?", results=of_chat(2))
    assert "4712" in answer
    assert "4711" not in answer


async def test_the_graph_in_python_runs(demo: Desk) -> None:
    state = await demo.run("in_python", "One two three", session_id="room:1")
    assert state["results"]["count"] == {"words": 3}
    assert [role for role, _ in await demo.transcript("room:1")] == ["user", "assistant"]
