"""Tests of the chat with the user's own workflows, and of runs that end without an answer."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest
from langgraph.graph import END, START, StateGraph

from tests.agent.talking import kept
from tests.recorded_events import RecordedEvents
from tests.runs.chatting import ROOM, Chats
from tests.runs.desk import asking_twice, eventually
from threadkeep import Memory
from threadkeep.errors import (
    Interrupted,
    RunFailed,
    RunWaits,
    SessionNotFound,
    StoreUnavailable,
    WorkflowNotFound,
)
from threadkeep.observe import TurnFinished
from threadkeep.records.runs import Run, RunQuery
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService
from threadkeep.runs.worker import Worker
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.loading import read_workflow
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState

POLITE = read_workflow(
    """
schema: 1
name: polite
nodes:
  answer: {kind: agent, system_prompt: Be polite., next: end}
"""
)


def broken() -> Workflow:
    """Return a workflow whose only node fails."""

    async def fail(state: WorkflowState) -> WorkflowState:
        raise ValueError("canary")

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    builder.add_node("fail", fail)
    builder.add_edge(START, "fail")
    builder.add_edge("fail", END)
    return python_workflow("broken", builder)


async def test_a_message_names_its_workflow(sqlite_memory: Memory, make_chat: Chats) -> None:
    """A message names its workflow.

    Each workflow has its own session of the user, and an unknown one is refused.
    """
    model = ScriptedModel(["at your service", "hi"])
    chat = make_chat(sqlite_memory, model, others=[POLITE])
    polite = await chat.ask(RunRequest(text="hello", user_id="ann", workflow="polite"))
    plain = await chat.ask(RunRequest(workflow="chat", text="hello", user_id="ann"))
    assert (polite.response, plain.response) == ("at your service", "hi")
    assert polite.session_id != plain.session_id
    assert [message.text for message in model.calls[0]] == ["Be polite.", "hello"]
    run = await sqlite_memory.runs.run(polite.run_id)
    assert run is not None
    assert (run.workflow, run.status, run.trigger) == ("polite", "done", "http")
    with pytest.raises(WorkflowNotFound):
        chat.begin(RunRequest(text="hello", workflow="research"))


async def test_a_failed_workflow_raises_run_failed(
    sqlite_memory: Memory, events: RecordedEvents, make_chat: Chats
) -> None:
    """A failed node raises `RunFailed` without the text of the error, and the turn counts as failed."""
    chat = make_chat(sqlite_memory, ScriptedModel(), others=[broken()])
    with pytest.raises(RunFailed, match=r"ValueError.*threadkeep runs trace") as caught:
        await chat.ask(RunRequest(text="hello", session_id=ROOM, workflow="broken"))
    assert "canary" not in str(caught.value)
    run = await sqlite_memory.runs.run(caught.value.run_id)
    assert run is not None
    assert run.status == "failed"
    assert [(turn.status, turn.run_id) for turn in events.of(TurnFinished)] == [("failed", run.run_id)]


async def test_a_workflow_that_asks_a_person_raises_run_waits(sqlite_memory: Memory, make_chat: Chats) -> None:
    chat = make_chat(sqlite_memory, ScriptedModel(), others=[asking_twice()])
    with pytest.raises(RunWaits, match="resume") as caught:
        await chat.ask(RunRequest(text="hello", session_id=ROOM, workflow="form"))
    run = await sqlite_memory.runs.run(caught.value.run_id)
    assert run is not None
    assert run.status == "waiting"


async def test_a_turn_can_be_stopped(memory: Memory, make_chat: Chats) -> None:
    """The callers of a stopped turn get `Interrupted`, its partial answer is stored, and the next turn runs."""
    gate = Gate()
    chat = make_chat(memory, ScriptedModel([["once upon ", gate, "a time"], "hello"]))
    turn = chat.begin(RunRequest(workflow="chat", text="a story", session_id=ROOM))
    await gate.reached()
    chat.stop(turn)
    with pytest.raises(Interrupted):
        await turn.answer()
    assert (await chat.ask(RunRequest(workflow="chat", text="hi", session_id=ROOM))).response == "hello"
    said = [("user", "a story"), ("assistant", "once upon "), ("user", "hi"), ("assistant", "hello")]
    assert await kept(memory, ROOM) == said


async def test_a_stopped_turn_is_not_answered_without_a_run(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, make_chat: Chats
) -> None:
    """A turn that is stopped while its run cannot be stored is not answered without a run."""
    gate = Gate()

    async def failing(*_: object, **__: object) -> None:
        await gate.pass_through()
        raise StoreUnavailable("down")

    monkeypatch.setattr(sqlite_memory.runs.order, "add", failing)
    monkeypatch.setattr(sqlite_memory.pending, "record_joined", AsyncMock(return_value=None))
    model = ScriptedModel(["hello"])
    chat = make_chat(sqlite_memory, model)
    turn = chat.begin(RunRequest(workflow="chat", text="hi", session_id=ROOM))
    await gate.reached()
    chat.stop(turn)
    gate.open()
    with pytest.raises(Interrupted):
        await turn.answer()
    assert model.calls == []


async def test_a_session_is_deleted_between_turns(memory: Memory, make_chat: Chats) -> None:
    gate = Gate()
    chat = make_chat(memory, ScriptedModel([[gate, "first"], "second"]))
    turn = chat.begin(RunRequest(workflow="chat", text="one", session_id=ROOM))
    await gate.reached()
    deleting = asyncio.create_task(chat.delete(ROOM))

    async def is_queued() -> bool:
        runs, _ = await memory.runs.records.runs(RunQuery(session_id=ROOM))
        return [run.status for run in runs] == ["queued", "running"]

    await eventually(is_queued)
    assert await kept(memory, ROOM) == [("user", "one")]
    gate.open()
    assert (await turn.answer()).response == "first"
    await deleting
    with pytest.raises(SessionNotFound):
        await memory.session(ROOM).info()
    assert (await chat.ask(RunRequest(workflow="chat", text="two", session_id=ROOM))).response == "second"
    assert await kept(memory, ROOM) == [("user", "two"), ("assistant", "second")]


async def test_an_answer_is_returned_although_its_session_is_deleted(
    sqlite_memory: Memory, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = asyncio.Event()
    look = RunService.run

    async def look_late(service: RunService, run_id: str, *, user_id: str | None = None) -> Run:
        if run_id == turn.run_id:
            await deleted.wait()
        return await look(service, run_id, user_id=user_id)

    chat = make_chat(sqlite_memory, ScriptedModel(["first"]))
    monkeypatch.setattr(RunService, "run", look_late)
    monkeypatch.setattr(Worker, "has", lambda *_: False)
    turn = chat.begin(RunRequest(workflow="chat", text="one", session_id=ROOM))
    answer = asyncio.create_task(turn.answer())
    while ("assistant", "first") not in await kept(sqlite_memory, ROOM):  # noqa: ASYNC110
        await asyncio.sleep(0)
    await chat.delete(ROOM)
    deleted.set()
    assert (await answer).response == "first"
