"""Options, files, and access to the memory that several commands share. Commands open the database themselves."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from signal import Signals, getsignal, signal
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from threadkeep.boundary import ErrorBoundary
from threadkeep.cli.terminal import NotDone, WrongUse, ended_by_sigterm, stopped_by_ctrl_c, terminal, without_password
from threadkeep.errors import RunNotFound, SessionNotFound
from threadkeep.store.private_files import beside, completed

if TYPE_CHECKING:
    from threadkeep.app import App
    from threadkeep.history.all_sessions import AllSessions
    from threadkeep.history.session import Session
    from threadkeep.memory import Memory
    from threadkeep.observe import Observer
    from threadkeep.records import Json, SessionInfo
    from threadkeep.runs.service import RunService
    from threadkeep.settings import Settings
    from threadkeep.store.address import DatabaseAddress
    from threadkeep.store.transcripts import TableSessions

_COMPLETION_SECONDS = 2.0
_PAYLOAD_BYTES = 2_097_152
_DESCRIPTOR = re.compile(r"/dev/(?:stdout|fd/(\d+))")

chosen_database: ContextVar[str | None] = ContextVar("chosen_database", default=None)
"""The URL of `--database`; it takes precedence over THREADKEEP_DATABASE_URL."""
_variables_noted: ContextVar[bool] = ContextVar("variables_noted", default=False)


def command_settings(**overrides: object) -> Settings:
    """Return the settings as `read_settings` does, and name misspelt variables on stderr."""
    note_unknown_variables()
    return read_settings(**overrides)


def read_settings(**overrides: object) -> Settings:
    """Return the settings of the environment. `--database` and `overrides` that are not None take precedence."""
    # Import this late: importing pydantic takes a tenth of a second, and `--help` does not need it.
    from threadkeep.settings import load_settings

    given = {"database_url": chosen_database.get(), **overrides}
    return load_settings(**{name: value for name, value in given.items() if value is not None})


def note_unknown_variables() -> None:
    """Name misspelt `THREADKEEP_*` variables on stderr once. They are ignored, so the database may be the wrong one."""
    from threadkeep.settings import unknown_variables

    for sentence in () if _variables_noted.get() else unknown_variables():
        terminal.error(sentence)  # a note is not shown with `--json`
    _variables_noted.set(True)


def run[T](work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; raise KeyboardInterrupt if it was cancelled."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    # Drop the logs of libraries, which would mix with the sentences on stderr. `serve` has its own log.
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


@contextmanager
def handled_signals(handlers: Mapping[Signals, Callable[[], object]]) -> Iterator[None]:
    """Handle signals during the block: the event loop calls the function of a signal when it arrives."""
    loop, before = asyncio.get_running_loop(), {number: getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
            signal(number, before[number])


@asynccontextmanager
async def opened_memory(*, background: bool = False, creates: bool = False) -> AsyncIterator[Memory]:
    """Open the configured memory, by default without background work.

    If `creates` is false, a SQLite file that `--database` names must exist.
    """
    with stopped_by_ctrl_c():
        from threadkeep.memory import open_memory

    settings = command_settings()
    if not creates:
        check_exists(settings.database)
    url = settings.database_url.get_secret_value()
    async with open_memory(url, options=settings.memory_options(background=background)) as memory:
        with naming_the_database(settings):
            yield memory


@asynccontextmanager
async def opened_sessions() -> AsyncIterator[AllSessions]:
    """Open the configured memory; yield an object that reads all sessions, in its tables and in a graph store."""
    from threadkeep.history.all_sessions import AllSessions

    async with opened_memory() as memory:
        yield AllSessions(memory)


@asynccontextmanager
async def opened_session(session_id: str, user_id: str | None) -> AsyncIterator[tuple[Session, SessionInfo]]:
    """Open the memory; yield a session and its metadata. If `user_id` is given, the user must own the session."""
    async with opened_sessions() as sessions:
        yield await sessions.find(session_id, user_id=user_id)


@asynccontextmanager
async def opened_tables() -> AsyncIterator[TableSessions | None]:
    """Open only the table of sessions, so that a short command need not import `Memory`, which is slow.

    Yield None if the schema is not the newest, or a graph store may have sessions. The command must then open a memory.
    """
    from threadkeep.environment import has_unknown_variables, plain_database
    from threadkeep.store.driver import StoreOptions
    from threadkeep.store.migrations import known_migrations, schema_version
    from threadkeep.store.opening import open_database
    from threadkeep.store.transcripts import TableSessions

    options, transcripts = StoreOptions(), "tables"
    if (address := plain_database(chosen_database.get())) is None:
        settings = command_settings()
        address, options, transcripts = settings.database, settings.store_options(), settings.transcripts
    elif has_unknown_variables():
        note_unknown_variables()
    check_exists(address)
    async with open_database(address, options) as driver:
        sessions = TableSessions(driver)
        current = await schema_version(driver) == known_migrations(driver.backend)[-1][0]
        yield sessions if current and transcripts == "tables" and await sessions.are_all() else None


@asynccontextmanager
async def opened_app(
    settings: Settings, *, works: bool, waits: bool = False, observers: Sequence[Observer] = ()
) -> AsyncIterator[App]:
    """Open the configured app.

    If `works` is true, this process executes runs. An unreachable PostgreSQL is an error unless `waits` is true.
    """
    from threadkeep.store.opening import open_database

    async with AsyncExitStack() as stack:
        with terminal.waiting("Opening"):
            if settings.database.dsn is not None and not waits:
                # `open_app` waits for an unreachable server. To fail at once instead, open the database first.
                async with open_database(settings.database, settings.store_options()):
                    pass
            # Import this while the spinner turns: LangChain and LangGraph take some seconds on a slow machine.
            with stopped_by_ctrl_c():
                from threadkeep.app import open_app

            app = await stack.enter_async_context(open_app(settings, observers=observers, works=works, channel="other"))
        yield app


@asynccontextmanager
async def opened_runs(*, in_background: bool, works: bool = True) -> AsyncIterator[RunService]:
    """Open the service that starts and changes runs in the configured database.

    If `in_background` is true, only other processes execute runs. Otherwise, if `works` is true, this process also
    executes the runs that were queued before the command's own run, because there may be no worker.
    """
    settings = command_settings()
    if in_background:
        check_others_see(settings)
    async with opened_app(settings, works=works and not in_background) as app:
        with terminal.waiting("Opening"):
            service = await app.runs.service()
        with naming_the_database(settings):
            yield service


def on_this_database(command: str) -> str:
    """Return a command to show in a hint, with the `--database` of the running command, but without the password."""
    url = chosen_database.get()
    return command if url is None else f"{command} --database {shlex.quote(without_password(url))}"


def check_exists(address: DatabaseAddress) -> None:
    """Reject a missing SQLite file that `--database` names, because its path may be mistyped."""
    path = address.path
    if chosen_database.get() is not None and path is not None and not path.exists():
        create = f"threadkeep migrate --database {shlex.quote(str(path))}"
        raise NotDone(f"There is no file {path}; correct --database, or create it with: {create}")


def check_others_see(settings: Settings) -> None:
    """Reject an in-memory database, because the command needs a database that other processes can open."""
    if settings.database.path is None and settings.database.dsn is None:
        raise NotDone(
            "Other processes cannot open a database in memory; name another one with --database, or in "
            "THREADKEEP_DATABASE_URL."
        )


@contextmanager
def naming_the_database(settings: Settings) -> Iterator[None]:
    """Add the name of the database to errors about a missing session or run."""
    try:
        yield
    except (RunNotFound, SessionNotFound) as error:
        error.add_note(f"The database is {settings.database}; set another with --database or THREADKEEP_DATABASE_URL.")
        raise


type Cursor = tuple[datetime, str]


def session_ids(incomplete: str) -> list[str]:
    """Return the session ids that begin with `incomplete`, for shell completion."""
    # Suppress errors: the shell would print a traceback into the line that is being typed.
    with ErrorBoundary():
        return asyncio.run(_session_ids(incomplete))
    return []


async def _session_ids(beginning: str) -> list[str]:
    from threadkeep.store.driver import StoreOptions
    from threadkeep.store.opening import open_database
    from threadkeep.store.statements import load_statements

    options = StoreOptions(lock_timeout_seconds=_COMPLETION_SECONDS, pool_timeout_seconds=_COMPLETION_SECONDS)
    sql = load_statements("completion.sql")
    async with (
        asyncio.timeout(_COMPLETION_SECONDS),
        open_database(read_settings().database, options, read_only=True) as driver,
    ):
        rows = await driver.fetch(sql["session_ids"], {"beginning": beginning})
    return [str(session_id) for (session_id,) in rows]


UserId = Annotated[str | None, typer.Option("--user", metavar="ID", help="Only sessions of this user.")]
SessionIdArgument = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="The session's id, such as telegram:123.", autocompletion=session_ids),
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="The maximum number.")]
CursorOption = Annotated[str | None, typer.Option(metavar="CURSOR", help="Continue where the last list ended.")]
ViewOption = Annotated[
    Literal["active", "history"], typer.Option("--view", help="Exclude superseded messages, or include them.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The file to write; by default stdout.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the data that would be deleted; write nothing.")]
Confirmed = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def one_of[T: str](option: str, text: str | None, allowed: Sequence[T]) -> T | None:
    """Return the value of an option, or None if it was not given. Raise `WrongUse` if it is not allowed."""
    for value in allowed:
        if value == text:
            return value
    if text is None:
        return None
    raise WrongUse(f"{option} must be one of {', '.join(allowed)}.")


def write_cursor(cursor: Cursor | None) -> str | None:
    """Return the text of a cursor for the option `--cursor`; None for no cursor."""
    return None if cursor is None else f"{cursor[0].isoformat()}~{cursor[1]}"


def read_cursor(text: str | None) -> Cursor | None:
    """Parse a cursor that `write_cursor` returned."""
    if text is None:
        return None
    moment, separator, key = text.partition("~")
    with suppress(ValueError, OverflowError):  # the year may be 0 or 10000 in UTC
        found = datetime.fromisoformat(moment)
        if separator and found.tzinfo is not None:
            return found.astimezone(UTC), key
    raise WrongUse("This is not a cursor; use the one that the last list printed.")


def read_payload(path: str) -> dict[str, Any]:
    """Return the JSON object in a file of at most 2 MiB. The path `-` is stdin."""
    with opened_input(path) as stream, stopped_by_ctrl_c():
        data = stream.read(_PAYLOAD_BYTES + 1)
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise WrongUse("The payload is not JSON in UTF-8; name a file with one JSON object.") from None
    if len(data) > _PAYLOAD_BYTES or not isinstance(value, dict):
        raise WrongUse("The payload must be a JSON object of at most 2 MiB, such as the channel delivers.")
    return value


def opened_input(path: str) -> AbstractContextManager[BinaryIO]:
    """Open a file for reading. The path `-` is stdin."""
    return nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb")


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file. The first Ctrl-C stops the command even while it waits for the next line."""
    while True:
        with stopped_by_ctrl_c():
            line = stream.readline()
        if not line:
            return
        yield line


def check_not_database(path: Path) -> None:
    """Reject the path of the configured database, and the paths of files that SQLite creates next to it."""
    database = command_settings().database.path
    if database is not None and Path(os.path.realpath(path)) in (file := database.resolve(), *beside(file)):
        raise WrongUse(f"{path} is the database itself; name another file.")


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing. The file appears only when it is complete, and only its owner can read it.

    A device, a pipe or an open descriptor such as `/dev/stdout` is written directly. If `path` is a symbolic link, its
    target is replaced.
    """
    if path.is_dir():
        raise WrongUse(f"{path} is a folder; name a file.")
    found = _DESCRIPTOR.fullmatch(str(path))
    if found or (path.exists() and not path.is_file()):
        with os.fdopen(os.dup(int(found[1] or 1)), "wb") if found else path.open("wb") as stream:
            yield stream
        return
    try:
        path = path.resolve()
    except RuntimeError:
        raise WrongUse(f"{path} is a link that leads to itself; name a file.") from None
    check_not_database(path)
    part = path.with_name(path.name + ".part")
    with ended_by_sigterm(), completed(path, part) as number, os.fdopen(number, "wb", closefd=False) as stream:
        yield stream


def opened_output(path: Path | None) -> AbstractContextManager[BinaryIO]:
    """Open stdout if the path is None or `-`; otherwise create the file with `new_file`."""
    return nullcontext(sys.stdout.buffer) if path is None or not _is_file(path) else new_file(path)


def _is_file(path: Path | None) -> bool:
    return path is not None and str(path) != "-"


def show_exported(counts: Mapping[str, object], words: str, output: Path | None) -> None:
    """Show the result of an export, as a note or as JSON."""
    if _is_file(output) and terminal.as_json:
        terminal.json({**counts, "file": str(output)})
    else:
        terminal.note(f"Exported {words}" + (f" to {output}." if _is_file(output) else "."))


def json_or_text(text: str) -> Json:
    """Return the text parsed as JSON, or the text itself if it is not JSON."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value
