"""A process that carries queued runs out from the moment it is told to until its input ends: `-m bench.run_worker`."""

from __future__ import annotations

import asyncio
import os
import sys

import threadkeep.runs.engine.dbos_engine  # noqa: F401 - importing it takes seconds, which are not a run's
from bench.run_desk import open_desk


async def _work(url: str) -> None:
    async with open_desk(url):
        await asyncio.to_thread(sys.stdin.readline)


def main() -> None:
    """Say that everything is imported, wait, and work."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if sys.stdin.readline():
        asyncio.run(_work(os.environ["THREADKEEP_BENCH_URL"]))


if __name__ == "__main__":
    main()
