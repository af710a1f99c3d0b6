"""Events of one session, with its backend, channel and id."""

from __future__ import annotations

import time

from threadkeep.context.manifest import WindowManifest
from threadkeep.history.keys import channel_of
from threadkeep.observe import (
    AnswerDiscarded,
    Backend,
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


class SessionEvents:
    """A reporter of a session's events to an observer; `started` is a `time.perf_counter()`."""

    def __init__(self, observer: Observer, backend: Backend, session_id: str) -> None:
        self._observer = observer
        self._backend = backend
        self._session_id = session_id
        self._channel = channel_of(session_id)

    def read(self, started: float, outcome: Outcome) -> None:
        """Report the end of a read."""
        self._observer.notify(
            StoreRead(
                backend=self._backend,
                channel=self._channel,
                outcome=outcome,
                milliseconds=(time.perf_counter() - started) * 1000,
                session_id=self._session_id,
            )
        )

    def written(self, started: float, outcome: Outcome) -> None:
        """Report the end of a write."""
        self._observer.notify(
            StoreWrite(
                backend=self._backend,
                channel=self._channel,
                outcome=outcome,
                milliseconds=(time.perf_counter() - started) * 1000,
                session_id=self._session_id,
            )
        )

    def read_failed(self, error: Exception, outcome: Outcome) -> None:
        """Report that a read failed."""
        self._observer.notify(
            ReadFailed(
                backend=self._backend,
                channel=self._channel,
                outcome=outcome,
                error=type(error).__name__,
                session_id=self._session_id,
            )
        )

    def write_failed(self, error: Exception, outcome: Outcome) -> None:
        """Report that an attempt to write a turn failed."""
        self._observer.notify(
            WriteFailed(
                backend=self._backend,
                channel=self._channel,
                outcome=outcome,
                error=type(error).__name__,
                session_id=self._session_id,
            )
        )

    def deferred(self, messages: int) -> None:
        """Report that a turn became pending."""
        self._observer.notify(
            WriteDeferred(backend=self._backend, channel=self._channel, messages=messages, session_id=self._session_id)
        )

    def recovered(self, tries: int) -> None:
        """Report that a pending turn was written."""
        self._observer.notify(
            WriteRecovered(backend=self._backend, channel=self._channel, tries=tries, session_id=self._session_id)
        )

    def dropped(self) -> None:
        """Report that a pending turn was dropped."""
        self._observer.notify(WriteDropped(backend=self._backend, channel=self._channel, session_id=self._session_id))

    def discarded(self) -> None:
        """Report that an answer was not stored."""
        self._observer.notify(
            AnswerDiscarded(backend=self._backend, channel=self._channel, session_id=self._session_id)
        )

    def truncated(self, manifest: WindowManifest) -> None:
        """Report a window that leaves out or cuts messages."""
        if manifest.dropped or manifest.cuts:
            self._observer.notify(
                HistoryTruncated(
                    channel=self._channel,
                    dropped=manifest.dropped,
                    cut=bool(manifest.cuts),
                    session_id=self._session_id,
                )
            )
