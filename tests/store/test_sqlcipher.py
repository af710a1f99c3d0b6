"""Tests of encrypted SQLite files: they are unreadable without the key, and fully usable with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.children import run_store_suites
from threadkeep import InvalidSettings, MemoryOptions, Message, StoreUnavailable, open_memory
from threadkeep.graph_store.langgraph_stores import open_graph_store
from threadkeep.settings import load_settings
from threadkeep.store.address import parse_address
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.driver import StoreOptions

pytest.importorskip("sqlcipher3", reason="there is no wheel of sqlcipher3 for this machine")

KEY, OTHER = "ab" * 32, "cd" * 32
CANARY = "zanzibarquokka"


def contents(folder: Path) -> bytes:
    """Return all bytes of the database file and its WAL."""
    return b"".join(path.read_bytes() for path in folder.glob("threadkeep.db*"))


async def test_an_encrypted_file_has_no_word_and_is_searched(
    tmp_path: Path, sqlite_url: str, memory_options: MemoryOptions
) -> None:
    """Transcripts, index, graph store and checkpoints are encrypted; without the right key nothing opens."""
    options = replace(memory_options, store=StoreOptions(key=KEY))
    async with open_memory(sqlite_url, options=options) as memory:
        await memory.session("room").append([Message(role="user", content=f"where is the {CANARY}?")])
        await (await memory.graph_store()).aput(("notes",), "k", {"text": CANARY})
        assert [hit.session_id for hit in await memory.search(CANARY)] == ["room"]
        assert (tmp_path / "threadkeep.db-wal").stat().st_size > 0
        assert CANARY.encode() not in contents(tmp_path)
        assert b"CREATE TABLE" not in contents(tmp_path)
        async with open_checkpointer(parse_address(sqlite_url), options.store) as saver:
            assert await saver.aget_tuple({"configurable": {"thread_id": "room"}}) is None
    async with open_graph_store(parse_address(sqlite_url), options.store) as store:
        item = await store.aget(("notes",), "k")
        assert item is not None
        assert item.value == {"text": CANARY}
    for key in (OTHER, None):
        with pytest.raises(StoreUnavailable, match="has another key"):
            async with open_memory(sqlite_url, options=replace(memory_options, store=StoreOptions(key=key))):
                pass
    assert KEY not in repr(options)


def test_an_invalid_key_is_refused_at_start(tmp_path: Path) -> None:
    """The error says how to create a key, and does not show the given one."""
    with pytest.raises(InvalidSettings, match="openssl rand -hex 32") as caught:
        load_settings(database_url=f"sqlite:///{tmp_path}/x.db", database_key="secret")
    assert "secret" not in str(caught.value)


@pytest.mark.suites
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("suites")
def test_the_suite_of_the_store_runs_on_encrypted_files() -> None:
    """Run the tests of the stores that use SQLite files, except those in which another program changes a file."""
    others = "damaged or another_program or other_programs or cached_message_is_detected"
    run_store_suites(f"sqlite-file and not ({others})", TESTS_DATABASE_KEY=KEY)
