"""Plant faults into a copy of the source, one at a time, and check that the tests fail for each of them.

A mutant moves a boundary, drops an `await` or swaps arguments in `context`, `store` or `runs`. A mutant that survives
shows a guarantee without a test. Run all mutants, or those whose numbers are given::

    .venv/bin/python scripts/mutants.py
    .venv/bin/python scripts/mutants.py 3 17
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 300
"""The time limit in seconds for the tests of one mutant. A mutant that hangs counts as found."""


class Mutant(NamedTuple):
    """A fault: a line of a module, its replacement, and the tests that have to fail."""

    module: str
    line: str
    replacement: str
    tests: str


WINDOW, STEPS, TRIM = "tests/context/test_window.py", "tests/context/test_steps.py", "tests/context/test_trim.py"
COMPRESSION, SUMMARIES = "tests/context/test_compression.py", "tests/store/test_summaries.py"
CONTRACT, RETENTION, OUTBOX = (
    "tests/store/test_contract.py -k TestSqliteMemory",
    "tests/store/test_retention.py",
    "tests/store/test_outbox.py",
)
REPEATS, LIMITS, ENDINGS = (
    "tests/runs/test_chat_repeats.py",
    "tests/runs/test_limits.py",
    "tests/runs/test_turn_endings.py",
)

MUTANTS = (
    # Boundaries of windows, cuts and budgets.
    Mutant("context/window.py", "self._used + tokens <= budget:", "self._used + tokens < budget:", WINDOW),
    Mutant("context/window.py", "(self._pinned is not None) >= limit", "(self._pinned is not None) > limit", WINDOW),
    Mutant("context/window.py", "budget is None or tokens <= budget:", "budget is None or tokens < budget:", WINDOW),
    Mutant("context/window.py", "extent.reset_seq + 1)", "extent.reset_seq)", WINDOW),
    Mutant("context/window.py", "last_seq=first_seq - 1", "last_seq=first_seq", WINDOW),
    Mutant("context/trim.py", "for size in step) <= room:", "for size in step) < room:", f"{STEPS} {TRIM}"),
    Mutant("context/compression.py", "        if tokens < 0:", "        if tokens <= 0:", COMPRESSION),
    Mutant(
        "context/compression.py",
        "        if used > room:\n            break",
        "        if used >= room:\n            break",
        COMPRESSION,
    ),
    Mutant(
        "context/compression.py",
        "former.last_seq + 1 == latter.first_seq",
        "former.last_seq == latter.first_seq",
        COMPRESSION,
    ),
    Mutant("context/tokens.py", "window - reserve - SAFETY_TOKENS", "window - reserve", "tests/context/test_budget.py"),
    Mutant("context/folding.py", "if len(run) == 1", "if len(run) <= 2", "tests/context/test_folding.py"),
    Mutant("context/trim.py", "places is not None and places <= 0", "places is not None and places < 0", TRIM),
    # Boundaries, dropped awaits and swapped arguments where turns are stored and removed.
    Mutant(
        "store/summaries.py",
        "lowest < summary.first_seq <= highest + 1",
        "lowest < summary.first_seq <= highest",
        SUMMARIES,
    ),
    Mutant("store/summaries.py", "former[2] + 1 != latter[1]", "former[2] != latter[1]", SUMMARIES),
    Mutant("store/commits.py", "behind[id(prepared)] = left - 1", "behind[id(prepared)] = left", CONTRACT),
    Mutant("store/commits.py", "for prepared in turns}) > 1:", "for prepared in turns}) > 2:", CONTRACT),
    Mutant("store/commits.py", "first = last_seq - len(fresh) + 1", "first = last_seq - len(fresh)", CONTRACT),
    Mutant(
        "store/commits.py",
        "_with_duplicates(prepared.receipt(first, len(fresh))",
        "_with_duplicates(prepared.receipt(len(fresh), first)",
        CONTRACT,
    ),
    Mutant("store/commits.py", "await self._superseding.refresh(", "self._superseding.refresh(", CONTRACT),
    Mutant(
        "store/retention.py",
        "return int(rows[0][0]) - 1 if rows else session.last_seq",
        "return int(rows[0][0]) if rows else session.last_seq",
        RETENTION,
    ),
    Mutant(
        "store/retention.py",
        "not await self._begins(connection, _BEGIN",
        "not self._begins(connection, _BEGIN",
        RETENTION,
    ),
    Mutant(
        "store/outbox.py",
        '                await connection.execute(self._sql["hear"], heard)',
        '                connection.execute(self._sql["hear"], heard)',
        OUTBOX,
    ),
    Mutant(
        "store/superseding.py",
        "session_id, first, last)",
        "session_id, last, first)",
        "tests/history/test_superseding.py",
    ),
    # Runs: prices, budgets, owners, retries and ends.
    Mutant(
        "runs/options.py",
        "fresh * self.input + cache_read_tokens * cached",
        "fresh * cached + cache_read_tokens * self.input",
        "tests/runs/test_prices.py tests/runs/test_metering.py",
    ),
    Mutant("runs/tracing.py", "used == allowed and not crossed", "used == allowed and crossed", LIMITS),
    Mutant(
        "runs/service.py",
        "max_tokens = min(filter",
        "max_tokens = max(filter",
        f"{LIMITS} tests/runs/test_service.py",
    ),
    Mutant("runs/service.py", "not await self._runs.retry(run.run_id)", "not self._runs.retry(run.run_id)", REPEATS),
    Mutant("runs/endings.py", "found.owner == run.owner", "found.owner != run.owner", ENDINGS),
    Mutant(
        "runs/endings.py",
        '"complete" if outcome.status == "done" else "failed"',
        '"failed" if outcome.status == "done" else "complete"',
        "tests/runs/test_service.py tests/runs/test_chat.py",
    ),
    Mutant("runs/execution.py", "2.0 ** (try_number - 2)", "2.0 ** (try_number - 1)", "tests/runs/test_pauses.py"),
    Mutant(
        "runs/worker.py",
        "run.attempts > options.max_attempts",
        "run.attempts >= options.max_attempts",
        "tests/runs/test_runner_processes.py -m slow -k kills_its_processes",
    ),
)


def tests_fail(folder: Path, tests: str) -> bool:
    """Return True if a test fails in a copy of the repository, or the tests take longer than `SECONDS`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-k",
        "not postgres",
        *tests.split(),
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(  # noqa: S603 - the paths of this file
            command, cwd=folder, env=environment, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest did not run {tests}: {done.stdout.decode()[-2_000:]}")
    return done.returncode == 1


def is_killed(folder: Path, mutant: Mutant) -> bool:
    """Plant a mutant, run its tests, and restore the module. Return True if the tests found the mutant."""
    path = folder / "src/threadkeep" / mutant.module
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.line) != 1:
        raise SystemExit(f"{mutant.module} has {mutant.line!r} {source.count(mutant.line)} times; mend the mutant.")
    path.write_text(source.replace(mutant.line, mutant.replacement), encoding="utf-8")
    try:
        return tests_fail(folder, mutant.tests)
    finally:
        path.write_text(source, encoding="utf-8")


def main(numbers: Sequence[str]) -> int:
    """Run the mutants with these numbers, or all; return 1 if one survives."""
    every = range(1, len(MUTANTS) + 1)
    parser = argparse.ArgumentParser(prog="scripts/mutants.py", description=str(__doc__).partition("\n")[0])
    parser.add_argument("number", nargs="*", type=int, help=f"mutants to run, 1 to {len(MUTANTS)}; by default all")
    chosen = parser.parse_args(numbers).number or every
    if unknown := set(chosen).difference(every):
        parser.error(f"there is no mutant {min(unknown)}; there are {len(MUTANTS)}")
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="threadkeep-mutants-") as name:
        folder = Path(name)
        for part in ("src", "tests", "bench", "docs"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        for number in chosen:
            mutant, began = MUTANTS[number - 1], time.monotonic()
            killed = is_killed(folder, mutant)
            survivors += not killed
            outcome = f"{'killed' if killed else 'SURVIVES':8} {time.monotonic() - began:5.0f} s"
            print(f"{number:2} {outcome}  {mutant.module}: {mutant.replacement.strip()}", flush=True)
    print(f"{survivors} of {len(chosen)} mutants survive.")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
