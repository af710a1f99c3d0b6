"""Opens an engine for a database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from threadkeep.errors import InvalidInput
from threadkeep.runs.engine.engine import CarryOut, Engine, EngineOptions, Listener
from threadkeep.runs.engine.in_process import InProcessEngine
from threadkeep.store.address import DatabaseAddress


@asynccontextmanager
async def open_engine(
    address: DatabaseAddress, carry_out: CarryOut, options: EngineOptions | None = None, *, listener: Listener
) -> AsyncIterator[Engine]:
    """An engine that carries out the runs of a database, closed after the block.

    Args:
        address: the database; one in memory has runs that end with the process.
        carry_out: does what a run is about.
        options: how runs are carried out.
        listener: told of the runs that are not tried any more.

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
        await engine.launched()
    return engine
