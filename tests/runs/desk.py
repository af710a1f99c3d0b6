"""Helpers for tests of runs: a run service over a memory with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import interrupt

from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import Memory
from threadkeep.records.runs import RunEvent, RunResult
from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.runs.engine.opening import open_engine
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService, open_runs
from threadkeep.store.address import DatabaseAddress, parse_address
from threadkeep.testing import ScriptedModel
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.loading import read_workflow
from threadkeep.workflows.registry import Workflows
from threadkeep.workflows.resources import Resources, RunContext
from threadkeep.workflows.state import WorkflowState

IN_MEMORY = parse_address("sqlite://")
QUICK = RunServiceOptions(
    engine=EngineOptions(poll_seconds=0.05, close_seconds=1.0),
    watch_seconds=0.05,
    reap_seconds=3600.0,
    upkeep_seconds=3600.0,
    pause_seconds=0.0,
    trace_seconds=0.01,
)
LEAVING = replace(QUICK, engine=EngineOptions(close_seconds=0.0))


@asynccontextmanager
async def living_process() -> AsyncIterator[str]:
    """Return the name of another living process that executes runs. It is dead after the block."""

    async def execute(run_id: str) -> None:
        raise AssertionError(run_id)

    async with open_engine(IN_MEMORY, execute, troubled=lambda _: None) as engine:
        yield engine.name


@dataclass
class RunDesk:
    """The dependencies of a test's runs. `engine` is the database of the engine, by default one in memory."""

    memory: Memory
    model: ScriptedModel
    events: RecordedEvents
    saver: BaseCheckpointSaver[str] = field(default_factory=InMemorySaver)
    store: BaseStore = field(default_factory=InMemoryStore)
    engine: DatabaseAddress = IN_MEMORY
    middleware: tuple[AgentMiddleware[Any, Any, Any], ...] = ()

    @asynccontextmanager
    async def open(self, *workflows: str | Workflow, options: RunServiceOptions = QUICK) -> AsyncIterator[RunService]:
        """Open a run service with some workflows, given as YAML or as objects."""
        ready = [read_workflow(one) if isinstance(one, str) else one for one in workflows]
        resources = Resources(
            memory=self.memory, model=lambda _: self.model, observer=self.events, middleware=self.middleware
        )
        async with open_runs(
            self.memory,
            self.engine,
            Workflows(ready),
            resources,
            checkpointer=self.saver,
            store=self.store,
            options=options,
        ) as service:
            yield service

    async def transcript(self, session_id: str) -> list[tuple[str, str]]:
        """Return the roles and texts of a session."""
        return [(one.role, one.content) for one in await self.memory.session(session_id).tail(100)]


async def carried_out(service: RunService, request: RunRequest) -> RunResult:
    """Submit a run, and return its result."""
    submitted = await service.submit(request)
    return await service.result(submitted.run_id)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(HANG_SECONDS):
        while not await condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


def kinds(events: Sequence[RunEvent]) -> list[str]:
    """Return the kinds of the events of a run, and for a status event its status."""
    return [f"status {event.data['status']}" if event.kind == "status" else event.kind for event in events]


def asking_both(name: str = "both") -> Workflow:
    """Return a workflow that asks a person two questions at once and puts the answers into the results."""

    def asker(question: str) -> Any:
        async def ask(state: WorkflowState) -> WorkflowState:
            answer = interrupt(question)
            return {"results": {question: answer}, "messages": [AIMessage(f"{question}: {answer}")]}

        return ask

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    for question in ("name", "age"):
        builder.add_node(question, asker(question))
        builder.add_edge(START, question)
        builder.add_edge(question, END)
    return python_workflow(name, builder)


def asking_twice(name: str = "form") -> Workflow:
    """Return a workflow that asks a person two questions one after the other in one node."""

    async def ask(state: WorkflowState) -> WorkflowState:
        first = interrupt({"ask": "name"})
        second = interrupt({"ask": "age"})
        return {"messages": [AIMessage(f"{first} is {second}")]}

    return asking_with(ask, name)


def asking_with(ask: Callable[[WorkflowState], Awaitable[WorkflowState]], name: str = "form") -> Workflow:
    """Return a workflow whose only node is the function `ask`."""
    node: Any = ask
    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    builder.add_node("ask", node)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    return python_workflow(name, builder)
