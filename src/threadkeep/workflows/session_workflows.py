"""Resets and deletions of sessions as runs, so that they are ordered among the turns and interrupt none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from threadkeep.history.session import Session
from threadkeep.records.runs import DELETE, RESET
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState
from threadkeep.workflows.turn_ends import Graph

_VERSION = "1"


def session_workflows() -> list[Workflow]:
    """Return a reset and a deletion that wait for their turn in the session; they are registered automatically."""
    return [
        _workflow(RESET, "Lets the model see only what comes after this.", _reset),
        _workflow(DELETE, "Deletes the session with all its messages.", _delete),
    ]


async def _reset(session: Session) -> None:
    await session.reset()


async def _delete(session: Session) -> None:
    await session.delete()


def _workflow(name: str, description: str, change: Callable[[Session], Awaitable[None]]) -> Workflow:
    async def act(state: WorkflowState, runtime: Runtime[RunContext]) -> WorkflowState:
        context = runtime.context
        if context.session_id is not None:
            await change(context.resources.memory.session(context.session_id, user_id=context.user_id))
        return {}

    builder: Graph = StateGraph(WorkflowState, context_schema=RunContext)
    builder.add_node("act", act)
    builder.add_edge(START, "act")
    builder.add_edge("act", END)
    return Workflow(name, builder, version=_VERSION, source="built-in", description=description)
