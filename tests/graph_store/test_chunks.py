"""Tests of the assignment of messages to chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.graph_store.layout import ChunkSpan, chunk_key, chunk_of, chunk_spans, first_of

seqs = st.integers(min_value=1, max_value=10**9)
sizes = st.integers(min_value=1, max_value=10_000)


def test_seqs_4201_to_4400_are_in_chunk_21() -> None:
    assert {chunk_key(chunk_of(seq, 200)) for seq in range(4201, 4401)} == {"chunk:000021"}
    assert chunk_key(chunk_of(4200, 200)) == "chunk:000020"
    assert chunk_key(chunk_of(4401, 200)) == "chunk:000022"


def test_message_201_begins_the_second_chunk() -> None:
    assert [chunk_of(seq, 200) for seq in (1, 199, 200, 201)] == [0, 0, 0, 1]


def test_a_turn_of_three_is_split_at_the_chunk_border() -> None:
    assert list(chunk_spans(199, 201, 200)) == [ChunkSpan(0, 199, 200), ChunkSpan(1, 201, 201)]


def test_an_empty_range_has_no_chunks() -> None:
    assert list(chunk_spans(5, 4, 200)) == []


def test_chunk_keys_have_at_least_six_digits() -> None:
    """Six digits sort as text; beyond a million chunks, keys are longer and still unique."""
    assert chunk_key(0) == "chunk:000000"
    assert chunk_key(1_234_567) == "chunk:1234567"


@pytest.mark.parametrize(("seq", "size"), [(0, 200), (-3, 200), (1, 0)])
def test_a_seq_below_1_is_refused(seq: int, size: int) -> None:
    with pytest.raises(ValueError, match="begin at 1"):
        chunk_of(seq, size)


@given(seq=seqs, size=sizes)
def test_a_seq_is_between_the_ends_of_its_chunk(seq: int, size: int) -> None:
    chunk = chunk_of(seq, size)
    assert first_of(chunk, size) <= seq < first_of(chunk + 1, size)


@given(first=seqs, length=st.integers(min_value=0, max_value=5000), size=sizes)
def test_chunk_spans_are_the_range_without_gaps(first: int, length: int, size: int) -> None:
    """Spans are in order, each in one chunk and each chunk once, and together are exactly the range."""
    found = list(chunk_spans(first, first + length - 1, size))
    assert list(chunk_spans(first, first + length - 1, size, newest_first=True)) == found[::-1]
    together = [seq for part in found for seq in range(part.first_seq, part.last_seq + 1)]
    assert together == list(range(first, first + length))
    assert all({chunk_of(part.first_seq, size), chunk_of(part.last_seq, size)} == {part.chunk} for part in found)
    chunks = [part.chunk for part in found]
    assert chunks == sorted(set(chunks))
