"""Tests of compact JSON: a text is restored exactly, and older formats stay readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.errors import StoreError
from threadkeep.records import Json, dump_json
from threadkeep.store.codec import clean_json
from threadkeep.store.compact_json import compact, expanded

HEXADECIMAL = st.text("0123456789abcdef", min_size=64, max_size=65)
TEXTS = st.one_of(st.text(), HEXADECIMAL, st.uuids().map(str), st.uuids().map("lc_run--{}-0".format))
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
)
ID, HASH = "01a2030e-a7e5-74b4-a752-85f6281e298f", "e0f48a33" * 8


@given(value=VALUES)
def test_a_text_is_restored_unchanged(value: Json) -> None:
    text = dump_json(clean_json(value))
    assert expanded(compact(text)) == text
    assert expanded(text.encode()) == text


def test_many_ids_are_restored() -> None:
    """A text may have more ids than are replaced."""
    text = dump_json([ID, HASH, f"\x01\x02{ID}", HASH.upper()] * 200)
    assert expanded(compact(text)) == text


def test_ids_and_hashes_take_16_and_32_bytes() -> None:
    assert len(compact(dump_json([ID, HASH]))) < 16 + 32 + 16


def test_data_of_the_first_vocabulary_is_readable() -> None:
    """Data of the first vocabulary must stay readable; a better vocabulary needs a new number."""
    stored = bytes.fromhex("0100c30c26b803cdb0bbc110c90506b5b8921b7af0d40200")
    text = '{"node":"answer","tokens":26,"sections":{"window":16,"input":10},"source":"transcript","max_messages":20}'
    assert expanded(stored) == text


def test_data_of_a_newer_version_is_refused_with_the_cure() -> None:
    """A running process can meet data of an upgraded one; the error says to upgrade."""
    with pytest.raises(StoreError, match=r"vocabulary 2.*upgrade Threadkeep"):
        expanded(b"\x02\x00rest")
