"""Tests of `passage_of`: the passage of a long text that matches a query."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.recall import passage_of

FILLER = "The walk was long. " * 30


def test_a_passage_has_the_words_of_the_query() -> None:
    """The passage consists of whole sentences with the greatest weight of terms."""
    text = f"{FILLER}We found a harp. It was red.{FILLER}"
    first, last = passage_of(text, {"harp": 3.0, "red": 2.0}, 60)
    assert "We found a harp. It was red." in text[first:last]
    assert last - first <= 60
    assert text[first:last].endswith(".")


def test_without_a_word_of_the_query_the_beginning_is_quoted() -> None:
    assert passage_of(FILLER, {}, 40) == (0, 37)


def test_a_text_of_dots_is_cut_without_backtracking() -> None:
    """The search for sentence ends reads each character a bounded number of times, so that a message blocks nothing."""
    assert passage_of("." * 60_000, {"a": 1.0}, 400) == (0, 400)


@given(st.text(max_size=300), st.integers(1, 100))
def test_a_passage_is_within_its_text(text: str, characters: int) -> None:
    first, last = passage_of(text, {"a": 1.0}, characters)
    assert 0 <= first <= last <= len(text)
    assert last - first <= characters


def test_a_longer_passage_takes_no_longer_to_find() -> None:
    """The number of executed lines does not grow with the length of the passage."""
    text = "a\n" * 4_000

    def lines_run(characters: int) -> int:
        count = 0

        def line(_code: object, _number: int) -> None:
            nonlocal count
            count += 1

        sys.monitoring.use_tool_id(3, "lines")
        sys.monitoring.register_callback(3, sys.monitoring.events.LINE, line)
        sys.monitoring.set_events(3, sys.monitoring.events.LINE)
        passage_of(text, {"a": 1.0}, characters)
        sys.monitoring.set_events(3, 0)
        sys.monitoring.free_tool_id(3)
        return count

    assert lines_run(2_000) < 1.2 * lines_run(20)
