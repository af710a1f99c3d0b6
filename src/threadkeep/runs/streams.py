"""Streams of runs inside this process, and functions that wait for a change or for the database.

A stream carries a run's start, the tokens of its answer, and its outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from threadkeep.agent.invocation import RunHold
from threadkeep.errors import StoreUnavailable
from threadkeep.records.runs import Run, TokenUsage
from threadkeep.store.runs import Outcome

_MOST_REMEMBERED: Final = 10_000


@dataclass(frozen=True)
class RunPiece:
    """A token of a message. Several messages of a run may stream at once. A `last` token may have an empty text."""

    run_id: str
    node: str | None
    message_id: str | None
    text: str
    last: bool = False


class RunEndEvent(asyncio.Event):
    """An event that is set when a run ends or waits for a person. `run` is its record, if known."""

    run: Run | None = None


@dataclass(eq=False)
class RunStream:
    """The stream of a run that this process executes, or that callers in this process wait for.

    - `begun`: True once this process executes the run.
    - `outcome`: the outcome of this execution, which may not be recorded yet.
    - `first_piece`: the index of the first token of the current attempt.
    - `hold`: the state that the run shares with its agents.
    - `usage`: the usage of the whole run; None if this process does not know it.
    - `has_caller`: True until the run begins, if a caller in this process has submitted it to wait for its answer.
    - `waiting`: the number of callers that wait for the run's end. `followers`: how many of them also read its events.
    """

    run_id: str
    hold: RunHold | None = None
    pieces: list[RunPiece] = field(default_factory=list)
    wants_pieces: bool = False
    has_caller: bool = False
    begun: bool = False
    outcome: Outcome | None = None
    usage: Sequence[TokenUsage] | None = None
    first_piece: int = 0
    waiting: int = 0
    followers: int = 0
    next_change: asyncio.Event = field(default_factory=asyncio.Event)
    """The event that is set at the next change; get it before you read the current state."""
    next_end: RunEndEvent = field(default_factory=RunEndEvent)
    """The event that is set when the run ends or waits for a person; get it before you read the run's state."""

    def renew(self, *, begun: bool) -> None:
        """Reset the stream for another attempt at the run; `begun`: this process executes the run from now on."""
        self.begun = begun
        self.outcome = None
        self.usage = None
        self.first_piece = len(self.pieces)
        self.signal()

    def set_outcome(self, outcome: Outcome) -> None:
        """Set the outcome of executing the run, and wake all tasks that wait for a change."""
        self.outcome = outcome
        self.signal()

    def publish(self, piece: RunPiece) -> None:
        """Append a token to `pieces`, and wake all tasks that wait for a change."""
        self.pieces.append(piece)
        self.signal()

    def signal(self, *_: object) -> None:
        """Wake all tasks that wait for a change of this stream (`next_change`)."""
        changed, self.next_change = self.next_change, asyncio.Event()
        changed.set()

    def end(self, run: Run | None = None) -> None:
        """Wake all tasks that wait for the run's end or for a change."""
        ended, self.next_end = self.next_end, RunEndEvent()
        ended.run = run
        ended.set()
        self.signal()


class RunStreams:
    """The `RunStream` objects of this process, weakly referenced, so that each lives only as long as it is used."""

    def __init__(self) -> None:
        self._streams: WeakValueDictionary[str, RunStream] = WeakValueDictionary()

    def of(self, run_id: str) -> RunStream:
        """Return the stream of a run; create the stream if there is none."""
        found = self._streams.get(run_id)
        if found is None:
            found = self._streams[run_id] = RunStream(run_id)
        return found

    def is_waited_for(self, run_id: str) -> bool:
        """Return whether a caller in this process waits for the end of a run."""
        found = self._streams.get(run_id)
        return found is not None and found.waiting > 0


async def changed(change: asyncio.Event, seconds: float | None) -> bool:
    """Wait until `change` is set, at most `seconds` (positive, or None for no limit); return False after a timeout."""
    with contextlib.suppress(TimeoutError):
        return await asyncio.wait_for(change.wait(), seconds)
    return False


_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


async def retry_until_available[T](work: Callable[[], Awaitable[T]]) -> T:
    """Call and await `work`; repeat it while it raises `StoreUnavailable`. Cancelling the caller stops the retries."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


type _Key = tuple[str | None, str | None]


class InFlightMessages:
    """Messages that this process is answering with runs that the database could not store (unrecorded runs).

    Such a message may also have a recorded run, for example one that was active when the outage began. This run waits
    for the unrecorded one, then finds the answer in the session.
    """

    def __init__(self) -> None:
        self._ends: dict[_Key, list[asyncio.Event]] = {}
        self._answered: dict[_Key, None] = {}

    @contextmanager
    def answering(self, session_id: str, message_id: str) -> Iterator[None]:
        """Mark a message as being answered inside the block. Blocks overlap if several users send the same id."""
        ends, end = self._ends.setdefault((session_id, message_id), []), asyncio.Event()
        ends.append(end)
        try:
            yield
        finally:
            ends.remove(end)
            if not ends:
                del self._ends[session_id, message_id]
            end.set()

    def set_answered(self, session_id: str, message_id: str) -> None:
        """Remember that a message is answered, so that no run in the database answers it again or reports its turn."""
        self._answered[session_id, message_id] = None
        if len(self._answered) > _MOST_REMEMBERED:
            del self._answered[next(iter(self._answered))]

    def has_answered(self, run: Run) -> bool:
        """Return True if runs that are not in the database have answered all messages of `run`."""
        return bool(run.inputs) and {(run.session_id, one.message_id) for one in run.inputs} <= self._answered.keys()

    async def wait_for(self, run: Run) -> None:
        """Wait while runs that are not in the database are answering messages that `run` must answer, too."""
        for one in run.inputs:
            while ends := self._ends.get((run.session_id, one.message_id)):
                await ends[0].wait()
