"""Tests that the bench of knowledge times each state of the server and measures recall."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.knowledge import QUICK, STATES, run, sheets, write_section
from bench.knowledge_facts import facts_of_everybody, questions
from bench.sections import PAGE
from bench.tables import markdown

pytestmark = pytest.mark.slow


async def test_the_bench_of_knowledge_measures_everything(tmp_path: Path) -> None:
    """The bench counts recalled facts of other persons, and finds none."""
    told: list[str] = []
    found = await run(QUICK, told.append)
    assert set(found.turns) == set(STATES)
    assert found.leaks == 0
    assert all(0 < one.first <= one.among <= 1 for one in found.recalled)
    [held_out] = [one for one in found.recalled if (one.facts, one.part) == ("4", "held out")]
    assert held_out.first >= 0.6
    assert found.delivered_a_second > 0
    (tmp_path / PAGE).write_text("# Benchmarks\n", encoding="utf-8")
    write_section(found, tmp_path)
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert all(markdown(sheet) in page for sheet in sheets(found).values())


def test_the_bench_has_two_hundred_facts_of_fifty_persons() -> None:
    everybody = facts_of_everybody()
    assert sum(len(facts) for facts in everybody.values()) == 200
    assert len(everybody) == 50
    assert {(one.person, one.key) for one in questions()} == {
        (person, key) for person, facts in everybody.items() for key in facts
    }
