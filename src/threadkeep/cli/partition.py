"""`threadkeep partition`: messages and their search index in partitions by session."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import command_settings
from threadkeep.cli.problems import Finding, WrongUse
from threadkeep.cli.terminal import counted, terminal
from threadkeep.errors import StoreError

if TYPE_CHECKING:
    from threadkeep.store.driver import Driver
    from threadkeep.store.partitions import PartitionState


async def partition_tables(
    partitions: Annotated[int, typer.Argument(metavar="COUNT", min=2, max=1024, help="The number of partitions.")],
    abandon: Annotated[bool, typer.Option("--abandon", help="Remove the copies of an unfinished call.")] = False,
) -> None:
    """Put the messages and the search index of a PostgreSQL database into partitions by session.

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

    so_far = counted(0, "message")

    def report(done: int, total: int, copied: int) -> None:
        nonlocal so_far
        so_far = counted(copied, "message")
        reach(100 * done // total if total else 100, so_far)

    try:
        with terminal.progress("Copying", 100) as reach:
            return await partition(driver, partitions, report=report)
    except (StoreError, asyncio.CancelledError):
        terminal.note(f"Broken off: {so_far} copied. Say the same again to go on; the tables are as they were.")
        raise


def partition_findings(state: PartitionState, wanted: int | None) -> list[Finding]:
    """Return findings about the partitions of the tables, of which the settings want a number."""
    if state.is_begun:
        count = state.copied_into or wanted or "COUNT"
        cure = f"Run: threadkeep partition {count} (with --abandon to remove the copy)"
        return [Finding("partitions", "warn", "Partitions were begun and are not complete; writes cost more.", cure)]
    detail = f"Messages are in {state.partitions} partitions." if state.partitions else "Messages are in one table."
    if wanted not in (None, state.partitions):
        cure = f"Run: threadkeep partition {wanted}" if not state.partitions else "Set it to what there is."
        return [Finding("partitions", "warn", f"{detail} THREADKEEP_PARTITIONS is {wanted}.", cure)]
    return [Finding("partitions", "ok", detail)] if state.partitions else []
