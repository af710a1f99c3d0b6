"""`python -m bench.pruning`: how long an append waits while retention removes most of a long session.

A session is filled and indexed, then its older half is archived, then everything except the newest message is deleted.
Meanwhile two tasks append turns, one to that session and one to another. The longest wait counts, compared with the
longest one without pruning.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from threadkeep import Memory, MemoryOptions, Message, Retention, RetentionLimits, open_memory
from threadkeep.history.pending import PendingOptions

_TURN_MESSAGES = 500
_PAUSE_SECONDS = 0.01
_WORDS = [f"word{number}" for number in range(3_000)]


async def measure(
    url: str, folder: Path, *, messages: int, rest_seconds: float
) -> list[tuple[str, float, list[float]]]:
    """Return for each phase its name, its seconds, and the waits of the concurrent appends in milliseconds."""
    options = MemoryOptions(background=False, pending=PendingOptions(folder=folder))
    async with open_memory(url, options=options) as memory:
        await _fill(memory, messages)
        found: list[tuple[str, float, list[float]]] = []
        async with _appending(memory) as waits:
            await asyncio.sleep(rest_seconds)
        found.append(("nothing", rest_seconds, waits))
        for name, limits in (
            (f"archive {messages // 2:,}", Retention(archive=RetentionLimits(max_messages=messages // 2))),
            (f"delete {messages:,}", Retention(delete=RetentionLimits(max_messages=1))),
        ):
            started = time.perf_counter()
            async with _appending(memory) as waits:
                await memory.retention.prune(limits)
            found.append((name, time.perf_counter() - started, waits))
        return found


@asynccontextmanager
async def _appending(memory: Memory) -> AsyncIterator[list[float]]:
    """Append turns to the long session and to another one while the block runs; yield the list of their waits."""
    waits: list[float] = []
    over = asyncio.Event()

    async def append(session_id: str) -> None:
        while not over.is_set():
            started = time.perf_counter()
            turn = [Message(role="user", content="How is it?"), Message(role="assistant", content="Well.")]
            await memory.session(session_id).append(turn)
            waits.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(_PAUSE_SECONDS)

    async with asyncio.TaskGroup() as group:
        for session_id in ("long", "other"):
            group.create_task(append(session_id))
        try:
            yield waits
        finally:
            over.set()


async def _fill(memory: Memory, messages: int) -> None:
    """Store a session of messages of 30 words, and index all of them for search."""
    chosen = random.Random(1)
    for start in range(0, messages, _TURN_MESSAGES):
        turn = [
            Message(
                role="assistant" if place % 2 else "user", content=" ".join(chosen.choices(_WORDS, k=30)), tokens=60
            )
            for place in range(min(_TURN_MESSAGES, messages - start))
        ]
        await memory.session("long").append(turn)
    await memory.session("long").append([Message(role="user", content="thelastone", tokens=1)])
    # Each search first spends some seconds on indexing.
    while not await memory.search("thelastone", limit=1):
        pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.pruning", description=__doc__)
    parser.add_argument("--url", help="a database of its own for it; by default a SQLite file that is removed again")
    parser.add_argument("--messages", type=int, default=100_000, help="of the long session (%(default)s)")
    parser.add_argument("--rest", type=float, default=5.0, help="seconds of appends without pruning (%(default)s)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="threadkeep-bench-") as folder:
        url = given.url or f"sqlite:///{folder}/bench.db"
        found = asyncio.run(measure(url, Path(folder) / "pending", messages=given.messages, rest_seconds=given.rest))
    sys.stdout.write(f"{'meanwhile':<20}{'seconds':>9}{'appends':>9}{'median ms':>11}{'p99 ms':>9}{'longest ms':>12}\n")
    for name, seconds, waits in found:
        waits.sort()
        median, late = statistics.median(waits), waits[int(len(waits) * 0.99)]
        sys.stdout.write(f"{name:<20}{seconds:>9.1f}{len(waits):>9,}{median:>11.1f}{late:>9.1f}{waits[-1]:>12.1f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
