"""Pending turns on disk: what is there after a crash, whose file it is, and that nothing is lost on the way."""

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
from threadkeep.store.spool import PendingTurn, SpoolFile, damaged_turns, in_use, read_entries, spool_files

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entry(name: str, content: str = "hi") -> PendingTurn:
    """A turn to keep."""
    messages = (Message(role="user", content=content, id=f"{name}:1"), Message(role="assistant", content="ok", id=name))
    return PendingTurn(name, Turn("room", messages, "u1"), _NOW)


def names(path: Path) -> list[str]:
    """The turns that a file keeps."""
    return [kept.entry_id for kept in read_entries(path)]


@given(st.text(st.characters()), st.text(st.characters(exclude_categories=["Cs"])))
def test_a_kept_turn_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, content: str, metadata: str
) -> None:
    """Whatever its characters: separators of lines, lone surrogates, NUL, other languages."""
    file = SpoolFile.create(tmp_path_factory.mktemp("spool"))
    message = Message(
        role="user", content=content, id="m", sent_at=_NOW, tokens=3, metadata={metadata: [metadata]}, original=content
    )
    given_turn = Turn("room", (message,), "u1")
    file.keep(PendingTurn("first", given_turn, _NOW))
    file.keep(entry("second"))
    assert [(kept.entry_id, kept.kept_at) for kept in read_entries(file.path)] == [("first", _NOW), ("second", _NOW)]
    assert read_entries(file.path)[0].turn == given_turn
    file.close()


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\r", "\n"])
def test_no_character_of_a_message_ends_its_line(tmp_path: Path, separator: str) -> None:
    """Those that Python takes for the end of a line too."""
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first", f"a{separator}b"))
    assert read_entries(file.path)[0].turn.messages[0].content == f"a{separator}b"
    file.close()


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    """Wherever the crash cut it, the turns before it are there, and what is written after it counts."""
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


def test_a_turn_that_this_version_cannot_read_is_not_thrown_away(tmp_path: Path) -> None:
    """A line of a newer Threadkeep goes to a file of its own, which this version does not touch."""
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


def test_a_line_that_is_nested_too_deeply_is_kept_aside(tmp_path: Path) -> None:
    """The turns before and behind it are delivered."""
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


def test_a_line_stays_in_its_file_if_it_cannot_get_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full: nothing is thrown away, and the next start tries again."""
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


def test_the_file_of_a_living_process_is_left_alone_and_that_of_a_killed_one_taken_over(tmp_path: Path) -> None:
    """A real process, a real kill -9: before it nobody gets the file, after it all that was kept is there."""
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


def test_who_looks_from_outside_keeps_nobody_from_taking_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that starts while somebody asks whether the owner lives gets the file a moment later."""
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


def test_who_looks_for_ever_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that was stopped half-way keeps its lock; the service starts without the file."""
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first"))
    file.close()
    looker = os.open(file.path, os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert SpoolFile.take_over(file.path) is None
    os.close(looker)


def keep_and_wait(folder: str) -> None:
    """What the process does until it is killed."""
    file = SpoolFile.create(Path(folder))
    file.keep(entry("first"))
    file.keep(entry("second"))
    time.sleep(60)


def test_what_is_done_is_forgotten_and_an_empty_file_goes(tmp_path: Path) -> None:
    """In any order; the file is empty when nothing is left, and removed when it is closed."""
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
    """Also a changed turn, and one that an earlier version has only marked as done; the others stay."""
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


def test_a_line_whose_removal_was_cut_off_is_removed(tmp_path: Path) -> None:
    """The machine lost power after the first byte."""
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first"))
    file.close()
    file.path.write_bytes(b" " + file.path.read_bytes()[1:])
    assert spool.read_spool(file.path).empty


def test_what_still_waits_stays_when_the_file_is_closed(tmp_path: Path) -> None:
    """For the next start."""
    file = SpoolFile.create(tmp_path)
    file.keep(entry("first"))
    file.close()
    assert names(file.path) == ["first"]


def test_a_turn_is_on_disk_before_anybody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synced after its line was written, and the folder after the file was made."""
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


def test_a_full_disk_leaves_the_lines_before_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes half a line and no more: it is told, the half is taken back, and later lines can be read."""
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
    """A disk without room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    """And leaves the file as it was."""
    file = SpoolFile.create(tmp_path)
    bad = Message(role="user", content="hi", id="m", metadata={"score": 1.0})
    object.__setattr__(bad, "metadata", {"score": float("nan")})  # as if somebody had got at it since
    with pytest.raises(InvalidMessage):
        file.keep(PendingTurn("first", Turn("room", (bad,)), _NOW))
    assert file.path.read_bytes() == b""
    file.close()


def test_a_file_is_seen_by_others_only_with_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who starts at that moment can take it for that of a dead process."""
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


def test_only_their_user_may_read_pending_turns(tmp_path: Path) -> None:
    """They are what people said."""
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
