"""How commands come to the memory: the settings are read once, the database is opened directly, not by HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from threadkeep.cli.problems import NotDone

if TYPE_CHECKING:
    from threadkeep.cli.terminal import Terminal
    from threadkeep.history.memory import Memory
    from threadkeep.runs.service import RunService
    from threadkeep.settings import Settings


def run[T](work: Coroutine[Any, Any, T]) -> T:
    """The result of a command's work, in a loop of its own.

    Raises:
        KeyboardInterrupt: the work was told to end, by whatever signal.
    """
    import asyncio
    import logging

    # What libraries log has no place among the sentences on stderr; `serve` sets its own log up.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@asynccontextmanager
async def opened_memory() -> AsyncIterator[Memory]:
    """The memory that the settings name, for a command that is soon done: nothing goes on in the background.

    Of a session or a run that is not there the error says in which database.

    Raises:
        InvalidSettings: the settings cannot be used.
        StoreUnavailable: the database does not answer.
    """
    # pydantic and the store take most of a second: `--help` does without them.
    from threadkeep.history.opening import open_memory
    from threadkeep.settings import load_settings

    settings = load_settings()
    url = settings.database_url.get_secret_value()
    async with open_memory(url, options=settings.memory_options(background=False)) as memory:
        with naming_the_database(settings):
            yield memory


@asynccontextmanager
async def opened_runs(terminal: Terminal, *, in_background: bool, works: bool = True) -> AsyncIterator[RunService]:
    """The runs of the database that the settings name.

    A command that waits for its run and `works` is like a worker meanwhile: what another process left of the run may be
    in the queue, before it. One that leaves its run to others takes none.

    Raises:
        NotDone: a run is to be carried out by others, and the database is seen by nobody else.
    """
    from threadkeep.settings import load_settings

    settings = load_settings()
    if in_background:
        check_others_see(settings)
    async with AsyncExitStack() as stack:
        with terminal.waiting("Opening"):
            from threadkeep.app import open_app

            app = await stack.enter_async_context(
                open_app(settings, works=works and not in_background, channel="other")
            )
            service = await app.runs.service()
        with naming_the_database(settings):
            yield service


def check_others_see(settings: Settings) -> None:
    """Refuse a database that is gone with this process, where others are to see what is in it.

    Raises:
        NotDone: the sentence says which variable names a lasting one.
    """
    if settings.database.path is None and settings.database.dsn is None:
        raise NotDone("A database in memory has no queue for other processes: name another in THREADKEEP_DATABASE_URL.")


@contextmanager
def naming_the_database(settings: Settings) -> Iterator[None]:
    """Say in which database a session or a run is not, where one is missed inside the block."""
    from threadkeep.errors import RunNotFound, SessionNotFound

    try:
        yield
    except (RunNotFound, SessionNotFound) as error:
        error.add_note(f"Here is {settings.database}; THREADKEEP_DATABASE_URL chooses another.")
        raise
