"""Tests of `ProgressSaver`: for any graph it does what LangGraph's own checkpointer does."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Annotated, Any, TypedDict
from unittest.mock import patch

import pytest
from langchain_core.messages import AIMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from tests.runs.checkpointing import nothing_to_expect
from tests.runs.desk import RunDesk, carried_out
from threadkeep.observe import Observers
from threadkeep.records.runs import RunResult
from threadkeep.runs.progress import ProgressSaver, RunProgress, thread_of
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService
from threadkeep.store.address import parse_address
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.driver import StoreOptions
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState

type Builder = StateGraph[WorkflowState, RunContext, Any, Any]


def _around(name: str, node: Any) -> Builder:
    builder: Builder = StateGraph(WorkflowState, context_schema=RunContext)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    return builder


def calling_inside(*, in_thread: bool) -> Workflow:
    """Return a workflow whose node calls another graph, which asks a person, without `await`."""

    def ask(state: WorkflowState) -> WorkflowState:
        return {"messages": [AIMessage(f"{interrupt('who?')} it is")]}

    inside = _around("ask", ask).compile()

    def call(state: WorkflowState) -> WorkflowState:
        return {"messages": inside.invoke(state)["messages"]}

    async def call_in_loop(state: WorkflowState) -> WorkflowState:
        return call(state)

    return python_workflow("outside", _around("call", call if in_thread else call_in_loop))


async def test_a_node_may_call_a_graph_without_await(desk: RunDesk, shared_url: str) -> None:
    """A node in a thread can call a graph that asks a person and is continued by another service."""
    async with open_checkpointer(parse_address(shared_url), StoreOptions()) as saver:
        desk.saver = saver
        async with desk.open(calling_inside(in_thread=True)) as service:
            asked = await _asked(service)
            assert (asked.status, asked.run.error) == ("waiting", None)
        async with desk.open(calling_inside(in_thread=True)) as service:
            await service.resume(asked.run.run_id, "Ann")
            assert (await service.result(asked.run.run_id)).text == "Ann it is"


async def test_an_async_node_that_blocks_on_a_graph_fails(desk: RunDesk) -> None:
    """An async node that calls a graph without `await` fails instead of blocking the event loop."""
    async with desk.open(calling_inside(in_thread=False)) as service:
        failed = await _asked(service)
    assert (failed.status, failed.run.error) == ("failed", "InvalidStateError")


class _Spread(TypedDict):
    said: Annotated[list[str], DeltaChannel(lambda before, new: [*before, *chain.from_iterable(new)], list)]


async def test_all_checkpoints_of_a_delta_channel_are_stored(shared_url: str) -> None:
    """All checkpoints of a graph with a `DeltaChannel` are stored, because the newest one is not complete."""

    def saying(word: str) -> Any:
        async def say(state: _Spread) -> _Spread:
            return {"said": [interrupt("and?") if word == "ask" else word]}

        return say

    builder: StateGraph[_Spread, None, Any, Any] = StateGraph(_Spread)
    builder.add_sequence([(word, saying(word)) for word in ("one", "two", "ask")])
    builder.add_edge(START, "one")
    async with open_checkpointer(parse_address(shared_url), StoreOptions()) as saver:
        before = ProgressSaver(saver, Observers(), nothing_to_expect, seconds=3600.0)
        progress = RunProgress(before, "run", fresh=True, in_background=lambda _: True)
        graph, thread = builder.compile(checkpointer=before), thread_of("run")
        with patch.dict(before.active, {"run": progress}):
            await graph.ainvoke({"said": ["go"]}, thread, durability="async")
            await progress.keep()
        await progress.leave()
        assert (await graph.aget_state(thread)).values == {"said": ["go", "one", "two"]}


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "sync"])
async def test_a_thread_is_deleted_with_its_unstored_checkpoints(shared_url: str, *, in_thread: bool) -> None:
    builder: StateGraph[_Spread, None, Any, Any] = StateGraph(_Spread)
    builder.add_sequence([("say", lambda _: {"said": ["hi"]})])
    builder.add_edge(START, "say")
    async with open_checkpointer(parse_address(shared_url), StoreOptions()) as saver:
        before = ProgressSaver(saver, Observers(), nothing_to_expect, seconds=3600.0)
        progress = RunProgress(before, "run", fresh=True, in_background=lambda _: True)
        graph = builder.compile(checkpointer=before)
        with patch.dict(before.active, {"run": progress}):
            for thread in ("run", "other"):
                await graph.ainvoke({"said": ["go"]}, thread_of(thread), durability="async")
                await (asyncio.to_thread(before.delete_thread, thread) if in_thread else before.adelete_thread(thread))
                assert (await graph.aget_state(thread_of(thread))).values == {}
        await progress.leave()


async def _asked(service: RunService) -> RunResult:
    return await carried_out(service, RunRequest(workflow="outside", text="go", session_id="room"))
