"""The runtime context of nodes: their run, and the resources that it may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from threadkeep.agent.turn_options import TurnOptions
from threadkeep.memory import Memory
from threadkeep.observe import Observer
from threadkeep.records import Json
from threadkeep.records.runs import RunTrigger

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.language_models import BaseChatModel

type ChildStatus = Literal["done", "failed", "cancelled", "interrupted", "waiting", "deadline"]

BY_HAND: tuple[RunTrigger, ...] = ("http", "cli")
"""The triggers of runs started by a person, who knows their thread."""


@dataclass(frozen=True)
class ChildRequest:
    """A node's request for a child workflow: `input` is everything that the parent passes to it.

    `depth` is the child's own; `ancestors` are the names of its ancestor workflows, outermost first. Without
    `with_session` the child has no session.
    """

    workflow: str
    input: Mapping[str, Json]
    parent_run_id: str
    node_id: str
    depth: int
    deadline_seconds: float | None = None
    with_session: bool = False
    ancestors: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChildResult:
    """The result of a child: its output as JSON, the text for the parent's messages, and its status."""

    run_id: str
    output: Json
    summary: str
    status: ChildStatus


class Children(Protocol):
    """Runs child workflows for nodes."""

    async def run(self, request: ChildRequest, /) -> ChildResult:
        """Run a child to its end.

        A failure is reported in the status. A repeated request of the same node of the same parent run continues the
        existing child. Raises `WorkflowNotFound`, and `ChildFailed` if the child must not be started.
        """
        ...


@dataclass(frozen=True)
class Resources:
    """The resources for the nodes of a run.

    `model` returns a chat model by its name, None for the service's own. `turn_options` are the default limits of
    model calls. `middleware` wraps every model and tool call of every agent, inside the memory: budgets, and tools
    that must not run twice. `workspace` is that of runs that name none.
    """

    memory: Memory
    model: Callable[[str | None], BaseChatModel]
    observer: Observer
    turn_options: TurnOptions = TurnOptions()
    children: Children | None = None
    middleware: tuple[AgentMiddleware[Any, Any, Any], ...] = ()
    workspace: str | None = None


@dataclass(frozen=True)
class RunContext:
    """The run of a node, as LangGraph's runtime context: `Runtime[RunContext]`.

    Without a `session_id` the run has no session: it reads no earlier turns and stores none. `depth` is 0 at the
    top; `ancestors` are the names of the ancestor workflows. The thread of checkpoints belongs to the run, not to
    the session.
    """

    run_id: str
    workflow: str
    resources: Resources
    session_id: str | None = None
    user_id: str | None = None
    message_id: str | None = None
    trigger: RunTrigger = "http"
    depth: int = 0
    user_context: Mapping[str, Json] = field(default_factory=dict)
    ancestors: tuple[str, ...] = ()

    @property
    def by_hand(self) -> bool:
        """True if a person started the run and knows its thread; in other runs the thread is always new."""
        return self.trigger in BY_HAND
