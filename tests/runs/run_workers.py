"""Processes that execute workflow runs and record the calls of nodes and tools in a file.

A kill does not lose the records.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from tests.runs.workers import Notes
from threadkeep import Memory, MemoryOptions, not_idempotent, open_memory
from threadkeep.graph_store.langgraph_stores import open_graph_store
from threadkeep.observe import Observers
from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService, open_runs
from threadkeep.store.address import parse_address
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.driver import StoreOptions
from threadkeep.testing import ScriptedModel
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.loading import read_workflow
from threadkeep.workflows.nodes import AgentNode
from threadkeep.workflows.registry import Workflows
from threadkeep.workflows.resources import Resources, RunContext
from threadkeep.workflows.state import WorkflowState, last_text

# On a busy machine a shorter time would make living processes look dead.
SOON = RunServiceOptions(engine=EngineOptions(concurrency=4, poll_seconds=0.1, dead_seconds=3.0, close_seconds=0.0))
ASKING = RunServiceOptions(engine=EngineOptions(works=False, close_seconds=0.0))

PARENT = """\
schema: 1
name: parent
nodes:
  help: {kind: subworkflow, workflow: steps, next: end}
"""

SPOKEN = """\
schema: 1
name: spoken
nodes:
  think: {kind: agent, next: say}
  say: {kind: template, text: said by %s, as_message: true, next: end}
"""


@dataclass(frozen=True)
class Desk:
    """A process: its database, its notes, the sessions that it submits runs to, and the version of its graphs.

    Checkpoints of its runs are stored after `progress_seconds`.
    """

    url: str
    notes: Notes
    seconds: float = 0.05
    sessions: tuple[str, ...] = ()
    version: str = "1"
    progress_seconds: float = RunServiceOptions().progress_seconds

    def note(self, what: str, about: str) -> None:
        """Record what this process does."""
        self.notes.add(what, about)

    async def reply(self, messages: Sequence[BaseMessage]) -> AIMessage:
        """Return the model's answer; a text that begins with `slow` takes `seconds`."""
        text = messages[-1].text
        if text.startswith("poison"):
            self.note("killed", text)
            os.kill(os.getpid(), signal.SIGKILL)
        if text.startswith("slow"):
            self.note("second", text)
            await asyncio.sleep(self.seconds)
        if text.startswith(("pay", "look")):
            # Each call has another id, as with real providers.
            call = {
                "name": "pay" if text.startswith("pay") else "look",
                "args": {"amount": 7},
                "id": f"call{os.urandom(4).hex()}",
            }
            return AIMessage("", tool_calls=[call])
        return AIMessage(f"re: {text}")

    def workflows(self) -> Workflows:
        """Return the workflows of the process.

        They are two slow steps, their parent, two agents with tools, a slow step with two questions, and a workflow
        that answers with its version.
        """
        agents = [self._agent("till", self._pay()), self._agent("window", self._look())]
        return Workflows(
            [self._steps(), read_workflow(PARENT), *agents, self._form(), read_workflow(SPOKEN % self.version)]
        )

    def _form(self) -> Workflow:
        async def ask(state: WorkflowState) -> WorkflowState:
            self.note("asking", last_text(state))
            await asyncio.sleep(self.seconds)
            return {"messages": [AIMessage(f"{interrupt('name')} is {interrupt('age')}")]}

        builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
        builder.add_node("ask", ask)
        builder.add_edge(START, "ask")
        return python_workflow("form", builder, version=self.version)

    def _steps(self) -> Workflow:
        async def first(state: WorkflowState) -> WorkflowState:
            self.note("first", last_text(state))
            return {}

        async def second(state: WorkflowState) -> WorkflowState:
            text = last_text(state)
            self.note("second", text)
            await asyncio.sleep(self.seconds)
            self.note("over", text)
            return {}

        builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
        answer: Any = AgentNode()
        builder.add_sequence([("first", first), ("second", second), ("answer", answer)])
        builder.add_edge(START, "first")
        builder.add_edge("answer", END)
        return python_workflow("steps", builder, version=self.version)

    def _agent(self, name: str, its_tool: BaseTool) -> Workflow:
        builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
        node: Any = AgentNode(tools=(its_tool,))
        builder.add_node(name, node)
        builder.add_edge(START, name)
        return python_workflow(name, builder, version="1")

    def _look(self) -> BaseTool:
        @tool
        async def look(amount: int) -> str:
            """Look for an amount of time."""
            self.note("looked", str(amount))
            return "slow-sunrise"

        return look

    def _pay(self) -> BaseTool:
        @not_idempotent
        @tool
        async def pay(amount: int) -> str:
            """Pay an amount."""
            self.note("paid", str(amount))
            await asyncio.sleep(self.seconds)
            return "paid"

        return pay


@asynccontextmanager
async def opened(desk: Desk, options: RunServiceOptions) -> AsyncIterator[tuple[Memory, RunService]]:
    """Open the run service of a process."""
    address, store = parse_address(desk.url), StoreOptions()
    async with (
        open_memory(desk.url, options=MemoryOptions(background=False)) as memory,
        open_checkpointer(address, store) as saver,
        open_graph_store(address, store) as graph_store,
    ):
        model = ScriptedModel(repeat(desk.reply))
        resources = Resources(memory=memory, model=lambda _: model, observer=Observers())
        async with open_runs(
            memory, address, desk.workflows(), resources, checkpointer=saver, store=graph_store, options=options
        ) as service:
            yield memory, service


def work(desk: Desk) -> None:
    """Execute runs for ever."""
    asyncio.run(_work(desk))


async def _work(desk: Desk) -> None:
    async with opened(desk, replace(SOON, progress_seconds=desk.progress_seconds)) as (_, service):
        asked = [RunRequest(workflow="steps", text=each, session_id=each, message_id="m") for each in desk.sessions]
        waiting = [service.result((await service.submit(request)).run_id) for request in asked]
        desk.note("ready", "")
        await asyncio.gather(asyncio.Event().wait(), *waiting)
