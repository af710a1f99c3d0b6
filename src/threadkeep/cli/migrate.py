"""`threadkeep migrate`: the database's schema, brought up to date or only looked at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from threadkeep.cli.opening import run
from threadkeep.cli.options import AsJson
from threadkeep.cli.terminal import Terminal


@dataclass(frozen=True)
class _Schema:
    database: str
    before: int
    newest: int
    applied: tuple[int, ...] = ()

    @property
    def waiting(self) -> tuple[int, ...]:
        return tuple(v for v in range(self.before + 1, self.newest + 1) if v not in self.applied)


def migrate_schema(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit with 1 if migrations wait.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the database's schema up to date.

    Every start does so too; this is for those who want it done before.
    """
    schema = run(_migrate(apply=not check))
    terminal = Terminal(as_json=as_json)
    if as_json:
        values = {"database": schema.database, "schema": schema.before, "newest": schema.newest}
        terminal.json({**values, "applied": list(schema.applied), "waiting": list(schema.waiting)})
    elif schema.applied:
        terminal.say(f"{schema.database} is now at schema {schema.newest}; it was at {schema.before}.")
    elif schema.waiting:
        terminal.say(
            f"{schema.database} is at schema {schema.before} of {schema.newest}; "
            "`threadkeep migrate` or the next start brings it up to date."
        )
    else:
        terminal.say(f"{schema.database} is up to date at schema {schema.newest}.")
    if schema.waiting:
        raise typer.Exit(1)


async def _migrate(*, apply: bool) -> _Schema:
    from threadkeep.errors import SchemaTooNew
    from threadkeep.settings import load_settings
    from threadkeep.store.migrations import known_migrations, migrate, schema_version
    from threadkeep.store.opening import open_database

    settings = load_settings()
    address = settings.database
    newest = known_migrations(address.backend)[-1][0]
    if not apply and address.path is not None and not address.path.exists():
        return _Schema(str(address), 0, newest)
    async with open_database(address, settings.store_options()) as driver:
        found = await schema_version(driver)
        if found > newest:
            raise SchemaTooNew(found=found, known=newest)
        applied = await migrate(driver, datetime.now(UTC)) if apply else []
    return _Schema(str(address), found, newest, tuple(applied))
