"""Runs: one execution of a workflow each, what is told of it while it goes on, and what it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, Final, Literal

from threadkeep.errors import InvalidInput
from threadkeep.records.json_values import Json

type RunStatus = Literal["queued", "running", "waiting", "done", "failed", "cancelled", "interrupted"]
type RunEnd = Literal["done", "failed", "cancelled", "interrupted"]
type RunTrigger = Literal["http", "cli", "webhook", "schedule", "child"]
type DoubleTexting = Literal["enqueue", "interrupt", "reject", "coalesce"]

RUN_STATUSES: tuple[RunStatus, ...] = ("queued", "running", "waiting", "done", "failed", "cancelled", "interrupted")
RUN_ENDS: tuple[RunEnd, ...] = ("done", "failed", "cancelled", "interrupted")

RESET: Final = "session-reset"
DELETE: Final = "session-delete"
OWN_NAMES: Final = frozenset({RESET, DELETE})
"""Workflows of Threadkeep's own: what is done to a session between its turns, and is none of them."""

_MOST_TOKENS = 2**53


@dataclass(frozen=True)
class RunBudget:
    """What a run and its children may take: tokens (in and out together), and money in the unit of the price table.

    None for no such limit.
    """

    max_tokens: int | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no limit.

        Raises:
            InvalidInput: names the limit.
        """
        tokens, cost = self.max_tokens, self.max_cost
        if tokens is not None and (
            isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 < tokens < _MOST_TOKENS
        ):
            raise InvalidInput("max_tokens is a whole number from 1, or None for no limit.")
        if cost is not None and (
            isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 < cost < float("inf")
        ):
            raise InvalidInput("max_cost is a number above 0, or None for no limit.")

    def to_dict(self) -> dict[str, Json]:
        """The limits that are set, as JSON values."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunBudget:
        """The budget that `to_dict` described.

        Raises:
            InvalidInput: a name or a value is not one of a budget's.
        """
        names = [limit.name for limit in fields(cls)]
        if not isinstance(values, Mapping) or set(values) - set(names):
            raise InvalidInput(f"The limits of a budget are {', '.join(names)}.")
        return cls(**values)


@dataclass(frozen=True)
class RunInput:
    """What a run is asked for by one message; `message_id` is the platform's, None where there is no message."""

    values: Mapping[str, Json]
    message_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """A run that is asked for. The same `run_id`, or `message_id` of a session, asks for the same run again.

    A child names its parent, and the node that asked for it. Without a session it is in no order of turns.
    """

    run_id: str
    workflow: str
    input: Mapping[str, Json]
    version: str | None = None
    session_id: str | None = None
    message_id: str | None = None
    user_id: str | None = None
    parent_run_id: str | None = None
    node_id: str | None = None
    trigger: RunTrigger = "http"
    budget: RunBudget = RunBudget()
    deadline_at: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse a message that is in no session.

        Raises:
            InvalidInput: the sentence says what is missing.
        """
        if not self.run_id or not self.workflow:
            raise InvalidInput("A run has a run_id and the name of a workflow.")
        if self.message_id is not None and self.session_id is None:
            raise InvalidInput("A run with a message_id has a session_id: ids of messages are ids within a session.")
        if self.deadline_at is not None and self.deadline_at.tzinfo is None:
            raise InvalidInput("A run's deadline_at is a datetime with a time zone, or None.")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One execution of a workflow, and what became of it.

    `inputs` has one entry for each message that the run answers; none where a process has only claimed the message.
    `result` is what came out; `error` names a kind, never a text of people. `interrupt` is what a run that waits asks a
    person, `resume_value` the answer to it if it is `resumed`. `arrival` is its place among the turns of its session;
    without one it is in no order. A run with `cancel_requested_at` is still at work until whoever carries it out has
    let go of it; `cancel_reason` says why. One that is `set_aside` has failed too often to be tried again without a
    person.
    """

    run_id: str
    session_id: str | None
    message_id: str | None
    workflow: str
    status: RunStatus
    owner: str | None
    result: Mapping[str, Json] | None
    error: str | None
    started_at: datetime | None
    heartbeat_at: datetime | None
    ended_at: datetime | None
    version: str | None
    user_id: str | None
    parent_run_id: str | None
    root_run_id: str
    depth: int
    node_id: str | None
    trigger: RunTrigger
    arrival: int | None
    inputs: tuple[RunInput, ...]
    interrupt: Json
    resume_value: Json
    resumed: bool
    budget: RunBudget
    attempts: int
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    set_aside: bool
    created_at: datetime
    deadline_at: datetime | None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status in RUN_ENDS

    @property
    def input(self) -> Mapping[str, Json]:
        """What the first message asked for; empty where a process has only claimed it."""
        return self.inputs[0].values if self.inputs else {}


@dataclass(frozen=True)
class Begun:
    """The run is its owner's to carry out now, from where its checkpoints end."""

    run: Run


@dataclass(frozen=True)
class NotYet:
    """The run may not begin: `behind` is the one before it in its session, or itself if another carries it out."""

    run: Run
    behind: str


@dataclass(frozen=True)
class Over:
    """There is nothing to carry out: the run has ended, waits for a person, or is gone (None)."""

    run: Run | None


STATUS: Final = "status"
"""The kind of the event of a run that says how it stands; those who follow it wait for one."""

TRACE_CUT: Final = "trace_cut"
"""The kind of the event that stands where a trace was cut; after it there are those of how the run stands alone."""


@dataclass(frozen=True)
class TraceEvent:
    """Something that happened in a run, before it has a number. `data` may hold what people said."""

    kind: str
    node: str | None = None
    data: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class RunEvent:
    """Something that happened in a run; `number` is 1, 2, 3 … in each run, without gaps."""

    run_id: str
    number: int
    kind: str
    node: str | None
    data: Mapping[str, Json]
    created_at: datetime


@dataclass(frozen=True)
class TokenUsage:
    """What the calls of one model took.

    `input_tokens` include `cache_read_tokens`. `estimated_calls` are those of which the provider reported nothing.
    `cost` is None where the model has no price.
    """

    model: str
    calls: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    estimated_calls: int = 0
    cost: float | None = None

    @property
    def tokens(self) -> int:
        """In and out together."""
        return self.input_tokens + self.output_tokens


type ToolCallStatus = Literal["fresh", "begun_before", "finished", "gone"]


@dataclass(frozen=True)
class ToolCall:
    """Whether a tool that may not be run twice may be run.

    `fresh`: now. `begun_before`: nobody knows how that ended, so a person decides. `finished`: `result` is what it
    gave. `gone`: the run is not there any more.
    """

    status: ToolCallStatus
    result: Json = None


@dataclass(frozen=True)
class WorkflowVersion:
    """A workflow as it was when runs began with it; `definition` is None where it is code."""

    name: str
    version: str
    definition: Mapping[str, Json] | None
    first_used_at: datetime


type RunCursor = tuple[datetime, str]


@dataclass(frozen=True, kw_only=True)
class RunQuery:
    """Which runs are wanted; None for whatever it is. `since` is the earliest time at which they were asked for."""

    session_id: str | None = None
    user_id: str | None = None
    workflow: str | None = None
    status: RunStatus | None = None
    parent_run_id: str | None = None
    root_run_id: str | None = None
    since: datetime | None = None
    set_aside: bool | None = None
    limit: int = 50
    cursor: RunCursor | None = None

    def __post_init__(self) -> None:
        """Refuse a page of nothing.

        Raises:
            InvalidInput: the limit is below 1.
        """
        if self.limit < 1:
            raise InvalidInput("A page of runs has at least one.")
