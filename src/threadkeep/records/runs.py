"""Runs, which are executions of workflows; their events and their usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, Literal

from threadkeep.errors import InvalidInput
from threadkeep.records.json_values import DESCRIBED, Json, is_finite, is_whole

type RunStatus = Literal["queued", "running", "waiting", "done", "failed", "cancelled", "interrupted"]
type RunEnd = Literal["done", "failed", "cancelled", "interrupted"]
type RunTrigger = Literal["http", "cli", "webhook", "schedule", "child"]
type DoubleTexting = Literal["enqueue", "interrupt", "reject", "coalesce", "rollback"]

DOUBLE_TEXTING: tuple[DoubleTexting, ...] = ("enqueue", "interrupt", "reject", "coalesce", "rollback")
RUN_STATUSES: tuple[RunStatus, ...] = ("queued", "running", "waiting", "done", "failed", "cancelled", "interrupted")
RUN_ENDS: tuple[RunEnd, ...] = ("done", "failed", "cancelled", "interrupted")

RESET: Final = "session-reset"
DELETE: Final = "session-delete"
OWN_NAMES: Final = frozenset({RESET, DELETE})
"""The names of internal workflows, which reset or delete a session between its turns."""

ROLLED_BACK: Final = "rolled_back_by_message"
"""The cancel reason of a run whose turn was rolled back when a later message arrived."""


def deletion_key(session_id: str) -> str:
    """Return the key under which a session's deletion is recorded: a digest, because an id may name a person."""
    return f"deleted:{sha256(f'{session_id}:'.encode()).hexdigest()}"


@dataclass(frozen=True)
class RunBudget:
    """Optional limits for a run with its children: input plus output tokens, and the cost in the price table's unit."""

    max_tokens: int | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        """Reject invalid limits; `InvalidInput` names the limit."""
        tokens, cost = self.max_tokens, self.max_cost
        if tokens is not None and not is_whole(tokens, 1):
            raise InvalidInput("max_tokens is a whole number from 1, or None for no limit.")
        if cost is not None and not (is_finite(cost) and cost > 0):
            raise InvalidInput("max_cost is a number above 0, or None for no limit.")

    def to_dict(self) -> dict[str, Json]:
        """Return the limits that are set, as JSON values."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunBudget:
        """Create a budget from a dict that `to_dict` returned.

        Raises:
            InvalidInput: a name or a value is not valid for a budget.
        """
        names = [limit.name for limit in fields(cls)]
        if not isinstance(values, Mapping) or set(values) - set(names):
            raise InvalidInput(f"The limits of a budget are {', '.join(names)}.")
        return cls(**values)


NO_BUDGET: Final = RunBudget()
"""A budget without limits."""


@dataclass(frozen=True)
class RunInput:
    """The input that a run gets from one message. `message_id` is the message's id on its platform."""

    values: Mapping[str, Json]
    message_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """A request for a run. A repeated request (same `run_id`, or same session and `message_id`) adds no run.

    A child run names its parent run, and the node that started it. `conversations` are the conversations that the run's
    agents store in addition to the session; the run waits for earlier turns of its session and of each of them.
    `any_session` is True if the caller chose no session. Its message may then join a queued turn of another session.
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
    budget: RunBudget = NO_BUDGET
    deadline_at: datetime | None = None
    conversations: tuple[str, ...] = ()
    any_session: bool = False

    def __post_init__(self) -> None:
        """Reject missing or contradictory fields."""
        if not self.run_id or not self.workflow:
            raise InvalidInput("A run needs a run_id and the name of a workflow.")
        if self.message_id is not None and self.session_id is None:
            raise InvalidInput("A run with a message_id needs a session_id: message ids belong to a session.")
        if self.deadline_at is not None and self.deadline_at.tzinfo is None:
            raise InvalidInput("A run's deadline_at is a datetime with a time zone, or None.")


REPLY: Final = "reply"
"""The key in a run's `interrupt` for the id of the message that answered the run's newest question."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """An execution of a workflow, with its state.

    - `inputs`: one entry for each message that the run answers; empty if the run was deleted or cannot be read.
    - `result`: the output. `error`: the name of a kind of error, never a person's text.
    - `interrupt`: the question that a waiting run asks a person. `resume_value`: the reply, if the run was `resumed`.
    - `arrival`: the run's number among the turns of its session; None if it has no such number.
    - `cancel_requested_at`: if it is set, the run counts as running until its worker has stopped it.
    - `set_aside`: True if the run has failed too often; it is not retried until a person requests this.
    """

    run_id: str
    session_id: str | None
    message_id: str | None
    workflow: str
    status: RunStatus
    owner: str | None = None
    result: Mapping[str, Json] | None = None
    error: str | None = None
    started_at: datetime | None
    heartbeat_at: datetime | None
    ended_at: datetime | None
    version: str | None = None
    user_id: str | None
    parent_run_id: str | None = None
    root_run_id: str
    depth: int = 0
    node_id: str | None = None
    trigger: RunTrigger
    arrival: int | None = None
    inputs: tuple[RunInput, ...]
    interrupt: Json = None
    resume_value: Json = None
    resumed: bool = False
    budget: RunBudget
    attempts: int
    cancel_requested_at: datetime | None = None
    cancel_reason: str | None = None
    set_aside: bool = False
    created_at: datetime
    deadline_at: datetime | None

    @property
    def is_rolled_back(self) -> bool:
        """True if a newer message has requested that the turn be rolled back."""
        return self.cancel_reason == ROLLED_BACK

    @property
    def unbegun(self) -> bool:
        """True if the run is a session's turn that was accepted and has never begun."""
        waits = self.status == "queued" and self.started_at is None
        return waits and self.parent_run_id is None and self.arrival is not None and self.workflow not in OWN_NAMES

    @property
    def over(self) -> bool:
        """True if the run has ended."""
        return self.status in RUN_ENDS

    @property
    def newest_message_id(self) -> str | None:
        """The id of the message to answer: the reply to the run's newest question or, if none, the newest input."""
        reply = self.interrupt.get(REPLY) if isinstance(self.interrupt, Mapping) else None
        if isinstance(reply, str):
            return reply
        return self.inputs[-1].message_id if self.inputs else None

    @property
    def input(self) -> Mapping[str, Json]:
        """The input from the run's first message; empty if the stored run was deleted or cannot be read."""
        return self.inputs[0].values if self.inputs else {}


@dataclass(frozen=True)
class Begun:
    """A run that the caller may now execute, from its last checkpoint. `new` is True if the run never began before."""

    run: Run
    new: bool = False


@dataclass(frozen=True)
class NotYet:
    """A run that cannot start yet. `behind`: the id of the run to wait for, or of `run` if another process has it."""

    run: Run
    behind: str


@dataclass(frozen=True)
class Over:
    """A run with nothing left to execute: it has ended or waits for a person. `run` is None if no run exists."""

    run: Run | None


STATUS: Final = "status"
"""The kind of an event that reports a run's new status, such as its end."""

TRACE_CUT: Final = "trace_cut"
"""The kind of the event that marks where a trace reached its size limit; only status events follow it."""


@dataclass(frozen=True)
class TraceEvent:
    """An event of a run that is not stored yet and has no number. `data` may contain text that people wrote.

    An event without a time gets the time at which it is stored.
    """

    kind: str
    node: str | None = None
    data: Mapping[str, Json] = field(default_factory=dict)
    at: datetime | None = None


@dataclass(frozen=True)
class RunEvent:
    """An event of a run; `number` rises from 1 in each run, perhaps with gaps."""

    run_id: str
    number: int
    kind: str
    node: str | None
    data: Mapping[str, Json]
    created_at: datetime


@dataclass(frozen=True)
class TokenUsage:
    """The token usage of one model."""

    __pydantic_config__ = DESCRIBED

    model: str
    calls: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    """Input tokens that the provider read from its prompt cache."""
    estimated_calls: int = 0
    """The number of calls for which the provider reported no usage."""
    cost: float | None = None
    """The cost in the unit of THREADKEEP_PRICES; null if the model has no price."""

    @property
    def tokens(self) -> int:
        """The sum of input and output tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def estimated(self) -> bool:
        """True if at least one call's numbers are estimates."""
        return self.estimated_calls > 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Return the sum of both usages, under this model's name. It has a cost if at least one of them has a cost."""
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return TokenUsage(
            self.model,
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.estimated_calls + other.estimated_calls,
            sum(costs) if costs else None,
        )


NO_USAGE: Final = TokenUsage("", calls=0)
"""A usage of zero tokens, with which a sum of usages begins."""


type ToolCallStatus = Literal["fresh", "begun_before", "finished", "gone"]


@dataclass(frozen=True)
class ToolCall:
    """The decision about a tool call that must not run twice.

    `fresh`: the call may run now. `begun_before`: it was started before and its outcome is unknown, so a person must
    decide. `finished`: it was completed before, with this `result`. `gone`: the run does not exist any more.
    """

    status: ToolCallStatus
    result: Json = None


@dataclass(frozen=True)
class WorkflowVersion:
    """A version of a workflow with which at least one run began; `definition` is None for a workflow in code."""

    name: str
    version: str
    definition: Mapping[str, Json] | None
    first_used_at: datetime


type RunCursor = tuple[datetime, str]


@dataclass(frozen=True, kw_only=True)
class RunQuery:
    """A filter for a list of runs; None matches all values. `since` is the earliest time of creation.

    If `turns` is true, child runs are left out, and so are resets and deletions of sessions.
    """

    session_id: str | None = None
    user_id: str | None = None
    workflow: str | None = None
    status: RunStatus | None = None
    parent_run_id: str | None = None
    since: datetime | None = None
    set_aside: bool | None = None
    turns: bool = False
    limit: int = 50
    cursor: RunCursor | None = None

    def __post_init__(self) -> None:
        """Reject a limit below 1."""
        if self.limit < 1:
            raise InvalidInput("The limit of a page of runs must be at least 1.")


@dataclass(frozen=True)
class RunResult:
    """The result of a run: `output` and `text` if it is done, `interrupts` (ids and values) if it waits for a person.

    `confidence` and `escalated` are values that the answer itself reported.
    """

    run: Run
    output: Json = None
    text: str = ""
    message_id: str | None = None
    confidence: float | None = None
    escalated: bool = False
    interrupts: Sequence[Mapping[str, Json]] = ()

    @property
    def status(self) -> RunStatus:
        """The status of the run."""
        return self.run.status

    @classmethod
    def of(cls, run: Run) -> RunResult:
        """Return the result of a run that has ended or waits for a person."""
        known = run.result or {}
        confidence, message_id, text = (known.get(name) for name in ("confidence", "message_id", "text"))
        return cls(
            run,
            known.get("output"),
            text if isinstance(text, str) else "",
            message_id if isinstance(message_id, str) else None,
            float(confidence) if isinstance(confidence, int | float) else None,
            escalated=bool(known.get("escalated")),
            interrupts=interrupts_of(run) if run.status == "waiting" else (),
        )


def interrupts_of(run: Run) -> list[Mapping[str, Json]]:
    """Return the questions that a run asks a person, each with its `id` and its `value`."""
    return questions_in(run.interrupt)


def questions_in(interrupt: Json) -> list[Mapping[str, Json]]:
    """Return the questions in the `interrupt` of a run."""
    asked = interrupt.get("interrupts") if isinstance(interrupt, Mapping) else None
    return [one for one in asked if isinstance(one, Mapping)] if isinstance(asked, list) else []
