"""Tests of packing manifests: they are stored shorter and read back unchanged."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from threadkeep.records import Json, dump_json
from threadkeep.store.compact_json import packed, seqs_of_ids, unpacked, with_ids, without_ids

VALUES: st.SearchStrategy[Json] = st.one_of(
    st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["window", "input"]), st.just([1]), st.just({"a": 1})
)
ENTRIES = st.lists(st.dictionaries(st.sampled_from(["section", "tokens", "seq", "each", "id"]), VALUES), max_size=6)


@given(entries=ENTRIES, run_id=st.sampled_from(["r1", "another"]))
def test_a_packed_manifest_is_read_back_unchanged(entries: list[dict[str, Json]], run_id: str) -> None:
    """Fields of any entries come back with their order."""
    manifest: dict[str, Json] = {"run_id": run_id, "budget": 4000, "entries": list[Json](entries)}
    stored = json.loads(dump_json(packed(manifest, {"run_id": "r1"})))
    found = unpacked(stored, {"run_id": "r1"})
    assert dump_json(found["entries"]) == dump_json(manifest["entries"])
    assert found == manifest


def test_similar_entries_are_packed_to_half_their_size() -> None:
    entries: list[Json] = [
        {"section": "window", "tokens": 40 + number, "source": "transcript", "seq": number, "id": f"m{number}"}
        for number in range(20)
    ]
    manifest: dict[str, Json] = {"run_id": "r1", "entries": entries}
    assert len(dump_json(packed(manifest, {"run_id": "r1"}))) * 2 < len(dump_json(manifest))


@given(entries=ENTRIES, ids=st.dictionaries(st.integers(0, 2), st.sampled_from(["window", "input"])))
def test_ids_are_restored_from_the_transcript(entries: list[dict[str, Json]], ids: dict[int, str]) -> None:
    """Ids equal to those of the transcript are removed and restored; other ids stay."""
    named: list[Json] = [{"source": "transcript", **entry} for entry in entries]
    manifest: dict[str, Json] = {"budget": 4000, "entries": named}
    short = without_ids(manifest, ids)
    assert seqs_of_ids(short) == seqs_of_ids(manifest)
    if not any(entry.get("id") is True for entry in entries):
        assert dump_json(with_ids(short, ids)) == dump_json(manifest)


def test_the_id_of_a_deleted_message_is_not_restored() -> None:
    entry: dict[str, Json] = {"source": "transcript", "seq": 3, "id": "m3"}
    short = without_ids({"entries": [entry]}, {3: "m3"})
    assert "m3" not in dump_json(short)
    assert with_ids(short, {}) == {"entries": [{"source": "transcript", "seq": 3}]}
