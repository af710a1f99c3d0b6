"""Pending turns on disk, in the files of this process and of other processes.

The turns can be listed and dropped without the database, which may be down at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from threadkeep.errors import PendingFolderUnusable, ThreadkeepError
from threadkeep.records import Turn
from threadkeep.store.private_files import in_use, make_private_folder
from threadkeep.store.spool import (
    DamagedTurn,
    PendingTurn,
    SpoolContent,
    SpoolFile,
    damaged_files,
    damaged_lines,
    damaged_turns,
    drop_damaged,
    read_entries,
    read_spool,
    read_turn,
    spool_files,
)

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


def check_folder(folder: Path) -> None:
    """Create a folder, and check that files can be written there; a full disk is accepted. This is blocking I/O.

    Raises:
        PendingFolderUnusable: the folder cannot be used; the error names the folder and the cure.
    """
    try:
        make_private_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise PendingFolderUnusable(folder, error) from error


class PendingFiles:
    """The files of pending turns of this process; without a folder, nothing is written.

    Only one write runs at a time, so that a turn can be dropped while it is being written to disk.
    """

    def __init__(self, folder: Path | None) -> None:
        self.writing = asyncio.Lock()
        self._folder = folder
        self._own: SpoolFile | None = None
        self._adopted: list[SpoolFile] = []

    @property
    def on_disk(self) -> bool:
        """True if turns that wait to be written are kept on disk; False if the database is in memory."""
        return self._folder is not None

    async def take_over(self) -> list[PendingTurn]:
        """Take over and return the pending turns of dead processes, and turns from lines that a person has repaired.

        Raises:
            PendingFolderUnusable: the folder cannot store turns, or a file in it cannot be opened.
        """
        if self._folder is None:
            return []
        try:
            return await asyncio.to_thread(self._take_over, self._folder)
        except PendingFolderUnusable:
            raise
        except OSError as error:
            raise PendingFolderUnusable(self._folder, error) from error

    def _take_over(self, folder: Path) -> list[PendingTurn]:
        check_folder(folder)
        kept: list[PendingTurn] = []
        for path in spool_files(folder):
            if file := SpoolFile.take_over(path):
                self._adopted.append(file)
                kept += file.entries()
        for path in damaged_files(folder):
            # A person has repaired this line, or an older version could not read it.
            if (entry := read_turn(path.read_bytes())) is not None:
                self._own = self._own or SpoolFile.create(folder)
                self._own.keep(entry)
                path.unlink(missing_ok=True)
                kept.append(entry)
        return kept

    async def damaged(self) -> list[DamagedTurn]:
        """Return the unreadable lines of pending files, oldest first. Each was moved to a file of its own."""
        return await asyncio.to_thread(damaged_turns, self._folder) if self._folder is not None else []

    async def drop_damaged(self, entry_id: str) -> bool:
        """Drop an unreadable line that was moved to a file of its own; return False if there is no such line."""
        return self._folder is not None and await asyncio.to_thread(drop_damaged, self._folder, entry_id)

    async def of_others(self, session_id: str) -> list[Turn]:
        """Return a session's pending turns in the files of other processes, oldest first."""
        if self._folder is None:
            return []
        own = {file.path for file in self._files()}
        found: list[Turn] = []
        for path in await asyncio.to_thread(spool_files, self._folder):
            if path not in own:
                found += [entry.turn for entry in await asyncio.to_thread(read_entries, path)]
        return [turn for turn in found if turn.session_id == session_id]

    async def keep(self, waiting: Sequence[PendingTurn], failed: Callable[[Turn, OSError], None]) -> None:
        """Write the pending turns that are not on disk yet; if the disk fails, call `failed` and stop.

        If another program has removed or replaced a file, its turns are written to a new file.
        """
        if self._folder is None or not waiting:
            return
        async with self.writing:
            await asyncio.to_thread(self._abandon_lost, waiting)
            for entry in [entry for entry in waiting if entry.file is None]:
                try:
                    if self._own is None:
                        self._own = await asyncio.to_thread(SpoolFile.create, self._folder)
                    await asyncio.to_thread(self._own.keep, entry)
                except OSError as error:
                    failed(entry.turn, error)
                    return

    def _abandon_lost(self, waiting: Sequence[PendingTurn]) -> None:
        lost = [file for file in self._files() if not file.is_there]
        for entry in waiting:
            if entry.file in lost:
                entry.file = None
        for file in lost:
            file.abandon()
        self._adopted = [file for file in self._adopted if file not in lost]
        self._own = None if self._own in lost else self._own

    def _files(self) -> list[SpoolFile]:
        return [*self._adopted, *([self._own] if self._own else [])]

    async def note(self, entry: PendingTurn) -> None:
        """Record the last error of a pending turn in its file, for other processes."""
        with contextlib.suppress(OSError):  # the turn itself is safe
            await self._change(entry, SpoolFile.failed)

    async def renew(self, entry: PendingTurn) -> None:
        """Replace a pending turn in its file, because the turn has changed."""
        with contextlib.suppress(OSError):  # the earlier version stays on disk
            await self._change(entry, SpoolFile.renew)

    async def done(self, entry: PendingTurn) -> None:
        """Remove a turn from its file, because it is no longer pending. If a write is in progress, wait for its end."""
        await self._change(entry, SpoolFile.done)

    async def _change(self, entry: PendingTurn, change: Callable[[SpoolFile, PendingTurn], None]) -> None:
        async with self.writing:
            if entry.file is not None:
                await asyncio.to_thread(change, entry.file, entry)

    async def close(self) -> None:
        """Close the files; turns that are still pending are written to the database after the next start."""
        for file in self._files():
            await asyncio.to_thread(file.close)


@dataclass(frozen=True)
class WaitingFile:
    """A file of turns that wait to be written by its process or, if this process is dead, by the next process."""

    path: Path
    live: bool
    entries: tuple[PendingTurn, ...]


class EntryInUse(ThreadkeepError):
    """The process of the turn is alive and may still write it, so nothing was dropped."""


def waiting_files(folder: Path) -> list[WaitingFile]:
    """Return all files with pending turns in a database's folder and subfolders, oldest first. This is blocking I/O."""
    found = [(path, *_content(path)) for path in _paths(folder)]
    return [WaitingFile(path, live, tuple(content.turns)) for path, live, content in found if content.turns]


def unreadable_turns(folder: Path) -> list[DamagedTurn]:
    """Return the unreadable lines of files with pending turns in a database's folder."""
    found = {turn.entry_id: turn for each in _folders(folder) for turn in damaged_turns(each)}
    for path in _paths(folder):
        for turn in damaged_lines(path, _content(path)[1].unreadable):
            found.setdefault(turn.entry_id, turn)
    return list(found.values())


def _folders(folder: Path) -> list[Path]:
    below = [inner for inner in folder.iterdir() if inner.is_dir()] if folder.is_dir() else []
    return [folder, *below]


def _paths(folder: Path) -> list[Path]:
    return sorted((path for each in _folders(folder) for path in spool_files(each)), key=lambda path: path.name)


def _content(path: Path) -> tuple[bool, SpoolContent]:
    """Return a pair: True if the process that writes this file is alive (more may be written), and the content."""
    live = in_use(path)
    return live, read_spool(path, cut_off=not live)


def drop_waiting(folder: Path, entry_id: str) -> PendingTurn | None:
    """Drop a pending turn and return it, or None if no file has it. This is blocking I/O.

    Raises:
        EntryInUse: the process of the turn is alive and may still write it.
    """
    for waiting in waiting_files(folder):
        if entry_id not in [entry.entry_id for entry in waiting.entries]:
            continue
        file = SpoolFile.take_over(waiting.path)
        if file is None:
            raise EntryInUse(
                "The process of this turn is running and still tries to write it: stop that process first, "
                "or repair the database."
            )
        try:
            for entry in file.entries():
                if entry.entry_id == entry_id:
                    file.done(entry)
                    return entry
        finally:
            file.close()
    return None


def drop_unreadable(folder: Path, entry_id: str) -> bool:
    """Permanently drop an unreadable line; return False if there is no such line. This is blocking I/O.

    Raises:
        EntryInUse: the line is in the file of a live process.
    """
    for turn in unreadable_turns(folder):
        if turn.entry_id != entry_id:
            continue
        if turn.path.stem != entry_id:
            # The line is still in a pending file, so call `entries`, which moves it to a file of its own.
            if (file := SpoolFile.take_over(turn.path)) is None:
                raise EntryInUse("The process of this file is running: stop it first, or wait until it is done.")
            file.entries()
            file.close()
        return drop_damaged(turn.path.parent, entry_id)
    return False


def discard_waiting(folder: Path, matches: Callable[[Turn], bool]) -> None:
    """Drop matching turns from the files of dead processes. This is blocking I/O.

    Texts of turns that were stored or dropped before are also removed from the disk.
    """
    for path in _paths(folder):
        content = read_spool(path)
        if not content.stale and not any(matches(entry.turn) for entry in content.turns):
            continue
        if (file := SpoolFile.take_over(path)) is None:
            continue
        for entry in file.entries():
            if matches(entry.turn):
                file.done(entry)
        file.close()
