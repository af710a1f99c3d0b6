"""`python -m bench`: measure, print the tables, and write the docs."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.contenders import ENGINES, FIELD
from bench.plan import FULL, QUICK, Plan
from bench.results import Results
from bench.run import run
from bench.tables import print_results

_DOCS = Path(__file__).parent.parent / "docs"
_PARTS = {
    "tokens": ("bench.tokens", True),
    "context": ("bench.context", True),
    "runs": ("bench.runs", True),
    "knowledge": ("bench.knowledge", True),
    "chaos": ("bench.chaos", False),
    "channels": ("bench.channels", False),
    "turn-cost": ("bench.turn_cost", False),
    "memory-cost": ("bench.memory_cost", False),
    "capacity": ("bench.capacity", False),
}
"""The benches that are separate commands: for each, its module and whether it writes into the docs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] and arguments[0] in _PARTS:
        module, writes_docs = _PARTS[arguments[0]]
        measure = importlib.import_module(module).main
        return int(measure(arguments[1:], _DOCS) if writes_docs else measure(arguments[1:]))
    given = _parser().parse_args(arguments)
    plan = _plan(given)
    results = _measure(plan)
    print_results(results, Console(width=None if sys.stdout.isatty() else 160))
    if given.json is not None:
        results.write_json(given.json)
    complete = not given.quick and plan.engines == FULL.engines and not plan.only
    if complete if given.write_docs is None else given.write_docs:
        from bench.page import write_docs

        write_docs(results, _DOCS)
    if complete:
        from bench.tokens import main as measure_tokens

        return measure_tokens(["--no-write-docs"] if given.write_docs is False else [], _DOCS)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Threadkeep beside raw SQL and other memories; `python -m bench tokens`: token counters; "
        "`python -m bench context`: the contexts of model calls; `python -m bench runs`: runs of workflows; "
        "`python -m bench knowledge`: Graphiti and recall of facts; "
        "`python -m bench chaos`: runs in processes that die; "
        "`python -m bench channels`: bots in services that are killed; "
        "`python -m bench turn-cost`: CPU of a chat turn; "
        "`python -m bench memory-cost`: CPU that `SessionMemory` adds to a turn; "
        "`python -m bench capacity`: capacity predicted and measured.",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run of half a minute, with short sessions")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", choices=[entry.name for entry in FIELD],
        help="measure this contender (may be given again) beside Threadkeep and raw SQL: %(choices)s",
    )  # fmt: skip
    parser.add_argument("--engine", choices=ENGINES, help="measure on this engine only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    parser.add_argument(
        "--write-docs",
        action=argparse.BooleanOptionalAction,
        help="write docs/benchmarks.md and its picture; by default a complete run does",
    )
    return parser


def _plan(given: argparse.Namespace) -> Plan:
    plan = QUICK if given.quick else FULL
    engines = plan.engines if given.engine is None else (given.engine,)
    return replace(plan, engines=engines, only=tuple(given.only))


def _measure(plan: Plan) -> Results:
    """Run the plan and print its progress to stderr: one line that is updated on a terminal, otherwise many lines."""
    console = Console(stderr=True)
    started = time.monotonic()
    with console.status("starting") if console.is_terminal else nullcontext() as status:

        def tell(text: str) -> None:
            line = f"{time.monotonic() - started:5.0f} s  {text}"
            if status is None:
                console.print(line, highlight=False, soft_wrap=True)
            else:
                status.update(line)

        return asyncio.run(run(plan, tell))


if __name__ == "__main__":
    sys.exit(main())
