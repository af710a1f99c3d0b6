"""The figures as tables, for a terminal and for the docs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.aims import Aim, aims_of
from bench.contenders import FIELD, Engine, Entry, Measure
from bench.plan import TAIL_MESSAGES
from bench.results import Results

ENGINE_TITLES: dict[Engine, str] = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
_NOTHING = "–"


@dataclass(frozen=True)
class Sheet:
    """A table before it is rendered."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sheets_of(results: Results) -> list[Sheet]:
    """Return a table for each engine and operation, and one for the throughput of each engine."""
    sheets: list[Sheet] = []
    for engine in results.engines():
        title = ENGINE_TITLES[engine]
        sheets.append(_latency_sheet(results, engine, "append", f"{title}: append of a turn of two messages"))
        sheets.append(_latency_sheet(results, engine, "tail", f"{title}: tail({TAIL_MESSAGES})"))
        sheets.append(_throughput_sheet(results, engine, f"{title}: turns a second of 16 sessions"))
    return sheets


def aim_sheet(aims: Sequence[Aim]) -> Sheet:
    """Return the table of aims, measured values and verdicts."""
    rows = tuple(
        (
            ENGINE_TITLES[aim.engine],
            aim.sentence,
            f"{'≤' if aim.at_most else '≥'} {aim.bound:g}",
            f"{aim.found:.2f}",
            aim.verdict,
            _NOTHING if aim.raw is None else f"{aim.raw:.2f}",
        )
        for aim in aims
    )
    return Sheet("Aims", ("engine", "aim", "bound", "found", "verdict", "the same for raw SQL"), rows)


def print_results(results: Results, console: Console) -> None:
    """Print all tables, the aims and the notes on a terminal."""
    console.print(results.machine, style="dim", highlight=False)
    for sheet in [*sheets_of(results), aim_sheet(aims_of(results))]:
        table = Table(title=sheet.title, title_justify="left")
        for number, name in enumerate(sheet.header):
            numeric = number > 0 and sheet.title != "Aims"
            table.add_column(name, justify="right" if numeric else "left")
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
    for note in results.notes:
        console.print(note, highlight=False)


def markdown(sheet: Sheet) -> str:
    """Return the table in Markdown, with figures aligned to the right."""
    rules = ["---" if sheet.title == "Aims" or not number else "---:" for number in range(len(sheet.header))]
    lines = [sheet.header, tuple(rules), *sheet.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _latency_sheet(results: Results, engine: Engine, measure: Measure, title: str) -> Sheet:
    sizes = results.sizes(engine)
    header = ("milliseconds, and × raw SQL", *(f"{stored:,} stored" for stored in sizes))
    rows = [
        (entry.title, *(_latency_text(results, engine, entry, measure, stored) for stored in sizes))
        for entry in _measured(results, engine, measure)
    ]
    return Sheet(title, header, tuple(rows))


def _throughput_sheet(results: Results, engine: Engine, title: str) -> Sheet:
    raw = results.value(engine, "raw", "throughput")
    rows: list[tuple[str, ...]] = []
    for entry in _measured(results, engine, "throughput"):
        rate = results.value(engine, entry.name, "throughput")
        if rate is not None:
            rows.append((entry.title, f"{rate:,.0f}", _times(rate, raw)))
    return Sheet(title, ("", "turns a second", "× raw SQL on one connection"), tuple(rows))


def _measured(results: Results, engine: Engine, measure: Measure) -> list[Entry]:
    names = {cell.contender for cell in results.cells if cell.engine == engine and cell.measure == measure}
    return [entry for entry in FIELD if entry.name in names]


def _latency_text(results: Results, engine: Engine, entry: Entry, measure: Measure, stored: int) -> str:
    value = results.value(engine, entry.name, measure, stored)
    if value is None:
        return _NOTHING
    return f"{_short(value)} ({_times(value, results.value(engine, 'raw', measure, stored))})"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _times(value: float, base: float | None) -> str:
    if base is None:
        return _NOTHING
    ratio = value / base
    return f"{ratio:.2f} ×" if ratio < 10 else f"{ratio:,.0f} ×"
