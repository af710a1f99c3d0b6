"""Files for turns that the database did not accept, written before the caller gets a reply.

Each process has its own file, which it keeps locked while it runs. The next process that starts takes over the files of
dead processes and writes their turns to the database. Each unreadable line is moved to a separate file, where it stays
until a person repairs or drops it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import ThreadkeepError, WrongUser
from threadkeep.records import Message, Turn, dump_json
from threadkeep.store.private_files import give_to_owner, lock_at_once, make_private_folder, tighten

_PREFIX = "damaged-"
_LINE_SUFFIX = ".line"


@dataclass(frozen=True)
class DamagedTurn:
    """A line of `size` bytes in the file `path` that cannot be read as a turn.

    `entry_id` is a digest of the bytes, so the same line has the same id in any file.
    """

    entry_id: str
    path: Path
    size: int
    found_at: datetime


def damaged_id(line: bytes) -> str:
    """Return the id of an unreadable line, a digest of its bytes."""
    return _PREFIX + hashlib.sha256(line).hexdigest()[:16]


def set_aside(folder: Path, line: bytes) -> str:
    """Write an unreadable spool line durably to a separate file; return the line's id. This is blocking I/O."""
    name = damaged_id(line)
    path = folder / f"{name}{_LINE_SUFFIX}"
    unnamed = path.with_suffix(f".{os.getpid()}.new")
    descriptor = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        give_to_owner(descriptor, folder)
        file.write(line)
        file.flush()
        os.fsync(descriptor)
    unnamed.rename(path)
    sync_folder(folder)
    return name


def damaged_files(folder: Path) -> list[Path]:
    """Return the files that store the unreadable lines of a folder's spool files."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*{_LINE_SUFFIX}") if path.is_file())


def damaged_turns(folder: Path) -> list[DamagedTurn]:
    """Return the unreadable lines that were moved to separate files of a folder, oldest first. This is blocking I/O."""
    found = [(path, path.stat()) for path in damaged_files(folder)]
    turns = [DamagedTurn(path.stem, path, stat.st_size, _time(stat.st_mtime)) for path, stat in found]
    return sorted(turns, key=lambda turn: turn.found_at)


def damaged_lines(path: Path, lines: Iterable[bytes]) -> list[DamagedTurn]:
    """Return a `DamagedTurn` for each of these unreadable lines of a spool file."""
    changed_at = _time(path.stat().st_mtime)
    return [DamagedTurn(damaged_id(line), path, len(line), changed_at) for line in lines]


def drop_damaged(folder: Path, entry_id: str) -> bool:
    """Permanently drop an unreadable line; return False if there is no file for it. This is blocking I/O."""
    for path in damaged_files(folder):
        if path.stem == entry_id:
            path.unlink(missing_ok=True)
            sync_folder(folder)
            return True
    return False


def sync_folder(folder: Path) -> None:
    """Make the creation and removal of files in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


type Range = tuple[int, int]
"""A line of a file: the offset of its first byte, and its length without the line break."""

_SUFFIX = ".pending.jsonl"
_REMOVED = b" "
_LOOKS = 100
_LOOK_SECONDS = 0.005


@dataclass(eq=False)
class PendingTurn:
    """A turn that waits to be stored in the database. `tries` counts the attempts of this process.

    `error` is the class name of the last error. `namespace` is set if the turn belongs in a graph store.
    """

    entry_id: str
    turn: Turn
    kept_at: datetime
    tries: int = 0
    error: str | None = None
    namespace: tuple[str, ...] = ()
    file: SpoolFile | None = field(default=None, repr=False)

    @property
    def refused(self) -> bool:
        """True if retries cannot help, because the session belongs to another user."""
        return self.error == WrongUser.__name__


class SpoolFile:
    """A file of turns that the database does not have yet, locked while open. All methods block: use a thread."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._ranges: dict[str, list[Range]] = {}
        """The lines of each turn that is still pending."""
        self._has_unreadable = False

    @classmethod
    def create(cls, folder: Path) -> SpoolFile:
        """Create the spool file of this process, and lock it."""
        make_private_folder(folder)
        path = folder / f"{uuid7()}{_SUFFIX}"
        # Lock the file before it gets its final name; otherwise a starting process could take it over.
        unnamed = path.with_suffix(".new")
        descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        give_to_owner(descriptor, folder)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(path)
        sync_folder(folder)
        return cls(path, descriptor)

    @classmethod
    def take_over(cls, path: Path) -> SpoolFile | None:
        """Open and lock the spool file of a dead process; return None if the process is alive or the file is gone."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        if not _own(descriptor):
            os.close(descriptor)
            return None
        tighten(path)
        size = os.lseek(descriptor, 0, os.SEEK_END)
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            # End a line that a crash truncated, so that the next write begins a new line.
            os.write(descriptor, b"\n")
        return cls(path, descriptor)

    @property
    def is_there(self) -> bool:
        """True if the path still names this open file; data written to a removed file is lost."""
        try:
            named = self.path.stat()
        except OSError:
            return False
        return os.path.samestat(named, os.fstat(self._descriptor))

    def entries(self) -> list[PendingTurn]:
        """Return the turns in the file, oldest first.

        Unreadable lines are moved to separate files. Turns that are not pending any more are overwritten.
        """
        content = read_spool(self.path)
        for entry in content.turns:
            entry.file = self
        self._ranges = {entry.entry_id: content.ranges[entry.entry_id] for entry in content.turns}
        self._has_unreadable = bool(content.unreadable)
        try:
            self._overwrite(content.stale)
            for line in content.unreadable:
                self._overwrite(content.ranges[set_aside(self.path.parent, line)])
        except OSError:
            return content.turns  # the lines stay in this file, which is therefore never emptied
        self._has_unreadable = False
        return content.turns

    def keep(self, entry: PendingTurn) -> None:
        """Write a turn to the file; it is durable when this method returns."""
        line = self._append(
            {
                "entry": entry.entry_id,
                "kept_at": entry.kept_at.isoformat(),
                "session_id": entry.turn.session_id,
                "user_id": entry.turn.user_id,
                "answers": entry.turn.answers,
                "completes": entry.turn.completes,
                "workspace": entry.turn.workspace,
                "parent": entry.turn.parent,
                "told_at": entry.turn.told_at and entry.turn.told_at.isoformat(),
                "messages": [message.to_dict() for message in entry.turn.messages],
            }
        )
        self._ranges.setdefault(entry.entry_id, []).append(line)
        entry.file = self

    def renew(self, entry: PendingTurn) -> None:
        """Write a changed turn to the file again, unless it has been stored or dropped since."""
        if entry.entry_id in self._ranges:
            self.keep(entry)

    def failed(self, entry: PendingTurn) -> None:
        """Record the last error of a pending turn, so that other processes can read it."""
        self._append({"failed": entry.entry_id, "error": entry.error})

    def done(self, entry: PendingTurn) -> None:
        """Overwrite a turn that is stored or dropped; empty the file if nothing is left."""
        lines = self._ranges.pop(entry.entry_id, [])
        if self._ranges or self._has_unreadable:
            self._overwrite(lines)
        else:
            self.clear()

    def clear(self) -> None:
        """Empty the file after its turns were stored elsewhere, but leave a file with unreadable lines as it is."""
        self._ranges.clear()
        if not self._has_unreadable:
            os.ftruncate(self._descriptor, 0)
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; remove it if it has no turns and no unreadable lines."""
        if not self._ranges and read_spool(self.path).empty:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def abandon(self) -> None:
        """Close a file that was removed or replaced, without removing the file at its path."""
        os.close(self._descriptor)

    def _overwrite(self, lines: Sequence[Range]) -> None:
        """Overwrite lines with spaces, because texts must not stay in the file when their turn is no longer pending.

        The first bytes are durable before the rest is written, so a line counts as removed even after a crash.
        """
        if lines:
            for offset, _ in lines:
                os.pwrite(self._descriptor, _REMOVED, offset)
            os.fsync(self._descriptor)
            for offset, length in lines:
                os.pwrite(self._descriptor, _REMOVED * length, offset)

    def _append(self, line: dict[str, Any]) -> Range:
        dump_json(line)  # rejects NaN and keys that are not text, which `json.dumps` accepts
        # Escape to ASCII, so that no character ends the line or fails to encode.
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        size = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            if os.write(self._descriptor, data) != len(data):
                raise OSError("only a part of a pending turn could be written to disk")
            os.fsync(self._descriptor)
        except OSError:
            # Remove the partial line, which would make the next line unreadable.
            os.ftruncate(self._descriptor, size)
            raise
        return size, len(data) - 1


def spool_files(folder: Path) -> list[Path]:
    """Return all spool files of a folder, oldest first."""
    return sorted(path for path in folder.glob(f"*{_SUFFIX}") if path.is_file()) if folder.is_dir() else []


def _own(descriptor: int) -> bool:
    """Lock a file exclusively; return False if another process owns it."""
    for _ in range(_LOOKS):
        if lock_at_once(descriptor, fcntl.LOCK_EX):
            return True
        if not lock_at_once(descriptor, fcntl.LOCK_SH):
            return False
        # Another process has a shared lock for a short check, so try again.
        time.sleep(_LOOK_SECONDS)
    return False


@dataclass(frozen=True)
class SpoolContent:
    """The turns in a spool file, oldest first, and its unreadable lines.

    `ranges` maps the id of each turn and of each unreadable line to its lines in the file. `stale`: the lines of
    turns that were already stored, and of turns and unreadable lines that were dropped.
    """

    turns: list[PendingTurn]
    unreadable: list[bytes]
    ranges: dict[str, list[Range]] = field(default_factory=dict)
    stale: list[Range] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """True if there are no turns and no unreadable lines."""
        return not self.turns and not self.unreadable


def read_entries(path: Path) -> list[PendingTurn]:
    """Return the turns in a spool file, oldest first, without locking it."""
    return read_spool(path).turns


def read_spool(path: Path, *, cut_off: bool = False) -> SpoolContent:
    """Return the content of a spool file, without locking it.

    A last line without a line end is only read if `cut_off` is true, because another process may still be writing it.
    """
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return SpoolContent([], [])
    kept: dict[str, PendingTurn] = {}
    unreadable: dict[str, bytes] = {}
    ranges: dict[str, list[Range]] = defaultdict(list)
    following = 0
    for line in [*lines, rest] if cut_off else lines:
        offset, following = following, following + len(line) + 1
        if line.startswith(_REMOVED):
            continue
        values = _values(line)
        if values is not None and "done" in values:
            kept.pop(str(values["done"]), None)
            unreadable.pop(str(values["done"]), None)
        elif values is not None and "failed" in values:
            if entry := kept.get(str(values["failed"])):
                entry.error = str(values.get("error"))
        elif (entry := read_turn(line)) is not None:
            kept[entry.entry_id] = entry
            ranges[entry.entry_id].append((offset, len(line)))
        elif line.strip():
            unreadable[damaged_id(line)] = line
            ranges[damaged_id(line)].append((offset, len(line)))
    stale = [line for name, found in ranges.items() if name not in kept and name not in unreadable for line in found]
    return SpoolContent(list(kept.values()), list(unreadable.values()), ranges, stale)


def read_turn(line: bytes) -> PendingTurn | None:
    """Return the turn in a line of a spool file, or None if this version of Threadkeep cannot read it."""
    values = _values(line)
    if values is None:
        return None
    try:
        turn = Turn(
            values["session_id"],
            tuple(Message.from_dict(message) for message in values["messages"]),
            values["user_id"],
            values.get("answers"),
            completes=values.get("completes"),
            told_at=datetime.fromisoformat(values["told_at"]) if values.get("told_at") else None,
            workspace=values.get("workspace"),
            parent=tuple(values["parent"]) if values.get("parent") else None,
        )
        return PendingTurn(values["entry"], turn, datetime.fromisoformat(values["kept_at"]))
    except (KeyError, TypeError, ValueError, ThreadkeepError):
        return None


def _values(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
