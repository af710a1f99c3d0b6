"""Events of runs and their turns, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from threadkeep.observe.events import Channel, Event

type TurnStatus = Literal["complete", "interrupted", "failed"]
type RunOutcome = Literal["done", "failed", "cancelled", "interrupted", "waiting"]
type RunWork = Literal["engine", "takeover", "watch", "upkeep", "keeping_progress", "ending_turn", "clearing_up"]

RUN_OUTCOMES: tuple[RunOutcome, ...] = get_args(RunOutcome.__value__)
RUN_WORKS: tuple[RunWork, ...] = get_args(RunWork.__value__)
TURN_STATUSES: tuple[TurnStatus, ...] = get_args(TurnStatus.__value__)


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """A run of a workflow ended, or waits for a person; `set_aside` if only a person can start it again."""

    workflow: str
    status: RunOutcome
    error: str | None = None
    milliseconds: float
    set_aside: bool = False
    run_id: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class BudgetCrossed(Event):
    """The last call of a successful run exceeded its own budget, or that of its ancestor `budget_run_id`."""

    workflow: str
    limit: str
    used: float
    allowed: float
    run_id: str | None = None
    budget_run_id: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunRetried(Event):
    """A run failed with a temporary error and is retried after a pause; `attempt` counts from 2."""

    workflow: str
    error: str
    attempt: int
    run_id: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunTakenOver(Event):
    """A started run was taken over, usually because its process died. `attempt` counts from 2."""

    workflow: str
    attempt: int
    run_id: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunTrouble(Event):
    """A poll of the run supervision failed; the next one follows."""

    work: RunWork
    error: str


@dataclass(frozen=True, kw_only=True)
class RunWorkRecovered(Event):
    """Work that `RunTrouble` reported as failing succeeds again: the progress of runs can be stored."""

    work: RunWork


@dataclass(frozen=True, kw_only=True)
class TurnFinished(Event):
    """A turn ended, in any way. Providers report the tokens; `estimated` if some are missing."""

    channel: Channel = "other"
    status: TurnStatus = "complete"
    milliseconds: float
    input_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False
    run_id: str | None = None
    session_id: str | None = None
