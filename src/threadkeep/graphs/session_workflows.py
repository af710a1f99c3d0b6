"""What is done to a session between two of its turns: runs like all others, so that no turn is cut in two by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from threadkeep.graphs.definition import Graph, Workflow
from threadkeep.graphs.resources import RunContext
from threadkeep.graphs.state import WorkflowState
from threadkeep.history.session import Session
from threadkeep.records.runs import DELETE, RESET

_VERSION = "1"


def session_workflows() -> list[Workflow]:
    """A reset and a deletion that wait for their turn in the session; nobody needs to register them."""
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
