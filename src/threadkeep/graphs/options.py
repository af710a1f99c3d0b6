"""How the runs of a workflow are carried out, whatever its graph is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from threadkeep.records.runs import DoubleTexting

MAX_DEPTH = 3
"""How deep workflows may nest below a run where nobody says otherwise."""


class RunOptions(BaseModel):
    """How the runs of a workflow are carried out; None for no such limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    double_texting: DoubleTexting = Field(
        "enqueue",
        description="What a message does that comes while its session's turn goes on: wait, end that turn, be refused, "
        "or become one turn with others that wait.",
    )
    max_tokens: int | None = Field(None, ge=1, description="Tokens that a run and its children may take, in and out.")
    max_cost: float | None = Field(None, gt=0, description="What they may cost, in the unit of the price table.")
    deadline_seconds: float | None = Field(None, gt=0, description="Seconds that a run may take.")
    max_depth: int = Field(MAX_DEPTH, ge=0, le=20, description="How deep workflows may nest below a run.")
    max_tries: int = Field(3, ge=1, le=20, description="How often a failing run is tried before it is set aside.")
    recursion_limit: int = Field(100, ge=2, le=10_000, description="Steps of the graph at most: loops come to an end.")
