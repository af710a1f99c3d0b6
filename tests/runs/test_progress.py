"""Tests of the checkpoints of runs: they are stored as far as a retry, an answer or another process needs them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from tests.recorded_events import RecordedEvents
from tests.runs.checkpointing import GO, LATE, NEVER, STEPS, CountingSaver, calling, nothing_to_expect, thread_named
from tests.runs.desk import LEAVING, RunDesk, carried_out, eventually
from tests.workflows import tools
from threadkeep.observe import RunTrouble
from threadkeep.runs.progress import ProgressSaver, RunProgress
from threadkeep.store.address import parse_address
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.driver import StoreOptions
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.definition import Compiler
from threadkeep.workflows.loading import read_workflow


@pytest.fixture(autouse=True)
def ran() -> list[str]:
    """Return the names of the executed tools, empty at the beginning."""
    tools.RAN.clear()
    return tools.RAN


async def test_a_run_that_has_its_result_needs_no_checkpoints(every_desk: RunDesk, saver: CountingSaver) -> None:
    """A run that ends with a result reads, stores and deletes no checkpoint, and needs no cleanup."""
    every_desk.model = ScriptedModel([calling("plain", text="a"), "well"])
    async with every_desk.open(STEPS, options=LATE) as service:
        result = await carried_out(service, GO)

        async def nothing_left() -> bool:
            return not await every_desk.memory.runs.records.with_checkpoints(result.run.created_at, limit=10)

        await eventually(nothing_left)
    assert (result.status, result.text, saver.asked) == ("done", "well", [])


async def test_checkpoints_are_stored_during_the_next_step(every_desk: RunDesk, saver: CountingSaver) -> None:
    gate = Gate()
    every_desk.model = ScriptedModel([calling("plain", text="a"), [gate, "well"]])
    async with every_desk.open(STEPS) as service:
        run = await service.submit(GO)
        await gate.reached()

        async def kept() -> bool:
            stored = [found async for found in _all(saver, run.run_id)]
            of_agent = [found.checkpoint["channel_values"].get("messages", []) for found in stored if _place(found)]
            has_result = any(isinstance(messages[-1], ToolMessage) for messages in of_agent if messages)
            return has_result and len(stored) > len(of_agent)

        await eventually(kept)
        gate.open()
        assert (await service.result(run.run_id)).text == "well"

        async def gone() -> bool:
            return [found async for found in _all(saver, run.run_id)] == []

        await eventually(gone)


async def test_a_failed_run_continues_where_it_stopped(
    every_desk: RunDesk, saver: CountingSaver, ran: list[str]
) -> None:
    """A retried run does not repeat the tool calls of the failed attempt."""
    every_desk.model = ScriptedModel([calling("plain", text="a"), ValueError(), "well"])
    async with every_desk.open(STEPS, options=LATE) as service:
        failed = await carried_out(service, GO)
        assert failed.status == "failed"
        await service.retry(failed.run.run_id)
        result = await service.result(failed.run.run_id)
    assert (result.status, result.text, ran) == ("done", "well", ["plain"])
    assert "checkpoint" in saver.asked


async def test_a_transient_failure_repeats_no_step(every_desk: RunDesk, saver: CountingSaver, ran: list[str]) -> None:
    every_desk.model = ScriptedModel([calling("plain", text="a"), ConnectionError(), "well"])
    async with every_desk.open(STEPS, options=LATE) as service:
        result = await carried_out(service, GO)
    assert (result.status, result.text, ran) == ("done", "well", ["plain"])
    assert "checkpoint" in saver.asked


async def test_a_run_of_a_closed_service_continues_where_it_stopped(
    every_desk: RunDesk, saver: CountingSaver, ran: list[str]
) -> None:
    """A closing service stores the checkpoints of its runs, and the next service does not repeat tool calls."""
    gate = Gate()
    every_desk.model = ScriptedModel([calling("plain", text="a"), [gate, "never"]])
    async with every_desk.open(STEPS, options=replace(LEAVING, progress_seconds=NEVER)) as service:
        run = await service.submit(GO)
        await gate.reached()
    assert "checkpoint" in saver.asked
    every_desk.model = ScriptedModel(["well"])
    async with every_desk.open(STEPS, options=LATE) as service:
        assert (await service.result(run.run_id)).text == "well"
    assert ran == ["plain"]


async def test_a_run_that_asks_continues_with_the_answer(
    every_desk: RunDesk, saver: CountingSaver, ran: list[str]
) -> None:
    """A run stores its checkpoint before its question is visible, and continues from it with the answer."""
    every_desk.model = ScriptedModel([calling("plain", text="a"), calling("ask_person", question="who?"), "well"])
    async with every_desk.open(STEPS, options=LATE) as service:
        asked = await carried_out(service, GO)
        assert (asked.status, asked.interrupts[0]["value"]) == ("waiting", {"question": "who?"})
        assert "checkpoint" in saver.asked
    async with every_desk.open(STEPS, options=LATE) as service:
        await service.resume(asked.run.run_id, "Ann")
        assert (await service.result(asked.run.run_id)).text == "well"
    assert ran == ["plain", "asked", "asked"]


async def test_a_state_that_cannot_be_stored_fails_the_run_that_needs_it(
    every_desk: RunDesk, saver: CountingSaver
) -> None:
    """A run whose question cannot be stored fails with the error of the checkpointer. It could never continue."""
    saver.failure = TypeError("no such type")
    every_desk.model = ScriptedModel([calling("ask_person", question="who?")])
    async with every_desk.open(STEPS, options=LATE) as service:
        result = await carried_out(service, GO)
    assert (result.status, result.run.error) == ("failed", "TypeError")
    assert RunTrouble(error="TypeError", work="keeping_progress") in every_desk.events.of(RunTrouble)


async def test_stored_states_are_those_of_langgraph(shared_url: str, events: RecordedEvents) -> None:
    """`ProgressSaver` stores the state, the question and the next step that LangGraph stores without it."""

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{interrupt('who?')} it is", id="a3")]}

    def saying(message_id: str) -> Any:
        async def say(state: MessagesState) -> dict[str, Any]:
            return {"messages": [AIMessage(message_id, id=message_id)]}

        return say

    builder: StateGraph[MessagesState, None, Any, Any] = StateGraph(MessagesState)
    builder.add_sequence([("first", saying("a1")), ("second", saying("a2")), ("ask", ask)])
    builder.add_edge(START, "first")
    builder.add_edge("ask", END)
    given: Any = {"messages": [HumanMessage("go", id="q")]}
    async with _checkpointer(shared_url) as saver:
        graph = builder.compile(checkpointer=saver)
        progress_saver = ProgressSaver(saver, events, nothing_to_expect, seconds=NEVER)
        progress = RunProgress(progress_saver, "beside", fresh=True, in_background=lambda _: True)
        late = builder.compile(checkpointer=progress_saver)
        plainly, beside = thread_named("plainly"), thread_named("beside")
        with patch.dict(progress_saver.active, {"beside": progress}):
            await late.ainvoke(given, beside, durability="async")
            assert await saver.aget_tuple(beside) is None
            await progress.keep()
        await graph.ainvoke(given, plainly, durability="async")
        states = [await graph.aget_state(thread) for thread in (plainly, beside)]
        assert [one.next for one in states] == [("ask",)] * 2
        assert states[0].values == states[1].values
        assert [one.value for one in states[1].interrupts] == ["who?"]
        assert len([one async for one in saver.alist(beside)]) == 1
        assert not await progress.leave()


def test_the_newest_checkpoint_of_an_agent_is_complete() -> None:
    """Agents of Threadkeep use no `DeltaChannel`, so that the newest checkpoint is complete."""
    workflow = read_workflow(STEPS)
    assert not any(
        isinstance(channel, DeltaChannel)
        for graph in (Compiler(checkpointer=None, store=None).compiled(workflow),)
        for channel in graph.channels.values()
    )


@asynccontextmanager
async def _checkpointer(url: str) -> AsyncIterator[Any]:
    async with open_checkpointer(parse_address(url), StoreOptions()) as saver:
        yield saver


def _all(saver: CountingSaver, thread: str) -> AsyncIterator[Any]:
    return saver.alist(thread_named(thread))


def _place(found: Any) -> str:
    return str(found.config["configurable"]["checkpoint_ns"])
