"""Tests of folding repeated exchanges: shown once with their number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.folding import Fold, Folded, fold_mark, fold_repeats
from threadkeep.context.tokens import chars4
from threadkeep.records import Message, Role, Status


def said(*words: str, first: int = 1) -> list[Message]:
    """Return numbered messages, alternately by user and assistant."""
    return [
        Message(role="assistant" if place % 2 else "user", content=content, seq=first + place)
        for place, content in enumerate(words)
    ]


def shown(folded: Folded) -> list[str]:
    """Return the texts of the messages."""
    return [message.content for message in folded.messages]


def test_an_exchange_five_times_in_a_row_is_shown_once_with_the_count() -> None:
    folded = fold_repeats(said("hi", "hello", *["ok", "Done."] * 5, "bye", "See you."))
    assert shown(folded) == ["hi", "hello", f"ok {fold_mark(5)}", "Done.", "bye", "See you."]
    assert "5 times" in fold_mark(5)
    assert folded.folds == (Fold(seq=11, times=5, left_out=(3, 4, 5, 6, 7, 8, 9, 10)),)
    assert [message.seq for message in folded.messages] == [1, 2, 11, 12, 13, 14]


def test_only_consecutive_exchanges_are_folded() -> None:
    folded = fold_repeats(said("ok", "Done.", "ok", "Done.", "and?", "Wait.", "ok", "Done.", "ok", "Done."))
    assert [fold.times for fold in folded.folds] == [2, 2]
    assert shown(folded)[2:4] == ["and?", "Wait."]
    assert fold_repeats(said("a", "1", "b", "2", "a", "1", "b", "2")).folds == ()


def test_different_questions_or_answers_are_no_repeats() -> None:
    """Question and answer must be equal, with case but without surrounding white space."""
    assert fold_repeats(said("ok", "Done.", "ok", "Done!")).folds == ()
    assert fold_repeats(said("ok", "Done.", "OK", "Done.")).folds == ()
    assert fold_repeats(said("ok", "Done.", " ok\n", "Done. ")).folds[0].times == 2


def test_unanswered_questions_are_not_folded() -> None:
    messages = said("ok", "Done.", "ok", "Done.", "ok")
    folded = fold_repeats(messages)
    assert folded.messages[-1] is messages[-1]
    assert folded.folds[0].times == 2
    questions = [Message(role="user", content="hello?", seq=seq) for seq in range(1, 4)]
    assert fold_repeats(questions) == Folded(tuple(questions))


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_interrupted_and_failed_answers_are_not_folded(status: Status) -> None:
    messages = [m.with_fields(status=status) if m.role == "assistant" else m for m in said("ok", "Do", "ok", "Do")]
    assert fold_repeats(messages).folds == ()


def test_a_window_that_begins_with_an_answer_keeps_it() -> None:
    messages = said("ok", "Done.", "ok", "Done.", "ok", "Done.")[1:]
    folded = fold_repeats(messages)
    assert shown(folded) == ["Done.", f"ok {fold_mark(2)}", "Done."]


def test_a_folded_message_is_counted_again() -> None:
    messages = [message.with_fields(tokens=999) for message in said("ok", "Done.", "ok", "Done.")]
    folded = fold_repeats(messages, counter=chars4)
    assert [message.tokens for message in folded.messages] == [chars4(f"ok {fold_mark(2)}"), 999]


roles: st.SearchStrategy[Role] = st.sampled_from(["user", "assistant"])
rows = st.lists(st.tuples(roles, st.sampled_from(["ok", "Done.", "why?"])), max_size=30)


@given(rows)
def test_folding_accounts_for_each_message(drawn: list[tuple[Role, str]]) -> None:
    """Each message is shown or counted in one fold, in order.

    Folding is idempotent and keeps the newest user message.
    """
    messages = [Message(role=role, content=words, seq=seq) for seq, (role, words) in enumerate(drawn, start=1)]
    folded = fold_repeats(messages)
    left_out = [seq for fold in folded.folds for seq in fold.left_out]
    places = [message.seq for message in folded.messages]
    assert places == sorted(seq for seq in places if seq is not None)
    assert sorted([*left_out, *(seq for seq in places if seq is not None)]) == list(range(1, len(messages) + 1))
    users = [message.seq for message in messages if message.role == "user"]
    assert not users or users[-1] in places
    assert fold_repeats(folded.messages).messages == folded.messages
    unfolded = {fold.seq for fold in folded.folds}
    originals = {message.seq: message for message in messages}
    assert all(m is originals[m.seq] for m in folded.messages if m.seq not in unfolded)
