"""Opening of an engine, and enqueueing of runs by a process that is not a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from threadkeep.errors import InvalidInput
from threadkeep.runs.engine.engine import CarryOut, Engine, EngineOptions, Listener
from threadkeep.runs.engine.in_process import InProcessEngine
from threadkeep.store.address import DatabaseAddress


@asynccontextmanager
async def open_engine(
    address: DatabaseAddress, carry_out: CarryOut, options: EngineOptions | None = None, *, listener: Listener
) -> AsyncIterator[Engine]:
    """Open an engine that executes the runs of a database; it is closed after the block.

    Args:
        address: the database; runs of a database in memory end with the process.
        carry_out: executes a run.
        options: options of the engine.
        listener: called for runs that are not tried any more.

    Raises:
        InvalidInput: the extra `engine` is not installed, or this process has the engine of another database open.
        StoreUnavailable: the database does not answer.
    """
    options = options or EngineOptions()
    engine: Engine
    if address.path is None and address.dsn is None:
        engine = InProcessEngine(carry_out, options, listener)
    else:
        engine = await _open_durable(address, carry_out, options, listener)
    try:
        yield engine
    finally:
        await engine.close(options.close_seconds)


async def _open_durable(
    address: DatabaseAddress, carry_out: CarryOut, options: EngineOptions, listener: Listener
) -> Engine:
    try:
        from threadkeep.runs.engine.dbos_engine import DbosEngine
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"Runs need the package {error.name}; install it with: pip install 'threadkeep[engine]'"
        ) from error
    engine = DbosEngine(address, carry_out, options, listener)
    if options.works:
        try:
            await engine.work()
        except BaseException:
            await engine.close(0.0)
            raise
    return engine


async def wake(address: DatabaseAddress, run_ids: Iterable[str]) -> None:
    """Enqueue runs of a database for its workers.

    Raises:
        InvalidInput: the extra `engine` is not installed, or this process executes runs itself.
        StoreUnavailable: the database does not answer.
    """
    options = EngineOptions(works=False, close_seconds=0.0)
    async with open_engine(address, _carry_nothing_out, options, listener=_Nobody()) as engine:
        for run_id in run_ids:
            await engine.enqueue(run_id)


class _Nobody:
    """A listener for a process that executes no runs."""

    async def gave_up(self, run_id: str, attempts: int) -> None:
        """Do nothing; no run is executed here."""

    def troubled(self, error: str) -> None:
        """Do nothing; the caller that enqueues gets the error itself."""


async def _carry_nothing_out(run_id: str) -> None:
    raise AssertionError(f"run {run_id} was carried out by a process that does not work")
