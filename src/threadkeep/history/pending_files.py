"""Where turns wait on disk: in the file of this process, and in those of processes that died."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from threadkeep.records import Turn
from threadkeep.store.spool import KeptTurn, SpoolFile, spool_files


class PendingFiles:
    """The files of a folder that are this process's; without a folder there are none, and nothing is written.

    One write at a time: a turn may be on its way to the disk while somebody gives it up.
    """

    def __init__(self, folder: Path | None) -> None:
        self.writing = asyncio.Lock()
        self._folder = folder
        self._own: SpoolFile | None = None
        self._adopted: list[SpoolFile] = []

    async def take_over(self) -> list[KeptTurn]:
        """What dead processes kept, which is this one's from now on."""
        kept: list[KeptTurn] = []
        for path in spool_files(self._folder) if self._folder is not None else ():
            if file := await asyncio.to_thread(SpoolFile.take_over, path):
                self._adopted.append(file)
                kept += await asyncio.to_thread(file.entries)
        return kept

    async def keep(self, waiting: Sequence[KeptTurn], failed: Callable[[Turn, OSError], None]) -> None:
        """Put on disk what of all that waits is not there yet; a disk that does not take it is told of, once."""
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

    async def note(self, entry: KeptTurn) -> None:
        """Write down how often a turn was tried, and by what it failed, for those who look."""
        if entry.file is not None:
            with contextlib.suppress(OSError):  # the turn itself is safe
                async with self.writing:
                    await asyncio.to_thread(entry.file.failed, entry)

    async def done(self, entry: KeptTurn) -> None:
        """A turn waits no more; it may be on its way to the disk just now."""
        async with self.writing:
            if entry.file is not None:
                await asyncio.to_thread(entry.file.done, entry)

    async def close(self) -> None:
        """Leave what still waits to the next start."""
        for file in [*self._adopted, *([self._own] if self._own else [])]:
            await asyncio.to_thread(file.close)
