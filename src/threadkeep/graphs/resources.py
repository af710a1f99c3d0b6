"""What a node gets beside the state: which run it is in, and what that may use. It is LangGraph's context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from threadkeep.history.memory import Memory
from threadkeep.observe import Observer
from threadkeep.records import Json
from threadkeep.records.runs import RunTrigger
from threadkeep.workflow.turn_options import TurnOptions

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.language_models import BaseChatModel

type ChildStatus = Literal["done", "failed", "cancelled", "interrupted", "waiting", "deadline"]

_BY_HAND: tuple[RunTrigger, ...] = ("http", "cli")


@dataclass(frozen=True)
class ChildRequest:
    """A workflow that a node wants to have run: `input` is all that it is given of its parent.

    `depth` is the child's own; `ancestors` are the names of the workflows above it, the outermost first. Without
    `with_session` the child belongs to no session.
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
    """What became of a child: its output as JSON, the text for the parent's messages, and how it ended."""

    run_id: str
    output: Json
    summary: str
    status: ChildStatus


class Children(Protocol):
    """Runs workflows for nodes of others."""

    async def run(self, request: ChildRequest, /) -> ChildResult:
        """Run a child to its end.

        A child that fails is told of by the status. Asked again for the same node of the same parent run, it goes on
        with the child that is there. Raises `WorkflowNotFound`, and `ChildFailed` for one that may not be started.
        """
        ...


@dataclass(frozen=True)
class Resources:
    """What the nodes of a run may use.

    `model` gives a chat model by its name, None for the service's own. `turn_options` are the limits of a model call
    that a node does not set itself. `middleware` stands around every model and tool call of every agent, inside the
    memory: budgets, tools that may not run twice.
    """

    memory: Memory
    model: Callable[[str | None], BaseChatModel]
    observer: Observer
    turn_options: TurnOptions = TurnOptions()
    children: Children | None = None
    middleware: tuple[AgentMiddleware[Any, Any, Any], ...] = ()


@dataclass(frozen=True)
class RunContext:
    """The run that a node is in, as LangGraph's runtime context: `Runtime[RunContext]`.

    Without a `session_id` the run belongs to no session: it sees no earlier turns and stores none. `depth` is 0 at the
    top, `ancestors` are the names of the workflows above. The thread of a run's checkpoints is the run itself: the
    session is only here.
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
        """Whether a person started the run and knows its thread, which elsewhere is new in each run."""
        return self.trigger in _BY_HAND
