"""`python -m bench runs`: the time that runs add to a turn, their throughput in a queue, and their space."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rich.console import Console
from rich.table import Table

from bench.chat_texts import ANSWER_CHARACTERS, QUESTION_CHARACTERS
from bench.contenders import ENGINES, Engine, Place
from bench.lanes import Tell
from bench.machine import machine_line
from bench.postgres_server import postgres_server
from bench.run_growth import PARTS, TURNS_A_SESSION, Growth, measure_growth
from bench.run_latency import WORKFLOWS, Latency, measure_latency
from bench.run_queue import AT_ONCE, PLAIN, QueuePlan, measure_queue
from bench.sections import PAGE, put_section
from bench.tables import ENGINE_TITLES, Sheet, markdown

_ADDED_MILLISECONDS, _TIMES_TEXT = 10.0, 3.0


@dataclass(frozen=True)
class RunsPlan:
    """The amount of work."""

    engines: tuple[Engine, ...] = ENGINES
    latency_rounds: int = 150
    queue: QueuePlan = QueuePlan()
    growth_turns: int = 1_000


FULL = RunsPlan()
QUICK = RunsPlan(latency_rounds=20, queue=QueuePlan(rounds=1, turns=30), growth_turns=40)


@dataclass(frozen=True)
class Found:
    """The results of the bench on one engine."""

    latency: Mapping[str, Latency]
    queue: Mapping[str, float]
    growth: Growth


async def run(plan: RunsPlan, tell: Tell) -> dict[Engine, Found]:
    """Measure everything, one engine after the other: a process executes the runs of one database at a time."""
    return {engine: await _measure(engine, plan, tell) for engine in plan.engines}


def sheets(found: Mapping[Engine, Found]) -> dict[str, Sheet]:
    """Return the tables, by their names in the page."""
    return {
        "aims": _aims(found),
        "latency": _latency(found),
        "queue": _queue(found),
        "growth": _growth(found),
    }


def write_section(found: Mapping[Engine, Found], docs: Path) -> None:
    """Write the section of the page of benchmarks."""
    template = Template(Path(__file__).with_name("runs.md").read_text(encoding="utf-8"))
    text = template.substitute(
        {name: markdown(sheet) for name, sheet in sheets(found).items()},
        machine=machine_line(None),
        at_once=AT_ONCE,
        turns=f"{next(iter(found.values())).growth.turns:,}",
        turns_a_session=TURNS_A_SESSION,
        question=QUESTION_CHARACTERS,
        answer=ANSWER_CHARACTERS,
    )
    put_section(docs / PAGE, "runs", text)


def main(arguments: Sequence[str], docs: Path) -> int:
    """Measure and print; after a full run on both engines, write the section. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench runs", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run with a few turns; the page stays")
    parser.add_argument("--engine", choices=ENGINES, help="measure on this engine only; the page stays")
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else FULL
    if given.engine is not None:
        plan = RunsPlan((given.engine,), plan.latency_rounds, plan.queue, plan.growth_turns)
    console = Console(stderr=True)

    def tell(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    found = asyncio.run(run(plan, tell))
    for sheet in sheets(found).values():
        _print(sheet, Console(width=None if sys.stdout.isatty() else 160))
    if not given.quick and given.engine is None:
        write_section(found, docs)
    return 0


async def _measure(engine: Engine, plan: RunsPlan, tell: Tell) -> Found:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="threadkeep-bench-")))
        server = await stack.enter_async_context(postgres_server()) if engine == "postgres" else None

        async def place(name: str) -> Place:
            own = folder / name
            await asyncio.to_thread(own.mkdir)
            return Place(own, None if server is None else await server.database(name))

        def told(text: str) -> None:
            tell(f"{engine}: {text}")

        latency = await measure_latency((await place("latency")).url, plan.latency_rounds, told)
        queue = await measure_queue(await place("queue"), await place("queue_saver"), plan.queue, told)
        growth = await measure_growth(await place("growth"), await place("growth_saver"), plan.growth_turns, told)
    return Found(latency, queue, growth)


def _aims(found: Mapping[Engine, Found]) -> Sheet:
    rows: list[tuple[str, ...]] = []
    for engine, one in found.items():
        title = ENGINE_TITLES[engine]
        added, times = max(each.added for each in one.latency.values()), one.growth.times_text
        for sentence, bound, value in (
            (
                "time added to a turn with a waiting caller, worst case, milliseconds at the median",
                _ADDED_MILLISECONDS,
                added,
            ),
            ("growth of the database, × the text of the turns", _TIMES_TEXT, times),
        ):
            rows.append((title, sentence, f"≤ {bound:g}", f"{value:.1f}", "met" if value <= bound else "missed"))
    return Sheet("Aims", ("engine", "aim", "bound", "found", "verdict"), tuple(rows))


def _latency(found: Mapping[Engine, Found]) -> Sheet:
    rows = tuple(
        (f"{ENGINE_TITLES[engine]}, {WORKFLOWS[name]}", f"{each.run:.1f}", f"{each.plain:.1f}", f"{each.added:+.1f}")
        for engine, one in found.items()
        for name, each in one.latency.items()
    )
    return Sheet("A turn", ("milliseconds", "as a run", "`graph.ainvoke`", "added"), rows)


def _queue(found: Mapping[Engine, Found]) -> Sheet:
    engines = list(found)
    names = list(next(iter(found.values())).queue)
    rows = tuple((name, *(_rate(found[engine].queue, name) for engine in engines)) for name in names)
    header = ("turns a second, and × a plain call of the same graph", *(ENGINE_TITLES[one] for one in engines))
    return Sheet("Turns a second", header, rows)


def _growth(found: Mapping[Engine, Found]) -> Sheet:
    growths = {engine: one.growth for engine, one in found.items()}
    rows = [
        ("the text itself", *(_size(one.text, one) for one in growths.values())),
        ("Threadkeep, all", *(_size(one.ours, one) for one in growths.values())),
        *((f"– {part}", *(_size(one.parts[part], one) for one in growths.values())) for part in PARTS),
        (f"text per turn at which the total is {_TIMES_TEXT:g} ×", *(_text_for(one) for one in growths.values())),
        ("checkpointed `MessagesState`", *(_size(one.saver, one) for one in growths.values())),
    ]
    return Sheet("Growth", ("bytes per turn, and × the text", *(ENGINE_TITLES[one] for one in growths)), tuple(rows))


def _size(size: int, growth: Growth) -> str:
    return f"{size / growth.turns:,.0f} ({size / growth.text:.2f} ×)"


def _text_for(growth: Growth) -> str:
    text = growth.text_for(_TIMES_TEXT)
    return "none" if text is None else f"{text:,.0f}"


def _rate(queue: Mapping[str, float], name: str) -> str:
    return f"{queue[name]:.0f} ({queue[name] / queue[PLAIN]:.2f} ×)"


def _print(sheet: Sheet, console: Console) -> None:
    table = Table(title=sheet.title, title_justify="left")
    for number, name in enumerate(sheet.header):
        table.add_column(name, justify="right" if number else "left")
    for row in sheet.rows:
        table.add_row(*row)
    console.print(table)
