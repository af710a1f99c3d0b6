"""Access to the memory for commands: they read the settings and open the database without HTTP."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from threadkeep.cli.problems import NotDone
from threadkeep.cli.terminal import terminal, without_password

if TYPE_CHECKING:
    from threadkeep.app import App
    from threadkeep.history.all_sessions import AllSessions
    from threadkeep.history.session import Session
    from threadkeep.memory import Memory
    from threadkeep.observe import Observer
    from threadkeep.records import SessionInfo
    from threadkeep.runs.service import RunService
    from threadkeep.settings import Settings
    from threadkeep.store.address import DatabaseAddress
    from threadkeep.store.transcripts import TableSessions

chosen_database: ContextVar[str | None] = ContextVar("chosen_database", default=None)
"""The URL of `--database`; it takes precedence over THREADKEEP_DATABASE_URL."""


def command_settings(**overrides: object) -> Settings:
    """Return the settings of the environment, except for `--database` and overrides that are not None."""
    # Import this late: importing pydantic takes a tenth of a second, and `--help` does not need it.
    from threadkeep.settings import load_settings

    given = {"database_url": chosen_database.get(), **overrides}
    return load_settings(**{name: value for name, value in given.items() if value is not None})


def note_unknown_variables() -> None:
    """Name misspelt `THREADKEEP_*` variables on stderr; the command may use the wrong database."""
    from threadkeep.settings import unknown_variables

    for sentence in unknown_variables():
        terminal.error(sentence)  # a note is not shown with `--json`


def run[T](work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; raise KeyboardInterrupt if it was cancelled."""
    import asyncio
    import gc
    import logging

    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    # Drop logs of libraries, which would mix with the sentences on stderr. `serve` has its own log.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def synchronous(command: Callable[..., object]) -> Callable[..., object]:
    """Wrap a coroutine function so that it runs in a new event loop. Other functions stay unchanged."""
    if not iscoroutinefunction(command):
        return command

    @wraps(command)
    def running(**arguments: object) -> object:
        return run(command(**arguments))

    return running


@asynccontextmanager
async def opened_memory(*, background: bool = False, creates: bool = False) -> AsyncIterator[Memory]:
    """Open the configured memory, by default without background work.

    If `creates` is false, a SQLite file that `--database` names must exist.
    """
    from threadkeep.memory import open_memory

    settings = command_settings()
    note_unknown_variables()
    if not creates:
        check_exists(settings.database)
    url = settings.database_url.get_secret_value()
    async with open_memory(url, options=settings.memory_options(background=background)) as memory:
        with naming_the_database(settings):
            yield memory


@asynccontextmanager
async def opened_sessions() -> AsyncIterator[AllSessions]:
    """Open all sessions of the configured memory, in its tables and in a graph store."""
    from threadkeep.history.all_sessions import AllSessions

    async with opened_memory() as memory:
        yield AllSessions(memory)


@asynccontextmanager
async def opened_session(session_id: str, user_id: str | None) -> AsyncIterator[tuple[Session, SessionInfo]]:
    """Open the memory; yield a session and its metadata. A `user_id` must be that of the owner."""
    async with opened_sessions() as sessions:
        yield await sessions.find(session_id, user_id=user_id)


@asynccontextmanager
async def opened_tables() -> AsyncIterator[TableSessions | None]:
    """Open only the table of sessions, which saves a short command the slow import of `Memory`.

    Yield None if the table cannot be used alone; the command must then open a memory.
    """
    from threadkeep.environment import has_unknown_variables, plain_database
    from threadkeep.store.driver import StoreOptions
    from threadkeep.store.migrations import known_migrations, schema_version
    from threadkeep.store.opening import open_database
    from threadkeep.store.transcripts import TableSessions

    options, transcripts = StoreOptions(), "tables"
    if settings_read := (address := plain_database(chosen_database.get())) is None:
        settings = command_settings()
        address, options, transcripts = settings.database, settings.store_options(), settings.transcripts
    check_exists(address)
    async with open_database(address, options) as driver:
        sessions = TableSessions(driver)
        current = await schema_version(driver) == known_migrations(driver.backend)[-1][0]
        usable = current and transcripts == "tables" and await sessions.are_all()
        if usable and (settings_read or has_unknown_variables()):
            note_unknown_variables()
        yield sessions if usable else None


@asynccontextmanager
async def opened_app(
    settings: Settings, *, works: bool, waits: bool = False, observers: Sequence[Observer] = ()
) -> AsyncIterator[App]:
    """Open the configured app.

    If `works` is true, this process executes queued runs. An unreachable PostgreSQL server is an error unless `waits`
    is true.
    """
    from threadkeep.store.opening import open_database

    async with AsyncExitStack() as stack:
        with terminal.waiting("Opening"):
            if settings.database.dsn is not None and not waits:
                # `open_app` waits for an unreachable server, so open the database first, which fails at once.
                async with open_database(settings.database, settings.store_options()):
                    pass
            # Import this below the spinner: LangChain and LangGraph take some seconds on a slow machine.
            from threadkeep.app import open_app

            app = await stack.enter_async_context(open_app(settings, observers=observers, works=works, channel="other"))
        yield app


@asynccontextmanager
async def opened_runs(*, in_background: bool, works: bool = True) -> AsyncIterator[RunService]:
    """Open the runs of the configured database.

    If `works` is true, the command also executes queued runs ahead of its own, because there may be no worker. If
    `in_background` is true, only other processes execute runs.
    """
    settings = command_settings()
    note_unknown_variables()
    if in_background:
        check_others_see(settings)
    async with opened_app(settings, works=works and not in_background) as app:
        with terminal.waiting("Opening"):
            service = await app.runs.service()
        with naming_the_database(settings):
            yield service


def on_this_database(command: str) -> str:
    """Return a command for a hint, with `--database` if it was given, but without the password."""
    url = chosen_database.get()
    return command if url is None else f"{command} --database {shlex.quote(without_password(url))}"


def check_exists(address: DatabaseAddress) -> None:
    """Reject a missing SQLite file that `--database` names, because its path may be mistyped."""
    path = address.path
    if chosen_database.get() is not None and path is not None and not path.exists():
        create = f"threadkeep migrate --database {shlex.quote(str(path))}"
        raise NotDone(f"There is no file {path}; correct --database, or create it with: {create}")


def check_others_see(settings: Settings) -> None:
    """Reject an in-memory database, because other processes must see its content."""
    if settings.database.path is None and settings.database.dsn is None:
        raise NotDone(
            "Other processes cannot open a database in memory; name another one with --database, or in "
            "THREADKEEP_DATABASE_URL."
        )


@contextmanager
def naming_the_database(settings: Settings) -> Iterator[None]:
    """Add the name of the database to errors about a missing session or run."""
    from threadkeep.errors import RunNotFound, SessionNotFound

    try:
        yield
    except (RunNotFound, SessionNotFound) as error:
        error.add_note(f"The database is {settings.database}; set another with --database or THREADKEEP_DATABASE_URL.")
        raise
