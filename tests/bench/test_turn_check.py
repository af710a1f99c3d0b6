"""Tests that the check of turns finds each kind of fault in a recorded history, and none in a correct one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.turn_check import Fault, check
from bench.turn_history import (
    Asked,
    ModelCall,
    Outage,
    RunRow,
    Stored,
    Told,
    TurnHistory,
    answer_text,
    question_text,
)

type Change = Callable[[TurnHistory], TurnHistory]

_AWAY = [Outage("one", 1.0, 3.0, "stall")]


def answer(number: int, message_id: str, speaker: str = "assistant") -> str:
    """Return the reply of a call to a question."""
    return answer_text(number, message_id, speaker, "some words")


def row(seq: int, question: str, number: int = 0, **more: object) -> Stored:
    """Return a question, or the reply of a call to the question."""
    if not number:
        return replace(Stored("s", seq, question, "user", question_text(question), "complete"), **more)  # type: ignore[arg-type]
    text = answer(number, question)
    return replace(Stored("s", seq, f"answer-{number}", "assistant", text, "complete"), **more)  # type: ignore[arg-type]


def told(message_id: str, number: int, at: float, **more: object) -> Told:
    """Return a reply that a caller received half a second after asking."""
    text = answer(number, message_id)
    return replace(Told("s", message_id, text, "one", at - 0.5, at, f"run-{message_id}"), **more)  # type: ignore[arg-type]


def call(number: int, at: float, *message_ids: str, answers: Sequence[int] = ()) -> ModelCall:
    """Return a call for the last question; its context has the earlier questions with the replies of these calls."""
    messages = []
    for message_id, given in zip(message_ids, [*answers, 0], strict=True):
        messages.append(("user", question_text(message_id)))
        if given:
            messages.append(("assistant", answer(given, message_id)))
    return ModelCall(number, at, messages, answer(number, message_ids[-1]))


def run(message_id: str, number: int, status: str = "done") -> RunRow:
    """Return a run with the reply of a call."""
    return RunRow(f"run-{message_id}", "s", message_id, status, answer(number, message_id))


GOOD = TurnHistory(
    asked=[Asked("s", "q1", 1.0), Asked("s", "q2", 4.0)],
    told=[told("q1", 1, 2.0), told("q1", 1, 3.0, pieces=answer(1, "q1")), told("q2", 2, 5.0)],
    calls=[call(1, 1.1, "q1"), call(2, 4.1, "q1", "q2", answers=[1])],
    stored=[row(1, "q1"), row(2, "q1", 1), row(3, "q2"), row(4, "q2", 2)],
    runs=[run("q1", 1), run("q2", 2)],
)


def stored(*rows: Stored) -> Change:
    """Replace the rows of a history."""
    return lambda history: replace(history, stored=rows)


def more(**added: Sequence[object]) -> Change:
    """Add events to a history."""

    def change(history: TurnHistory) -> TurnHistory:
        changed: dict[str, Any] = {name: [*getattr(history, name), *each] for name, each in added.items()}
        return replace(history, **changed)

    return change


def faults(history: TurnHistory) -> list[Fault]:
    """Return all faults that the check finds."""
    return list(check(history).faults)


def test_a_correct_history_has_no_fault(tmp_path: Path) -> None:
    assert check(GOOD) == check(TurnHistory())
    GOOD.write(tmp_path / "history.json")
    assert check(TurnHistory.read(tmp_path / "history.json")) == check(GOOD)


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (stored(*GOOD.stored, row(5, "q2", 2)), "two answers", "q2 has 2 complete answers of assistant: #2 at 4"),
        (stored(*GOOD.stored[:3], row(4, "q2", 9)), "told is not stored", "q2: one told #2; stored #9"),
        (stored(*GOOD.stored[:3]), "told is not stored", "q2: one told #2; stored nothing"),
        (more(told=[told("q1", 7, 3.5)]), "told differently", "q1: callers were told #1 by one at 2.0"),
        (more(asked=[Asked("s", "q3", 6.0)]), "unanswered", "q3 was asked at 6.0 and never answered"),
        (stored(row(1, "q1", 1), row(2, "q2"), row(3, "q2", 2)), "lost", "q1 was answered, and its question"),
        (stored(*GOOD.stored, row(5, "q1", message_id="q1-again")), "doubled", "'question q1' is stored 2 times"),
        (stored(*GOOD.stored[:3], row(5, "q2", 2)), "torn", "s has the numbers [1, 2, 3, 5]"),
        (stored(row(1, "q1", 1), row(2, "q1"), *GOOD.stored[2:]), "torn", "q1: its answer is at s 1, before it"),
        (stored(*GOOD.stored[:3], row(4, "q2", 2, content="#2 to q2 as")), "torn", "no model gave the answer at 4"),
        (stored(*GOOD.stored[:3], row(4, "q2", 2, content="sorry")), "torn", "no model gave the answer at 4, 'sorry'"),
        (stored(*GOOD.stored[:3], row(4, "q2", 2, answers="q1")), "torn", "q2: its answer at 4 is stored as"),
        (stored(*GOOD.stored[1:3], row(3, "q1"), row(4, "q2", 2)), "torn", "s has the numbers [2, 3, 3, 4]"),
        (stored(row(1, "q2"), row(2, "q2", 2), row(3, "q1"), row(4, "q1", 1)), "reordered", "q1: its answer is at 4"),
        (stored(row(1, "q1"), row(2, "q2"), row(3, "q1", 1), row(4, "q2", 2)), "reordered", "q1: its answer is at 3"),
        (more(runs=[run("q2", 2, "running")]), "run", "q2: its run is still running"),
        (more(runs=[run("q2", 9)]), "run", "q2: its run says #9; stored #2"),
        (more(calls=[call(3, 4.2, "q1", "q2", answers=[8])]), "context", "call 3 for q2 was sent #8 of q1; stored #1"),
        (more(calls=[call(3, 4.2, "q1", "q1", "q2", answers=[1, 1])]), "context", "call 3 for q2 was sent q1 twice"),
        (more(calls=[call(3, 4.2, "q1", "q1", "q2", answers=[1, 1])]), "context", "was sent two answers to q1"),
        (more(calls=[call(3, 4.2, "q2")]), "context", "call 3 for q2 was not sent the turn q1"),
        (more(calls=[replace(GOOD.calls[1], messages=[])]), "context", "call 2 was sent no question"),
        (more(told=[told("q2", 2, 6.0, pieces=answer(9, "q2"))]), "stream", "q2: the pieces #9 end with #2"),
        (more(calls=[replace(GOOD.calls[1], final=True)]), "asked again", "a repeat of an answered question"),
        (more(errors=["q1: HTTP status 500"]), "error", "q1: HTTP status 500"),
    ],
)  # fmt: skip
def test_each_fault_is_found(change: Change, kind: str, says: str) -> None:
    assert any(fault.kind == kind and says in fault.says for fault in faults(change(GOOD))), faults(change(GOOD))


def test_a_reply_of_an_outage_may_be_superseded() -> None:
    """A superseded reply is a conflict only if an outage overlaps it and the current reply was received too."""
    two = more(told=[told("q1", 7, 2.5)], calls=[replace(call(7, 1.2, "q1"), number=7)])(GOOD)
    both = stored(row(1, "q1"), row(2, "q1", 1), row(3, "q1", 7, superseded=True), row(4, "q2"), row(5, "q2", 2))(two)
    assert [fault.kind for fault in faults(two)] == ["told differently"]
    assert [fault.kind for fault in faults(both)] == ["told differently"]
    verdict = check(replace(both, outages=_AWAY))
    assert (list(verdict.faults), [conflict.kind for conflict in verdict.conflicts]) == ([], ["told differently"])
    # A repeat after the outage must return the current reply.
    late = more(told=[told("q1", 7, 9.0, final=True)])(replace(both, outages=_AWAY))
    assert [fault.kind for fault in faults(late)] == ["told differently"]


def test_a_turn_of_an_outage_may_be_stored_late() -> None:
    """Other processes do not wait for the turn, so a later turn may precede it."""
    late = stored(row(1, "q2"), row(2, "q2", 2), row(3, "q1"), row(4, "q1", 1))(GOOD)
    verdict = check(replace(late, outages=[Outage("one", 0.5, 1.5, "stall")]))
    assert (list(verdict.faults), [conflict.kind for conflict in verdict.conflicts]) == ([], ["reordered"])


def test_a_resumed_process_may_use_an_old_context() -> None:
    """The call of a paused process lacks turns that were answered meanwhile.

    This is allowed if its question was answered.
    """
    late = more(calls=[call(3, 6.0, "q1")], asked=[Asked("s", "q0", 0.1)], told=[told("q0", 4, 5.5)])
    rows = [row(1, "q1"), row(2, "q1", 1), row(3, "q2"), row(4, "q2", 2), row(5, "q0"), row(6, "q0", 4)]
    woken = replace(late(GOOD), stored=rows)
    assert "context" not in {fault.kind for fault in faults(woken)}
    asked_anew = replace(woken, told=[one for one in woken.told if one.message_id != "q1"])
    assert "context" in {fault.kind for fault in faults(asked_anew)}


def test_a_context_may_have_a_pending_reply_of_an_outage() -> None:
    """The reply was received by no caller and another was stored.

    Without an outage, or with a caller, it is a fault.
    """
    waited = more(calls=[call(7, 1.2, "q1"), call(8, 4.2, "q1", "q2", answers=[7])])(GOOD)
    away = replace(waited, outages=[Outage("one", 1.0, 4.5, "stall")])
    assert [fault.kind for fault in faults(waited)] == ["context", "context"]
    assert (faults(away), [conflict.kind for conflict in check(away).conflicts]) == ([], ["context"])
    heard = more(told=[told("q1", 7, 2.5)])(away)
    assert "context" in {fault.kind for fault in faults(heard)}


def test_each_speaker_has_its_own_reply() -> None:
    """A question to two speakers has two replies, and callers receive the last.

    A missing or a second reply is a fault.
    """
    first, second = answer(1, "q1", "writer"), answer(2, "q1", "critic")
    rows = [
        row(1, "q1"),
        replace(row(2, "q1", 1), content=first, author="writer"),
        replace(row(3, "q1", 2), content=second, author="critic"),
    ]
    question = ("user", question_text("q1"))
    good = TurnHistory(
        asked=[Asked("s", "q1", 1.0)],
        told=[replace(told("q1", 2, 2.0), text=second)],
        calls=[ModelCall(1, 1.1, [question], first), ModelCall(2, 1.2, [question, ("assistant", first)], second)],
        stored=rows,
        speakers=("writer", "critic"),
    )
    assert faults(good) == []
    assert [fault.kind for fault in faults(replace(good, stored=[rows[0], replace(rows[2], seq=2)]))] == [
        "context",
        "lost",
    ][::-1]
    twice = replace(good, stored=[*rows, replace(rows[2], seq=4)])
    assert [fault.kind for fault in faults(twice)] == ["two answers"]
    assert faults(replace(good, stored=[*rows, replace(rows[2], seq=4, superseded=True)])) == []
