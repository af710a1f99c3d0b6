"""Tests of the ids in manifests: those of transcript messages are not stored, and are restored from the transcript."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from threadkeep.records import Json, dump_json
from threadkeep.store.manifests import seqs_of_ids, with_ids, without_ids

VALUES: st.SearchStrategy[Json] = st.one_of(
    st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["window", "input"]), st.just([1]), st.just({"a": 1})
)
ENTRIES = st.lists(st.dictionaries(st.sampled_from(["section", "tokens", "seq", "each", "id"]), VALUES), max_size=6)


@given(entries=ENTRIES, ids=st.dictionaries(st.integers(0, 2), st.sampled_from(["window", "input"])))
def test_ids_are_restored_from_the_transcript(entries: list[dict[str, Json]], ids: dict[int, str]) -> None:
    """Ids equal to those of the transcript are removed and restored; other ids stay."""
    named: list[Json] = [{"source": "transcript", **entry} for entry in entries]
    manifest: dict[str, Json] = {"budget": 4000, "entries": named}
    short = without_ids(manifest, {}, ids)
    assert seqs_of_ids(short) == seqs_of_ids(manifest)
    if not any(entry.get("id") is True for entry in entries):
        assert dump_json(with_ids(short, ids)) == dump_json(manifest)


def test_the_id_of_a_deleted_message_is_not_restored() -> None:
    entry: dict[str, Json] = {"source": "transcript", "seq": 3, "id": "m3"}
    short = without_ids({"entries": [entry]}, {}, {3: "m3"})
    assert "m3" not in dump_json(short)
    assert with_ids(short, {}) == {"entries": [{"source": "transcript", "seq": 3}]}
