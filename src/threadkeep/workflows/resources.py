"""The runtime context of nodes, the options of runs, and the resources that nodes may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from langchain_core.tools import BaseTool
from pydantic import BaseModel, ConfigDict, Field

from threadkeep.agent.turn_options import TurnOptions
from threadkeep.memory import Memory
from threadkeep.observe import Observer
from threadkeep.records import Json
from threadkeep.records.runs import DoubleTexting, RunBudget, RunTrigger

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.language_models import BaseChatModel

MAX_DEPTH = 3
"""The default maximum number of levels of nested workflows below a run."""

MAX_DEADLINE = 31_536_000
"""The longest deadline of a run in seconds: a year."""


class RunOptions(BaseModel):
    """Options for the runs of a workflow. A limit of None means no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    double_texting: DoubleTexting = Field(
        "enqueue",
        description="What to do with a message while a turn of its session is running: wait (enqueue), end that turn "
        "(interrupt), be rejected (reject), become one turn with other waiting messages (coalesce), or end that turn "
        "and take its messages back (rollback).",
    )
    max_tokens: int | None = Field(
        None, ge=1, le=2**53 - 1, description="The most input and output tokens of a run with its children."
    )
    max_cost: float | None = Field(None, gt=0, description="The maximum cost, in the unit of the price table.")
    deadline_seconds: float | None = Field(
        None, gt=0, le=MAX_DEADLINE, description="The time limit of a run in seconds."
    )
    max_depth: int = Field(MAX_DEPTH, ge=0, le=20, description="The maximum depth of nested workflows below a run.")
    max_tries: int = Field(3, ge=1, le=20, description="Attempts at a failing run before it is set aside.")
    recursion_limit: int = Field(100, ge=2, le=10_000, description="The maximum number of graph steps; stops loops.")

    @property
    def budget(self) -> RunBudget:
        """The limits for the tokens and the cost of a run."""
        return RunBudget(self.max_tokens, self.max_cost)


type ChildStatus = Literal["done", "failed", "cancelled", "interrupted", "waiting", "deadline"]

BY_HAND: tuple[RunTrigger, ...] = ("http", "cli")
"""The triggers of runs that a person started. Only these may use `thread_id` in keys."""


@dataclass(frozen=True)
class ChildRequest:
    """A node's request to run a child workflow. The child gets only `input` from its parent.

    `depth` is the child's level below the first run. `ancestors` has the names of the workflows above the child,
    outermost first. If `with_session` is true, the child gets a new session; otherwise it has none.
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
    """The result of a child workflow: its output as JSON, a `summary` for the parent's messages, and its status."""

    run_id: str
    output: Json
    summary: str
    status: ChildStatus


class Children(Protocol):
    """The interface through which nodes run child workflows."""

    async def run(self, request: ChildRequest, /) -> ChildResult:
        """Run a child to its end, and return its result. If the child failed, the result has its status.

        The same step of the parent may request the child again. A runner that stores its children then continues the
        existing child; any other runner starts a new one. Raise `WorkflowNotFound` for an unknown name, and
        `ChildFailed` if the child must not be started.
        """


@dataclass(frozen=True)
class Resources:
    """The objects that the nodes of a run may use, such as the memory and the chat models.

    model: returns the chat model with the given name; for None, the service's own model.
    turn_options: the default options of turns.
    middleware: wraps the model and tool calls of every agent, inside the middleware of the memory.
    workspace: the workspace of runs that do not name one.
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
    """The run in which a node is called, as LangGraph's runtime context: `Runtime[RunContext]`.

    Without a `session_id`, the run reads no earlier turns and stores none. `depth` is 0 for a run without a parent.
    `ancestors` has the names of the workflows above this run, outermost first. Each run has its own LangGraph thread.
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
        """True if a person started the run; the templates of conversation keys may then use its `thread_id`."""
        return self.trigger in BY_HAND


_MARK: Final = "idempotent"


def not_idempotent[T](tool: T) -> T:
    """Mark a tool, or a function for a tool, so that no call of it is repeated without a person's consent.

    In a run of a workflow, each call of the tool is executed once. If the process dies during a call, its outcome is
    unknown, and the run asks a person. A LangChain tool can instead be marked by the metadata `{"idempotent": False}`.
    """
    if isinstance(tool, BaseTool):
        tool.metadata = {**(tool.metadata or {}), _MARK: False}
    else:
        setattr(tool, _MARK, False)
    return tool


def is_idempotent(tool: object) -> bool:
    """Return True if a call of a tool may be repeated when the outcome of the first attempt is unknown."""
    marked = [tool, getattr(tool, "func", None), getattr(tool, "coroutine", None)]
    marks: list[object] = [getattr(each, _MARK, None) for each in marked]
    metadata = tool.metadata if isinstance(tool, BaseTool) else None
    return (metadata or {}).get(_MARK) is not False and not any(mark is False for mark in marks)
