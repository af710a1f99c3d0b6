"""Commands as processes of their own, forked from what is imported already: an interpreter would take seconds."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Literal, Self, TextIO

from bench.endings import end_with_parent
from tests.children import PROCESSES
from tests.limits import HANG_SECONDS

type Program = Callable[[Sequence[str]], int]

_MODES = ("r", "w", "w")


def fork(
    program: Program, arguments: Sequence[str], ends: Sequence[Connection], environment: Mapping[str, str]
) -> ForkServerProcess:
    """A process that runs a program with these ends as stdin, stdout and stderr, which are closed here."""
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


class ForkedCommand:
    """A program with pipes to all its ends, used as `subprocess.Popen` is."""

    def __init__(self, program: Program, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        their_input, our_input = PROCESSES.Pipe(duplex=False)
        our_output, their_output = PROCESSES.Pipe(duplex=False)
        our_errors, their_errors = PROCESSES.Pipe(duplex=False)
        self._process = fork(program, arguments, (their_input, their_output, their_errors), environment)
        self.stdin = _file(our_input, "w")
        self.stdout = _file(our_output, "r")
        self.stderr = _file(our_errors, "r")

    @property
    def returncode(self) -> int | None:
        """The exit status, or the number of the signal that ended it, below zero; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self) -> int:
        """The exit status, when it has ended."""
        self._process.join(HANG_SECONDS)
        assert self.returncode is not None, "the command takes too long"
        return self.returncode

    def communicate(self, given: str = "") -> tuple[str, str]:
        """Give it the rest of its input; answers all that it still writes to stdout and stderr, when it has ended."""
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
        """End it, if it still runs, and close our ends."""
        self._process.kill()
        self._process.join()
        for file in (self.stdout, self.stderr):
            file.close()
        with contextlib.suppress(BrokenPipeError):  # of what was never read
            self.stdin.close()


def _file(end: Connection, mode: Literal["r", "w"]) -> TextIO:
    file = open(os.dup(end.fileno()), mode, encoding="utf-8")  # noqa: PTH123, SIM115
    end.close()
    return file
