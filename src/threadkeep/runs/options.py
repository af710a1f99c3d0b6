"""Options for the execution and maintenance of runs, and their settings in the environment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode

from threadkeep.context.tokens import continues, names_of
from threadkeep.errors import InvalidInput, InvalidSettings
from threadkeep.history.retention_rounds import RunRetention
from threadkeep.records.runs import DoubleTexting
from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.store.runs.trace import TraceLimits

_MILLION = 1_000_000
_FORM = "Write model=input/output or model=input/output/cached, per million tokens, such as gpt-5-mini=0.25/2."


@dataclass(frozen=True)
class Price:
    """The prices of a million tokens of a model. `cached` is the price of input tokens from the provider's cache."""

    input: float
    output: float
    cached: float | None = None

    def cost(self, input_tokens: int, output_tokens: int, cache_read_tokens: int = 0) -> float:
        """Return the cost of a model call. `input_tokens` includes the cached tokens."""
        cached = self.input if self.cached is None else self.cached
        fresh = max(input_tokens - cache_read_tokens, 0)
        return (fresh * self.input + cache_read_tokens * cached + output_tokens * self.output) / _MILLION


class Prices(dict[str, Price]):
    """A table of prices by model name. For other names, the longest entry with which the name begins applies."""

    def __init__(self, table: Mapping[str, Price]) -> None:
        super().__init__({name.strip().lower(): price for name, price in table.items()})

    def of(self, model: str) -> Price | None:
        """Return the price of a model, or None if the table has no price for the model."""
        names = names_of(model)
        for name in names:
            if name in self:
                return self[name]
        for name in names:
            if known := [known for known in self if continues(name, known)]:
                return self[max(known, key=len)]
        return None


def read_prices(entries: Iterable[str]) -> Prices:
    """Return the prices for entries such as `gpt-5-mini=0.25/2` or `claude-sonnet-4=3/15/0.3`.

    Raises:
        InvalidInput: an entry is not a price; the message quotes it.
    """
    return Prices(dict(map(_entry, entries)))


def _entry(text: str) -> tuple[str, Price]:
    model, equals, numbers = text.partition("=")
    try:
        price = Price(*map(_amount, numbers.split("/")))
    except (TypeError, ValueError):
        raise InvalidInput(f"{text!r} is not a price. {_FORM}") from None
    if not model.strip() or not equals:
        raise InvalidInput(f"{text!r} does not name a model. {_FORM}")
    return model, price


def _amount(text: str) -> float:
    amount = float(text)
    if not math.isfinite(amount) or amount < 0:
        raise ValueError(text)
    return amount


@dataclass(frozen=True)
class RunServiceOptions:
    """Options of the run service. Times are in seconds.

    - `watch_seconds`: the interval at which a process checks which of its runs must be stopped.
    - `reap_seconds`: the interval at which it checks whether owners of runs are dead; by default a quarter of
      `engine.dead_seconds`, at most 2. Above half of `dead_seconds`, no dead process is detected on PostgreSQL.
    - `upkeep_seconds`: the interval at which maintenance starts forgotten runs, and removes unneeded checkpoints.
    - `max_attempts`: a run is set aside after this many attempts in which its process died or failed unexpectedly.
    - `forgotten_seconds`: after this time, a run that has not begun counts as forgotten.
    - `workflow_gone_seconds`: for this time, a process leaves a run whose workflow it lacks to others; then it ends it.
    - `pause_seconds`: the pause before a temporary failure is retried; doubled up to `longest_pause_seconds`.
    - `trace_seconds`: trace events are stored after this time if a caller follows the run; otherwise after
      `late_trace_seconds`.
    - `progress_seconds`: checkpoints are stored after this time if the run's last steps may be repeated.
    - `keep_progress_seconds`: if only the database of the checkpointer or of the messages is down, the end of a run
      waits at most this long. After that, a retry starts from an earlier checkpoint.
    - `keep_checkpoints_seconds`: checkpoints of runs without a result stay for this time, for a retry.
    """

    prices: Prices = field(default_factory=lambda: Prices({}))
    engine: EngineOptions = EngineOptions()
    watch_seconds: float = 0.5
    reap_seconds: float | None = None
    upkeep_seconds: float = 10.0
    max_attempts: int = 3
    forgotten_seconds: float = 30.0
    workflow_gone_seconds: float = 604_800.0
    pause_seconds: float = 0.5
    longest_pause_seconds: float = 20.0
    trace_seconds: float = 0.05
    late_trace_seconds: float = 1.0
    progress_seconds: float = 0.05
    keep_progress_seconds: float = 10.0
    keep_checkpoints_seconds: float = 86_400.0

    def __post_init__(self) -> None:
        """Reject watch, reap and upkeep intervals that are not positive."""
        for name in ("watch_seconds", "reap_seconds", "upkeep_seconds"):
            if (seconds := getattr(self, name)) is not None and not seconds > 0:
                raise InvalidInput(f"{name} of RunServiceOptions is a number above 0.")

    @property
    def owner_check_seconds(self) -> float:
        """Seconds between two checks for dead processes that own runs."""
        return min(2.0, self.engine.dead_seconds / 4) if self.reap_seconds is None else self.reap_seconds


class RunSettings(BaseSettings):
    """Settings for runs. The validators of `Settings` parse comma-separated lists and accept words in upper case."""

    double_texting: DoubleTexting = Field(
        "enqueue",
        description="What to do with a chat message while a turn of its session is running: enqueue, interrupt, "
        "reject, coalesce or rollback.",
    )
    run_concurrency: int = Field(16, ge=1, le=64, description="Queued runs that a process executes at once.")
    run_poll_seconds: float = Field(
        0.25, ge=0.01, le=60, description="Seconds between two checks of a process for queued runs."
    )
    run_dead_seconds: float = Field(
        8.0, ge=1, le=3600, description="Seconds without a heartbeat after which a process counts as dead."
    )
    run_max_attempts: int = Field(
        3, ge=1, le=100, description="Attempts at a run before it is set aside because its processes died."
    )
    run_pause_seconds: float = Field(
        0.5, ge=0, le=3600, description="Seconds before the second attempt at a run; doubled before each later one."
    )
    run_longest_pause_seconds: float = Field(20.0, ge=0, le=3600, description="The longest pause before an attempt.")
    run_trace_max_events: int = Field(10_000, ge=0, description="The maximum number of events in a run's trace.")
    run_trace_max_chars: int = Field(4_000_000, ge=0, description="The maximum number of characters in a run's trace.")
    run_retention_days: float = Field(
        30.0, gt=0, le=36_500, description="Days for which ended runs and their traces are kept."
    )
    run_retention_set_aside_days: float | None = Field(
        None, gt=0, le=36_500, description="Days for which runs set aside for a person are kept; by default for ever."
    )
    run_checkpoint_retention_hours: float = Field(
        24.0, ge=0, le=876_000, description="Hours for which a run without a result can be resumed where it stopped."
    )
    prices: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Prices of models, comma-separated: model=input/output (or /cached), per million tokens.",
    )

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
                f"{variable} is below THREADKEEP_RUN_RETENTION_DAYS; raise it: runs set aside are kept longer.",
                variable=variable,
            )
        return self

    @property
    def run_retention(self) -> RunRetention:
        """The numbers of days for which finished runs stay in the database."""
        return RunRetention(self.run_retention_days, self.run_retention_set_aside_days)

    @property
    def run_trace_limits(self) -> TraceLimits:
        """The maximum numbers of events and characters in a run's stored trace."""
        return TraceLimits(self.run_trace_max_events, self.run_trace_max_chars)

    def run_options(self, *, works: bool, close_seconds: float) -> RunServiceOptions:
        """Return the options of the run service. If `works` is false, this process executes no queued runs."""
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
