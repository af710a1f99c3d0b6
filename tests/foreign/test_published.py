"""Tests that other frameworks publish for their sessions, with the adapters instead of their own classes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.foreign

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OPENAI = (
    "tests/memory/test_session.py",
    "tests/memory/test_session_limit.py",
    "tests/memory/test_openai_responses_compaction_session.py",
    "tests/memory/test_compaction_model_visibility.py",
    "tests/deferred_session_writes",
    "tests/test_hitl_session_scenario.py",
    "tests/test_native_tool_failure_history.py",
    "tests/test_soft_cancel.py",
    "tests/test_tool_batch_failure_history.py",
    "tests/test_tool_failure_boundaries.py",
    "tests/utils/test_simple_session.py",
)
LANGCHAIN = ("tests/unit_tests/runnables/test_history.py", "tests/unit_tests/chat_history")


@pytest.mark.parametrize(
    ("name", "plugin", "files", "counts"),
    [
        ("openai-agents", "published_openai", OPENAI, "545 passed, 35 skipped"),
        ("langchain-core", "published_langchain", LANGCHAIN, "27 passed, 2 skipped"),
    ],
)
def test_published_tests_pass(shared_url: str, name: str, plugin: str, files: tuple[str, ...], counts: str) -> None:
    """The plugins name the skipped tests and the reasons."""
    source = ROOT / ".published" / name
    if not (source / "version").exists():
        pytest.skip(f"The source of {name} is missing; `make foreign` downloads it from a package index.")
    options = ["-q", "-c", os.devnull, "--rootdir", str(source), "-p", plugin, "-n", "0"]
    options += ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin", "-p", "no:schemathesis", "-p", "no:anyio"]
    options += ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=session"]
    if name == "langchain-core":
        options += ["--noconftest"]  # it needs packages that these tests do not
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        env={
            **os.environ,
            "THREADKEEP_TEST_DATABASE": shared_url,
            "PYTHONPATH": os.pathsep.join([str(source), str(HERE)]),
        },
        cwd=source,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS * 2,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert counts in run.stdout
