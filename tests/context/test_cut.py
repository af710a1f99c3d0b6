"""Tests of cutting a text to a budget, at its end or in its middle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.cut import CUT_MARK, cut_end, cut_middle, middle_mark, pieces
from threadkeep.context.tokens import TokenCounter, chars4, estimate


def odd_counter(text: str) -> int:
    """Return a count that does not grow with the text."""
    return len(text) + (7 if len(text) % 3 else 0)


counters: st.SearchStrategy[TokenCounter] = st.sampled_from([len, chars4, estimate, odd_counter])
texts = st.text(max_size=200) | st.text("ab\u0301\u200d👍🏽\ud800\udc00 ", max_size=80)


@given(text=texts, budget=st.integers(0, 120), counter=counters)
def test_the_end_is_cut_to_the_budget(text: str, budget: int, counter: TokenCounter) -> None:
    short = cut_end(text, budget, counter)
    assert counter(short) <= budget
    if counter(text) <= budget:
        assert short == text
    elif short:
        assert short.endswith(CUT_MARK)
        assert text.startswith(short.removesuffix(CUT_MARK))
    else:
        assert counter(CUT_MARK) > budget


@given(text=texts, budget=st.integers(0, 120), counter=counters)
def test_the_middle_is_cut_to_the_budget(text: str, budget: int, counter: TokenCounter) -> None:
    short = cut_middle(text, budget, counter)
    assert counter(short) <= budget
    if counter(text) <= budget:
        assert short == text
    elif short:
        gone = next(
            n
            for n in range(len(text) + 1)
            if middle_mark(n) in short and len(short) - len(middle_mark(n)) == len(text) - n
        )
        head, _, tail = short.partition(middle_mark(gone))
        assert text.startswith(head)
        assert text.endswith(tail)


@given(text=st.text("abc ", min_size=1, max_size=300), budget=st.integers(8, 200))
def test_a_cut_uses_the_whole_budget(text: str, budget: int) -> None:
    short = cut_end(text, budget, len)
    assert len(short) == min(len(text), budget)


@pytest.mark.parametrize(
    ("text", "kept"),
    [("aé" * 9, "a"), ("👍🏽" * 9, ""), ("👩\u200d🚀" * 9, ""), ("\ud83d\ude00" * 9, "")],
    ids=["accent", "skin tone", "joined", "surrogates"],
)
def test_a_character_is_not_parted_from_its_marks(text: str, kept: str) -> None:
    decomposed = text.replace("é", "e\u0301")
    for budget in range(8, 20):
        rest = cut_end(decomposed, budget, len).removesuffix(CUT_MARK)
        assert decomposed[len(rest) : len(rest) + 1] not in ("\u0301", "🏽", "\u200d", "🚀", "\ude00")
        assert rest.startswith(kept)


def test_the_middle_mark_has_the_number_of_removed_characters() -> None:
    assert cut_middle("a" * 50 + "b" * 50, 60, len) == "a" * 19 + "… [cut 63 characters] …" + "b" * 18


def test_cutting_a_huge_text_counts_each_character_about_once() -> None:
    counted = 0

    def counter(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return len(text) // 4

    cut_end("word " * 400_000, 100, counter)
    assert counted < 2_100_000


@given(st.text(alphabet="ab \n\u0301你😀", max_size=300), st.integers(1, 40))
def test_pieces_add_up_to_the_text(text: str, budget: int) -> None:
    found = pieces(text, budget, len)
    assert "".join(found) == text
    assert all(found)
    for piece in found:
        assert len(piece) <= budget or not any(piece[1:].strip("\u0301"))


def test_pieces_end_at_white_space_near_their_end() -> None:
    assert pieces("one two three four", 10, len) == ["one two ", "three four"]
    assert pieces("", 10, len) == []
