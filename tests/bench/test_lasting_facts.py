"""Tests of the bench of facts that survive compression, with few turns."""

from __future__ import annotations

import pytest

from bench.lasting_facts import TURNS, LimitedModel, Planted, ask, converse, planted
from threadkeep import Memory
from threadkeep.context.compression import SummaryText


@pytest.fixture(scope="module")
def made() -> Planted:
    """Return the turns and questions of the bench."""
    return planted()


def test_each_code_word_is_in_one_turn(made: Planted) -> None:
    words = sorted({word for _, words in made.asked for word in words})
    assert len(made.turns) == 2 * TURNS
    assert len(words) >= 50
    assert all(sum(word in turn.text for turn in made.turns) == 1 for word in words)


async def test_the_bench_counts_recalled_facts(sqlite_memory: Memory, made: Planted) -> None:
    session = sqlite_memory.session("room")
    await converse(sqlite_memory, session, made.turns[:80], LimitedModel(facts=True))
    active = await sqlite_memory.summaries.active("room")
    assert active[0].level > 1
    assert any(SummaryText.read(summary.text).facts for summary in active)
    found = await ask(sqlite_memory, session, Planted(made.turns, made.asked[:6]), recall=False)
    assert sum(map(len, found.values())) == 6
