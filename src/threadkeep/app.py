"""Opens every room on one exit stack: who opens here also closes here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from platformdirs import user_data_path

from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.history.memory import Memory
from threadkeep.history.pending import PendingOptions, PendingTurns
from threadkeep.observe import Observer, Observers
from threadkeep.store.address import DatabaseAddress, parse_address
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.migrations import migrate
from threadkeep.store.runs import Runs
from threadkeep.store.search import SearchIndex
from threadkeep.store.tables import TableTranscripts

type Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The time of this machine."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class MemoryOptions:
    """How a memory is opened, beyond its database.

    `counter` counts the tokens of a message when it is stored. `background` keeps the search index up to date and
    delivers pending writes while the memory is open; short-lived commands turn it off.
    """

    store: StoreOptions = StoreOptions()
    pending: PendingOptions = PendingOptions()
    counter: TokenCounter = estimate
    clock: Clock = utc_now
    background: bool = True


@asynccontextmanager
async def open_memory(
    url: str, *, observers: Sequence[Observer] = (), options: MemoryOptions | None = None
) -> AsyncIterator[Memory]:
    """Open a database and bring its schema up to date.

    Args:
        url: `sqlite:////absolute/path.db`, `sqlite://` (in memory), or `postgresql://user@host/database`.
        observers: told of every event; see `threadkeep.observe`.
        options: pool sizes, durability, token counter, clock.

    Raises:
        InvalidSettings: the URL names no database.
        StoreUnavailable: the database does not answer.
        SchemaTooNew: a newer Threadkeep has been here.
    """
    options = options or MemoryOptions()
    address = parse_address(url)
    everyone = Observers(*observers)
    async with AsyncExitStack() as stack:
        driver = await _open_driver(address, options.store)
        stack.push_async_callback(driver.close)
        await migrate(driver, options.clock())
        transcripts = TableTranscripts(driver, count=options.counter, clock=options.clock)
        stack.push_async_callback(transcripts.close)
        waiting = options.pending
        if address.path is not None or address.dsn is not None:
            waiting = replace(waiting, folder=(waiting.folder or pending_folder()) / address.fingerprint)
        pending = PendingTurns(transcripts, waiting, observer=everyone, clock=options.clock)
        stack.push_async_callback(pending.close)
        memory = Memory(
            transcripts,
            index=SearchIndex(driver),
            runs=Runs(driver, clock=options.clock),
            pending=pending,
            observers=everyone,
            clock=options.clock,
        )
        if options.background:
            await pending.start()
            await stack.enter_async_context(_running(memory.keep_index(), "threadkeep-search-index"))
        yield memory


def default_database() -> Path:
    """The SQLite file that is used when no database is named."""
    return user_data_path("threadkeep") / "threadkeep.db"


def pending_folder() -> Path:
    """Where turns wait that no database took; each database has a folder of its own below."""
    return user_data_path("threadkeep") / "pending"


async def _open_driver(address: DatabaseAddress, options: StoreOptions) -> Driver:
    """The driver of an address; each engine's library is imported only when it is used."""
    if address.dsn is not None:
        from threadkeep.store.postgres import PostgresDriver  # noqa: PLC0415

        return await PostgresDriver.open(address.dsn, options)
    from threadkeep.store.sqlite import SqliteDriver  # noqa: PLC0415

    if address.path is not None:
        with contextlib.suppress(OSError):  # opening the file tells what is wrong, with the cure
            address.path.parent.mkdir(parents=True, exist_ok=True)
    return SqliteDriver(address.path, options)


@asynccontextmanager
async def _running[T](work: Awaitable[T], name: str) -> AsyncIterator[None]:
    """A task that lives as long as the block."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
