"""`python -m bench chaos turns`: thousands of turns during faults, in parts with their own database and seed.

A part can be run again by the command that it prints. Before the database rejected a second complete answer to a
question, these commands found two answers to one question, or different answers to callers, in about every second run:

    python -m bench chaos turns --engine postgres --seed 2 --turns 40 --pause 6 --shape service-tables
    python -m bench chaos turns --engine postgres --seed 21 --turns 60 --kill 4 --pause 3 --stall 1 --shape agent-tables
    python -m bench chaos turns --engine sqlite --seed 5 --turns 20 --kill 6 --pause 1 --stall 1 --slow 1 --full 1
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.chaos_processes import PROCESSES
from bench.contenders import ENGINES, Engine
from bench.machine import machine_line
from bench.turn_chaos import run_turns
from bench.turn_check import Fault, by_kind, check
from bench.turn_faults import FaultName, TurnPlan
from bench.turn_history import TurnHistory
from bench.turn_services import PRELOADED, Kind
from threadkeep.store.address import TranscriptLocation

_TURNS_OF_PART = 500
_SHOWN = 20
_PAUSES: Mapping[Kind, tuple[float, float]] = {"service": (8.2, 12.0), "agent": (10.0, 20.0)}
SHAPES: Mapping[str, tuple[Kind, TranscriptLocation]] = {
    "service-tables": ("service", "tables"),
    "agent-tables": ("agent", "tables"),
    "service-graph_store": ("service", "graph_store"),
    "agent-graph_store": ("agent", "graph_store"),
}
"""The shapes: services or agents of the library, and where their transcripts are stored."""

_DEFAULTS: dict[FaultName, int] = {"kill": 100, "pause": 100, "stall": 20, "cut": 20, "slow": 20, "full": 20}


@dataclass
class Report:
    """The figures of all parts of one engine."""

    engine: Engine
    parts: int = 0
    seconds: float = 0.0
    counted: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    conflicts: list[Fault] = field(default_factory=list)

    def add(self, plan: TurnPlan, history: TurnHistory, seconds: float) -> list[Fault]:
        """Add a part; return its faults."""
        verdict = check(history)
        self.parts += 1
        self.seconds += seconds
        self.counted.update(turns=len(history.asked), told=len(history.told), calls=len(history.calls))
        self.counted.update({str(name): times for name, times in plan.faults.items()})
        self.faults += verdict.faults
        self.conflicts += verdict.conflicts
        return list(verdict.faults)


def main(arguments: Sequence[str]) -> int:
    """Run all parts on each engine; return 1 if a guarantee was broken."""
    given = _parser().parse_args(arguments)
    PROCESSES.set_forkserver_preload(list(PRELOADED))
    if given.check is not None:
        return _say("saved history", list(check(TurnHistory.read(given.check)).faults))
    seed = random.randrange(10**6) if given.seed is None else given.seed
    reports = [_run(engine, seed, given) for engine in (ENGINES if given.engine is None else (given.engine,))]
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(_table(reports))
    console.print(machine_line(None))
    return 1 if any(report.faults for report in reports) else 0


def _run(engine: Engine, seed: int, given: argparse.Namespace) -> Report:
    report = Report(engine)
    chosen = {name: getattr(given, name) or 0 for name in _DEFAULTS}
    faults_of_all = chosen if any(chosen.values()) else _DEFAULTS
    for index, plan in enumerate(plans(engine, seed, given.turns, faults_of_all, shape=given.shape)):
        name = f"{engine}, part {index + 1}, seed {plan.seed}"
        faults = " ".join(f"--{fault} {times}" for fault, times in plan.faults.items())
        again = f"--engine {engine} --seed {plan.seed} --turns {plan.turns} {faults}"
        print(f"{name}: again with {again} --shape {plan.kind}-{plan.transcripts}", flush=True)
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="threadkeep-chaos-", ignore_cleanup_errors=True) as folder:
            Path(folder).chmod(0o755)
            history = asyncio.run(run_turns(plan, Path(folder), _Progress(name, started)))
        found = report.add(plan, history, time.monotonic() - started)
        _say(f"{name}: {len(history.asked)} turns, {len(history.told)} answers told", found)
        if found and given.save is not None:
            given.save.mkdir(parents=True, exist_ok=True)
            history.write(given.save / f"{engine}-{plan.kind}-{plan.transcripts}-{plan.seed}.json")
    return report


def plans(
    engine: Engine, seed: int, turns: int, faults: Mapping[FaultName, int], *, shape: str | None = None
) -> list[TurnPlan]:
    """Return the parts of a run, each with its share of turns and faults, its own seed, and the next shape in turn."""
    parts, found = max(1, round(turns / _TURNS_OF_PART)), []
    for part in range(parts):
        kind, transcripts = SHAPES[shape] if shape is not None else list(SHAPES.values())[part % len(SHAPES)]
        shares = {name: _share(times, parts, part) for name, times in faults.items()}
        found.append(
            TurnPlan(
                engine,
                seed + part,
                turns // parts,
                Counter({name: times for name, times in shares.items() if times}),
                pause_seconds=_PAUSES[kind],
                # Alternate between one folder, as for services on one machine, and a folder for each service.
                one_pending_folder=(seed + part) % 2 == 0,
                kind=kind,
                transcripts=transcripts,
            )
        )
    return found


def _share(times: int, parts: int, part: int) -> int:
    return times * (part + 1) // parts - times * part // parts


class _Progress:
    """The progress of a part: one line that is updated on a terminal, otherwise a line every few seconds."""

    _EVERY_SECONDS = 10.0

    def __init__(self, name: str, started: float) -> None:
        self._name = name
        self._started = started
        self._told = 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if not terminal and now - self._told < self._EVERY_SECONDS:
            return
        self._told = now
        line = f"{now - self._started:5.0f} s  {self._name}: {text}"
        print(f"\r\x1b[2K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)


def _say(line: str, faults: Sequence[Fault]) -> int:
    kinds = ", ".join(f"{times} {kind}" for kind, times in by_kind(faults).items())
    print(f"{line} ({len(faults)} faults{': ' if kinds else ''}{kinds})", flush=True)
    for fault in faults[:_SHOWN]:
        print(f"    {fault.kind}: {fault.says}")
    return 1 if faults else 0


def _table(reports: Sequence[Report]) -> Table:
    names = ("turns", "told", "calls", *_DEFAULTS)
    table = Table("engine", "parts", "seconds", *names, "conflicts", "faults", title="Turns beside faults")
    for report in reports:
        counted = [str(report.counted[name]) for name in names]
        ends = [str(len(report.conflicts)), str(len(report.faults))]
        table.add_row(report.engine, str(report.parts), f"{report.seconds:.0f}", *counted, *ends)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench chaos turns",
        description="Callers of two services, beside faults; what they were told is held against what is stored.",
    )
    parser.add_argument("--engine", choices=ENGINES, help="on this engine only")
    parser.add_argument("--shape", choices=SHAPES, help="of all parts; by default one after the other")
    parser.add_argument("--seed", type=int, help="of the first part; another one each time by default")
    parser.add_argument("--turns", type=int, default=10_000, help="turns on each engine (%(default)s)")
    for name, times in _DEFAULTS.items():
        parser.add_argument(f"--{name}", type=int, help=f"how often {_HELP[name]} ({times} if no fault is named)")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="save the history of each part that has a fault")
    parser.add_argument("--check", type=Path, metavar="FILE", help="only check a saved history again")
    return parser


_HELP: dict[FaultName, str] = {
    "kill": "a service is killed with SIGKILL and started again",
    "pause": "a service is paused for longer than its leases",
    "stall": "no byte passes between a service and its database; on SQLite another process holds the lock",
    "cut": "the connections of a service to its database are cut; on SQLite as stall",
    "slow": "each packet to the database is slow; on SQLite the lock is held for most of the time",
    "full": "the disk of the pending writes, and of a SQLite file, is full",
}
