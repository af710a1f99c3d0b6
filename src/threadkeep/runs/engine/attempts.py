"""The attempts at a run: numbered, each one tried by one process and then over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run; `failures` counts those before it that raised or whose process died."""

    run_id: str
    number: int = 1
    failures: int = 0

    @property
    def id(self) -> str:
        """What the attempt is called in the engine's records; two who make the same attempt make one."""
        return f"{self.run_id}/{self.number}"

    def next(self, *, failed: bool) -> Self:
        """The attempt after this one."""
        return replace(self, number=self.number + 1, failures=self.failures + failed)


def number_of(attempt_id: str) -> int:
    """The number of an attempt, by its id."""
    return int(attempt_id.rpartition("/")[2])


def run_of(attempt_id: str) -> str:
    """The run of an attempt, by its id."""
    return attempt_id.rpartition("/")[0]
