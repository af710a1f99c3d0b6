"""Options for the runs of a workflow, independent of its graph."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from threadkeep.records.runs import DoubleTexting

MAX_DEPTH = 3
"""The default depth to which workflows may nest below a run."""


class RunOptions(BaseModel):
    """Options for the runs of a workflow; None means no such limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    double_texting: DoubleTexting = Field(
        "enqueue",
        description="What a message does that comes while a turn of its session goes on: wait (enqueue), end that turn "
        "(interrupt), be refused (reject), become one turn with others that wait (coalesce), or end that turn and take "
        "its messages back (rollback).",
    )
    max_tokens: int | None = Field(None, ge=1, description="Tokens that a run and its children may take, in and out.")
    max_cost: float | None = Field(None, gt=0, description="What they may cost, in the unit of the price table.")
    deadline_seconds: float | None = Field(None, gt=0, description="Seconds that a run may take.")
    max_depth: int = Field(MAX_DEPTH, ge=0, le=20, description="How deep workflows may nest below a run.")
    max_tries: int = Field(3, ge=1, le=20, description="How often a failing run is tried before it is set aside.")
    recursion_limit: int = Field(100, ge=2, le=10_000, description="Steps of the graph at most: loops come to an end.")
