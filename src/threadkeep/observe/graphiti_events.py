"""Events of the Graphiti connection, as frozen records of counts and times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from threadkeep.observe.events import Event

type DeliveryResult = Literal["sent", "confirmed", "repeated", "dead"]
type GraphitiWork = Literal["delivery", "recall", "backfill"]
type GraphRecallOutcome = Literal["ok", "partial", "deadline", "failed", "breaker_open"]

DELIVERY_RESULTS: tuple[DeliveryResult, ...] = get_args(DeliveryResult.__value__)
GRAPHITI_WORKS: tuple[GraphitiWork, ...] = get_args(GraphitiWork.__value__)
GRAPH_RECALL_OUTCOMES: tuple[GraphRecallOutcome, ...] = get_args(GraphRecallOutcome.__value__)


@dataclass(frozen=True, kw_only=True)
class EpisodesDelivered(Event):
    """Messages were sent to a Graphiti server, confirmed there, sent again, or given up."""

    result: DeliveryResult
    count: int


@dataclass(frozen=True, kw_only=True)
class GraphRecalled(Event):
    """Facts were requested from a Graphiti server: the number used, and how long a turn waited for them."""

    outcome: GraphRecallOutcome
    facts: int = 0
    milliseconds: float
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class GraphitiTrouble(Event):
    """Work for a Graphiti server failed and will be retried. `error` is a kind, such as `unreachable`."""

    work: GraphitiWork
    error: str
