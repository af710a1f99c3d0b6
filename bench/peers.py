"""`make peers`: the memories of other frameworks beside Threadkeep, on SQLite, in the environment of the adapters.

Three questions: how long does a turn take, how much disk does it need, and what is stored if two processes write turns
to one conversation at once?
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from string import Template
from typing import Any

from bench.contenders import FIELD, Contender, Entry, Place, TurnTexts
from bench.machine import machine_line
from bench.plan import TAIL_MESSAGES, Plan
from bench.results import Results
from bench.run import run
from bench.sections import PAGE, put_section
from bench.tables import Sheet, markdown
from bench.texts import turns

_FULL = Plan(engines=("sqlite",), stored=(0, 100, 1_000), rounds=40, copies=2)
_QUICK = Plan(
    engines=("sqlite",), stored=(0, 20), rounds=2, repeats=2, copies=1, burst_rounds=1, burst_seconds=0.1, sessions=3
)
_PROCESSES = 2
_CONVERSATION = "crowd:1"
_ALL_MESSAGES = 10_000


@dataclass(frozen=True)
class Crowd:
    """The result of two processes that wrote turns to one conversation at once.

    - `told`: turns whose call returned without an error; `lost`: those of them that are not stored.
    - `torn`: those of them whose stored question is not directly followed by its answer.
    - `failed`: turns whose call raised an error, by the error's name.
    """

    told: int
    lost: int
    torn: int
    failed: Counter[str]


@dataclass(frozen=True)
class Size:
    """The sizes of a run: tasks of each process, turns of each task, and turns of the conversation that is weighed."""

    tasks: int = 4
    turns: int = 10
    weighed: int = 200


def peers(only: Sequence[str] = ()) -> list[Entry]:
    """Return Threadkeep and the memories of other frameworks with a SQLite file: all, or those in `only`."""
    entries = [entry for entry in FIELD if entry.kind != "raw" and "sqlite" in entry.opens]
    return [entry for entry in entries if not only or entry.kind == "ours" or entry.name in only]


async def crowd(entry: Entry, folder: Path, size: Size) -> Crowd:
    """Let two processes write turns to one conversation, and compare what they were told with what is stored."""
    place = Place(folder)
    async with entry.open("sqlite", place) as contender, contender.conversation(_CONVERSATION) as conversation:
        await conversation.append(TurnTexts("Hello.", "Hello, how can I help?"))
    command = [sys.executable, "-m", "bench.peers", "--writer", entry.name, "--folder", str(folder)]
    amounts = ["--tasks", str(size.tasks), "--turns", str(size.turns)]
    writers = [
        await asyncio.create_subprocess_exec(
            *command, *amounts, "--number", str(number), cwd=Path(__file__).parents[1], stdout=asyncio.subprocess.PIPE
        )
        for number in range(_PROCESSES)
    ]
    told: list[str] = []
    failed: Counter[str] = Counter()
    for output, _ in await asyncio.gather(*(writer.communicate() for writer in writers)):
        found = json.loads(output)
        told += found["told"]
        failed.update(found["failed"])
    async with entry.open("sqlite", place) as contender, contender.conversation(_CONVERSATION) as conversation:
        stored = [text_of(message) for message in await conversation.tail(_ALL_MESSAGES)]
    answered = {question for question, answer in pairwise(stored) if answer == _answer(question)}
    return Crowd(
        told=len(told),
        lost=sum(question not in stored for question in told),
        torn=sum(question in stored and question not in answered for question in told),
        failed=failed,
    )


def text_of(message: Any) -> str:
    """Return the text of a message of any contender."""
    content = message["content"] if isinstance(message, dict) else message.content
    return str(content.parts[0].text if hasattr(content, "parts") else content)


def _answer(question: str) -> str:
    return f"This is the answer to: {question}"


async def _write(entry: Entry, folder: Path, number: int, size: Size) -> dict[str, Any]:
    """Write turns from several tasks, each turn as a new request; return which were stored, and the errors."""
    told: list[str] = []
    failed: Counter[str] = Counter()

    async def write(contender: Contender, task: int) -> None:
        for turn in range(size.turns):
            question = f"Process {number}, task {task}, question {turn}"
            try:
                async with contender.conversation(_CONVERSATION) as conversation:
                    await conversation.append(TurnTexts(question, _answer(question)))
            except Exception as error:  # noqa: BLE001 - errors are part of what is measured
                failed[type(error).__name__] += 1
            else:
                told.append(question)

    async with entry.open("sqlite", Place(folder)) as contender:
        await asyncio.gather(*(write(contender, task) for task in range(size.tasks)))
    return {"told": told, "failed": failed}


async def bytes_per_turn(entry: Entry, folder: Path, size: Size) -> float:
    """Return the bytes by which the file grows with each turn of one conversation, without those of its first turn."""
    place, sizes = Place(folder), []
    texts = turns()
    for count in (1, size.weighed):
        async with entry.open("sqlite", place) as contender:
            async with contender.conversation("weighed:1") as conversation:
                for turn in islice(texts, count):
                    await conversation.append(turn)
            await contender.settle()
        with closing(sqlite3.connect(place.file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes.append(place.file.stat().st_size)
    return (sizes[1] - sizes[0]) / size.weighed


def sheet(results: Results, crowds: dict[str, Crowd], weights: dict[str, float]) -> Sheet:
    """Return the table of a run: one row for each contender."""
    longest = max(results.sizes("sqlite"))
    header = (
        f"at {longest:,} messages",
        "append, ms",
        f"newest {TAIL_MESSAGES}, ms",
        "turns/s, 16 sessions",
        "bytes per turn",
        "stored / told",
        "torn apart",
        "errors",
    )
    rows = []
    for entry in peers():
        if (found := crowds.get(entry.name)) is None:
            continue
        times = [results.value("sqlite", entry.name, measure, longest) or 0 for measure in ("append", "tail")]
        rate = results.value("sqlite", entry.name, "throughput") or 0
        errors = ", ".join(f"{count} {name}" for name, count in found.failed.most_common()) or "–"
        rows.append(
            (
                entry.title,
                *(f"{time:.2f}" for time in times),
                f"{rate:,.0f}",
                f"{weights[entry.name]:,.0f}",
                f"{found.told - found.lost} / {found.told}",
                str(found.torn),
                errors,
            )
        )
    return Sheet("Memories of other frameworks", header, tuple(rows))


async def _measured(plan: Plan, size: Size) -> tuple[Results, dict[str, Crowd], dict[str, float]]:
    def tell(text: str) -> None:
        print(text, file=sys.stderr)

    crowds: dict[str, Crowd] = {}
    weights: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="threadkeep-bench-") as name:
        for entry in peers(plan.only):
            tell(f"{entry.title}: two processes, one conversation")
            folders = [Path(name) / entry.name / part for part in ("crowd", "weighed")]
            for folder in folders:
                folder.mkdir(parents=True)
            try:
                crowds[entry.name] = await crowd(entry, folders[0], size)
            except ImportError as error:
                tell(f"{entry.title} is left out: {error.name} is not installed")
                continue
            weights[entry.name] = await bytes_per_turn(entry, folders[1], size)
    return await run(plan, tell), crowds, weights


def main(arguments: Sequence[str], docs: Path) -> int:
    """Measure, print the table, and write it into the page; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run with few turns; the page stays")
    names = [entry.name for entry in peers()]
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=names,
        metavar="NAME",
        help="compare Threadkeep with this one only (may be given again; the page stays): %(choices)s",
    )
    parser.add_argument("--writer", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--tasks", type=int, default=Size.tasks, help="tasks of each process (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=Size.turns, help="turns of each task (default: %(default)s)")
    given = parser.parse_args(arguments)
    size = Size(given.tasks, given.turns, 5 if given.quick else Size.weighed)
    if given.writer is not None:
        [entry] = [entry for entry in FIELD if entry.name == given.writer]
        print(json.dumps(asyncio.run(_write(entry, given.folder, given.number, size))))
        return 0
    plan = replace(_QUICK if given.quick else _FULL, only=tuple(given.only))
    results, crowds, weights = asyncio.run(_measured(plan, size))
    table = markdown(sheet(results, crowds, weights))
    print(table, *results.notes, sep="\n")
    if not (given.quick or given.only):
        page = Template((Path(__file__).parent / "peers.md").read_text(encoding="utf-8"))
        notes = " ".join(results.notes)
        put_section(docs / PAGE, "peers", page.substitute(table=table, notes=notes, machine=machine_line(None)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).parent.parent / "docs"))
