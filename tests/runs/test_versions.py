"""Tests of workflows that change while their runs wait, execute, or have lost their process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph

from tests.runs.desk import LEAVING, RunDesk, asking_twice, carried_out
from tests.runs.run_workers import ASKING, Desk, opened
from tests.runs.test_runner_processes import until, working
from tests.runs.workers import Notes
from threadkeep.runs.requests import RunRequest
from threadkeep.testing import Gate, ScriptedModel, SettableClock
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.nodes import SubworkflowNode
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState

HELPER = "schema: 1\nname: helper\nnodes:\n  think: {kind: agent, next: end}"
GO = RunRequest(workflow="saying", text="go", session_id="room")


def saying(text: str, version: str, gate: Gate | None = None) -> Workflow:
    """Return a Python workflow that answers with a fixed text."""

    async def say(state: WorkflowState) -> WorkflowState:
        if gate is not None:
            await gate.pass_through()
        return {"messages": [AIMessage(text)]}

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    return python_workflow("saying", builder, version=version)


@pytest.mark.parametrize("source", ["yaml", "python"])
async def test_a_run_ends_with_the_version_that_it_began_with(desk: RunDesk, source: Literal["yaml", "python"]) -> None:
    """A run continues with the YAML that was stored with it. A run of changed Python code is interrupted."""
    text = "schema: 1\nname: form\nnodes:\n  ask: {kind: agent, tools: ['tests.workflows.tools:ask_person'], next: end}"
    call = AIMessage("", tool_calls=[{"name": "ask_person", "args": {"question": "sure?"}, "id": "c1"}])
    desk.model = ScriptedModel([call, "thanks"])
    old = text if source == "yaml" else asking_twice()
    async with desk.open(old) as service:
        asked = await carried_out(service, RunRequest(workflow="form", text="go", session_id="room"))
        assert asked.status == "waiting"
    new = text + "\noptions: {max_tries: 7}" if source == "yaml" else replace(asking_twice(), version="other")
    async with desk.open(new) as service:
        await service.resume(asked.run.run_id, "yes")
        result = await service.result(asked.run.run_id)
        assert result.run.version == asked.run.version
    if source == "yaml":
        assert result.text == "thanks"
    else:
        assert (result.status, result.run.error) == ("interrupted", "WorkflowVersionGone")


async def test_a_waiting_child_whose_workflow_was_removed_ends_with_its_stored_version(desk: RunDesk) -> None:
    text = "schema: 1\nname: %s\nnodes:\n  ask: {kind: agent, tools: ['tests.workflows.tools:ask_person'], next: end}"
    parent = "schema: 1\nname: parent\nnodes:\n  help: {kind: subworkflow, workflow: form, next: end}"
    call = AIMessage("", tool_calls=[{"name": "ask_person", "args": {"question": "sure?"}, "id": "c1"}])
    desk.model = ScriptedModel([call, "thanks"])
    async with desk.open(text % "form", text % "other", parent) as service:
        asked = await carried_out(service, RunRequest(workflow="parent", text="go", session_id="room"))
        assert asked.status == "waiting"
    async with desk.open(text % "other", parent) as service:
        await service.resume(asked.run.run_id, "yes")
        result = await service.result(asked.run.run_id)
    assert (result.run.error, result.text) == (None, "thanks")


async def test_a_failed_child_whose_workflow_was_removed_is_retried_with_its_stored_version(desk: RunDesk) -> None:
    parent = "schema: 1\nname: parent\nnodes:\n  help: {kind: subworkflow, workflow: helper, next: end}"
    desk.model = ScriptedModel([ValueError(), "well"])
    async with desk.open(HELPER, parent) as service:
        failed = await carried_out(service, RunRequest(workflow="parent", text="go", session_id="room"))
        assert failed.run.error == "ChildFailed"
    async with desk.open(parent) as service:
        await service.retry(failed.run.run_id)
        result = await service.result(failed.run.run_id)
    assert (result.run.error, result.text) == (None, "well")


async def test_a_queued_run_is_executed_by_new_code(every_desk: RunDesk) -> None:
    """A queued run begins with the new code. A run that had begun with the old code is interrupted."""
    gate = Gate()
    async with every_desk.open(saying("old", "1", gate), options=LEAVING) as service:
        first, second = [await service.submit(replace(GO, message_id=name)) for name in ("m1", "m2")]
        await gate.reached()
    async with every_desk.open(saying("new", "2")) as service:
        results = [await service.result(run.run_id) for run in (first, second)]
    assert [(one.run.error, one.text, one.run.version) for one in results] == [
        ("WorkflowVersionGone", "", "1"),
        (None, "new", "2"),
    ]


async def test_a_parent_that_cannot_continue_cancels_its_child(every_desk: RunDesk, clock: SettableClock) -> None:
    gate = Gate()
    every_desk.model = ScriptedModel([["half", gate]])
    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    help_me: Any = SubworkflowNode(workflow="helper")
    builder.add_node("help", help_me)
    builder.add_edge(START, "help")
    parent = python_workflow("saying", builder, version="1")
    async with every_desk.open(parent, HELPER, options=LEAVING) as service:
        run = await service.submit(GO)
        await gate.reached()
    clock.advance(1)
    async with every_desk.open(replace(parent, version="2"), HELPER) as service:
        assert (await service.result(run.run_id)).status == "interrupted"
    # The service releases the parent only after its child has ended.
    assert [one.status for one in await every_desk.memory.runs.records.tree(run.run_id)] == ["interrupted", "cancelled"]


@pytest.mark.process
@pytest.mark.slow
async def test_runs_whose_process_died_before_an_update(shared_url: str, tmp_path: Path) -> None:
    """A run of a YAML workflow continues with its version.

    A run of Python code is interrupted. A queued run begins with the new code.
    """
    notes = Notes(tmp_path / "notes")
    old, new = Desk(shared_url, notes, 60.0, version="1"), Desk(shared_url, notes, version="2")
    async with opened(replace(old, seconds=0.0), ASKING) as (_, service):

        async def asked(workflow: str, text: str) -> str:
            request = RunRequest(workflow=workflow, text=text, session_id=f"{workflow}-room")
            return (await service.submit(request, mode="background")).run_id

        with working(old) as children:
            yaml, python = await asked("spoken", "slow-spoken"), await asked("steps", "slow-steps")
            await until(lambda: notes.of("second") >= {"slow-spoken", "slow-steps"}, "both runs to execute")
            waiting = await asked("steps", "next")
            children[0].kill()
    # A waiting caller executes a run that no worker has begun, so the caller is of the new version too.
    async with opened(new, ASKING) as (_, service):
        with working(new):
            results = [await service.result(run_id) for run_id in (yaml, python, waiting)]
    assert [(result.status, result.run.version) for result in results[1:]] == [("interrupted", "1"), ("done", "2")]
    assert (results[0].text, results[1].run.error) == ("said by 1", "WorkflowVersionGone")


async def test_a_stored_definition_imports_nothing_of_its_own(desk: RunDesk) -> None:
    """A stored YAML definition imports only tools that the operator's files name.

    Others may be able to write to the table.
    """
    text = "schema: 1\nname: form\nnodes:\n  ask: {kind: agent, tools: ['tests.workflows.tools:ask_person'], next: end}"
    call = AIMessage("", tool_calls=[{"name": "ask_person", "args": {"question": "sure?"}, "id": "c1"}])
    desk.model = ScriptedModel([call, "thanks"])
    async with desk.open(text) as service:
        asked = await carried_out(service, RunRequest(workflow="form", text="go", session_id="room"))
    without_tools = text.replace("tools: ['tests.workflows.tools:ask_person'], ", "")
    async with desk.open(without_tools) as service:
        await service.resume(asked.run.run_id, "yes")
        result = await service.result(asked.run.run_id)
    assert (result.status, result.run.error) == ("interrupted", "WorkflowVersionGone")
