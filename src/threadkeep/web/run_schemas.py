"""Runs as they go over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from threadkeep.records import Json
from threadkeep.records.runs import Run, RunBudget, RunEvent, RunStatus, RunTrigger, TokenUsage
from threadkeep.runs.requests import RunRequest, RunResult
from threadkeep.web.schemas import MAX_MESSAGE_CHARACTERS, CleanText, GivenId, Metadata

type WaitMode = Literal["wait", "background"]


class BudgetBody(BaseModel):
    """What a run and its children may take."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    max_tokens: int | None = Field(None, ge=1, le=2**53 - 1, description="Tokens in and out together.")
    max_cost: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Money, in the unit of THREADKEEP_PRICES."
    )

    def limits(self) -> RunBudget:
        """The budget that the body names."""
        return RunBudget(self.max_tokens, self.max_cost)


class RunRequestBody(BaseModel):
    """A run that is wanted of a workflow."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"message": "Where is my parcel?", "user_id": "user-456"}]},
    )

    message: Annotated[CleanText, Field(max_length=MAX_MESSAGE_CHARACTERS)] = Field(
        "", description="What the user says; empty for a run that something else starts."
    )
    session_id: str | None = Field(
        None, description="The conversation. Without one the user's last one with this workflow goes on, or one begins."
    )
    user_id: GivenId | None = Field(None, description="Who speaks; only they see the run.")
    message_id: GivenId | None = Field(
        None, description="The caller's own id of the message: the same again in the session is the same run."
    )
    inputs: Metadata = Field(default_factory=dict, description="The payload that starts the run: `{{inputs.…}}`.")
    results: Metadata = Field(default_factory=dict, description="What a channel found in it: `{{results.…}}`.")
    user_context: Metadata = Field(default_factory=dict, description="What is known of the user, for children too.")
    metadata: Metadata = Field(default_factory=dict, description="Anything to keep with the message.")
    budget: BudgetBody = Field(default_factory=BudgetBody, description="The tighter of this and the workflow's own.")
    deadline_seconds: float | None = Field(None, gt=0, le=31_536_000, description="Seconds that the run may take.")
    sessionless: bool = Field(False, description="Whether it sees no earlier turns and stores none.")
    mode: Literal["wait", "stream", "background"] = Field(
        "wait", description="Wait for the end, read it as it happens (server-sent events), or come back for it (202)."
    )

    def request(self, workflow: str) -> RunRequest:
        """The request that the body makes.

        Raises:
            InvalidInput: it contradicts itself.
        """
        return RunRequest(
            workflow=workflow,
            text=self.message,
            session_id=self.session_id,
            user_id=self.user_id,
            message_id=self.message_id,
            inputs=self.inputs,
            results=self.results,
            user_context=self.user_context,
            metadata=self.metadata,
            # What a channel delivers into no session that was named: whoever sends it knows of no thread.
            trigger="webhook" if self.results and self.session_id is None else "http",
            budget=self.budget.limits(),
            deadline_seconds=self.deadline_seconds,
            sessionless=self.sessionless,
            stream=self.mode == "stream",
        )


class ResumeBody(BaseModel):
    """The answer to what a run asks."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"value": "yes"}]})

    value: JsonValue = Field(description="The answer; with several questions a map from their ids.")
    mode: WaitMode = Field("wait", description="Wait for the end, or come back for it (202).")


class RetryBody(BaseModel):
    """How a run is tried again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"mode": "background"}]})

    budget: BudgetBody = Field(
        default_factory=BudgetBody, description="What it may take in all, in the place of what it was given."
    )
    mode: WaitMode = Field("wait", description="Wait for the end, or come back for it (202).")


class ModelUsageBody(BaseModel):
    """What the calls of one model took."""

    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = Field(description="Of the input tokens, those that the provider's cache served.")
    estimated_calls: int = Field(description="Calls of which the provider reported nothing.")
    cost: float | None = Field(description="In the unit of THREADKEEP_PRICES; null where the model has no price.")

    @classmethod
    def of(cls, usage: TokenUsage) -> ModelUsageBody:
        """The body of a usage."""
        return cls.model_validate(usage, from_attributes=True)


class RunUsageBody(BaseModel):
    """What a run took with all its children, no token counted twice."""

    input_tokens: int
    output_tokens: int
    cost: float | None = Field(description="Of the models that have a price.")
    models: list[ModelUsageBody]

    @classmethod
    def of(cls, usages: Sequence[TokenUsage]) -> RunUsageBody:
        """The body of the usages of a run."""
        costs = [usage.cost for usage in usages if usage.cost is not None]
        return cls(
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            cost=sum(costs) if costs else None,
            models=[ModelUsageBody.of(usage) for usage in usages],
        )


class QuestionBody(BaseModel):
    """What a run asks a person."""

    id: str
    value: JsonValue


class RunSummary(BaseModel):
    """One execution of a workflow."""

    run_id: str
    workflow: str
    version: str | None = Field(description="The version of the workflow that it began with.")
    status: RunStatus
    error: str | None = Field(description="Which kind of failure; never what people said.")
    session_id: str | None
    message_id: str | None
    user_id: str | None
    parent_run_id: str | None
    root_run_id: str
    depth: int
    node_id: str | None = Field(description="The node of the parent that asked for it.")
    trigger: RunTrigger
    attempts: int
    set_aside: bool = Field(description="Whether it failed so often that a person must have it tried again.")
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    deadline_at: datetime | None
    cancel_requested_at: datetime | None
    budget: BudgetBody = Field(description="What it and its children may take; null where there is no such limit.")

    @classmethod
    def of(cls, run: Run) -> RunSummary:
        """The body of a run."""
        return cls.model_validate(run, from_attributes=True)


class RunBody(RunSummary):
    """One execution of a workflow, with what came out and what it took."""

    text: str = Field(description="What it said.")
    output: JsonValue = Field(description="Its result as the workflow gives it; null until it is done.")
    answer_id: str | None = Field(description="The id of the answer among the session's messages.")
    confidence: float | None
    escalated: bool
    questions: list[QuestionBody] = Field(description="What a run that waits asks a person.")
    usage: RunUsageBody

    @classmethod
    def whole(cls, run: Run, usages: Sequence[TokenUsage]) -> RunBody:
        """The body of a run and its usage."""
        result = RunResult.of(run)
        summary = RunSummary.of(run).model_dump()
        return cls(
            **summary,
            text=result.text,
            output=_json(result.output),
            answer_id=result.message_id,
            confidence=result.confidence,
            escalated=result.escalated,
            questions=[QuestionBody.model_validate(dict(one)) for one in result.interrupts],
            usage=RunUsageBody.of(usages),
        )


class RunList(BaseModel):
    """Some runs."""

    runs: list[RunSummary]
    next_cursor: str | None = Field(description="Where the list goes on; null at its end.")


class RunTree(BaseModel):
    """All runs of a tree, parents before their children."""

    root_run_id: str
    runs: list[RunSummary]


class RunEventBody(BaseModel):
    """Something that happened in a run."""

    number: int = Field(description="1, 2, 3 … in each run.")
    kind: str
    node: str | None
    data: dict[str, JsonValue]
    created_at: datetime

    @classmethod
    def of(cls, event: RunEvent) -> RunEventBody:
        """The body of an event."""
        return cls.model_validate(event, from_attributes=True)


class RunStartBody(BaseModel):
    """Which run it is whose events follow: whoever comes back asks for them by its id."""

    session_id: str | None
    run_id: str
    message_id: str | None


class RunTraceBody(BaseModel):
    """What happened in a run, in order."""

    run_id: str
    events: list[RunEventBody]
    next_after: int | None = Field(description="Ask for what follows this number; null at the end of what there is.")


class Cancelled(BaseModel):
    """What was stopped."""

    run_ids: list[str] = Field(description="The run and those below it that were not over.")


def _json(value: Json) -> JsonValue:
    return cast("JsonValue", value)  # mappings and sequences of the record are JSON's
