"""Tests of the capacity model: its limits, and a simulation that agrees with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.capacity_model import Deployment, UnitCosts, disk_bytes, predict, shared_rate, simulate

COSTS = UnitCosts(
    service_seconds=0.005,
    database_seconds=0.001,
    commits=2,
    sync_seconds=0.001,
    message_bytes=1000,
    search_bytes=200,
    run_bytes=800,
)


def test_the_limiting_resource_is_named() -> None:
    """Services limit a small deployment, the database one with many services, and commits one with slow disks."""
    assert predict(COSTS, Deployment(1)).turns_per_second == pytest.approx(200)
    assert predict(COSTS, Deployment(1)).saturated == "services"
    assert predict(COSTS, Deployment(40)).saturated == "database"
    assert predict(replace(COSTS, sync_seconds=0.1), Deployment(1)).saturated == "commits"


def test_shared_cores_are_divided_among_all_processes() -> None:
    """On two cores, clients use as much time as services and database together."""
    assert shared_rate(COSTS, 2.0, client_seconds=0.006) == pytest.approx(2 / 0.012)


def test_the_disk_grows_with_messages_and_turns() -> None:
    """The disk grows by the texts and the index of all messages, and by a run for each two messages."""
    assert disk_bytes(COSTS, 1_000_000_000) == pytest.approx(1.6e12)
    assert disk_bytes(COSTS, 1_000_000_000, with_runs=False) == pytest.approx(1.2e12)


@pytest.mark.slow
def test_a_simulation_reaches_the_predicted_rate() -> None:
    """Below the limit, turns are executed at the rate of their arrival.

    Above the limit, the rate is the limit and turns queue.
    """
    limit = predict(COSTS, Deployment(2)).turns_per_second
    calm = simulate(COSTS, Deployment(2), rate=0.5 * limit, model_seconds=0.0)
    assert calm.turns_per_second == pytest.approx(0.5 * limit, rel=0.05)
    flooded = simulate(COSTS, Deployment(2), rate=2 * limit, model_seconds=0.0)
    assert flooded.turns_per_second == pytest.approx(limit, rel=0.05)
    assert flooded.p95_seconds > 10 * calm.p95_seconds
