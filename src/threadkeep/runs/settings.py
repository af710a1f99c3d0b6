"""Settings of runs in the environment."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode

from threadkeep.errors import InvalidSettings
from threadkeep.history.run_retention import RunRetention
from threadkeep.records.runs import DoubleTexting
from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.prices import read_prices
from threadkeep.store.runs.trace import TraceLimits


class RunSettings(BaseSettings):
    """Settings for execution, retries, traces and retention of runs."""

    double_texting: DoubleTexting = Field(
        "enqueue",
        description="What to do with a chat message while a turn of its session is running: enqueue, interrupt, "
        "reject, coalesce or rollback.",
    )
    run_concurrency: int = Field(8, ge=1, le=64, description="Queued runs that a process executes at once.")
    run_poll_seconds: float = Field(
        0.25, ge=0.01, le=60, description="Seconds between two searches of a process for queued runs."
    )
    run_dead_seconds: float = Field(
        8.0, ge=1, le=3600, description="Seconds without a heartbeat after which a process counts as dead."
    )
    run_max_attempts: int = Field(
        3, ge=1, le=100, description="Attempts at a run whose process dies, before it is set aside."
    )
    run_pause_seconds: float = Field(
        0.5, ge=0, le=3600, description="Seconds before the second attempt at a run; doubled before each later one."
    )
    run_longest_pause_seconds: float = Field(20.0, ge=0, le=3600, description="The longest pause before an attempt.")
    run_trace_max_events: int = Field(10_000, ge=0, description="Events of a run's trace that are kept.")
    run_trace_max_chars: int = Field(4_000_000, ge=0, description="Characters of a run's trace that are kept.")
    run_retention_days: float = Field(
        30.0, gt=0, le=36_500, description="Days that ended runs are kept, with their traces."
    )
    run_retention_set_aside_days: float | None = Field(
        None, gt=0, le=36_500, description="Days that runs set aside for a person are kept; by default for ever."
    )
    run_checkpoint_retention_hours: float = Field(
        24.0, ge=0, le=876_000, description="Hours in which a run without a result can be continued where it stopped."
    )
    prices: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Prices of models, comma-separated: model=input/output (or /cached), per million tokens.",
    )

    @field_validator("double_texting", mode="before")
    @classmethod
    def _any_policy_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("prices", mode="before")
    @classmethod
    def _parse_prices(cls, value: object) -> object:
        return split_list(value)

    @field_validator("prices")
    @classmethod
    def _check_prices(cls, value: list[str]) -> list[str]:
        if value:
            read_prices(value)
        return value

    @model_validator(mode="after")
    def _check_run_retention(self) -> Self:
        aside = self.run_retention_set_aside_days
        if aside is not None and aside < self.run_retention_days:
            variable = "THREADKEEP_RUN_RETENTION_SET_ASIDE_DAYS"
            raise InvalidSettings(
                f"{variable} is below THREADKEEP_RUN_RETENTION_DAYS: what waits for a person is kept longer.",
                variable=variable,
            )
        return self

    @property
    def run_retention(self) -> RunRetention:
        """The retention of runs that are over."""
        return RunRetention(self.run_retention_days, self.run_retention_set_aside_days)

    @property
    def run_trace_limits(self) -> TraceLimits:
        """The limits of a run's stored trace."""
        return TraceLimits(self.run_trace_max_events, self.run_trace_max_chars)

    def run_options(self, *, works: bool, close_seconds: float) -> RunServiceOptions:
        """Return the options of the run service; without `works` the process takes no queued runs."""
        return RunServiceOptions(
            prices=read_prices(self.prices),
            engine=EngineOptions(
                works=works,
                concurrency=self.run_concurrency,
                poll_seconds=self.run_poll_seconds,
                dead_seconds=self.run_dead_seconds,
                close_seconds=close_seconds,
            ),
            max_attempts=self.run_max_attempts,
            pause_seconds=self.run_pause_seconds,
            longest_pause_seconds=self.run_longest_pause_seconds,
            keep_checkpoints_seconds=self.run_checkpoint_retention_hours * 3600,
        )


def split_list(value: object) -> object:
    """Return the comma-separated parts of a text."""
    return [part for part in map(str.strip, value.split(",")) if part] if isinstance(value, str) else value
