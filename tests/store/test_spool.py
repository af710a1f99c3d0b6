"""Tests of pending turns on disk: they survive crashes, each file has one owner, and no turn is lost."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.children import Child
from threadkeep import InvalidMessage, Message
from threadkeep.records import Turn
from threadkeep.store import spool
from threadkeep.store.private_files import in_use
from threadkeep.store.spool import PendingTurn, SpoolFile, damaged_turns, read_entries, spool_files

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entry(name: str, content: str = "hi") -> PendingTurn:
    """Return a pending turn."""
    messages = (Message(role="user", content=content, id=f"{name}:1"), Message(role="assistant", content="ok", id=name))
    return PendingTurn(name, Turn("room", messages, "u1"), _NOW)


def names(path: Path) -> list[str]:
    """Return the ids of the turns in a file."""
    return [kept.entry_id for kept in read_entries(path)]


@given(st.text(st.characters()), st.text(st.characters(exclude_categories=["Cs"])))
def test_a_pending_turn_is_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, content: str, metadata: str
) -> None:
    """Messages may have line separators, lone surrogates and NUL."""
    file = SpoolFile.create(tmp_path_factory.mktemp("spool"))
    message = Message(
        role="user", content=content, id="m", sent_at=_NOW, tokens=3, metadata={metadata: [metadata]}, original=content
    )
    given_turn = Turn("room", (message,), "u1", "question", completes="partial")
    file.keep(PendingTurn("first", given_turn, _NOW))
    file.keep(entry("second"))
    assert [(kept.entry_id, kept.kept_at) for kept in read_entries(file.path)] == [("first", _NOW), ("second", _NOW)]
    assert read_entries(file.path)[0].turn == given_turn
    file.close()


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\r", "\n"])
def test_no_character_of_a_message_ends_its_line(tmp_path: Path, separator: str) -> None:
    """Python's line separators other than a newline do not end a line either."""
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first", f"a{separator}b"))
    assert read_entries(file.path)[0].turn.messages[0].content == f"a{separator}b"
    file.close()


def test_a_truncated_last_line_is_skipped(tmp_path: Path) -> None:
    """After a crash at any byte, earlier turns are read, and later turns are appended correctly."""
    file = SpoolFile.create(tmp_path / "whole")
    for name in ("first", "second", "torn"):
        file.keep(entry(name))
    whole = file.path.read_bytes()
    file.close()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole) - 1, 7):
        path = tmp_path / f"{cut}.pending.jsonl"
        path.write_bytes(whole[:cut])
        assert names(path) == ["first", "second"]
        taken = SpoolFile.take_over(path)
        assert taken is not None
        first, _ = taken.entries()
        taken.done(first)
        assert names(path) == ["second"]
        taken.keep(entry("third"))
        assert names(path) == ["second", "third"]
        taken.close()


def test_a_turn_that_this_version_cannot_read_is_kept(tmp_path: Path) -> None:
    """A line of a newer Threadkeep is moved to a separate file."""
    file = SpoolFile.create(tmp_path)
    file.keep(entry("newer"))
    file.close()
    strange = file.path.read_text().replace('"role"', '"rôle"')
    file.path.write_text(strange)
    taken = SpoolFile.take_over(file.path)
    assert taken is not None
    assert taken.entries() == []
    kept = entry("mine")
    taken.keep(kept)
    taken.done(kept)
    taken.close()
    [damaged] = damaged_turns(tmp_path)
    assert damaged.path.read_text() + "\n" == strange
    assert stat.S_IMODE(damaged.path.stat().st_mode) == 0o600
    assert spool_files(tmp_path) == []


def test_a_line_that_is_nested_too_deeply_is_set_aside(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first"))
    file.close()
    with file.path.open("ab") as damaged:
        damaged.write(b'{"a":' * 20_000 + b"\n")
    taken = SpoolFile.take_over(file.path)
    assert taken is not None
    assert len(taken.entries()) == 1
    taken.keep(entry("second"))
    assert names(file.path) == ["first", "second"]
    taken.close()
    assert len(damaged_turns(tmp_path)) == 1


def test_a_damaged_line_stays_in_its_file_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first"))
    file.close()
    file.path.write_bytes(b"#" + file.path.read_bytes())
    monkeypatch.setattr(spool, "set_aside", refuse)
    for _ in range(2):
        taken = SpoolFile.take_over(file.path)
        assert taken is not None
        assert taken.entries() == []
        taken.close()
        assert file.path.read_bytes().startswith(b"#")
    monkeypatch.undo()
    taken = SpoolFile.take_over(file.path)
    assert taken is not None
    assert taken.entries() == []
    taken.close()
    assert len(damaged_turns(tmp_path)) == 1


def test_the_file_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    """No other process can take over the file before its owner is killed; all turns are there afterwards."""
    child = Child(keep_and_wait, str(tmp_path))
    try:
        while not (spool_files(tmp_path) and len(names(spool_files(tmp_path)[0])) == 2):
            assert child.process.is_alive()
        [path] = spool_files(tmp_path)
        assert SpoolFile.take_over(path) is None
    finally:
        child.kill()
    taken = SpoolFile.take_over(path)
    assert taken is not None
    assert [kept.entry_id for kept in taken.entries()] == ["first", "second"]
    assert SpoolFile.take_over(path) is None
    taken.close()


def test_a_check_of_the_owner_does_not_prevent_a_takeover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared lock of a process that checks the owner delays a takeover only briefly."""
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first"))
    assert in_use(file.path)
    file.close()
    looker = os.open(file.path, os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(looker))
    taken = SpoolFile.take_over(file.path)
    assert taken is not None
    assert in_use(file.path)
    taken.close()
    assert not in_use(file.path)


def test_a_takeover_does_not_wait_forever_for_a_shared_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a suspended process keeps its shared lock, the service starts without the file."""
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first"))
    file.close()
    looker = os.open(file.path, os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert SpoolFile.take_over(file.path) is None
    os.close(looker)


def keep_and_wait(folder: str) -> None:
    """Write two turns, and wait until the process is killed."""
    file = SpoolFile.create(Path(folder))
    file.keep(entry("first"))
    file.keep(entry("second"))
    time.sleep(60)


def test_delivered_turns_are_removed_from_the_file(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path)
    kept = [entry(name) for name in ("first", "second", "third")]
    for each in kept:
        file.keep(each)
    file.done(kept[1])
    assert names(file.path) == ["first", "third"]
    file.done(kept[0])
    file.done(kept[2])
    assert file.path.read_bytes() == b""
    file.keep(kept[0])
    assert names(file.path) == ["first"]
    file.done(kept[0])
    file.close()
    assert spool_files(tmp_path) == []


def test_a_text_is_in_the_file_only_while_its_turn_is_pending(tmp_path: Path) -> None:
    """A changed turn, and one that an earlier version only marked as done, are removed too."""
    file = SpoolFile.create(tmp_path)
    kept = [entry(name, f"words of {name}") for name in ("first", "second", "third")]
    for each in (*kept, kept[0]):
        file.keep(each)
    file.done(kept[0])
    assert b"words of first" not in file.path.read_bytes()
    file.close()
    with file.path.open("ab") as earlier:
        earlier.write(b'{"done":"second"}\n#damaged words\n')
    assert b"words of second" in file.path.read_bytes()
    taken = SpoolFile.take_over(file.path)
    assert taken is not None
    assert [one.entry_id for one in taken.entries()] == ["third"]
    assert b"words of second" not in file.path.read_bytes()
    assert b"#damaged words" not in file.path.read_bytes()
    assert len(damaged_turns(tmp_path)) == 1
    taken.close()


def test_an_interrupted_removal_of_a_line_is_completed(tmp_path: Path) -> None:
    """A power failure may interrupt the removal after the first byte."""
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first"))
    file.close()
    file.path.write_bytes(b" " + file.path.read_bytes()[1:])
    assert spool.read_spool(file.path).empty


def test_pending_turns_stay_when_the_file_is_closed(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first"))
    file.close()
    assert names(file.path) == ["first"]


def test_a_turn_is_synced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synced after each line, and the folder after the file is created."""
    synced: list[tuple[int, int]] = []

    def note(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", note)
    file = SpoolFile.create(tmp_path)
    assert tmp_path.stat().st_ino in [inode for inode, _ in synced]
    file.keep(entry("first"))
    assert synced[-1] == (file.path.stat().st_ino, file.path.stat().st_size)
    file.done(entry("first"))
    assert synced[-1] == (file.path.stat().st_ino, 0)
    file.close()


def test_a_partial_write_on_a_full_disk_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first"))
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
    with pytest.raises(OSError, match="only a part"):
        file.keep(entry("second"))
    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(OSError, match="No space left"):
        file.keep(entry("third"))
    monkeypatch.undo()
    file.keep(entry("fourth"))
    assert names(file.path) == ["first", "fourth"]
    file.close()


def refuse(*_: object) -> int:
    """Raise as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_turn_that_is_not_json_is_refused(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path)
    bad = Message(role="user", content="hi", id="m", metadata={"score": 1.0})
    object.__setattr__(bad, "metadata", {"score": float("nan")})  # as if it was changed after its creation
    with pytest.raises(InvalidMessage):
        file.keep(PendingTurn("first", Turn("room", (bad,)), _NOW))
    assert file.path.read_bytes() == b""
    file.close()


def test_a_file_is_visible_only_when_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts at that moment cannot take the file for that of a dead process."""
    seen: list[list[Path]] = []
    flock = fcntl.flock

    def look(descriptor: int, operation: int) -> None:
        seen.append(spool_files(tmp_path))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", look)
    file = SpoolFile.create(tmp_path)
    assert seen == [[]]
    assert spool_files(tmp_path) == [file.path]
    file.close()


def test_only_the_user_of_the_process_may_read_pending_turns(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path / "pending")
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    file.keep(entry("first"))
    file.close()
    file.path.chmod(0o666)
    taken = SpoolFile.take_over(file.path)
    assert taken is not None
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    taken.close()
