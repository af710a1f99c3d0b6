"""The chaos runs, shortly: sessions and trees beside processes that are killed, and every promise is kept."""

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
    """A database of each kind that processes can share, and what is noted beside it."""
    assert PROCESSES.get_start_method() == "forkserver"  # with what the tests have imported
    return Place(shared_url, Graphs(Notes(tmp_path / "notes")))


def plan(seconds: float) -> Plan:
    """A little of it, another each time; the seed is told where something is found."""
    return Plan(random.randrange(10**6), seconds * _FACTOR, sessions=1, between_kills=(0.4, 1.0))


@pytest.mark.process
@pytest.mark.slow
async def test_people_and_processes_that_die(place: Place) -> None:
    """Every message has its turn, once and in order; nothing overlaps, is paid twice, counted twice or left at work."""
    little = plan(1.5)
    told = await soak(place, little)
    found = await history(place.url, told, place.graphs.notes.read())
    assert told.accepted
    assert found.faults() == [], f"seed {little.seed}"


@pytest.mark.process
@pytest.mark.slow
async def test_trees_and_processes_that_die(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cancelled ends with all below it, and the session goes on; `make bench` measures how soon."""
    monkeypatch.setattr("bench.chaos_storm.STOPPED_WITHIN_SECONDS", 10.0)
    little = plan(1.5)
    weather = await storms(place, little)
    notes = place.graphs.notes.read()
    assert weather.storms
    assert weather.faults(notes, await history(place.url, weather.told, notes)) == [], f"seed {little.seed}"
    assert "cancelled p50" in delays([*weather.storms, *weather.storms])


def test_work_beside_other_work_is_found() -> None:
    """Of one session, in one process or two; what a dead process had is over."""
    one, two = Note(1.0, 1, "begin", "s/1", "r1"), Note(2.0, 2, "begin", "s/2", "r2")
    assert len(list(overlapping([one, two]))) == 1
    assert list(overlapping([one, one._replace(what="end"), two])) == []
    assert list(overlapping([one, Note(1.5, 1, "dead", "-", "-"), two])) == []
    assert list(overlapping([one, two._replace(text="t/1")])) == []


def test_work_long_after_its_cancelling_is_found() -> None:
    """Whether it goes on or begins anew."""
    storm = Storm("s/1", "r1", 5.0, 10.0, 10.5, 11.0)
    begin, end = Note(9.0, 1, "begin", "s/1", "r"), Note(13.0, 1, "end", "s/1", "r")
    assert stopped_after(storm, [begin, end]) == pytest.approx(3.0)
    assert stopped_after(storm, [begin, end._replace(seconds=11.0)]) is None
    assert stopped_after(storm, [begin, end._replace(seconds=11.0), begin._replace(seconds=14.0)]) == pytest.approx(4.0)


def test_a_history_without_its_messages_is_no_good_one() -> None:
    """What was accepted and is not there is named."""
    told = Told([Accepted("enqueue-1", "enqueue-1/1", "r1", "new")], ["a fault that people saw"])
    first, second = History(told, [], [], []).faults()
    assert first == "a fault that people saw"
    assert "enqueue-1" in second
