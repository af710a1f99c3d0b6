"""`python -m bench chaos`: people write, processes are killed, and then every guarantee is checked.

`chaos turns` compares the answers that callers received with the stored ones (`bench.turn_bench`). `chaos runs` checks
the order and the trees of runs. `chaos` does both.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import quantiles

from bench.chaos_graphs import Graphs
from bench.chaos_history import history
from bench.chaos_notes import Notes
from bench.chaos_processes import PRELOADED, PROCESSES, Place
from bench.chaos_soak import Plan, soak
from bench.chaos_storm import Storm, storms
from bench.contenders import ENGINES, Engine
from bench.postgres_server import PostgresServer, postgres_server
from bench.turn_bench import main as make_turns

_PART_SECONDS = 30.0
_SHOWN = 20
_PAUSE_SECONDS = 3.5
_BETWEEN_CRASHES = (3.0, 8.0)
# A dead process is detected by the others after two seconds, so some of these must live longer than that.
_KILLS: Mapping[Engine, tuple[float, float]] = {"sqlite": (0.3, 1.5), "postgres": (1.0, 5.0)}


def main(arguments: Sequence[str]) -> int:
    """Run the turns, the runs, or both; return 1 if a guarantee was broken."""
    match list(arguments):
        case ["turns", *rest]:
            return make_turns(rest)
        case ["runs", *rest]:
            return make_runs(rest)
        case []:
            return max(make_turns([]), make_runs([]))
        case _:
            # Without a subcommand, options are those of `chaos runs`, which existed before the subcommands.
            return make_runs(arguments)


def make_runs(arguments: Sequence[str]) -> int:
    """Run sessions and trees until the time is over, or until a guarantee is broken; then return 1."""
    given = _parser().parse_args(arguments)
    PROCESSES.set_forkserver_preload(list(PRELOADED))
    seed = random.randrange(10**6) if given.seed is None else given.seed
    engines = ENGINES if given.engine is None else (given.engine,)
    until = time.monotonic() + 60 * given.minutes
    broken = 0
    # Give each part its own database, so that the history with a fault is short enough to read.
    while not broken and (left := until - time.monotonic()) > 0:
        for engine in engines:
            broken += asyncio.run(
                _part(engine, _plan(given, engine, seed, min(left, _PART_SECONDS)), crashes=given.crashes)
            )
        seed += 1
    return 1 if broken else 0


def _plan(given: argparse.Namespace, engine: Engine, seed: int, seconds: float) -> Plan:
    return Plan(
        seed,
        seconds,
        between_kills=_KILLS[engine],
        clocks_wrong_by_hours=(0.0, -1.0, 1.0) if given.clocks else (0.0,),
        # With SQLite a paused process is not declared dead and keeps its runs, so none is paused.
        pauses_seconds=_PAUSE_SECONDS if given.pauses and engine == "postgres" else 0.0,
    )


async def _part(engine: Engine, plan: Plan, *, crashes: bool) -> int:
    """Run the sessions, then the trees; return the number of broken guarantees."""
    # No pauses in the storm: a process that wakes up needs a moment to see cancelled runs, which would count as faults.
    return await talk(engine, plan, crashes=crashes) + await storm(engine, replace(plan, pauses_seconds=0.0))


async def talk(engine: Engine, plan: Plan, *, crashes: bool = False) -> int:
    """Have people write to sessions; print the broken guarantees and return their number."""
    async with _place(engine, crashes=plan.seconds if crashes else 0.0) as place:
        told = await soak(place, plan)
        left = await history(
            place.url, told, place.graphs.notes.read(), times_are_true=not any(plan.clocks_wrong_by_hours)
        )
        again = sum(run.attempts > 1 for run in left.runs)
        figures = f"{len(told.accepted)} messages, {len(left.runs)} runs, {again} begun again, {told.kills} kills"
        return _say(f"{engine} talk, seed {plan.seed}: {figures}", left.faults())


async def storm(engine: Engine, plan: Plan) -> int:
    """Cancel trees of runs; print the broken guarantees and return their number."""
    async with _place(engine) as place:
        weather = await storms(place, plan)
        notes = place.graphs.notes.read()
        left = await history(place.url, weather.told, notes)
        figures = f"{len(weather.storms)} trees cancelled, {weather.told.kills} kills; {delays(weather.storms)}"
        return _say(f"{engine} storm, seed {plan.seed}: {figures}", weather.faults(notes, left))


def delays(found: Sequence[Storm]) -> str:
    """Return the delays until a cancelled tree and the following turn ended, as callers saw them."""
    return ", ".join(
        f"{name} {_spread(seconds)}"
        for name, seconds in (
            ("cancelled", [each.over - each.asked for each in found]),
            ("next turn", [each.next_over - each.asked for each in found]),
        )
    )


def _spread(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return "-"
    cuts = quantiles(seconds, n=20, method="inclusive")
    return f"p50 {cuts[9]:.2f} p95 {cuts[18]:.2f} max {max(seconds):.2f} s"


def _say(line: str, faults: Sequence[str]) -> int:
    print(line, f"({len(faults)} faults)", flush=True)
    for fault in faults[:_SHOWN]:
        print("   ", fault)
    return len(faults)


@asynccontextmanager
async def _place(engine: Engine, *, crashes: float = 0.0) -> AsyncIterator[Place]:
    """Open a new database. Its server, if it has one, crashes at random for `crashes` seconds."""
    with tempfile.TemporaryDirectory(prefix="threadkeep-chaos-") as name:
        graphs = Graphs(Notes(Path(name) / "notes"))
        if engine == "sqlite":
            yield Place(f"sqlite:///{name}/threadkeep.db", graphs)
            return
        async with postgres_server() as server:
            crashing = asyncio.create_task(_crash(server, crashes))
            try:
                yield Place(await server.database("chaos"), graphs)
            finally:
                crashing.cancel()
                await asyncio.wait([crashing])


async def _crash(server: PostgresServer, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.sleep(random.uniform(*_BETWEEN_CRASHES))
        await server.crash()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench chaos runs",
        description="Sessions, cancelled trees and killed processes; what is left is held against every promise.",
    )
    parser.add_argument("--seed", type=int, help="of the first part; another one each time by default")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long, about; it ends at the first fault")
    parser.add_argument("--clocks", action="store_true", help="clocks jump an hour back or ahead")
    parser.add_argument(
        "--pauses", action="store_true", help="beside PostgreSQL processes also stand still, and are taken for dead"
    )
    parser.add_argument("--crashes", action="store_true", help="PostgreSQL crashes too, and comes back")
    parser.add_argument("--engine", choices=ENGINES, help="on this engine only")
    return parser
