"""Views of runs: the JSON of the HTTP API and of the command line, and explanations of errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import not_
from typing import Final, cast

from pydantic import BaseModel, Field, JsonValue

from threadkeep.records.runs import NO_USAGE, Run, RunBudget, RunResult, RunStatus, RunTrigger, TokenUsage

RUN_ERRORS: Final[Mapping[str, str]] = {
    "BudgetSpent": "It used up its budget; retry it with a larger max_tokens or max_cost.",
    "DeadlinePassed": "It took longer than its deadline_seconds; a retry gets the same time again.",
    "ExitRequested": "A node or a tool called sys.exit; let it raise another error, then retry the run.",
    "GaveUp": "The processes that executed it died; see their logs, then retry it.",
    "ParentCancelled": "The run that started it was cancelled.",
    "ParentOver": "The run that started it ended before it.",
    "RecordTooNew": "A newer Threadkeep wrote a record of the run; upgrade Threadkeep on this machine.",
    "RecordUnreadable": "Its stored input, question or result is damaged; restore a backup of the database.",
    "WorkflowGone": "A worker has no workflow of that name; register it there, and retry the run if it has ended.",
    "WorkflowVersionGone": (
        "The code of its workflow has changed since it began, and code is not stored; "
        "retry it where the old version is deployed, or start a new run."
    ),
}
"""Explanations of some error kinds, with advice. Any other kind is the name of an error class, or `Cancelled`."""

ESTIMATED = Field(False, description="True if a provider did not report all tokens; absent otherwise.", exclude_if=not_)


class BudgetBody(BaseModel, extra="forbid", from_attributes=True):
    """The budget of a run and its children."""

    max_tokens: int | None = Field(None, ge=1, le=2**53 - 1, description="Input and output tokens together.")
    max_cost: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Money, in the unit of THREADKEEP_PRICES."
    )

    def limits(self) -> RunBudget:
        """Return the budget as a `RunBudget`."""
        return RunBudget(self.max_tokens, self.max_cost)


class RunUsageBody(BaseModel):
    """The usage of a run with all its children; no token is counted twice."""

    input_tokens: int
    output_tokens: int
    estimated: bool = ESTIMATED
    cost: float | None = Field(description="The cost of models that have a price.")
    models: list[TokenUsage]

    @classmethod
    def of(cls, usages: Sequence[TokenUsage]) -> RunUsageBody:
        """Return the totals of usage records, with the records themselves in `models`."""
        used = sum(usages, NO_USAGE)
        return cls(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            estimated=used.estimated,
            cost=used.cost,
            models=list(usages),
        )


class QuestionBody(BaseModel):
    """A question of a run to a person."""

    id: str
    value: JsonValue


class RunSummary(BaseModel, from_attributes=True):
    """An execution of a workflow."""

    run_id: str
    workflow: str
    version: str | None = Field(description="The version of the workflow when the run started.")
    status: RunStatus
    error: str | None = Field(description="The kind of failure; never text of messages.")
    session_id: str | None
    message_id: str | None
    user_id: str | None
    parent_run_id: str | None
    root_run_id: str
    depth: int
    node_id: str | None = Field(description="The node of the parent that started it.")
    trigger: RunTrigger
    attempts: int
    set_aside: bool = Field(description="True if it failed so often that a person must retry it.")
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    deadline_at: datetime | None
    cancel_requested_at: datetime | None
    budget: BudgetBody = Field(description="The limits of the run and its children; null means no limit.")


class RunBody(RunSummary):
    """An execution of a workflow, with its result and its usage."""

    text: str = Field(description="The text of the answer.")
    output: JsonValue = Field(description="The result of the workflow; null until the run is done.")
    answer_id: str | None = Field(description="The id of the answer in the session.")
    confidence: float | None
    escalated: bool
    questions: list[QuestionBody] = Field(description="The questions to a person that the run waits for.")
    usage: RunUsageBody

    @classmethod
    def whole(cls, run: Run, usages: Sequence[TokenUsage]) -> RunBody:
        """Return the response for a run and its usage."""
        result = RunResult.of(run)
        summary = RunSummary.model_validate(run).model_dump()
        return cls(
            **summary,
            text=result.text,
            output=cast("JsonValue", result.output),
            answer_id=result.message_id,
            confidence=result.confidence,
            escalated=result.escalated,
            questions=[QuestionBody.model_validate(dict(one)) for one in result.interrupts],
            usage=RunUsageBody.of(usages),
        )


class RunEventBody(BaseModel, from_attributes=True):
    """An event of a run."""

    number: int = Field(description="The number of the event in its run: 1, 2, 3, …")
    kind: str
    node: str | None
    data: dict[str, JsonValue]
    created_at: datetime
