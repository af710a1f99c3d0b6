"""`threadkeep bench`: how fast the memory is here, on the user's own database."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from threadkeep.cli.opening import opened_memory, run
from threadkeep.cli.options import AsJson
from threadkeep.cli.progress import Reach, progress
from threadkeep.cli.terminal import Terminal

if TYPE_CHECKING:
    from threadkeep.history.session import Session
    from threadkeep.records import Message

_WARM_UP = 5
_QUESTION = "Which of the two trains arrives earlier, and from which platform does it leave? "
_ANSWER = "The one at nine arrives earlier, a quarter of an hour before the other; it leaves from platform seven. " * 3


@dataclass(frozen=True)
class Measured:
    """The times of one operation, in milliseconds."""

    name: str
    median_ms: float
    p95_ms: float
    rounds: int


def bench(
    turns: Annotated[int, typer.Option(min=10, max=100_000, help="How many turns to append.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Measure how fast the memory is here.

    Appends turns to a session of its own, reads them, and deletes the session at the end.
    """
    terminal = Terminal(as_json=as_json)
    database, results = run(_bench(terminal, turns))
    if as_json:
        rows = [{"name": r.name, "median_ms": r.median_ms, "p95_ms": r.p95_ms, "rounds": r.rounds} for r in results]
        terminal.json({"database": database, "results": rows})
        return
    cells = [(r.name, f"{r.median_ms:.2f}", f"{r.p95_ms:.2f}", f"{r.rounds:,}") for r in results]
    terminal.table(["operation", "median ms", "p95 ms", "rounds"], cells, right=["median ms", "p95 ms", "rounds"])
    terminal.note(f"On {database}, one caller at a time; the session is deleted again.")


async def _bench(terminal: Terminal, turns: int) -> tuple[str, list[Measured]]:
    from threadkeep.records import Message
    from threadkeep.settings import load_settings

    turn = [Message(role="user", content=_QUESTION), Message(role="assistant", content=_ANSWER)]
    database = str(load_settings().database)
    async with opened_memory() as memory:
        session = memory.session(f"bench:{uuid4()}")
        try:
            with progress(terminal, "Measuring", 3 * turns) as reach:
                return database, await _measure_all(session, turn, turns, reach)
        finally:
            await session.delete()


async def _measure_all(session: Session, turn: list[Message], turns: int, reach: Reach) -> list[Measured]:
    operations: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("append a turn of two messages", lambda: session.append(turn)),
        ("tail(20)", lambda: session.tail(20)),
        ("window(20 messages, 4000 tokens)", lambda: session.window(20, 4000)),
    ]
    results: list[Measured] = []
    for place, (name, operation) in enumerate(operations):
        for _ in range(_WARM_UP):
            await operation()
        times: list[float] = []
        for done in range(turns):
            started = time.perf_counter()
            await operation()
            times.append((time.perf_counter() - started) * 1000)
            reach(place * turns + done + 1, name)
        p95 = statistics.quantiles(times, n=20)[-1]
        results.append(Measured(name, statistics.median(times), p95, turns))
    return results
