"""The command line for tests, in this process with captured output or as a separate process."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.forked import ForkedCommand
from threadkeep.cli import main
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.memory import Memory, open_memory
from threadkeep.records import Message, SessionInfo
from threadkeep.store.address import TranscriptLocation

type Work[T] = Callable[[Memory], Awaitable[T]]


@dataclass(frozen=True)
class Outcome:
    """The result of a command."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the only JSON document on stdout."""
        return json.loads(self.out)

    @property
    def problem(self) -> Any:
        """Return the only JSON document on stderr."""
        return json.loads(self.err)


class CommandLine:
    """A runner of commands against one database, in folders of the test."""

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        monkeypatch: pytest.MonkeyPatch,
        captured: pytest.CaptureFixture[bytes],
    ) -> None:
        self.folder = folder
        self.url = url
        self._monkeypatch = monkeypatch
        self._captured = captured
        for name in [name for name in os.environ if name.startswith("THREADKEEP_")]:
            monkeypatch.delenv(name)
        self.set(THREADKEEP_DATABASE_URL=url, THREADKEEP_PENDING_DIR=str(folder / "pending"))
        self.set(XDG_STATE_HOME=str(folder / "state"), XDG_DATA_HOME=str(folder / "data"), COLUMNS="")
        monkeypatch.chdir(folder)

    def set(self, **variables: str) -> None:
        """Set environment variables."""
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)

    def __call__(self, *arguments: str, given: str | bytes = "") -> Outcome:
        """Run a command in this process."""
        data = given.encode() if isinstance(given, str) else given
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        self._captured.readouterr()
        exit_code = main(arguments)
        out, err = self._captured.readouterr()
        return Outcome(exit_code, out.decode(), err.decode())

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command in a new interpreter."""
        return start([sys.executable, "-m", "threadkeep", *arguments], variables)

    def fork(self, *arguments: str) -> ForkedCommand:
        """Start a command in a forked process that has all modules imported."""
        return ForkedCommand(main, arguments, os.environ)

    def process(self, *arguments: str, given: str = "") -> Outcome:
        """Run a command in a forked process."""
        with self.fork(*arguments) as process:
            out, err = process.communicate(given)
        return Outcome(process.wait(), out, err)

    def store(self, session_id: str, *contents: str, user_id: str | None = None) -> None:
        """Append messages to a session, alternately of user and assistant."""
        messages = [
            Message(role="assistant" if place % 2 else "user", content=content)
            for place, content in enumerate(contents)
        ]

        async def storing(memory: Memory) -> None:
            await memory.session(session_id, user_id=user_id).append(messages)

        self.with_memory(storing)

    def with_memory[T](self, work: Work[T], *, transcripts: TranscriptLocation = "tables") -> T:
        """Call a function with a memory on this database."""
        return asyncio.run(self.with_open_memory(work, transcripts=transcripts))

    async def with_open_memory[T](self, work: Work[T], *, transcripts: TranscriptLocation = "tables") -> T:
        """Call a function with a memory on this database, inside an event loop."""
        options = MemoryOptions(background=False, transcripts=transcripts)
        async with open_memory(self.url, options=options) as memory:
            return await work(memory)

    def info(self, session_id: str) -> SessionInfo:
        """Return the information about a session."""

        async def looking(memory: Memory) -> SessionInfo:
            return await memory.session(session_id).info()

        return self.with_memory(looking)


@contextmanager
def default_handler(number: signal.Signals) -> Iterator[None]:
    """Give a signal the handler that it has at the start of a process."""
    before = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)


def start(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a process with pipes for stdin, stdout and stderr."""
    with default_handler(signal.SIGHUP):  # a process that `nohup` starts ignores it, and so do its children
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, **variables},
        )
