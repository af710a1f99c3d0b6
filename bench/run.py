"""A whole run: every engine of the plan, one after the other."""

from __future__ import annotations

import gc
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bench.contenders import FIELD, Engine
from bench.lanes import Lane, Tell, open_lanes
from bench.machine import machine_line
from bench.measure import measure_operation, measure_throughput
from bench.plan import Plan
from bench.results import Cell, Results

if TYPE_CHECKING:
    from bench.postgres_server import PostgresServer


async def run(plan: Plan, tell: Tell) -> Results:
    """Measure everything in the plan; `tell` receives the progress."""
    cells: list[Cell] = []
    notes: list[str] = []
    versions: str | None = None
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="threadkeep-bench-")))
        for engine in plan.engines:
            server: PostgresServer | None = None
            if engine == "postgres":
                from bench.postgres_server import postgres_server  # not in the environment of `make peers`

                tell("postgres: starting a server")
                server = await stack.enter_async_context(postgres_server())
                versions = await _described(server)
            async with open_lanes(engine, plan, folder, server, tell) as lanes:
                await _measure(engine, lanes, plan, tell, cells, notes)
    return Results(machine_line(versions), tuple(cells), tuple(notes))


async def _measure(
    engine: Engine, lanes: list[Lane], plan: Plan, tell: Tell, cells: list[Cell], notes: list[str]
) -> None:
    # Let the garbage collector ignore the objects that the contenders have loaded by now.
    gc.collect()
    gc.freeze()
    cells += await measure_operation(engine, "append", lanes, plan, tell)
    cells += await measure_operation(engine, "tail", lanes, plan, tell)
    found, failures = await measure_throughput(engine, lanes, plan, tell)
    gc.unfreeze()
    cells += found
    titles = {entry.name: entry.title for entry in FIELD}
    notes += [
        f"{engine}: {count} turns of {titles[name]} failed with {plan.sessions} writers; they are not counted."
        for name, count in failures.items()
    ]


async def _described(server: PostgresServer) -> str:
    settings = [f"{name}={await server.show(name)}" for name in ("fsync", "synchronous_commit")]
    return f"{await server.show('server_version')} ({', '.join(settings)})"
