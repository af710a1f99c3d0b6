"""`python -m bench context`: how fast contexts of model calls are assembled, and how much of them is reused."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rich.console import Console
from rich.table import Table

from bench.context_assembly import (
    ALL_THAT_FITS,
    ALL_THAT_FITS_LARGE,
    APPROXIMATE,
    ESTIMATE,
    MAX_TOKENS,
    NEWEST_20,
    AssemblyPlan,
    Contest,
    measure,
)
from bench.context_parts import measure_parts
from bench.context_reuse import KINDS, Reuse
from bench.context_reuse import measure as measure_reuse
from bench.lanes import Tell
from bench.machine import machine_line
from bench.sections import PAGE, put_section
from bench.tables import ENGINE_TITLES, Sheet, markdown

FULL, QUICK = AssemblyPlan(), AssemblyPlan(stored=(100, 1_000), rounds=4, seconds=1.0)
TURNS, FEW_TURNS = 200, 30
_FASTER, _FLAT, _SHARE = 100.0, 1.2, 0.85
_COMPARED = 10_000


@dataclass(frozen=True)
class Found:
    """The results: milliseconds of each contest, of the parts of a call, and the shares of reused beginnings."""

    assembly: Mapping[Contest, float]
    parts: Mapping[str, float]
    reuse: Sequence[Reuse]
    turns: int


async def run(plan: AssemblyPlan, turns: int, tell: Tell) -> Found:
    """Measure everything."""
    with tempfile.TemporaryDirectory(prefix="threadkeep-bench-") as name:
        folder = Path(name)
        assembly = await measure(plan, folder, tell)
        parts = await measure_parts(folder, plan.stored[0])
    return Found(assembly, parts, await measure_reuse(turns, tell), turns)


def sheets(found: Found) -> dict[str, Sheet]:
    """Return the tables, by their names in the page."""
    return {
        "aims": _aims(found),
        "assembly": _assembly(found.assembly),
        "parts": Sheet("A call", tuple(found.parts), (tuple(f"{spent:.2f}" for spent in found.parts.values()),)),
        "reuse": Sheet(
            "Beginnings",
            ("share in per cent", *(f"{kind}: {part}" for kind in KINDS for part in ("calls", "characters"))),
            tuple(
                (
                    one.title,
                    *(f"{100 * part[kind]:.0f}" for kind in KINDS for part in (one.calls, one.characters)),
                )
                for one in found.reuse
            ),
        ),
    }


def write_section(found: Found, docs: Path) -> None:
    """Write the section of the page of benchmarks."""
    template = Template(Path(__file__).with_name("context.md").read_text(encoding="utf-8"))
    versions = machine_line(None)
    text = template.substitute(
        {name: markdown(sheet) for name, sheet in sheets(found).items()},
        machine=versions,
        max_tokens=f"{MAX_TOKENS:,}",
        newest=NEWEST_20,
        turns=found.turns,
    )
    put_section(docs / PAGE, "context", text)


def main(arguments: Sequence[str], docs: Path) -> int:
    """Measure and print; unless the run is quick, write the section. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench context", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run on short sessions; the page stays")
    given = parser.parse_args(arguments)
    console = Console(stderr=True)

    def tell(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    found = asyncio.run(run(QUICK if given.quick else FULL, FEW_TURNS if given.quick else TURNS, tell))
    for sheet in sheets(found).values():
        _print(sheet, Console(width=None if sys.stdout.isatty() else 160))
    if not given.quick:
        write_section(found, docs)
    return 0


def _print(sheet: Sheet, console: Console) -> None:
    table = Table(title=sheet.title, title_justify="left")
    for number, name in enumerate(sheet.header):
        table.add_column(name, justify="right" if number else "left")
    for row in sheet.rows:
        table.add_row(*row)
    console.print(table)


def _assembly(assembly: Mapping[Contest, float]) -> Sheet:
    lengths = sorted({contest.stored for contest in assembly})
    lines = list(dict.fromkeys((contest.engine, contest.kind) for contest in assembly))
    lines.sort(key=lambda line: line[0] is None)
    rows = [
        (
            f"Threadkeep on {ENGINE_TITLES[engine]}, {kind}" if engine else f"`trim_messages`, {kind}",
            *(f"{assembly[Contest(engine, kind, stored)]:,.2f}" for stored in lengths),
        )
        for engine, kind in lines
    ]
    return Sheet("Laying out one call", ("milliseconds", *(f"{n:,} stored" for n in lengths)), tuple(rows))


def _aims(found: Found) -> Sheet:
    rows: list[tuple[str, ...]] = []
    assembly = found.assembly
    lengths = sorted({contest.stored for contest in assembly})
    compared = _COMPARED if _COMPARED in lengths else lengths[-1]
    for engine in dict.fromkeys(contest.engine for contest in assembly if contest.engine):
        title = ENGINE_TITLES[engine]
        for kind in (NEWEST_20, ALL_THAT_FITS, ALL_THAT_FITS_LARGE):
            ours = assembly[Contest(engine, kind, compared)]
            for counter in (ESTIMATE, APPROXIMATE):
                factor = assembly[Contest(None, counter, compared)] / ours
                sentence = f"{kind}: times faster than `trim_messages` with {counter}, at {compared:,}"
                rows.append((title, sentence, f"≥ {_FASTER:g}", f"{factor:,.0f}", _verdict(factor >= _FASTER)))
            flat = assembly[Contest(engine, kind, lengths[-1])] / assembly[Contest(engine, kind, lengths[0])]
            sentence = f"{kind}: time at {lengths[-1]:,} relative to {lengths[0]:,}"
            rows.append((title, sentence, f"≤ {_FLAT:g}", f"{flat:.2f}", _verdict(flat <= _FLAT)))
    for one in found.reuse:
        if "anchored" in one.title:
            least = min(one.calls.values())
            sentence = f"{one.title}: calls that begin with the previous call"
            rows.append(("", sentence, f"≥ {_SHARE:.0%}", f"{least:.0%}", _verdict(least >= _SHARE)))
    return Sheet("Aims", ("engine", "aim", "bound", "found", "verdict"), tuple(rows))


def _verdict(met: bool) -> str:
    return "met" if met else "missed"
