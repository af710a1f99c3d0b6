"""Which messages lie in which chunk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.graph_store.layout import ChunkSpan, chunk_key, chunk_of, chunk_spans, first_of

places = st.integers(min_value=1, max_value=10**9)
sizes = st.integers(min_value=1, max_value=10_000)


def test_places_4201_to_4400_are_chunk_21() -> None:
    """With 200 messages in each; the places around them are in its neighbours."""
    assert {chunk_key(chunk_of(seq, 200)) for seq in range(4201, 4401)} == {"chunk:000021"}
    assert chunk_key(chunk_of(4200, 200)) == "chunk:000020"
    assert chunk_key(chunk_of(4401, 200)) == "chunk:000022"


def test_a_chunk_rolls_over_after_its_last_place() -> None:
    """199 and 200 are in the first chunk, 201 begins the second."""
    assert [chunk_of(seq, 200) for seq in (1, 199, 200, 201)] == [0, 0, 0, 1]


def test_a_turn_of_three_across_a_border_is_cut_there() -> None:
    """Two places in the one, one in the next."""
    assert list(chunk_spans(199, 201, 200)) == [ChunkSpan(0, 199, 200), ChunkSpan(1, 201, 201)]


def test_nothing_is_in_no_chunk() -> None:
    """A range that ends before it begins."""
    assert list(chunk_spans(5, 4, 200)) == []


def test_keys_are_as_long_as_they_have_to_be() -> None:
    """Six digits sort as text; beyond a million chunks keys are longer, and still their own."""
    assert chunk_key(0) == "chunk:000000"
    assert chunk_key(1_234_567) == "chunk:1234567"


@pytest.mark.parametrize(("seq", "size"), [(0, 200), (-3, 200), (1, 0)])
def test_there_is_no_place_before_the_first(seq: int, size: int) -> None:
    """Nor a chunk without room."""
    with pytest.raises(ValueError, match="begin at 1"):
        chunk_of(seq, size)


@given(seq=places, size=sizes)
def test_a_place_lies_between_the_ends_of_its_chunk(seq: int, size: int) -> None:
    """And in no other."""
    chunk = chunk_of(seq, size)
    assert first_of(chunk, size) <= seq < first_of(chunk + 1, size)


@given(first=places, length=st.integers(min_value=0, max_value=5000), size=sizes)
def test_chunk_spans_are_the_range_without_gaps(first: int, length: int, size: int) -> None:
    """In order, each in one chunk, no chunk twice, together exactly what was asked for."""
    found = list(chunk_spans(first, first + length - 1, size))
    assert list(chunk_spans(first, first + length - 1, size, newest_first=True)) == found[::-1]
    together = [seq for part in found for seq in range(part.first_seq, part.last_seq + 1)]
    assert together == list(range(first, first + length))
    assert all({chunk_of(part.first_seq, size), chunk_of(part.last_seq, size)} == {part.chunk} for part in found)
    chunks = [part.chunk for part in found]
    assert chunks == sorted(set(chunks))
