"""Unreadable lines of pending files; each is kept in a separate file until a person repairs or drops it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_PREFIX = "damaged-"
_SUFFIX = ".line"


@dataclass(frozen=True)
class DamagedTurn:
    """An unreadable line with its size in bytes. `path` is its own file, or the pending file that still contains it.

    `entry_id` is a digest of its bytes, so the same line has the same id in any file.
    """

    entry_id: str
    path: Path
    size: int
    found_at: datetime


def damaged_id(line: bytes) -> str:
    """Return the id of an unreadable line."""
    return _PREFIX + hashlib.sha256(line).hexdigest()[:16]


def set_aside(folder: Path, line: bytes) -> str:
    """Write an unreadable line durably to a separate file, and return its id. Blocking I/O."""
    name = damaged_id(line)
    path = folder / f"{name}{_SUFFIX}"
    unnamed = path.with_suffix(f".{os.getpid()}.new")
    descriptor = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(line)
        file.flush()
        os.fsync(descriptor)
    unnamed.rename(path)
    sync_folder(folder)
    return name


def damaged_files(folder: Path) -> list[Path]:
    """Return the files of the unreadable lines of a folder."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*{_SUFFIX}") if path.is_file()) if folder.is_dir() else []


def damaged_turns(folder: Path) -> list[DamagedTurn]:
    """Return the unreadable lines in separate files of a folder, oldest first. Blocking I/O."""
    found = [(path, path.stat()) for path in damaged_files(folder)]
    turns = [DamagedTurn(path.stem, path, stat.st_size, _time(stat.st_mtime)) for path, stat in found]
    return sorted(turns, key=lambda turn: turn.found_at)


def damaged_lines(path: Path, lines: Iterable[bytes]) -> list[DamagedTurn]:
    """Return the unreadable lines of a pending file that was not taken over yet."""
    changed_at = _time(path.stat().st_mtime)
    return [DamagedTurn(damaged_id(line), path, len(line), changed_at) for line in lines]


def drop_damaged(folder: Path, entry_id: str) -> bool:
    """Drop an unreadable line for good; return False if the folder has no file for it. Blocking I/O."""
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
