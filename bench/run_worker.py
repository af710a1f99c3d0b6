"""`python -m bench.run_worker`: a process that executes queued runs, from a line on its input to the next one."""

from __future__ import annotations

import asyncio
import os
import sys

import threadkeep.runs.engine.dbos_engine  # noqa: F401 - its import takes seconds, which must not count as a run's
from bench.run_desk import open_desk


async def _work(url: str) -> None:
    async with open_desk(url):
        await asyncio.to_thread(sys.stdin.readline)


def main() -> None:
    """Report that everything is imported, wait for the command, and execute runs."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if sys.stdin.readline():
        asyncio.run(_work(os.environ["THREADKEEP_BENCH_URL"]))


if __name__ == "__main__":
    main()
