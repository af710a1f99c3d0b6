"""What is told of a run inside this process: that it began, the pieces of its answer as they come, what came out."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from weakref import WeakValueDictionary

from threadkeep.records.runs import Run
from threadkeep.runs.outcome import Outcome


@dataclass(frozen=True)
class RunPiece:
    """A piece of what a run says, as its model says it; pieces with another `message_id` begin another message."""

    run_id: str
    node: str | None
    message_id: str | None
    text: str


class RunEnds(asyncio.Event):
    """Is set when a run ends, or waits; `run` is how it ended, where that was seen here."""

    run: Run | None = None


class LiveRun:
    """One run that somebody here carries out, waits for or follows.

    `begun` says that it is carried out here; `outcome` is what came out of that, maybe before it is recorded. The
    pieces from `first_piece` on are of the try that goes on.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.pieces: list[RunPiece] = []
        self.wants_pieces = False
        self.started = False
        self.begun = False
        self.outcome: Outcome | None = None
        self.first_piece = 0
        self.waiting = 0
        self._changed = asyncio.Event()
        self._ended = RunEnds()

    def renew(self) -> None:
        """Forget how it went before: it is asked for again."""
        self.begun = False
        self.outcome = None
        self.first_piece = len(self.pieces)

    def begin(self) -> None:
        """Say that it is carried out here from now on."""
        self.renew()
        self.begun = True
        self.signal()

    def came_out(self, outcome: Outcome) -> None:
        """Say how carrying it out ended."""
        self.outcome = outcome
        self.signal()

    def tell(self, piece: RunPiece) -> None:
        """Pass a piece on."""
        self.pieces.append(piece)
        self.signal()

    def signal(self) -> None:
        """Wake all who wait for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def end(self, run: Run | None = None) -> None:
        """Wake also those who wait for the run's end; tell them how it ended, if that is known."""
        ended, self._ended = self._ended, RunEnds()
        ended.run = run
        ended.set()
        self.signal()

    @property
    def next_end(self) -> RunEnds:
        """What is set when the run ends, or waits; to be taken before one looks how it stands."""
        return self._ended

    @property
    def next_change(self) -> asyncio.Event:
        """What is set at the next change; to be taken before one looks at what there is."""
        return self._changed


class LiveRuns:
    """The runs of this process, for as long as anybody holds on to them."""

    def __init__(self) -> None:
        self._runs: WeakValueDictionary[str, LiveRun] = WeakValueDictionary()

    def of(self, run_id: str) -> LiveRun:
        """The run with an id."""
        found = self._runs.get(run_id)
        if found is None:
            found = self._runs[run_id] = LiveRun(run_id)
        return found

    def signal(self, run_id: str) -> None:
        """Wake those who wait for a change of a run."""
        if (found := self._runs.get(run_id)) is not None:
            found.signal()

    def is_waited_for(self, run_id: str) -> bool:
        """Whether somebody here waits for the end of a run."""
        found = self._runs.get(run_id)
        return found is not None and found.waiting > 0


async def changed(change: asyncio.Event, seconds: float) -> bool:
    """Wait for a change, so long at most; whether it came."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await change.wait()
            return True
    return False
