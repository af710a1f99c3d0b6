"""Tests that each command that executes runs gives a graph its store and its thread."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import CommandLine
from tests.limits import HANG_SECONDS
from tests.wired import BOTH, NAMED

_POLL_SECONDS = 0.05
_ROOT = Path(__file__).parents[2]


@pytest.mark.process
@pytest.mark.slow
def test_commands_and_workers_give_a_graph_its_store_and_thread(any_cli: CommandLine) -> None:
    """A command executes, resumes and retries runs itself, and a worker executes a queued run."""
    any_cli.set(THREADKEEP_WORKFLOWS=NAMED, PYTHONPATH=f"{_ROOT}:{os.environ.get('PYTHONPATH', '')}")
    asked = any_cli("workflows", "run", "wired", "go", "--json").json["run_id"]
    assert any_cli("runs", "resume", asked, "yes", "--wait", "--json").json["text"] == BOTH
    failed = any_cli("workflows", "run", "wired", "break", "--json").json["run_id"]
    assert any_cli("runs", "retry", failed, "--wait", "--json").json["status"] == "waiting"
    assert any_cli("runs", "resume", failed, "yes", "--wait", "--json").json["text"] == BOTH
    queued = any_cli("workflows", "run", "wired", "go", "--background", "--json").json["run_id"]
    with any_cli.fork("worker") as worker:
        _reached(any_cli, queued, "waiting")
        any_cli("runs", "resume", queued, "yes")
        assert _reached(any_cli, queued, "done")["text"] == BOTH
        worker.send_signal(signal.SIGTERM)
        worker.communicate()


def _reached(cli: CommandLine, run_id: str, status: str) -> dict[str, Any]:
    deadline = time.monotonic() + HANG_SECONDS
    while (run := cli("runs", "show", run_id, "--json").json)["status"] != status:
        assert time.monotonic() < deadline, run
        time.sleep(_POLL_SECONDS)
    return dict(run)
