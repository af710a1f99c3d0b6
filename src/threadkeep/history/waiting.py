"""Pending writes seen from outside: what waits in a folder, whose process lives, and how a person drops an entry.

Needs no database, which may be down just when somebody has to look here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from threadkeep.errors import ThreadkeepError
from threadkeep.store.spool import KeptTurn, SpoolFile, in_use, read_entries, spool_files


@dataclass(frozen=True)
class WaitingFile:
    """The turns in one file. A `live` process delivers them; those of a dead one wait for the next start."""

    path: Path
    live: bool
    entries: tuple[KeptTurn, ...]


class EntryInUse(ThreadkeepError):
    """The process that keeps the turn lives; nothing was dropped."""


def waiting_files(folder: Path) -> list[WaitingFile]:
    """All files of a database's folder that keep something, oldest first. Blocking I/O.

    Those for conversations beside its sessions are in folders of their own below.
    """
    below = [inner for inner in folder.iterdir() if inner.is_dir()] if folder.is_dir() else []
    paths = sorted((path for each in (folder, *below) for path in spool_files(each)), key=lambda path: path.name)
    found = [WaitingFile(path, in_use(path), tuple(read_entries(path))) for path in paths]
    return [file for file in found if file.entries]


def drop_waiting(folder: Path, entry_id: str) -> KeptTurn | None:
    """Give a turn up for good; None when it waits nowhere in the folder. Blocking I/O.

    Raises:
        EntryInUse: its process lives and would still write it.
    """
    for waiting in waiting_files(folder):
        if entry_id not in [entry.entry_id for entry in waiting.entries]:
            continue
        file = SpoolFile.take_over(waiting.path)
        if file is None:
            raise EntryInUse(
                "The process that keeps this turn is running and still tries to write it: stop that process first, "
                "or mend the database."
            )
        try:
            for entry in file.entries():
                if entry.entry_id == entry_id:
                    file.done(entry)
                    return entry
        finally:
            file.close()
    return None
