"""Turns that no database would take, in a file of this process, on disk before anybody is told that they are kept.

Each process writes a file of its own and holds a lock on it while it lives. The files of processes that died are found
without their locks and taken over, so what they kept is delivered by whoever starts next.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import ThreadkeepError, WrongUser
from threadkeep.records import Message, Turn, dump_json

_SUFFIX = ".pending.jsonl"
_LOOKS = 100
_LOOK_SECONDS = 0.005


@dataclass(eq=False)
class KeptTurn:
    """A turn that waits to be written. `error` is the name of the last error's class; `tries` are of this process."""

    entry_id: str
    turn: Turn
    kept_at: datetime
    tries: int = 0
    error: str | None = None
    file: SpoolFile | None = field(default=None, repr=False)

    @property
    def refused(self) -> bool:
        """Whether time cannot help, as the session is another user's: a person drops it, and nobody waits behind it."""
        return self.error == WrongUser.__name__


class SpoolFile:
    """One file of kept turns, locked while it is open. Every method does blocking I/O: call them in a thread."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._open_entries: set[str] = set()
        self._has_unreadable = False

    @classmethod
    def create(cls, folder: Path) -> SpoolFile:
        """A new file of this process."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{uuid7()}{_SUFFIX}"
        # Locked before it has its name: else who starts now could take it for the file of a dead process.
        unnamed = path.with_suffix(".new")
        descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(path)
        _sync_folder(folder)
        return cls(path, descriptor)

    @classmethod
    def take_over(cls, path: Path) -> SpoolFile | None:
        """The file of a process that is gone; None while its process lives."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            return None
        if not _own(descriptor):
            os.close(descriptor)
            return None
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            # A line that a crash cut off: what is written next must not become a part of it.
            os.write(descriptor, b"\n")
        return cls(path, descriptor)

    def entries(self) -> list[KeptTurn]:
        """What the file still keeps, oldest first."""
        kept, self._has_unreadable = _read(self.path)
        for entry in kept:
            entry.file = self
        self._open_entries = {entry.entry_id for entry in kept}
        return kept

    def keep(self, entry: KeptTurn) -> None:
        """Put a turn on disk; it is there when this returns."""
        self._append(
            {
                "entry": entry.entry_id,
                "kept_at": entry.kept_at.isoformat(),
                "session_id": entry.turn.session_id,
                "user_id": entry.turn.user_id,
                "answers": entry.turn.answers,
                "messages": [message.to_dict() for message in entry.turn.messages],
            }
        )
        self._open_entries.add(entry.entry_id)
        entry.file = self

    def failed(self, entry: KeptTurn) -> None:
        """Put on disk why a turn still waits, for those who look from outside."""
        self._append({"failed": entry.entry_id, "error": entry.error})

    def done(self, entry: KeptTurn) -> None:
        """Forget a turn that was written or dropped. When nothing is left the file is emptied."""
        self._open_entries.discard(entry.entry_id)
        if self._open_entries or self._has_unreadable:
            self._append({"done": entry.entry_id})
        else:
            os.ftruncate(self._descriptor, 0)
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of the file; one that keeps nothing is removed."""
        if not self._open_entries and _read(self.path) == ([], False):
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _append(self, line: dict[str, Any]) -> None:
        dump_json(line)  # refuses what is no JSON
        # ASCII alone: no character of a message ends a line or is lost on the way.
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        size = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, data) != len(data):
                raise OSError("the disk took only a part of a pending turn")
            os.fsync(self._descriptor)
        except OSError:
            # Half a line would hide the next one.
            os.ftruncate(self._descriptor, size)
            raise


def spool_files(folder: Path) -> list[Path]:
    """All files of kept turns in a folder, oldest first."""
    return sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []


def in_use(path: Path) -> bool:
    """Whether the process that writes a file, or one that took it over, still lives.

    Asking takes a shared lock for a moment, which `take_over` waits out.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _own(descriptor: int) -> bool:
    """Lock a file for its owner, once those have gone who only look whether there is one."""
    for _ in range(_LOOKS):
        if _locked(descriptor, fcntl.LOCK_EX):
            return True
        if not _locked(descriptor, fcntl.LOCK_SH):
            return False
        # Those who look share the lock, an owner does not: it was one of them.
        time.sleep(_LOOK_SECONDS)
    return False


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_entries(path: Path) -> list[KeptTurn]:
    """What a file keeps, oldest first, without locking it. A last line that was cut off by a crash is left out."""
    return _read(path)[0]


def _read(path: Path) -> tuple[list[KeptTurn], bool]:
    """What a file keeps, and whether it has whole lines that are not understood: those of a newer version, perhaps."""
    kept: dict[str, KeptTurn] = {}
    unreadable = False
    for line in _lines(path):
        if "done" in line:
            kept.pop(str(line["done"]), None)
            continue
        if "failed" in line:
            if entry := kept.get(str(line["failed"])):
                entry.error = str(line.get("error"))
            continue
        try:
            messages = tuple(Message.from_dict(values) for values in line["messages"])
            turn = Turn(line["session_id"], messages, line["user_id"], line.get("answers"))
            kept[line["entry"]] = KeptTurn(line["entry"], turn, datetime.fromisoformat(line["kept_at"]))
        except (KeyError, TypeError, ValueError, ThreadkeepError):
            unreadable = True
    return list(kept.values()), unreadable


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for line in text.split("\n"):
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict):
            yield values


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
