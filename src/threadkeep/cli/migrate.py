"""`threadkeep migrate`: checks or updates the schema of the database, and fills the search index."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import command_settings
from threadkeep.cli.terminal import counted, file_size, terminal
from threadkeep.errors import SchemaTooNew, StoreError

if TYPE_CHECKING:
    from threadkeep.store.condition import Condition
    from threadkeep.store.driver import Driver

_SLICE_SECONDS = 0.25
# Passes without progress, because other processes hold locks: each pass waits half a second for a lock.
_MOST_IDLE_PASSES = 20


@dataclass(frozen=True)
class _Schema:
    """The schema before and after the command. `left` messages were not indexed by a filling; None without one."""

    database: str
    before: int
    known: tuple[int, ...]
    applied: tuple[int, ...] = ()
    indexed: int = 0
    left: int | None = None
    condition: Condition | None = None

    @property
    def waiting(self) -> list[int]:
        return [version for version in self.known if version > self.before and version not in self.applied]

    @property
    def newest(self) -> int:
        """The newest schema that this code knows."""
        return self.known[-1]

    @property
    def unindexed(self) -> int | None:
        """Return the number of messages missing in the search index; None before the migrations, if it is unknown.

        After a filling it is the number left by it; messages that arrived since are not counted.
        """
        if self.left is not None:
            return self.left
        return self.condition.unindexed if self.condition and self.condition.schema == self.newest else None


async def migrate_schema(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit with 1 if migrations wait.")] = False,
    search_index: Annotated[
        bool, typer.Option("--search-index/--no-search-index", help="Whether to fill the search index afterwards.")
    ] = True,
) -> None:
    """Bring the database's schema up to date, and its search index.

    Every start does so too, the index in the background; this is for those who want it done before. Broken off, it can
    simply be begun again.
    """
    schema = await _migrate(apply=not check, fill=search_index and not check)
    if terminal.as_json:
        values = {"database": schema.database, "schema": schema.before, "newest": schema.newest}
        values |= {"applied": schema.applied, "waiting": schema.waiting, "indexed": schema.indexed}
        free = schema.condition.free_bytes if schema.condition else 0
        terminal.json({**values, "unindexed": schema.unindexed, "free_bytes": free})
    else:
        _show(schema)
    if schema.waiting or (schema.unindexed and search_index and not check):
        raise typer.Exit(1)


async def _migrate(*, apply: bool, fill: bool) -> _Schema:
    from threadkeep.store.condition import read_condition
    from threadkeep.store.migrations import known_migrations, schema_version
    from threadkeep.store.opening import open_database

    settings = command_settings()
    address = settings.database
    known = tuple(version for version, _ in known_migrations(address.backend))
    if not apply and address.path is not None and not address.path.exists():
        return _Schema(str(address), 0, known)
    # Work lost in a power failure is repeated; the next acknowledged turn makes it durable.
    options = replace(settings.store_options(), synchronous="NORMAL")
    async with open_database(address, options) as driver:
        found = await schema_version(driver)
        if found > known[-1]:
            raise SchemaTooNew(found=found, known=known[-1])
        applied = await _apply(driver, found) if apply and found < known[-1] else []
        indexed, left = await _fill_index(driver) if fill else (0, None)
        return _Schema(str(address), found, known, tuple(applied), indexed, left, await read_condition(driver))


async def _apply(driver: Driver, found: int) -> list[int]:
    """Apply missing migrations: with a bar on a terminal, else with a line for each, since one may take long."""
    from threadkeep.store.migrations import migrate

    if not found:
        return await migrate(driver, datetime.now(UTC))
    with terminal.progress("Migrating", 100, every=True) as reach:

        def report(done: int, total: int, file: str) -> None:
            reach(100 * done // total, file.removesuffix(".sql").replace("_", " "))

        return await migrate(driver, datetime.now(UTC), told=report)


async def _fill_index(driver: Driver) -> tuple[int, int]:
    """Index missing messages, in parallel with other processes; return the numbers of indexed and remaining messages.

    Sessions that others have locked for long are left out. After an interruption it continues from there the next
    time. Messages that arrive after the index has caught up are not counted as remaining.
    """
    from threadkeep.store.search import SearchIndex

    index = SearchIndex(driver)
    total = left = await index.unindexed()
    idle = 0
    with terminal.progress("Filling the search index", total) as reach:
        try:
            while left and idle < _MOST_IDLE_PASSES:
                complete = await index.catch_up(seconds=_SLICE_SECONDS)
                before, left = left, 0 if complete else await index.unindexed()
                idle = 0 if left < before else idle + 1
                reach(max(total - left, 0), f"{max(total - left, 0):,} of {counted(total, 'message')}")
        except (StoreError, asyncio.CancelledError):
            done = f"{max(total - left, 0):,} of {counted(total, 'message')}"
            terminal.note(f"Broken off: {done} are in the search index. Migrate again to go on; nothing is half done.")
            raise
    return max(total - left, 0), left


def _show(schema: _Schema) -> None:
    if schema.applied:
        terminal.say(f"{schema.database} is now at schema {schema.newest}; it was at {schema.before}.")
    elif schema.waiting:
        terminal.say(
            f"{schema.database} is at schema {schema.before} of {schema.newest}; "
            "`threadkeep migrate` or the next start brings it up to date."
        )
    else:
        terminal.say(f"{schema.database} is up to date at schema {schema.newest}.")
    if schema.indexed:
        terminal.say(f"{counted(schema.indexed, 'message')} went into the search index.")
    if schema.unindexed:
        terminal.say(
            f"The search index still lacks {counted(schema.unindexed, 'message')}; "
            "`threadkeep migrate` fills it, and so does a running service."
        )
    if (condition := schema.condition) is not None and condition.much_is_free:
        terminal.say(
            f"{file_size(condition.free_bytes)} of the file's {file_size(condition.file_bytes)} are free for later "
            "messages; `threadkeep sessions prune --vacuum` gives them back to the disk, "
            "and nobody can write meanwhile."
        )
