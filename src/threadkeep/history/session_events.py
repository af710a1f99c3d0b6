"""The reporting of a session's reads and writes to observers, with its backend, channel and id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

from threadkeep.context.window import WindowManifest
from threadkeep.errors import DatabaseFileReplaced, StoreError
from threadkeep.history.keys import channel_of
from threadkeep.observe import (
    AnswerDiscarded,
    Backend,
    Channel,
    HistoryTruncated,
    Observer,
    Outcome,
    ReadFailed,
    StoreRead,
    StoreWrite,
    WriteDeferred,
    WriteDropped,
    WriteFailed,
    WriteRecovered,
)
from threadkeep.store.driver import TurnRefused


class _Labels(TypedDict):
    backend: Backend
    channel: Channel
    session_id: str


@dataclass(eq=False)
class SessionEvents:
    """A reporter of a session's reads and writes to an observer."""

    observer: Observer
    backend: Backend
    session_id: str

    # Create the labels on first use, because many session objects are never read.
    @cached_property
    def _labels(self) -> _Labels:
        return _Labels(backend=self.backend, channel=channel_of(self.session_id), session_id=self.session_id)

    def ended(self, kind: type[StoreRead | StoreWrite], started: float, outcome: Outcome) -> None:
        """Report that a read or a write ended, which began at `started` (a value of `time.perf_counter()`)."""
        milliseconds = 1000 * (time.perf_counter() - started)
        self.observer.notify(kind(**self._labels, outcome=outcome, milliseconds=milliseconds))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Time and report the write in the block, except a refused turn, which stores nothing."""
        started = time.perf_counter()
        try:
            yield
        except TurnRefused:
            raise
        except StoreError as error:
            self.ended(StoreWrite, started, "error")
            self.write_failed(error, "error")
            raise
        self.ended(StoreWrite, started, "ok")

    def read_failed(self, error: Exception, outcome: Outcome) -> None:
        """Report that a read failed."""
        self.observer.notify(ReadFailed(**self._labels, outcome=outcome, error=type(error).__name__))

    def write_failed(self, error: Exception, outcome: Outcome) -> None:
        """Report that an attempt to write a turn failed."""
        reason = error.CURE if isinstance(error, DatabaseFileReplaced) else None
        self.observer.notify(WriteFailed(**self._labels, outcome=outcome, error=type(error).__name__, reason=reason))

    def deferred(self, messages: int) -> None:
        """Report that a turn could not be written yet, and waits for a retry."""
        self.observer.notify(WriteDeferred(**self._labels, messages=messages))

    def recovered(self, tries: int) -> None:
        """Report that a turn that had waited for a retry was written."""
        self.observer.notify(WriteRecovered(**self._labels, tries=tries))

    def dropped(self) -> None:
        """Report that a person dropped a turn that waited for a retry."""
        self.observer.notify(WriteDropped(**self._labels))

    def discarded(self) -> None:
        """Report that an answer was not stored because its question is gone."""
        self.observer.notify(AnswerDiscarded(**self._labels))

    def truncated(self, manifest: WindowManifest) -> None:
        """Report a window if it leaves out or cuts messages."""
        if manifest.dropped or manifest.cuts:
            labels = self._labels
            self.observer.notify(
                HistoryTruncated(
                    channel=labels["channel"],
                    dropped=manifest.dropped,
                    cut=bool(manifest.cuts),
                    session_id=labels["session_id"],
                )
            )


@dataclass(eq=False)
class ReportedRead:
    """A context manager that times and reports a read; a generator would make reads slower."""

    events: SessionEvents
    on_failure: Outcome = "error"

    async def __aenter__(self) -> None:
        """Note the time at which the read begins."""
        self._started = time.perf_counter()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Report the end of the read, and its failure if the database failed."""
        if kind is None:
            self.events.ended(StoreRead, self._started, "ok")
        elif isinstance(error, StoreError | asyncio.CancelledError):
            self.events.ended(StoreRead, self._started, self.on_failure)
            if isinstance(error, StoreError):
                self.events.read_failed(error, self.on_failure)
