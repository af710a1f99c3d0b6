"""The bench of recall runs, and made-up chats are remembered in both languages, question or remark."""

from __future__ import annotations

import pytest

from bench.recall import Recall, cost, main, measure
from bench.recall_chats import Chat, chats


@pytest.mark.parametrize("chat", list(chats(seeds=(7,))), ids=lambda chat: str(chat.id))
def test_made_up_chats_are_remembered(chat: Chat) -> None:
    """At 1,000 tokens hardly anything is missed, whether asked for or touched in passing."""
    recalls, _ = measure(chat, Recall())
    for category, found in recalls.items():
        assert sum(row[1] for row in found) / len(found) >= 0.95, category


def test_the_adapter_keeps_within_its_budget() -> None:
    """What is selected costs no more than it may, so that the evaluation cuts nothing off."""
    chat = next(chats(seeds=(3,), sessions=8))
    memory = Recall()
    memory.ingest(chat.turns)
    costs = {turn.id: cost(turn) for turn in chat.turns}
    for asked in chat.asked:
        assert sum(costs[turn] for turn in memory.select(asked.text, 700)) <= 700


def test_the_figures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without data, the made-up chats are measured alone."""
    assert main([]) == 0
    assert "ms of CPU a query" in capsys.readouterr().out
