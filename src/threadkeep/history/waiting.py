"""Pending writes from outside their process: list them, and drop an entry.

This needs no database, which may be down when a person looks here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from threadkeep.errors import ThreadkeepError
from threadkeep.records import Turn
from threadkeep.store.damaged_turns import DamagedTurn, damaged_lines, damaged_turns, drop_damaged
from threadkeep.store.spool import PendingTurn, SpoolContent, SpoolFile, in_use, read_spool, spool_files


@dataclass(frozen=True)
class WaitingFile:
    """The pending turns in one file. A `live` process delivers them; otherwise they wait for the next start."""

    path: Path
    live: bool
    entries: tuple[PendingTurn, ...]


class EntryInUse(ThreadkeepError):
    """The process of the turn is alive; nothing was dropped."""


def waiting_files(folder: Path) -> list[WaitingFile]:
    """Return all files of a database's folder with pending turns, oldest first. Blocking I/O.

    The files of agents' conversations are in folders below.
    """
    found = [(path, *_content(path)) for path in _paths(folder)]
    return [WaitingFile(path, live, tuple(content.turns)) for path, live, content in found if content.turns]


def unreadable_turns(folder: Path) -> list[DamagedTurn]:
    """Return the lines of a database's folder that cannot be read, in files of their own or still in place."""
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
    """Return whether the file's process lives, and the content; a dead process no longer completes its last line."""
    live = in_use(path)
    return live, read_spool(path, cut_off=not live)


def drop_waiting(folder: Path, entry_id: str) -> PendingTurn | None:
    """Drop a pending turn; return None if no file of the folder has it. Blocking I/O.

    Raises:
        EntryInUse: its process is alive and may still write it.
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


def drop_unreadable(folder: Path, entry_id: str) -> bool:
    """Drop a line that cannot be read, for good; return False if the folder has none of that id. Blocking I/O.

    Raises:
        EntryInUse: the line is in the file of a live process.
    """
    for turn in unreadable_turns(folder):
        if turn.entry_id != entry_id:
            continue
        if turn.path.stem != entry_id:
            # Still in its pending file: the owner of the file moves its unreadable lines to files of their own.
            if (file := SpoolFile.take_over(turn.path)) is None:
                raise EntryInUse("The process of this file is running: stop it first, or wait until it is done.")
            file.entries()
            file.close()
        return drop_damaged(turn.path.parent, entry_id)
    return False


def discard_waiting(folder: Path, matches: Callable[[Turn], bool]) -> None:
    """Drop matching turns from the files of dead processes. Blocking I/O.

    Their texts leave the disk: remaining turns of a file move to a new one.
    """
    for waiting in waiting_files(folder):
        if not any(matches(entry.turn) for entry in waiting.entries):
            continue
        if (file := SpoolFile.take_over(waiting.path)) is None:
            continue
        rest = [entry for entry in file.entries() if not matches(entry.turn)]
        if rest:
            new = SpoolFile.create(waiting.path.parent)
            for entry in rest:
                new.keep(entry)
            new.close()
        file.clear()
        file.close()
