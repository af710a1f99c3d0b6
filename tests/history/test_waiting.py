"""Tests of pending writes as other processes see them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from threadkeep.history.pending_files import EntryInUse, drop_waiting, waiting_files
from threadkeep.records import Message, Turn
from threadkeep.store.spool import PendingTurn, SpoolFile, read_entries

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _entry(name: str) -> PendingTurn:
    return PendingTurn(name, Turn("telegram:1", (Message(role="user", content="hi", id=f"m-{name}"),), "u1"), _NOW)


@pytest.fixture
def file(tmp_path: Path) -> SpoolFile:
    """Return a pending file of this process with two turns."""
    file = SpoolFile.create(tmp_path)
    file.keep(_entry("first"))
    file.keep(_entry("second"))
    return file


def test_a_turn_of_a_running_process_is_listed_and_not_dropped(tmp_path: Path, file: SpoolFile) -> None:
    """A running process would write the turn in any case."""
    [waiting] = waiting_files(tmp_path)
    assert waiting.live
    assert [entry.entry_id for entry in waiting.entries] == ["first", "second"]
    with pytest.raises(EntryInUse, match="stop that process"):
        drop_waiting(tmp_path, "first")
    assert len(read_entries(file.path)) == 2
    file.close()


def test_a_turn_of_a_dead_process_can_be_dropped(tmp_path: Path, file: SpoolFile) -> None:
    """Dropping the last turn deletes the file."""
    file.close()
    assert not waiting_files(tmp_path)[0].live

    dropped = drop_waiting(tmp_path, "first")
    assert dropped is not None
    assert dropped.turn.session_id == "telegram:1"
    assert [entry.entry_id for entry in waiting_files(tmp_path)[0].entries] == ["second"]

    assert drop_waiting(tmp_path, "first") is None
    assert drop_waiting(tmp_path, "second") is not None
    assert waiting_files(tmp_path) == []
    assert not file.path.exists()


def test_the_last_error_of_a_turn_is_listed(tmp_path: Path, file: SpoolFile) -> None:
    entry = _entry("second")
    entry.error = "WrongUser"
    file.failed(entry)
    assert [entry.error for entry in waiting_files(tmp_path)[0].entries] == [None, "WrongUser"]
    file.close()


def test_a_file_that_was_taken_over_unread_is_kept(file: SpoolFile) -> None:
    file.close()
    taken = SpoolFile.take_over(file.path)
    assert taken is not None
    taken.close()
    assert len(read_entries(file.path)) == 2


def test_a_missing_folder_has_no_turns(tmp_path: Path) -> None:
    assert waiting_files(tmp_path / "none") == []
    assert drop_waiting(tmp_path / "none", "first") is None
