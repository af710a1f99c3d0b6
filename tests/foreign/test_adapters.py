"""The adapters whose packages have an environment of their own, in the environment of `make foreign`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.foreign

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-adapters" / "bin" / "python"


def test_the_cases_of_google_adk_and_llama_index_hold(shared_url: str) -> None:
    """On each database; the cases are in `adapter_cases.py`."""
    if not PYTHON.exists():
        pytest.skip(
            "Google ADK and LlamaIndex have an environment of their own, which is not there: run `make foreign`."
        )
    cases = Path(__file__).with_name("adapter_cases.py")
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
    assert "8 passed" in run.stdout
