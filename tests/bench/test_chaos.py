"""Tests of short chaos runs, in which processes are killed while they execute sessions and trees of runs."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from bench.chaos import delays
from bench.chaos_graphs import Graphs
from bench.chaos_history import History, history, overlapping
from bench.chaos_notes import Note, Notes
from bench.chaos_processes import Place
from bench.chaos_soak import Accepted, Plan, Told, soak
from bench.chaos_storm import Storm, stopped_after, storms
from tests.children import PROCESSES

_FACTOR = int(os.environ.get("THREADKEEP_SOAK_FACTOR", "1"))


@pytest.fixture
def place(shared_url: str, tmp_path: Path) -> Place:
    """Return a database of each kind that processes can share, with a folder for notes."""
    assert PROCESSES.get_start_method() == "forkserver"  # it has imported the modules of the tests
    return Place(shared_url, Graphs(Notes(tmp_path / "notes")))


def plan(seconds: float) -> Plan:
    """Return a short plan with a random seed, which a failure reports."""
    return Plan(random.randrange(10**6), seconds * _FACTOR, sessions=1, between_kills=(0.4, 1.0))


@pytest.mark.process
@pytest.mark.slow
async def test_a_soak_with_killed_processes_has_no_faults(place: Place) -> None:
    """Each message has one turn, in order. No work overlaps, is billed twice, or is left running."""
    little = plan(1.5)
    told = await soak(place, little)
    found = await history(place.url, told, place.graphs.notes.read())
    assert told.accepted
    assert found.faults() == [], f"seed {little.seed}"


@pytest.mark.process
@pytest.mark.slow
async def test_cancelled_trees_end_despite_killed_processes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled run ends with all its children, and its session continues. `make bench` measures the delay."""
    monkeypatch.setattr("bench.chaos_storm.STOPPED_WITHIN_SECONDS", 10.0)
    little = plan(1.5)
    weather = await storms(place, little)
    notes = place.graphs.notes.read()
    assert weather.storms
    assert weather.faults(notes, await history(place.url, weather.told, notes)) == [], f"seed {little.seed}"
    assert "cancelled p50" in delays([*weather.storms, *weather.storms])


def test_overlapping_work_is_found() -> None:
    """Work of one session may not overlap, in one process or two. Work of a dead process has ended."""
    one, two = Note(1.0, 1, "begin", "s/1", "r1"), Note(2.0, 2, "begin", "s/2", "r2")
    assert len(list(overlapping([one, two]))) == 1
    assert list(overlapping([one, one._replace(what="end"), two])) == []
    assert list(overlapping([one, Note(1.5, 1, "dead", "-", "-"), two])) == []
    assert list(overlapping([one, two._replace(text="t/1")])) == []


def test_work_after_a_cancellation_is_found() -> None:
    storm = Storm("s/1", "r1", 5.0, 10.0, 10.5, 11.0)
    begin, end = Note(9.0, 1, "begin", "s/1", "r"), Note(13.0, 1, "end", "s/1", "r")
    assert stopped_after(storm, [begin, end]) == pytest.approx(3.0)
    assert stopped_after(storm, [begin, end._replace(seconds=11.0)]) is None
    assert stopped_after(storm, [begin, end._replace(seconds=11.0), begin._replace(seconds=14.0)]) == pytest.approx(4.0)


def test_a_lost_message_is_a_fault() -> None:
    told = Told([Accepted("enqueue-1", "enqueue-1/1", "r1", "new")], ["a fault that people saw"])
    first, second = History(told, [], [], []).faults()
    assert first == "a fault that people saw"
    assert "enqueue-1" in second
