"""Tests of the nodes and tools of a workflow for facts, episodes and procedures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from tests.workflows.desk import Desk
from threadkeep import InvalidWorkflow, Procedure, Scope
from threadkeep.errors import StoreUnavailable
from threadkeep.observe import ExtraNotFound, WriteFailed
from threadkeep.records.graphiti import GraphitiOptions
from threadkeep.testing import ScriptedModel, SettableClock
from threadkeep.workflows.loading import read_workflow

ADA = Scope("user", "ada")
IDENTIFY = """
schema: 1
name: who
nodes:
  user: {kind: identify_user, next: answer}
  answer: {kind: agent, system_prompt: 'New: {{user_context.is_new_user}} {{user_context.facts}}', next: end}
"""
REMEMBER = """
schema: 1
name: note
nodes:
  note: {kind: remember, key: home_city, value: '{{text}}', fact_kind: preference, next: answer}
  answer: {kind: template, text: 'Noted: {{results.note.remembered}}', as_message: true, next: end}
"""
RECALL = """
schema: 1
name: look
nodes:
  look: {kind: recall, memory: [facts, episodes, procedures], next: answer}
  answer: {kind: template, text: '{{results.look.text}}', as_message: true, next: end}
"""
AGENT = """
schema: 1
name: one
nodes:
  answer: {kind: agent, memory_tools: [facts, episodes, procedures], next: end}
"""


async def run(
    desk: Desk, name: str, text: str, *, session_id: str | None = "room:1", user_id: str | None = "ada"
) -> Any:
    """Run a workflow for a user."""
    return await desk.run(name, text, context=desk.context(name, session_id=session_id, user_id=user_id))


def calling(name: str, **arguments: Any) -> AIMessage:
    """Return a model answer that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": "c1"}])


async def test_a_user_is_new_once_and_then_known_with_facts_and_episodes(desk: Desk) -> None:
    """`identify_user` puts the user's facts and episodes into `user_context`."""
    desk.use(IDENTIFY)
    state = await run(desk, "who", "Hello, I am Ada")
    assert state["results"]["user"]["is_new_user"] is True
    assert desk.model.calls[0][0].text == "New: true []"
    await desk.memory.knowledge.remember(ADA, "diet", "vegan", kind="preference")
    state = await run(desk, "who", "Hello again", session_id="room:2")
    known = state["user_context"]
    assert (known["user_id"], known["is_new_user"]) == ("ada", False)
    assert [(one["key"], one["value"], one["kind"]) for one in known["facts"]] == [("diet", "vegan", "preference")]
    assert [(one["asked"], one["answered"]) for one in known["episodes"]] == [("Hello, I am Ada", "reply 1")]


async def test_twenty_facts_and_five_episodes_are_the_most(desk: Desk, clock: SettableClock) -> None:
    desk.use(IDENTIFY)
    for number in range(25):
        await desk.memory.knowledge.remember(ADA, f"key_{number}", number)
    for number in range(7):
        clock.advance(60)
        await run(desk, "who", f"Question {number}", session_id=f"room:{number}")
    state = await run(desk, "who", "And now?", session_id="room:last")
    assert len(state["user_context"]["facts"]) == 20
    assert [one["asked"] for one in state["user_context"]["episodes"]] == [f"Question {n}" for n in range(6, 1, -1)]


async def test_a_run_without_a_user_identifies_no_person(desk: Desk) -> None:
    desk.use(IDENTIFY)
    context = desk.context("who", session_id="room:1")
    state = await desk.run("who", "Hello", context=context, user_context={"plan": "free"})
    assert state["user_context"] == {
        "plan": "free", "user_id": None, "is_new_user": False, "names": [], "facts": [], "episodes": [],
    }  # fmt: skip
    assert await desk.memory.persons.all() == []


async def test_a_fact_is_remembered_with_its_question_as_evidence(desk: Desk) -> None:
    """A repeated `remember` node in the same run stores the fact once."""
    desk.use(REMEMBER)
    context = desk.context("note", session_id="room:1", user_id="ada")
    for _ in range(2):
        await desk.run("note", "Lisbon", context=context, message_id="q1")
    [fact] = await desk.memory.knowledge.facts(ADA)
    assert (fact.key, fact.value, fact.kind, fact.confirmed) == ("home_city", "Lisbon", "preference", 1)
    [origin] = fact.evidence
    assert (origin.session_id, origin.seq, origin.run_id) == ("room:1", 1, context.run_id)


@pytest.mark.parametrize(
    ("text", "user_id", "reason"),
    [("my password is hunter22", "ada", "secret"), ("Lisbon", None, "no_owner"), ("x" * 20_000, "ada", "invalid")],
)
async def test_a_fact_that_is_refused_has_a_reason(desk: Desk, text: str, user_id: str | None, reason: str) -> None:
    desk.use(REMEMBER)
    state = await run(desk, "note", text, user_id=user_id)
    assert state["results"]["note"] == {"remembered": False, "reason": reason}
    assert await desk.memory.knowledge.facts() == []


async def test_an_invalid_workspace_fails_no_run(desk: Desk) -> None:
    """With an invalid workspace, a fact about it is not remembered, and facts of the user are still recalled."""
    desk.use(REMEMBER.replace("fact_kind:", "about: workspace, fact_kind:"), RECALL)
    await desk.memory.knowledge.remember(ADA, "home_city", "Lisbon")
    resources = replace(desk.resources, workspace="x" * 600)
    found: dict[str, Any] = {}
    for name in ("note", "look"):
        context = desk.context(name, session_id="room:1", user_id="ada", resources=resources)
        found[name] = (await desk.run(name, "Which city is home?", context=context))["results"][name]
    assert found["note"]["reason"] == "invalid"
    assert [one["value"] for one in found["look"]["facts"]] == ["Lisbon"]
    assert [event.error for event in desk.events.of(ExtraNotFound)] == ["InvalidInput"]


async def test_recall_returns_relevant_entries(desk: Desk) -> None:
    """`recall` returns relevant facts, episodes and procedures of the run's own scopes, with escaped text."""
    desk.use(RECALL)
    await desk.memory.knowledge.remember(ADA, "diet", "vegan </facts>")
    await desk.memory.knowledge.remember(Scope("user", "bob"), "diet", "steak")
    await desk.memory.procedures.teach(
        Procedure(scope=ADA, name="order", goal_contains=("diet",), content=["find_menu", "order"])
    )
    state = await run(desk, "look", "Which diet do I have?")
    found = state["results"]["look"]
    assert [one["value"] for one in found["facts"]] == ["vegan </facts>"]
    assert [one["name"] for one in found["procedures"]] == ["order"]
    assert found["count"] == 2
    assert "</facts>" not in found["text"]
    assert "steak" not in str(state)
    state = await run(desk, "look", "Which diet did I ask for?", session_id="room:2")
    assert state["results"]["look"]["episodes"][0]["asked"] == "Which diet do I have?"


async def test_an_unavailable_memory_fails_no_run(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes report an unavailable database as an event and in the result, and the run continues."""

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("The database does not answer; try again.")

    monkeypatch.setattr(desk.memory.knowledge, "recall", away)
    monkeypatch.setattr(desk.memory.knowledge, "remember", away)
    monkeypatch.setattr(desk.memory.persons, "resolve", away)
    for workflow, name in ((IDENTIFY, "who"), (REMEMBER, "note"), (RECALL, "look")):
        desk.use(workflow)
        state = await run(desk, name, "Lisbon")
        results: Mapping[str, Any] = state["results"]
        if name == "note":
            assert results["note"]["reason"] == "unavailable"
    assert len(desk.events.of(ExtraNotFound)) == 2
    assert len(desk.events.of(WriteFailed)) == 1


async def test_an_agent_has_the_tools_of_the_kinds_that_it_names(desk: Desk) -> None:
    """The tools of `memory_tools` use the user, the session and the workspace of the run."""
    desk.model = ScriptedModel([calling("remember", key="diet", value="vegan"), "Noted."])
    desk.use(AGENT)
    await run(desk, "one", "I am vegan")
    [fact] = await desk.memory.knowledge.facts(ADA)
    assert (fact.value, fact.evidence[0].session_id, fact.evidence[0].seq) == ("vegan", "room:1", 1)
    assert set(desk.model.tools[0]) == {"remember", "recall", "forget", "recall_episodes", "recall_procedure"}
    desk.model = ScriptedModel([calling("recall_episodes", query="vegan"), "You said so."])
    await run(desk, "one", "What did I say of being vegan?", session_id="room:2")
    assert '"asked":"I am vegan"' in str(desk.model.calls[-1])
    desk.model = ScriptedModel([calling("remember", key="plan", value="gold", about="workspace"), "Noted."])
    resources = replace(desk.resources, workspace="shop")
    context = desk.context("one", session_id="room:1", user_id="ada", resources=resources)
    await desk.run("one", "We are on the gold plan", context=context)
    assert [fact.value for fact in await desk.memory.knowledge.facts(Scope("workspace", "shop"))] == ["gold"]


@pytest.mark.parametrize("named", [None, "garage"])
async def test_nodes_use_the_workspace_of_the_memory_if_the_run_names_none(desk: Desk, named: str | None) -> None:
    desk.memory.graphiti.options = GraphitiOptions(endpoint="http://graph:8000", workspace="shop")
    desk.use(REMEMBER.replace("home_city", "plan, about: workspace"))
    resources = replace(desk.resources, workspace=named)
    await desk.run("note", "gold", context=desk.context("note", session_id="room:1", resources=resources))
    assert len(await desk.memory.knowledge.facts(Scope("workspace", named or "shop"))) == 1


async def test_an_agent_without_a_session_uses_the_memory_of_its_user(desk: Desk) -> None:
    desk.model = ScriptedModel([calling("remember", key="diet", value="vegan"), "Noted."])
    desk.use(AGENT)
    await run(desk, "one", "I am vegan", session_id=None)
    assert [fact.value for fact in await desk.memory.knowledge.facts(ADA)] == ["vegan"]


def test_an_unknown_kind_of_memory_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidWorkflow) as told:
        read_workflow(AGENT.replace("procedures", "dreams"))
    assert told.value.problems[0].line == 5
