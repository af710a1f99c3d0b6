"""What can happen to runs of workflows, and to the turns that they are, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from threadkeep.observe.events import Channel, Event

type TurnStatus = Literal["complete", "interrupted", "failed"]
type RunOutcome = Literal["done", "failed", "cancelled", "interrupted", "waiting"]
type RunWork = Literal["engine", "heartbeat", "watch", "upkeep", "keeping_progress", "ending_turn", "clearing_up"]

RUN_OUTCOMES: tuple[RunOutcome, ...] = get_args(RunOutcome.__value__)
RUN_WORKS: tuple[RunWork, ...] = get_args(RunWork.__value__)
TURN_STATUSES: tuple[TurnStatus, ...] = get_args(TurnStatus.__value__)


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """A run of a workflow ended, or waits for a person; `set_aside` if it is not tried again without one."""

    workflow: str
    status: RunOutcome
    error: str | None = None
    milliseconds: float
    set_aside: bool = False
    run_id: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunRetried(Event):
    """A run failed in a way that may pass, and is tried again after a pause; `attempt` counts from 2."""

    workflow: str
    error: str
    attempt: int
    run_id: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunTakenOver(Event):
    """A run goes on that had been begun before: mostly its process had died. `attempt` counts from 2."""

    workflow: str
    attempt: int
    run_id: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunTrouble(Event):
    """A round of what looks after runs failed; the next one comes."""

    work: RunWork
    error: str


@dataclass(frozen=True, kw_only=True)
class RunWorkRecovered(Event):
    """What `RunTrouble` was told of once works again: the progress of runs can be kept."""

    work: RunWork


@dataclass(frozen=True, kw_only=True)
class TurnFinished(Event):
    """A turn ended, in whatever way; the tokens are those that the model reported."""

    channel: Channel = "other"
    status: TurnStatus = "complete"
    milliseconds: float
    input_tokens: int = 0
    output_tokens: int = 0
    run_id: str | None = None
    session_id: str | None = None
