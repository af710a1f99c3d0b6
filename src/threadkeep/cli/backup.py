"""`threadkeep backup` and `threadkeep restore`: a consistent copy of the database, and its restoration."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import command_settings
from threadkeep.cli.problems import NotDone, WrongUse
from threadkeep.cli.terminal import counted, file_size, terminal
from threadkeep.errors import SchemaTooNew

if TYPE_CHECKING:
    from threadkeep.settings import Settings

_IN_MEMORY = "A database in memory has nothing to copy; name another one with --database."

Replace = Annotated[bool, typer.Option("--replace", help="Replace what is there.")]


async def backup_database(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")], replace: Replace = False
) -> None:
    """Write a consistent copy of the database to a file, while services go on.

    On PostgreSQL it calls pg_dump. The file is there only when it is complete.
    """
    from threadkeep.store.backup import copy_sqlite, dump_postgres

    settings = command_settings()
    address, target = settings.database, file.absolute()
    if target.exists() and not replace:
        raise WrongUse(f"{target} is there already; name another file, or say --replace.")
    if address.dsn is not None:
        with terminal.waiting("Copying"):
            await asyncio.to_thread(dump_postgres, address.dsn, target)
    elif address.path is None or not address.path.exists():
        raise NotDone(_IN_MEMORY if address.path is None else f"There is no database at {address.path} to copy.")
    else:
        with terminal.progress("Copying", None) as reach:
            copying = partial(copy_sqlite, address.path, target, key=settings.store_options().key)
            await asyncio.to_thread(copying, lambda done, total: reach(done, f"{done:,} of {total:,} pages"))
    beside = _beside(settings)
    if terminal.as_json:
        terminal.json({"file": str(target), "bytes": target.stat().st_size, "not_in_it": beside})
        return
    terminal.say(f"{address} is copied to {target} ({file_size(target.stat().st_size)}).")
    for place in beside:
        terminal.note(f"Not in it: {place}.")


async def restore_database(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `threadkeep backup` wrote.")],
    replace: Replace = False,
) -> None:
    """Bring a copy back as the database. Stop all processes that use the database before.

    What is there is replaced only with --replace.
    """
    from threadkeep.store.backup import restore_postgres, restore_sqlite

    settings = command_settings()
    address, source = settings.database, file.absolute()
    if not source.is_file():
        raise WrongUse(f"{source} is no file; name one that `threadkeep backup` wrote.")
    if address.dsn is not None:
        await _check_empty(settings, replace=replace)
        with terminal.waiting("Restoring"):
            await asyncio.to_thread(restore_postgres, source, address.dsn, replace=replace)
    elif address.path is None:
        raise NotDone(_IN_MEMORY)
    else:
        _check_version(source, key := settings.store_options().key)
        if address.path.exists() and not replace:
            raise WrongUse(f"{address.path} is there already; name another one with --database, or say --replace.")
        restoring = partial(restore_sqlite, source, address.path, key=key)
        with terminal.progress("Restoring", None) as reach:
            await asyncio.to_thread(restoring, lambda done, total: reach(done, f"{done:,} of {total:,} pages"))
    if terminal.as_json:
        terminal.json({"database": str(address)})
        return
    terminal.say(f"{address} is as it was when {source} was written.")
    terminal.note("Persons who were erased since then are in it again: erase them again.")


def _check_version(source: Path, key: str | None) -> None:
    from threadkeep.store.backup import backup_version, is_plain
    from threadkeep.store.migrations import known_migrations

    newest = known_migrations("sqlite")[-1][0]
    if (found := backup_version(source, None if is_plain(source) else key)) > newest:
        raise SchemaTooNew(found=found, known=newest)


async def _check_empty(settings: Settings, *, replace: bool) -> None:
    from threadkeep.store.migrations import schema_version
    from threadkeep.store.opening import open_database

    async with open_database(settings.database, settings.store_options()) as driver:
        if await schema_version(driver) and not replace:
            raise WrongUse(f"{settings.database} is not empty; name another one with --database, or say --replace.")


def _beside(settings: Settings) -> list[str]:
    """Return what belongs to the database and is not in its copy."""
    from threadkeep.history.pending import folder_of
    from threadkeep.history.waiting import waiting_files

    folder = folder_of(settings.database, settings.pending_dir)
    waiting = sum(len(file.entries) for file in waiting_files(folder))
    beside = [f"{counted(waiting, 'pending turn')} in {folder}"] if waiting else []
    if settings.graph_store != settings.database:
        beside.append(f"the graph store in {settings.graph_store}")
    return beside
