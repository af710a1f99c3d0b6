"""Streams of runs inside this process: their start, the tokens of the answer, and the outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from weakref import WeakValueDictionary

from threadkeep.agent.holding import RunHold
from threadkeep.records import Json
from threadkeep.records.runs import Run, TokenUsage


@dataclass(frozen=True)
class Outcome:
    """The outcome of an execution; `waiting` means that the run continues when a person has answered."""

    status: Literal["done", "failed", "cancelled", "interrupted", "waiting"]
    result: Mapping[str, Json] | None = None
    error: str | None = None
    interrupt: Json = None
    set_aside: bool = False


@dataclass(frozen=True)
class RunPiece:
    """A token of a run's output; tokens with another `message_id` begin another message."""

    run_id: str
    node: str | None
    message_id: str | None
    text: str


class RunEnds(asyncio.Event):
    """An event that is set when a run ends or waits; `run` is the ended run, if it is known here."""

    run: Run | None = None


class LiveRun:
    """A run that a caller in this process executes, waits for or follows.

    `begun` is true while it is executed here. `outcome` is its outcome here, maybe before it is recorded. The tokens
    from `first_piece` on belong to the current attempt. `hold` is this process's hold on the run, `usage` the usage of
    the whole run if this process knows it. `waiting` counts the callers that wait for its end, `followers` those of
    them that read its events.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.hold: RunHold | None = None
        self.pieces: list[RunPiece] = []
        self.wants_pieces = False
        self.started = False
        self.begun = False
        self.outcome: Outcome | None = None
        self.usage: Sequence[TokenUsage] | None = None
        self.first_piece = 0
        self.waiting = 0
        self.followers = 0
        self._changed = asyncio.Event()
        self._ended = RunEnds()

    def renew(self) -> None:
        """Reset the state for another attempt."""
        self.begun = False
        self.outcome = None
        self.usage = None
        self.first_piece = len(self.pieces)

    def begin(self) -> None:
        """Mark the run as executed here from now on."""
        self.renew()
        self.begun = True
        self.signal()

    def came_out(self, outcome: Outcome) -> None:
        """Set the outcome of the execution."""
        self.outcome = outcome
        self.signal()

    def tell(self, piece: RunPiece) -> None:
        """Publish a token."""
        self.pieces.append(piece)
        self.signal()

    def signal(self) -> None:
        """Wake all waiters for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def end(self, run: Run | None = None) -> None:
        """Wake all waiters for the end as well; `run` is the ended run, if known."""
        ended, self._ended = self._ended, RunEnds()
        ended.run = run
        ended.set()
        self.signal()

    @property
    def next_end(self) -> RunEnds:
        """The event for the next end or wait of the run; get it before reading the run's state."""
        return self._ended

    @property
    def next_change(self) -> asyncio.Event:
        """The event for the next change; get it before reading the current state."""
        return self._changed


class LiveRuns:
    """The runs of this process, weakly referenced: each lives as long as it is used."""

    def __init__(self) -> None:
        self._runs: WeakValueDictionary[str, LiveRun] = WeakValueDictionary()

    def of(self, run_id: str) -> LiveRun:
        """Return the run with this id; create it if necessary."""
        found = self._runs.get(run_id)
        if found is None:
            found = self._runs[run_id] = LiveRun(run_id)
        return found

    def signal(self, run_id: str) -> None:
        """Wake all waiters for a change of a run."""
        if (found := self._runs.get(run_id)) is not None:
            found.signal()

    def is_waited_for(self, run_id: str) -> bool:
        """Return whether a caller here waits for the end of a run."""
        found = self._runs.get(run_id)
        return found is not None and found.waiting > 0


async def changed(change: asyncio.Event, seconds: float) -> bool:
    """Wait for a change for at most `seconds`; return whether it came."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await change.wait()
            return True
    return False
