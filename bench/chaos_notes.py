"""A record of what nodes, tools and models did, which survives a kill; its lines are in the order of the events."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Note(NamedTuple):
    """A line of the record: the time (one clock for all processes), process, action, text and run."""

    seconds: float
    pid: int
    what: str
    text: str
    run_id: str

    @property
    def session(self) -> str:
        """The session of the text: `till-3` of `till-3/7`. Child runs have the text of their turn."""
        return self.text.rpartition("/")[0]


@dataclass(frozen=True)
class Notes:
    """A file to which all processes append."""

    path: Path

    def add(self, what: str, text: str = "-", run_id: str = "-", *, pid: int | None = None) -> None:
        """Write a note of this process, or on behalf of another one."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, f"{time.monotonic():.6f} {pid or os.getpid()} {what} {text} {run_id}\n".encode())
        finally:
            os.close(descriptor)

    @contextmanager
    def during(self, text: str, run_id: str) -> Iterator[None]:
        """Record the beginning and the end of a piece of work."""
        self.add("begin", text, run_id)
        try:
            yield
        finally:
            self.add("end", text, run_id)

    def read(self) -> list[Note]:
        """Return all notes so far."""
        if not self.path.exists():
            return []
        lines = [line.split(" ") for line in self.path.read_text().splitlines()]
        return [Note(float(seconds), int(pid), what, text, run_id) for seconds, pid, what, text, run_id in lines]
