"""Tests of compressed JSON: a text is restored exactly, and older formats stay readable."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.errors import RecordUnreadable
from threadkeep.records import Json, dump_json
from threadkeep.store import compressed_json
from threadkeep.store.codec import clean_json
from threadkeep.store.compressed_json import compress, decompress, unpack_manifest

HEXADECIMAL = st.text("0123456789abcdef", min_size=64, max_size=65)
TEXTS = st.one_of(st.text(), HEXADECIMAL, st.uuids().map(str), st.uuids().map("lc_run--{}-0".format))
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
)
ID, HASH = "01a2030e-a7e5-74b4-a752-85f6281e298f", "e0f48a33" * 8
# A manifest as it was stored before migration 25, without the `run_id`.
FIRST_FORMAT = bytes.fromhex(
    "010301a2030ea7e574b4a75285f6281e298fe0f48a33e0f48a33e0f48a33e0f48a33e0f48a33e0f48a33e0f48a33e0f48a33c30c26546f8253"
    "299312568be049c30898148c748cd092067254c3132cdc7edac5be71ad4e359e2c628ea799028c85d85a00"
)


@given(value=VALUES)
def test_a_text_is_restored_unchanged(value: Json) -> None:
    text = dump_json(clean_json(value))
    assert decompress(compress(text)) == text
    assert decompress(text.encode()) == text


def test_a_record_is_a_zstd_frame_of_a_fifth_of_its_size() -> None:
    """Other programs can read it with the dictionary, whose number is in the frame."""
    entries: list[Json] = [
        {"section": "window", "tokens": 40 + seq, "source": "transcript", "seq": seq, "id": True} for seq in range(20)
    ]
    text = dump_json({"session_id": True, "run_id": True, "budget": 4000, "digest": HASH, "entries": entries})
    stored = compress(text)
    assert len(stored) * 5 < len(text)
    dictionary = Path(compressed_json.__file__).parent / "dictionaries/40001.zdict"
    plain = zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(dictionary.read_bytes()))
    assert plain.decompress(stored).decode() == text


def test_a_text_that_does_not_get_shorter_is_stored_as_it_is() -> None:
    assert compress('{"a":1}') == b'{"a":1}'


def test_data_from_before_migration_25_is_readable() -> None:
    stored = bytes.fromhex("0100c30c26b803cdb0bbc110c90506b5b8921b7af0d40200")
    text = '{"node":"answer","tokens":26,"sections":{"window":16,"input":10},"source":"transcript","max_messages":20}'
    assert decompress(stored) == text


def test_a_manifest_from_before_migration_25_is_readable() -> None:
    """Its entries were stored by field, and the fields that are columns of the row were left out."""
    found = unpack_manifest(json.loads(decompress(FIRST_FORMAT)), {"run_id": "r1"})
    window = [
        {"section": "window", "tokens": 20 + seq, "source": "transcript", "seq": seq, "id": True} for seq in (1, 2, 3)
    ]
    entries = [*window, {"section": "input", "tokens": 7, "source": "text", "digest": HASH}]
    manifest = {"run_id": "r1", "budget": 4000, "entries": entries}
    assert dump_json({name: found[name] for name in manifest}) == dump_json(manifest)
    assert found["id"] == ID
    assert unpack_manifest(found, {"run_id": "another"}) == found


RECORD = compress(dump_json([HASH] * 9))


DAMAGED = [b"", b"\x00", RECORD[:-3], b"\x01", FIRST_FORMAT[:-9], FIRST_FORMAT[:60] + b"\xff" * 9, b'{"a":"\xff"}']


@pytest.mark.parametrize("stored", DAMAGED)
def test_a_damaged_record_raises_an_error_with_the_cure(stored: bytes) -> None:
    with pytest.raises(RecordUnreadable, match="restore a backup"):
        decompress(stored)


def test_a_record_with_a_changed_byte_is_never_read_as_another_text() -> None:
    texts = set()
    for place, mask in product(range(len(RECORD)), range(1, 256)):
        changed = bytearray(RECORD)
        changed[place] ^= mask
        with suppress(RecordUnreadable):
            texts.add(decompress(bytes(changed)))
    assert texts <= {decompress(RECORD)}


def test_data_of_a_newer_version_is_refused_with_the_cure() -> None:
    """A running process can meet data of an upgraded one; the error says to upgrade."""
    samples = [f'{{"number":{number},"text":"{number * 7}"}}'.encode() for number in range(1000)]
    newer = zstandard.train_dictionary(1024, [*samples], dict_id=40_002)
    stored = zstandard.ZstdCompressor(dict_data=newer).compress(samples[0])
    with pytest.raises(RecordUnreadable, match=r"dictionary 40002.*upgrade Threadkeep"):
        decompress(stored)
