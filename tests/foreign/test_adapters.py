"""Tests of the adapters whose packages have a separate environment, which `make foreign` creates."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.foreign

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-adapters" / "bin" / "python"


@pytest.mark.parametrize(("name", "count"), [("adapter_cases.py", 25), ("conversation_cases.py", 11)])
def test_the_cases_of_other_frameworks_pass(shared_url: str, name: str, count: int) -> None:
    """Cases of Google ADK, LlamaIndex and Pydantic AI pass on each database."""
    if not PYTHON.exists():
        pytest.skip("These frameworks need a separate environment: run `make foreign`.")
    cases = Path(__file__).with_name(name)
    options = ["-q", "--noconftest", "-c", os.devnull, "--rootdir", str(cases.parent), "-p", "no:cacheprovider"]
    options += ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
    run = subprocess.run(
        [PYTHON, "-m", "pytest", *options, cases],
        env={**os.environ, "THREADKEEP_TEST_DATABASE": shared_url},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{count} passed" in run.stdout


def test_the_memories_of_other_frameworks_are_compared() -> None:
    """Threadkeep stores each turn that it acknowledged, in one piece; the bench measures other memories, too."""
    if not PYTHON.exists():
        pytest.skip("These frameworks need a separate environment: run `make foreign`.")
    chosen = ["--only", "agno", "--only", "llama-index"]
    run = subprocess.run(
        [PYTHON, "-m", "bench.peers", "--quick", "--tasks", "2", "--turns", "3", *chosen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stdout.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0].split()[0] for row in rows[2:]] == ["Threadkeep", "agno", "LlamaIndex"]
    assert rows[2][5:] == ["12 / 12", "0", "–"]
