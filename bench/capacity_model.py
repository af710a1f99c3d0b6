"""A capacity model: costs of turns, throughput of a deployment, and a simulation of its queues. It has no I/O."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Literal

type Resource = Literal["services", "database", "commits"]


@dataclass(frozen=True)
class UnitCosts:
    """Costs of one chat turn (two messages), measured with one service.

    Times are seconds of CPU; `sync_seconds` is the time of one durable commit of the database, which a group shares.
    """

    service_seconds: float
    database_seconds: float
    commits: float
    sync_seconds: float
    message_bytes: float
    search_bytes: float
    run_bytes: float

    @property
    def turn_bytes(self) -> float:
        """Bytes that one turn adds to the disk of the database."""
        return 2 * (self.message_bytes + self.search_bytes) + self.run_bytes


@dataclass(frozen=True)
class Deployment:
    """Services of one core each, and the cores of the database. A group commit stores `group` turns at most."""

    services: int
    database_cores: float = 4.0
    group: int = 16


@dataclass(frozen=True)
class Prediction:
    """The maximum turns per second of a deployment, and the resource that limits them."""

    turns_per_second: float
    saturated: Resource


def predict(costs: UnitCosts, deployment: Deployment) -> Prediction:
    """Return the maximum turns per second: the smallest limit of services, database CPU and commits."""
    limits: dict[Resource, float] = {
        "services": deployment.services / costs.service_seconds,
        "database": deployment.database_cores / costs.database_seconds,
        # Each service has one commit in flight, which stores a group of turns.
        "commits": deployment.services * deployment.group / (costs.commits * costs.sync_seconds),
    }
    first = min(limits, key=lambda name: limits[name])
    return Prediction(limits[first], first)


def shared_rate(costs: UnitCosts, busy_cores: float, client_seconds: float = 0.0) -> float:
    """Return the turns per second if services, database and clients share the same cores."""
    return busy_cores / (costs.service_seconds + costs.database_seconds + client_seconds)


def disk_bytes(costs: UnitCosts, messages: int, *, with_runs: bool = True) -> float:
    """Return the bytes on disk for a number of messages."""
    rows = messages * (costs.message_bytes + costs.search_bytes)
    return rows + (messages / 2 * costs.run_bytes if with_runs else 0.0)


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation: turns per second, and the seconds of a turn except those of the model."""

    turns_per_second: float
    median_seconds: float
    p95_seconds: float


class _Servers:
    """A queue in front of servers that work in parallel."""

    def __init__(self, number: int) -> None:
        self._free = [0.0] * max(1, number)
        heapq.heapify(self._free)

    def serve(self, now: float, seconds: float) -> float:
        """Give work that arrives at `now` to the first free server; return the time at which it will be finished."""
        start = max(now, heapq.heappop(self._free))
        heapq.heappush(self._free, start + seconds)
        return start + seconds


def simulate(
    costs: UnitCosts,
    deployment: Deployment,
    *,
    rate: float,
    turns: int = 20_000,
    model_seconds: float = 2.0,
    seed: int = 1,
) -> Simulated:
    """Simulate turns that arrive at random (Poisson) at `rate` per second, and return the result.

    A turn uses a service and then the database, waits for the model, and uses a service and the database again.
    Service times are exponential around the measured costs.
    """
    random = Random(seed)
    numbers = count()
    services, database = _Servers(deployment.services), _Servers(int(deployment.database_cores))
    waits: list[float] = []
    ends: list[float] = []

    def around(mean: float) -> float:
        return random.expovariate(1 / mean) if mean > 0 else 0.0

    events: list[tuple[float, int, Callable[[float], None]]] = []

    def at(moment: float, then: Callable[[float], None]) -> None:
        heapq.heappush(events, (moment, next(numbers), then))

    def half(now: float, then: Callable[[float], None]) -> None:
        def store(moment: float) -> None:
            at(database.serve(moment, around(costs.database_seconds / 2)) + costs.sync_seconds, then)

        at(services.serve(now, around(costs.service_seconds / 2)), store)

    def begin(now: float) -> None:
        def answer(moment: float) -> None:
            at(moment + model_seconds, lambda later: half(later, lambda end: finish(end, now)))

        half(now, answer)

    def finish(end: float, began: float) -> None:
        waits.append(end - began - model_seconds)
        ends.append(end)

    moment = 0.0
    for _ in range(turns):
        moment += around(1 / rate)
        at(moment, begin)
    while events:
        now, _, then = heapq.heappop(events)
        then(now)
    waits.sort()
    return Simulated(len(ends) / max(ends), waits[len(waits) // 2], waits[int(len(waits) * 0.95)])
