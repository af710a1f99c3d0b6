"""Tests of the ids in manifests: those of transcript messages are not stored, and are restored from the transcript."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.manifest import ContextManifest, Entry, FactReference, QuoteReference, StablePrefix
from threadkeep.context.window import Exclusion
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


STORED = Entry("window", 20, "transcript", seq=3, id="m3")
SHORTENED: list[Entry] = [
    Entry("system", 3, digest="ab"),
    Entry("summary", 9, "summaries", summaries=("s1", "s2")),
    STORED,
    replace(STORED, section="earlier_steps", tokens_before=40),
    replace(STORED, id=None),
    replace(STORED, seq=None, id='a "quoted" id, "entries":true'),
    Entry("selected", 5, "turns", turns=(QuoteReference("room", 3, (1, 2)),)),
    Entry("facts", 2, facts=(FactReference("f1", "user", since=date(2026, 1, 1)),)),
    replace(STORED, source="text", digest="cd"),
]


@pytest.mark.parametrize("session_id", ["room", None])
@pytest.mark.parametrize("entries", [(), (STORED,), (*SHORTENED, STORED, *SHORTENED)])
def test_a_manifest_writes_its_short_form_itself(entries: tuple[Entry, ...], session_id: str | None) -> None:
    """The JSON of a manifest without stored ids is, byte for byte, that of `without_ids`."""
    manifest = ContextManifest(
        session_id=session_id,
        run_id="run",
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
        model='a model named "entries":true',
        counter="estimate×1.12",
        entries=entries,
        excluded=(Exclusion(1, 2, "reset"),),
        prefix=StablePrefix(1, 20, "ef"),
        digest="01",
    )
    columns = {"run_id": "run"} if session_id is None else {"session_id": session_id, "run_id": "run"}
    assert manifest.to_short_json() == dump_json(without_ids(manifest.to_dict(), columns))
