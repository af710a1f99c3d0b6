"""Tests that an interrupted or killed test run leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux can end orphans"),
]

_ROOT = Path(__file__).parents[2]

# A test with PostgreSQL, a running and a paused child, and a service. It writes their process ids and waits.
_TEST = """
import asyncio, os, signal, time
from pathlib import Path

import psutil

from tests.children import Child
from tests.web.processes import running


async def test_everything_runs(postgres_server, tmp_path):
    server = psutil.Process(postgres_server._server.get_pid())
    children = [Child(time.sleep, 600), Child(signal.raise_signal, signal.SIGSTOP)]
    while psutil.Process(children[1].pid).status() != "stopped":
        await asyncio.sleep(0.05)
    environment = {"THREADKEEP_DATABASE_URL": f"sqlite:///{tmp_path}/threadkeep.db"}
    async with running(tmp_path / "service", environment) as (_, service):
        pids = [os.getpid(), server.pid, *(child.pid for child in [*children, service.child])]
        pids += [process.pid for process in [*server.children(), *psutil.Process().children(recursive=True)]]
        ready = Path(os.environ["READY"])
        (ready.parent / "writing").write_text(" ".join(map(str, pids)))
        (ready.parent / "writing").rename(ready)
        await asyncio.sleep(600)
"""


def until[T](found: Callable[[], T], what: Callable[[], str]) -> T:
    """Poll until a value is true, and return it."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)
    return value


def alive(pids: Sequence[int]) -> list[str]:
    """Return the command lines of processes that still run."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            found.append(f"{pid}: {command}")
    return found


@pytest.mark.parametrize(
    ("number", "options"),
    [(signal.SIGINT, ()), (signal.SIGTERM, ("-n", "1")), (signal.SIGKILL, ())],
    ids=["ctrl-c", "stopped-workers", "killed"],
)
def test_no_process_is_left_behind(number: signal.Signals, options: Sequence[str], tmp_path: Path) -> None:
    """PostgreSQL, its folder, running and paused children, and services end with the tests that started them."""
    test, ready = tmp_path / "test_inner.py", tmp_path / "ready"
    test.write_text(_TEST)
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "tests.conftest", *options, str(test)]
    with (tmp_path / "output").open("w") as output:
        tests = subprocess.Popen(
            command, cwd=_ROOT, stdout=output, stderr=output, env={**os.environ, "READY": str(ready)}
        )
    try:
        until(lambda: ready.exists() or tests.poll() is not None, lambda: "the tests do not begin")
        assert ready.exists(), (tmp_path / "output").read_text()
        pids = [int(pid) for pid in ready.read_text().split()]
        assert len(alive(pids)) >= 6
        tests.send_signal(number)
        tests.wait(HANG_SECONDS)
        until(lambda: not alive(pids), lambda: f"still there: {alive(pids)}")
    finally:
        tests.kill()
        tests.wait()
    assert len(alive(pids)) == 0
