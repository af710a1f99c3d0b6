"""Tests that the bench of contexts runs, writes whole tables, and leaves other sections of the page unchanged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.context import QUICK, run, sheets, write_section
from bench.sections import PAGE, carried_over, with_section
from bench.tables import markdown

pytestmark = pytest.mark.slow

HANDFUL = replace(QUICK, engines=("sqlite",), stored=(20, 40), rounds=1, repeats=1)


async def test_the_bench_of_contexts_measures_everything(tmp_path: Path) -> None:
    told: list[str] = []
    found = await run(HANDFUL, 3, told.append)
    tables = {name: markdown(sheet) for name, sheet in sheets(found).items()}
    assert "Threadkeep on SQLite, the newest 20 messages" in tables["assembly"]
    assert tables["assembly"].count("`trim_messages`") == 2
    assert "SummarizationMiddleware" in tables["reuse"]
    assert all(spent > 0 for spent in [*found.assembly.values(), *found.parts.values()])
    assert any("assembly" in line for line in told)
    (tmp_path / PAGE).write_text("# Benchmarks\n", encoding="utf-8")
    write_section(found, tmp_path)
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert page.startswith("# Benchmarks\n")
    assert tables["aims"] in page


def test_a_section_is_replaced_at_its_position() -> None:
    """The text around a section stays, and a regenerated page keeps the section."""
    page = with_section(with_section("# Page\n", "context", "one"), "other", "two")
    page = with_section(page, "context", "three")
    assert page.index("three") < page.index("two")
    assert "one" not in page
    new = carried_over(page, "# Page, written anew\n")
    assert new.startswith("# Page, written anew\n")
    assert new.index("three") < new.index("two")
    assert carried_over(new, new) == new
