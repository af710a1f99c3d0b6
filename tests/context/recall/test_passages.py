"""Passages of long texts: those that a query asks for, within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.recall import passage_of

FILLER = "The walk was long. " * 30


def test_a_passage_has_the_words_of_the_query() -> None:
    """Whole sentences, where the weight of the terms is greatest."""
    text = f"{FILLER}We found a harp. It was red.{FILLER}"
    first, last = passage_of(text, {"harp": 3.0, "red": 2.0}, 60)
    assert "We found a harp. It was red." in text[first:last]
    assert last - first <= 60
    assert text[first:last].endswith(".")


def test_without_a_word_of_the_query_the_beginning_is_quoted() -> None:
    """It says what the text is about."""
    assert passage_of(FILLER, {}, 40) == (0, 37)


@given(st.text(max_size=300), st.integers(1, 100))
def test_a_passage_is_within_its_text(text: str, characters: int) -> None:
    """Whatever stands in the text, and however short the passage has to be."""
    first, last = passage_of(text, {"a": 1.0}, characters)
    assert 0 <= first <= last <= len(text)
    assert last - first <= characters
