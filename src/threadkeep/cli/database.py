"""The database itself: `threadkeep migrate`, `backup`, `restore`, `partition` and `pending`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace as replace_fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threadkeep.cli.shared import Confirmed, check_not_database, command_settings, run
from threadkeep.cli.terminal import NotDone, WrongUse, counted, ended_by_sigterm, file_size, terminal

if TYPE_CHECKING:
    from threadkeep.settings import Settings
    from threadkeep.store.backup import Report
    from threadkeep.store.condition import Condition
    from threadkeep.store.driver import Driver

_SLICE_SECONDS = 0.25
# Stop after this many passes without progress, because other processes may hold locks for long.
_MOST_IDLE_PASSES = 20

_LOCKED = (
    "Waiting for another process that uses the database; stop that process (`threadkeep doctor` names it), or "
    "interrupt this command: it has changed nothing yet."
)
_IN_MEMORY = "A database in memory has nothing to copy; name another one with --database."
_POOLED = "pg_dump and pg_restore leave an empty search_path in a pooler's connections; name the server in --database."
Replace = Annotated[bool, typer.Option("--replace", help="Replace existing data.")]


async def migrate_schema(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit with 1 if not up to date.")] = False,
    search_index: Annotated[
        bool, typer.Option("--search-index/--no-search-index", help="Fill the search index afterwards, or do not.")
    ] = True,
) -> None:
    """Update the database's schema and its search index.

    A service also updates the schema when it starts, and then fills the index in the background. Run this command to
    do both beforehand. It can be interrupted and repeated.
    """
    fills = search_index and not check
    values, condition = await _migrate(apply=not check, fill=fills)
    terminal.result(
        {**values, "free_bytes": condition.free_bytes if condition else 0},
        lambda: _show(values, condition),
        failed=bool(values["waiting"] or (fills and values["unindexed"])),
    )


async def _migrate(*, apply: bool, fill: bool) -> tuple[dict[str, Any], Condition | None]:
    """Migrate the schema if `apply`, fill the search index if `fill`, and return the results and the database's state.

    The state is None if the SQLite file is missing. The result `unindexed`, a number of messages, is None if unknown.
    """
    from threadkeep.store.condition import read_condition
    from threadkeep.store.migrations import check_schema, known_migrations, schema_version
    from threadkeep.store.opening import open_database

    settings = command_settings()
    address = settings.database
    known = [version for version, _ in known_migrations(address.backend)]
    values: dict[str, Any] = {"database": str(address), "schema": 0, "newest": known[-1], "applied": []}
    if not apply and address.path is not None and not address.path.exists():
        return {**values, "waiting": known, "indexed": 0, "unindexed": None}, None
    # NORMAL is faster than FULL, and safe here: if a power failure loses commits, the next call repeats their work.
    options = replace_fields(settings.store_options(), synchronous="NORMAL", waits_for_server=apply)
    if not terminal.as_json and (stderr := logging.lastResort) is not None:
        # Show the warning that the server cannot be reached, because the command then waits for the server.
        logging.getLogger("threadkeep.store").addHandler(stderr)
    async with open_database(address, options) as driver:
        found = await schema_version(driver)
        check_schema(driver.backend, found)
        applied = await _apply(driver, found, settings.partitions) if apply and found < known[-1] else []
        if apply and not applied:
            found = await schema_version(driver)  # another process may have migrated in the meantime
        indexed, left = await _fill_index(driver) if fill else (0, None)
        condition = await read_condition(driver)
    if left is None and condition.schema == known[-1]:
        left = condition.unindexed
    waiting = [version for version in known if version > found and version not in applied]
    counts = {"waiting": waiting, "indexed": indexed, "unindexed": left}
    return {**values, "schema": found, "applied": applied, **counts}, condition


async def _apply(driver: Driver, found: int, partitions: int | None) -> list[int]:
    """Apply the migrations after schema version `found` (0: an empty database), and return their versions."""
    from threadkeep.store.migrations import migrate

    reached = -1
    shown_progress = terminal.progress("Migrating", 100, every=True) if found else nullcontext()
    with shown_progress as reach:

        def report(done: int, total: int, file: str) -> None:
            nonlocal reached
            if reach is not None and done > reached:
                reached = done
                reach(100 * done // total, file.removesuffix(".sql").replace("_", " "))

        held, wanted = partial(terminal.note, _LOCKED), None if found else partitions
        return await migrate(driver, datetime.now(UTC), report=report, on_wait=held, partitions=wanted)


async def _fill_index(driver: Driver) -> tuple[int, int]:
    """Add missing messages to the search index; return how many were added and how many are left.

    Sessions that other processes lock for long are skipped. After an interruption, the next call continues.
    """
    from threadkeep.store.search import SearchIndex

    index = SearchIndex(driver)
    total = left = await index.unindexed()
    idle = 0
    words = "{:,} of " + counted(total, "message")
    again = " are in the search index. Run the command again to continue; no step was left half done."
    with terminal.progress("Filling the search index", total, so_far=words.format(0), again=again) as reach:
        while left and idle < _MOST_IDLE_PASSES:
            complete = await index.catch_up(seconds=_SLICE_SECONDS)
            before, left = left, 0 if complete else await index.unindexed()
            idle = 0 if left < before else idle + 1
            reach(max(total - left, 0), words.format(max(total - left, 0)))
    return max(total - left, 0), left


def _show(values: Mapping[str, Any], condition: Condition | None) -> None:
    database, before, newest = values["database"], values["schema"], values["newest"]
    if values["applied"]:
        terminal.say(f"{database} is now at schema {newest}; it was at {before}.")
    elif values["waiting"]:
        terminal.say(f"{database} is at schema {before} of {newest}; `threadkeep migrate` or a start updates it.")
    else:
        terminal.say(f"{database} is up to date at schema {newest}.")
    if values["indexed"]:
        terminal.say(f"{counted(values['indexed'], 'message')} added to the search index.")
    if values["unindexed"]:
        terminal.say(
            f"{counted(values['unindexed'], 'message')} still missing in the search index; "
            "`threadkeep migrate` or a running service adds them."
        )
    if condition is not None and condition.much_is_free:
        terminal.say(
            f"{file_size(condition.free_bytes)} of the file's {file_size(condition.file_bytes)} are free for later "
            "messages; `threadkeep sessions prune --vacuum` returns them to the file system, "
            "and blocks all writes meanwhile."
        )


def backup_database(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")], replace: Replace = False
) -> None:
    """Write a consistent copy of the database to a file. Services may continue meanwhile.

    For PostgreSQL it calls pg_dump. The file appears only when it is complete.
    """
    from threadkeep.store.backup import copy_sqlite, dump_postgres

    settings = command_settings()
    address, target = settings.database, file.absolute()
    if target.exists() and not target.is_file():
        raise WrongUse(f"{target} is a folder or a device; name a file.")
    if target.exists() and not replace:
        raise WrongUse(f"{target} exists already; name another file, or add --replace.")
    check_not_database(target)
    if address.dsn is None and (address.path is None or not address.path.exists()):
        raise NotDone(_IN_MEMORY if address.path is None else f"There is no database at {address.path} to copy.")
    run(_check_source(settings))
    if address.dsn is not None:
        from threadkeep.store.postgres_connection import environment_of

        with ended_by_sigterm(), terminal.waiting("Copying"):
            dump_postgres(environment_of(address.dsn), target, lock_timeout_seconds=settings.lock_timeout)
    elif address.path is not None:
        with ended_by_sigterm(), _pages("Copying") as report:
            copy_sqlite(address.path, target, report, key=settings.store_options().key)
    left_out = _not_copied(settings)
    size = target.stat().st_size
    terminal.result(
        {"file": str(target), "bytes": size, "not_in_it": left_out},
        f"{address} is copied to {target} ({file_size(size)}).",
    )
    for name in left_out:
        terminal.note(f"Not in the copy: {name}.")


def restore_database(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `threadkeep backup` wrote.")],
    replace: Replace = False,
) -> None:
    """Restore the database from a copy. First stop all processes that use the database.

    Existing data is replaced only with --replace.
    """
    from threadkeep.store.backup import backup_version, dump_version, is_plain, restore_postgres, restore_sqlite
    from threadkeep.store.migrations import check_schema

    settings = command_settings()
    address, source = settings.database, file.absolute()
    if not source.is_file():
        raise NotDone(f"{source} is not a file; name one that `threadkeep backup` wrote.")
    if address.dsn is not None:
        from threadkeep.store.postgres_connection import environment_of

        run(_check_target(settings, dump_version(source), replace=replace))
        with ended_by_sigterm(), terminal.waiting("Restoring"):
            restore_postgres(source, environment_of(address.dsn), replace=replace)
    elif address.path is None:
        raise NotDone(_IN_MEMORY)
    else:
        key = settings.store_options().key
        check_schema("sqlite", backup_version(source, None if is_plain(source) else key))
        if address.path.exists() and not replace:
            raise WrongUse(f"{address.path} exists already; name another one with --database, or add --replace.")
        with ended_by_sigterm(), _pages("Restoring") as report:
            restore_sqlite(source, address.path, report, key=key)
    terminal.result({"database": str(address)}, f"{address} is restored from {source}.")
    terminal.note("Persons who were erased after the copy was made are in the database again; erase them again.")


@contextmanager
def _pages(title: str) -> Iterator[Report]:
    """Show the progress of copying a SQLite database, counted in its pages."""
    with terminal.progress(title, None) as reach:
        yield lambda done, total: reach(done, f"{done:,} of {total:,} pages")


async def _check_source(settings: Settings) -> None:
    """Reject a database without Threadkeep's tables, because `restore` would reject its copy."""
    from threadkeep.store.migrations import schema_version
    from threadkeep.store.opening import open_database

    async with open_database(settings.database, settings.store_options(), read_only=True) as driver:
        if getattr(driver, "is_pooled", False):
            raise WrongUse(_POOLED)
        if not await schema_version(driver):
            raise NotDone(f"{settings.database} has no tables of Threadkeep; name another one with --database.")


async def _check_target(settings: Settings, version: int, *, replace: bool) -> None:
    """Check that a copy of schema `version` can be restored into the database, which must be empty unless `replace`."""
    from threadkeep.store.condition import check_unused
    from threadkeep.store.migrations import check_schema, schema_version
    from threadkeep.store.opening import open_database
    from threadkeep.store.partitions import partition_state

    options = replace_fields(settings.store_options(), pool_min_size=1, pool_max_size=1)
    async with open_database(settings.database, options) as driver:
        if getattr(driver, "is_pooled", False):
            raise WrongUse(_POOLED)
        if (await partition_state(driver)).partitions:
            raise WrongUse(f"pg_restore cannot replace {settings.database}, which has partitions; name an empty one.")
        check_schema("postgres", version)
        if (found := await schema_version(driver)) > version and replace:
            raise WrongUse(f"{settings.database} has schema {found}, the copy {version}. Name an empty database.")
        if found and not replace:
            raise WrongUse(f"{settings.database} is not empty; name another one with --database, or add --replace.")
        if found:
            await check_unused(driver)


def _not_copied(settings: Settings) -> list[str]:
    """Describe the data that a backup lacks: turns that wait on disk, and a graph store in another database."""
    from threadkeep.history.pending_files import waiting_files

    folder = _pending_folder(settings)
    waiting = sum(len(file.entries) for file in waiting_files(folder))
    left_out = [f"{counted(waiting, 'pending turn')} in {folder}"] if waiting else []
    if settings.graph_store != settings.database:
        left_out.append(f"the graph store in {settings.graph_store}")
    return left_out


async def partition_tables(
    partitions: Annotated[int, typer.Argument(metavar="COUNT", min=2, max=1024, help="The number of partitions.")],
    abandon: Annotated[bool, typer.Option("--abandon", help="Remove the copies of an unfinished call.")] = False,
) -> None:
    """Partition the messages and the search index of a PostgreSQL database by session.

    Services continue meanwhile. The command can be interrupted and repeated.
    """
    from threadkeep.store import partitions as tables
    from threadkeep.store.migrations import migrate
    from threadkeep.store.opening import open_database

    settings = command_settings()
    if settings.database.backend == "sqlite":
        raise WrongUse(f"{settings.database} is SQLite, which has no partitions; name a PostgreSQL with --database.")
    async with open_database(settings.database, settings.store_options()) as driver:
        if not abandon:
            await migrate(driver, datetime.now(UTC))
        changed = await (tables.abandon(driver) if abandon else _partition(driver, partitions))
        state = await tables.partition_state(driver)
    sentence = f"{settings.database} has {state.partitions} partitions{'' if changed else ' already'}."
    if abandon:
        sentence = "The copy is removed." if changed else "There is no unfinished copy."
    values = {"database": str(settings.database), "partitions": state.partitions, "changed": changed}
    terminal.result(values, sentence)


async def _partition(driver: Driver, partitions: int) -> bool:
    from threadkeep.store.partitions import partition

    def report(done: int, total: int, copied: int) -> None:
        reach(100 * done // total if total else 100, counted(copied, "message"))

    again = " copied. Run the command again to continue; the tables are unchanged."
    with terminal.progress("Copying", 100, so_far="0 messages", again=again) as reach:
        return await partition(driver, partitions, report=report)


def list_pending() -> None:
    """List turns that wait on disk to be written to the database, oldest first, including turns of ended processes."""
    from threadkeep.history.pending_files import unreadable_turns, waiting_files

    folder = _pending_folder(command_settings())
    entries = [
        {
            "entry": entry.entry_id,
            "session_id": entry.turn.session_id,
            "user_id": entry.turn.user_id,
            "messages": len(entry.turn.messages),
            "kept_at": entry.kept_at,
            "process": "running" if file.live else "gone",
            "error": entry.error,
            "file": str(file.path),
        }
        for file in waiting_files(folder)
        for entry in file.entries
    ]
    unreadable = [
        {"entry": turn.entry_id, "bytes": turn.size, "found_at": turn.found_at, "file": str(turn.path)}
        for turn in unreadable_turns(folder)
    ]
    if terminal.as_json:
        terminal.json({"entries": entries, "unreadable": unreadable})
        return
    if entries:
        names = ["entry", "session_id", "messages", "kept_at", "process", "error"]
        rows = [[entry[name] for name in names] for entry in entries]
        terminal.table(["entry", "session", "messages", "since", "process", "last error"], rows, right=["messages"])
        terminal.note("The next start writes the turns of processes that are gone.")
    if unreadable:
        turns = [list(turn.values()) for turn in unreadable]
        terminal.table(["unreadable", "bytes", "since", "file"], turns, right=["bytes"])
        terminal.note("Repair the line in its file and restart, or drop it: threadkeep pending drop ENTRY")
    if not entries and not unreadable:
        terminal.note("There are no pending turns.")


def drop_pending(
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help="The id of the entry in the list.")],
    confirmed: Confirmed = False,
) -> None:
    """Permanently drop a turn that waits to be written. This command cannot drop the turns of a running process."""
    from threadkeep.history.pending_files import drop_unreadable, drop_waiting

    refusal = "The turn would be lost permanently; add --yes to drop it without confirmation."
    terminal.confirm(f"Drop {entry} permanently?", refusal, confirmed=confirmed)
    folder = _pending_folder(command_settings())
    dropped = drop_waiting(folder, entry)
    if dropped is None and not drop_unreadable(folder, entry):
        raise NotDone("There is no such entry; list the entries with: threadkeep pending list")
    session_id = None if dropped is None else dropped.turn.session_id
    name = f"The unreadable entry {entry}" if session_id is None else f"{entry} of session {session_id}"
    terminal.result({"dropped": entry, "session_id": session_id}, f"{name} is dropped.")


def _pending_folder(settings: Settings) -> Path:
    from threadkeep.history.pending import folder_of

    return folder_of(settings.database, settings.pending_dir)
