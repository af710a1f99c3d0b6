"""Commands in forked processes, because a new interpreter takes seconds to import everything."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Literal, Self, TextIO

import psutil  # type: ignore[import-untyped]

from bench.endings import end_with_parent
from tests.children import PROCESSES
from tests.limits import HANG_SECONDS

type Program = Callable[[Sequence[str]], int]

_MODES = ("r", "w", "w")


def fork(
    program: Program, arguments: Sequence[str], ends: Sequence[Connection], environment: Mapping[str, str]
) -> ForkServerProcess:
    """Start a program with these ends as stdin, stdout and stderr, and close them in this process."""
    given = (program, tuple(arguments), tuple(ends), dict(environment), Path.cwd())
    process: ForkServerProcess = PROCESSES.Process(target=_run, args=given, daemon=True)
    process.start()
    for end in ends:
        end.close()
    return process


def _run(
    program: Program, arguments: Sequence[str], ends: Sequence[Connection], environment: Mapping[str, str], folder: Path
) -> None:
    end_with_parent()
    # Tests send this signal, but `nohup` lets children ignore it, too.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    opened = (open(number, mode, encoding="utf-8", closefd=False) for number, mode in enumerate(_MODES))  # noqa: SIM115
    sys.stdin, sys.stdout, sys.stderr = opened
    sys.exit(program(arguments))


def until_it_reads(pid: int | None) -> None:
    """Wait until a process sleeps, because a signal just before a read would not interrupt the read."""
    asleep = 0
    while asleep < 10:
        asleep = asleep + 1 if psutil.Process(pid).status() == psutil.STATUS_SLEEPING else 0
        time.sleep(0.01)


class ForkedCommand:
    """A program with pipes for its streams, and the interface of `subprocess.Popen`."""

    def __init__(self, program: Program, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        their_input, our_input = PROCESSES.Pipe(duplex=False)
        our_output, their_output = PROCESSES.Pipe(duplex=False)
        our_errors, their_errors = PROCESSES.Pipe(duplex=False)
        self._process = fork(program, arguments, (their_input, their_output, their_errors), environment)
        self.stdin = _file(our_input, "w")
        self.stdout = _file(our_output, "r")
        self.stderr = _file(our_errors, "r")

    @property
    def pid(self) -> int | None:
        """The id of the process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, the negative number of the signal that ended the process, or None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self) -> int:
        """Wait until the process ends; return its exit status."""
        self._process.join(HANG_SECONDS)
        assert self.returncode is not None, "the command takes too long"
        return self.returncode

    def communicate(self, given: str = "") -> tuple[str, str]:
        """Write the rest of the input, wait until the process ends, and return its remaining stdout and stderr."""
        with ThreadPoolExecutor(2) as readers:
            reading = [readers.submit(file.read) for file in (self.stdout, self.stderr)]
            self.stdin.write(given)
            self.stdin.close()
            out, err = (each.result() for each in reading)
        self.wait()
        return out, err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process if it still runs, and close our ends."""
        self._process.kill()
        self._process.join()
        for file in (self.stdout, self.stderr):
            file.close()
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()


def _file(end: Connection, mode: Literal["r", "w"]) -> TextIO:
    file = open(os.dup(end.fileno()), mode, encoding="utf-8")  # noqa: PTH123, SIM115
    end.close()
    return file
