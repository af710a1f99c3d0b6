"""Child processes for tests, forked from a server that has imported Threadkeep once, so that a start is fast."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

import tests.encryption  # noqa: F401 - child processes import this module, and encrypt as their parent does
from bench.endings import end_with_parent
from tests.limits import HANG_SECONDS

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "pytest",
        "langchain_core.utils.uuid",
        "langchain_openai",
        "langgraph.checkpoint.postgres.aio",
        "langgraph.checkpoint.sqlite.aio",
        "langgraph.graph",
        "langgraph.store.postgres.aio",
        "langgraph.store.sqlite.aio",
        "threadkeep.app",
        "threadkeep.cli.commands",
        "threadkeep.memory",
        "threadkeep.runs.engine.dbos_engine",
        "threadkeep.runs.service",
        "threadkeep.settings",
        "threadkeep.store.postgres",
        "threadkeep.store.sqlite",
        "threadkeep.web.service",
    ]
)


class Child[T]:
    """A process that runs one function, and its result."""

    def __init__(self, work: Callable[..., T], *arguments: object, together: Barrier | None = None) -> None:
        self._answer, theirs = PROCESSES.Pipe(duplex=False)
        self.process: ForkServerProcess = PROCESSES.Process(
            target=_run, args=(theirs, together, work, arguments), daemon=True
        )
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self.process.pid is not None
        return self.process.pid

    def result(self) -> T:
        """Return the function's result.

        Raises:
            AssertionError: the function raised, or the process was killed or takes too long.
        """
        try:
            assert wait([self._answer], HANG_SECONDS), "the process takes too long"
            well, value = self._answer.recv()
        except EOFError:
            raise AssertionError("the process was killed") from None
        finally:
            self.kill()
        assert well, value
        return value  # type: ignore[no-any-return]

    def kill(self) -> None:
        """End the process with SIGKILL if it still runs, and wait until it has ended."""
        self.process.kill()
        self.process.join()
        self._answer.close()


def run_together[T](work: Callable[..., T], arguments: Sequence[tuple[object, ...]]) -> list[T]:
    """Run the function in one process for each argument, started together; return the results in order."""
    together = PROCESSES.Barrier(len(arguments))
    children = [Child(work, *each, together=together) for each in arguments]
    try:
        return [child.result() for child in children]
    finally:
        for child in children:
            child.kill()


def _run(
    answer: Connection, together: Barrier | None, work: Callable[..., object], arguments: Sequence[object]
) -> None:
    end_with_parent()
    try:
        if together is not None:
            together.wait(HANG_SECONDS)
        answer.send((True, work(*arguments)))
    except BaseException:  # noqa: BLE001 - the parent receives every error
        answer.send((False, traceback.format_exc()))


@contextmanager
def serving(serve: Callable[[Path], object], place: Path) -> Iterator[str]:
    """Run a process that serves until the end of the block.

    Yields its address, which the process writes to a file, followed by a line end.
    """
    child: Child[object] = Child(serve, place)
    try:
        deadline = time.monotonic() + 60
        while not place.exists() or not place.read_text().endswith("\n"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield place.read_text().strip()
    finally:
        child.kill()


def run_store_suites(selection: str, **environment: str) -> None:
    """Run the selected tests of the stores with other environment variables; fail with the end of their output."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-k", selection, "-x"]
    run = subprocess.run(
        [*command, "tests/store", "tests/graph_store", "tests/history"],
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=6 * HANG_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
