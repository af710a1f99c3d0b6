"""Holders of locks on a SQLite file, from the Linux kernel, for processes that this one can see."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from threadkeep.store.condition import LockHolder

# Bytes of the -shm file that SQLite locks in WAL mode (wal.c), and of the database file otherwise (os_unix.c).
_WAL_WRITE = 120
_RESERVED = 0x40000001


class _Lock(NamedTuple):
    exclusive: bool
    pid: int
    inode: int
    first: int
    last: int | None


def lock_holders(path: Path, *, locks: Path = Path("/proc/locks")) -> tuple[LockHolder, ...]:
    """Return the other processes that use a SQLite file, writers first."""
    inodes = {_inode(path): _RESERVED, _inode(path.with_name(path.name + "-shm")): _WAL_WRITE}
    writes: dict[int, bool] = {}
    for lock in _locks(locks):
        if lock.inode in inodes and lock.pid != os.getpid():
            byte = inodes[lock.inode]
            held = lock.exclusive and lock.first <= byte and (lock.last is None or byte <= lock.last)
            writes[lock.pid] = writes.get(lock.pid, False) or held
    ordered = sorted(writes.items(), key=lambda item: (not item[1], item[0]))
    return tuple(
        LockHolder(pid if pid > 0 else None, _name(pid), "writing" if writing else "open") for pid, writing in ordered
    )


def _locks(locks: Path) -> Iterator[_Lock]:
    try:
        lines = locks.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        # Format: "12: POSIX ADVISORY WRITE 4711 fd:01:1835023 120 120", and "->" before the kind of waiting locks.
        words = line.split()
        if len(words) != 8 or words[1] not in ("POSIX", "OFDLCK"):
            continue
        _, _, _, mode, pid, place, first, last = words
        inode = int(place.rpartition(":")[2])
        yield _Lock(mode == "WRITE", int(pid), inode, int(first), None if last == "EOF" else int(last))


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
