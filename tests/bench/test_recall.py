"""Tests that the bench of recall runs, and that facts of made-up chats are recalled."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from bench import recall_hard
from bench.recall import Recall, cost, main, measure
from bench.recall_chats import Chat, chats
from bench.recall_hard_facts import FITTED, HELD_OUT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("chat", list(chats(seeds=(7,))), ids=lambda chat: str(chat.id))
def test_made_up_chats_are_remembered(chat: Chat) -> None:
    recalls, _ = measure(chat, Recall())
    for category, found in recalls.items():
        assert sum(row[1] for row in found) / len(found) >= 0.95, category


@pytest.mark.parametrize("part", ["fitted", "held out"])
def test_facts_between_long_answers_are_remembered(part: recall_hard.Part) -> None:
    chat = next(recall_hard.chats(part, (7,), sessions=12))
    recalls, _ = measure(chat, Recall())
    for category in ("question", "update", "contradiction"):
        assert sum(row[2] for row in recalls[category]) / len(recalls[category]) >= 0.9, category


def test_the_held_out_part_shares_nothing_with_the_fitted_one() -> None:
    (topics, facts), (others, held_out) = FITTED, HELD_OUT
    assert not {word for topic in topics for word in topic.words} & {word for topic in others for word in topic.words}
    assert not {fact.told for fact in facts} & {fact.told for fact in held_out}


def test_the_adapter_keeps_within_its_budget() -> None:
    chat = next(chats(seeds=(3,), sessions=8))
    memory = Recall()
    memory.ingest(chat.turns)
    costs = {turn.id: cost(turn) for turn in chat.turns}
    for asked in chat.asked:
        assert sum(costs[turn] for turn in memory.select(asked.text, 700)) <= 700


def test_the_figures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without data, only the made-up chats are measured."""
    assert main([]) == 0
    assert "ms of CPU a query" in capsys.readouterr().out


@pytest.mark.parametrize("bench", ["recall", "fit_recall", "recall_calls"])
@pytest.mark.parametrize("content", [None, b"\xff", b"{", b"[]", b"3", b'[{"id": "a"}]', b'{"a": 1}'])
def test_a_data_set_that_cannot_be_read_is_refused(
    bench: str, content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if bench != "recall":
        pytest.importorskip("numpy")
    path = tmp_path / "conversations.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as refused:
        importlib.import_module(f"bench.{bench}").main(["--data", str(path)])
    said = capsys.readouterr().err
    assert (refused.value.code, "Traceback" in said, "Give the path of" in said) == (2, False, True)
