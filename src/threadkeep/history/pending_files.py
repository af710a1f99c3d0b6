"""Pending turns on disk: in the file of this process, and in files of processes that died."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from threadkeep.errors import PendingFolderUnusable
from threadkeep.records import Turn
from threadkeep.store.damaged_turns import DamagedTurn, damaged_files, damaged_turns, drop_damaged
from threadkeep.store.private_files import make_private_folder
from threadkeep.store.spool import PendingTurn, SpoolFile, read_entries, read_turn, spool_files

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


def check_folder(folder: Path) -> None:
    """Check that a folder can hold files, and create it; a full disk passes. Blocking I/O.

    Raises:
        PendingFolderUnusable: names the folder and the cure.
    """
    try:
        make_private_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise PendingFolderUnusable(folder, error) from error


class PendingFiles:
    """The spool files of this process in a folder; without a folder nothing is written.

    One write at a time: a turn may be dropped while it is being written to disk.
    """

    def __init__(self, folder: Path | None) -> None:
        self.writing = asyncio.Lock()
        self._folder = folder
        self._own: SpoolFile | None = None
        self._adopted: list[SpoolFile] = []

    @property
    def on_disk(self) -> bool:
        """True if pending turns are written to disk; False for a database in memory."""
        return self._folder is not None

    async def take_over(self) -> list[PendingTurn]:
        """Return the pending turns of dead processes; this process owns them from now on.

        Raises:
            PendingFolderUnusable: no turn could be kept in the folder, or a file in it cannot be opened.
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
            # A person has repaired it, or this version is newer than the one that could not read it.
            if (entry := read_turn(path.read_bytes())) is not None:
                self._own = self._own or SpoolFile.create(folder)
                self._own.keep(entry)
                path.unlink(missing_ok=True)
                kept.append(entry)
        return kept

    async def damaged(self) -> list[DamagedTurn]:
        """Return the lines of pending files that cannot be read, oldest first."""
        return await asyncio.to_thread(damaged_turns, self._folder) if self._folder is not None else []

    async def drop_damaged(self, entry_id: str) -> bool:
        """Drop a line that cannot be read; return False if it is not there."""
        return self._folder is not None and await asyncio.to_thread(drop_damaged, self._folder, entry_id)

    async def of_others(self, session_id: str) -> list[Turn]:
        """Return the turns of a session that wait in the files of other processes, oldest first."""
        if self._folder is None:
            return []
        own = {file.path for file in (*self._adopted, *([self._own] if self._own else []))}
        found: list[Turn] = []
        for path in await asyncio.to_thread(spool_files, self._folder):
            if path not in own:
                found += [entry.turn for entry in await asyncio.to_thread(read_entries, path)]
        return [turn for turn in found if turn.session_id == session_id]

    async def keep(self, waiting: Sequence[PendingTurn], failed: Callable[[Turn, OSError], None]) -> None:
        """Write pending turns to disk that are not there yet; a failure of the disk is reported once."""
        if self._folder is None:
            return
        async with self.writing:
            for entry in [entry for entry in waiting if entry.file is None]:
                try:
                    if self._own is None:
                        self._own = await asyncio.to_thread(SpoolFile.create, self._folder)
                    await asyncio.to_thread(self._own.keep, entry)
                except OSError as error:
                    failed(entry.turn, error)
                    return

    async def note(self, entry: PendingTurn) -> None:
        """Record the tries of a turn and the error, for inspection."""
        if entry.file is not None:
            with contextlib.suppress(OSError):  # the turn itself is safe
                async with self.writing:
                    await asyncio.to_thread(entry.file.failed, entry)

    async def renew(self, entry: PendingTurn) -> None:
        """Write a turn again, since it changed."""
        async with self.writing:
            if entry.file is not None:
                with contextlib.suppress(OSError):  # it is on disk as it was
                    await asyncio.to_thread(entry.file.renew, entry)

    async def done(self, entry: PendingTurn) -> None:
        """Mark a turn as no longer pending; it may be written to disk at this moment."""
        async with self.writing:
            if entry.file is not None:
                await asyncio.to_thread(entry.file.done, entry)

    async def compact(self, waiting: Sequence[PendingTurn]) -> None:
        """Move the waiting turns to a new file, so that the texts of others leave the disk."""
        async with self.writing:
            old = [*self._adopted, *([self._own] if self._own else [])]
            on_disk = [entry for entry in waiting if entry.file is not None]
            if self._folder is None or not on_disk:
                return  # a file without turns is empty already
            self._own, self._adopted = await asyncio.to_thread(SpoolFile.create, self._folder), []
            for entry in on_disk:
                await asyncio.to_thread(self._own.keep, entry)
            for file in old:
                await asyncio.to_thread(file.clear)
                await asyncio.to_thread(file.close)

    async def close(self) -> None:
        """Close the files; pending turns stay for the next start."""
        for file in [*self._adopted, *([self._own] if self._own else [])]:
            await asyncio.to_thread(file.close)
