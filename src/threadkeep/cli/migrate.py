"""`threadkeep migrate`: the database's schema, brought up to date or only looked at, and the search index filled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.index_filling import fill_index
from threadkeep.cli.opening import run
from threadkeep.cli.options import AsJson
from threadkeep.cli.progress import progress
from threadkeep.cli.terminal import Terminal
from threadkeep.cli.wording import counted, size

if TYPE_CHECKING:
    from threadkeep.store.condition import Condition
    from threadkeep.store.driver import Driver
    from threadkeep.store.migrations import ToldOfMigration


@dataclass(frozen=True)
class _Schema:
    database: str
    before: int
    newest: int
    applied: tuple[int, ...] = ()
    indexed: int = 0
    left: int | None = None
    condition: Condition | None = None

    @property
    def waiting(self) -> tuple[int, ...]:
        return tuple(v for v in range(self.before + 1, self.newest + 1) if v not in self.applied)

    @property
    def unindexed(self) -> int | None:
        """Messages that no search finds; None where that cannot be told, before the migrations.

        After a filling those that it left: what was said since is for the searches that come.
        """
        if self.left is not None:
            return self.left
        return self.condition.unindexed if self.condition and self.condition.schema == self.newest else None

    @property
    def free_bytes(self) -> int:
        return self.condition.free_bytes if self.condition else 0


def migrate_schema(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit with 1 if migrations wait.")] = False,
    search_index: Annotated[
        bool, typer.Option("--search-index/--no-search-index", help="Whether to fill the search index afterwards.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Bring the database's schema up to date, and its search index.

    Every start does so too, the index in the background; this is for those who want it done before. Broken off, it can
    simply be begun again.
    """
    terminal = Terminal(as_json=as_json)
    schema = run(_migrate(terminal, apply=not check, fill=search_index and not check))
    if as_json:
        values = {"database": schema.database, "schema": schema.before, "newest": schema.newest}
        values |= {"applied": list(schema.applied), "waiting": list(schema.waiting)}
        terminal.json(
            {**values, "indexed": schema.indexed, "unindexed": schema.unindexed, "free_bytes": schema.free_bytes}
        )
    else:
        _tell(terminal, schema)
    if schema.waiting or (schema.unindexed and search_index and not check):
        raise typer.Exit(1)


async def _migrate(terminal: Terminal, *, apply: bool, fill: bool) -> _Schema:
    from threadkeep.errors import SchemaTooNew
    from threadkeep.settings import load_settings
    from threadkeep.store.condition import read_condition
    from threadkeep.store.migrations import known_migrations, schema_version
    from threadkeep.store.opening import open_database

    settings = load_settings()
    address = settings.database
    newest = known_migrations(address.backend)[-1][0]
    if not apply and address.path is not None and not address.path.exists():
        return _Schema(str(address), 0, newest)
    # What a power cut takes from either is done again; the next turn that is acknowledged makes it last.
    options = replace(settings.store_options(), synchronous="NORMAL")
    async with open_database(address, options) as driver:
        found = await schema_version(driver)
        if found > newest:
            raise SchemaTooNew(found=found, known=newest)
        applied = await _apply(terminal, driver, found) if apply and found < newest else []
        indexed, left = await fill_index(terminal, driver) if fill else (0, None)
        return _Schema(str(address), found, newest, tuple(applied), indexed, left, await read_condition(driver))


async def _apply(terminal: Terminal, driver: Driver, found: int) -> list[int]:
    """Apply what is missing, with progress where there is anything that takes time."""
    from threadkeep.store.migrations import migrate

    if not found:
        return await migrate(driver, datetime.now(UTC))
    with _migrating(terminal) as told:
        return await migrate(driver, datetime.now(UTC), told=told)


@contextmanager
def _migrating(terminal: Terminal) -> Iterator[ToldOfMigration]:
    """A bar on a terminal; elsewhere a line as each migration begins, since a single one may take long."""
    if not terminal.err.is_terminal:
        yield lambda done, total, file: terminal.note(f"Migrating: {100 * done // total} % {_name(file)}")
        return
    with progress(terminal, "Migrating", 100) as reach:
        yield lambda done, total, file: reach(100 * done // total, _name(file))


def _name(file: str) -> str:
    return file.removesuffix(".sql").replace("_", " ")


def _tell(terminal: Terminal, schema: _Schema) -> None:
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
            f"{size(condition.free_bytes)} of the file's {size(condition.file_bytes)} are free for later messages; "
            "`threadkeep sessions prune --vacuum` gives them back to the disk, and nobody can write meanwhile."
        )
