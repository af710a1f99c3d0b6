"""Opening of run engines, and enqueuing of runs from a process that is not a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from threadkeep.errors import InvalidInput
from threadkeep.runs.engine.engine import Engine, EngineOptions, Execute, LocalEngine, Troubled
from threadkeep.store.address import DatabaseAddress


@asynccontextmanager
async def open_engine(
    address: DatabaseAddress, execute: Execute, options: EngineOptions | None = None, *, troubled: Troubled
) -> AsyncIterator[Engine]:
    """Open an engine that executes the runs of a database; close the engine after the block.

    Args:
        address: the database; runs of a database in memory end with the process.
        execute: a callback that executes a run.
        options: options of the engine.
        troubled: a callback that gets the class names of errors that do not stop the engine.

    Raises:
        InvalidInput: the extra `engine` is not installed, or this process has already launched the library dbos.
        StoreUnavailable: the database does not answer.
    """
    options = options or EngineOptions()
    engine: Engine
    if address.path is None and address.dsn is None:
        engine = LocalEngine(execute, options, troubled)
    else:
        try:
            from threadkeep.runs.engine.dbos_engine import DbosEngine
        except ModuleNotFoundError as error:
            raise InvalidInput(
                f"Runs need the package {error.name}; install it with: pip install 'threadkeep[engine]'"
            ) from error
        engine = DbosEngine(address, execute, options, troubled)
    seconds = 0.0  # runs may wait until the engine is open, so a failed opening must not wait for them
    try:
        if options.works:
            await engine.work()
        seconds = options.close_seconds
        yield engine
    finally:
        await engine.close(seconds)


async def enqueue_runs(address: DatabaseAddress, run_ids: Iterable[str]) -> None:
    """Enqueue runs of a database for its workers, from a process that is not a worker.

    Raises:
        InvalidInput: the extra `engine` is not installed, or this process has already launched the library dbos.
        StoreUnavailable: the database does not answer.
    """

    async def execute(run_id: str) -> None:
        raise AssertionError(f"Run {run_id} was executed by a process that is not a worker.")

    options = EngineOptions(works=False, close_seconds=0.0)
    async with open_engine(address, execute, options, troubled=lambda _: None) as engine:
        for run_id in run_ids:
            await engine.enqueue(run_id)
