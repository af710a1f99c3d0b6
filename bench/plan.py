"""The amount of work of a run: sizes, rounds and time limits."""

from __future__ import annotations

from dataclasses import dataclass

from bench.contenders import ENGINES, Engine

TAIL_MESSAGES = 20


@dataclass(frozen=True)
class Plan:
    """A run of the bench.

    In each round, every contender performs its operation `repeats` times at every size. A contender that has used up
    `seconds` at a size is left out of the following rounds. Each size but the largest has `copies` sessions, so that
    the measured appends do not make them much longer. A burst is `burst_seconds` of `sessions` writers.
    """

    engines: tuple[Engine, ...] = ENGINES
    only: tuple[str, ...] = ()
    stored: tuple[int, ...] = (0, 100, 1_000, 100_000)
    rounds: int = 60
    repeats: int = 4
    seconds: float = 4.0
    copies: int = 4
    burst_rounds: int = 4
    burst_seconds: float = 1.0
    sessions: int = 16

    @property
    def largest(self) -> int:
        """The number of messages of the longest session."""
        return max(self.stored)


FULL = Plan()
QUICK = Plan(stored=(0, 100, 1_000), rounds=12, seconds=1.0, copies=2, burst_rounds=2, burst_seconds=0.4)
