"""What happens to one session, told with its engine, its channel and its id."""

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
    """Tells an observer about a session; `started` is a `time.perf_counter()`."""

    def __init__(self, observer: Observer, backend: Backend, session_id: str) -> None:
        self._observer = observer
        self._backend = backend
        self._session_id = session_id
        self._channel = channel_of(session_id)

    def read(self, started: float, outcome: Outcome) -> None:
        """A read ended."""
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
        """A write ended."""
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
        """The store could not be read."""
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
        """A try to write a turn failed."""
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
        """A turn went to the pending writes."""
        self._observer.notify(
            WriteDeferred(backend=self._backend, channel=self._channel, messages=messages, session_id=self._session_id)
        )

    def recovered(self, tries: int) -> None:
        """A turn from the pending writes was written."""
        self._observer.notify(
            WriteRecovered(backend=self._backend, channel=self._channel, tries=tries, session_id=self._session_id)
        )

    def dropped(self) -> None:
        """A turn was dropped from the pending writes."""
        self._observer.notify(WriteDropped(backend=self._backend, channel=self._channel, session_id=self._session_id))

    def discarded(self) -> None:
        """An answer was stored nowhere."""
        self._observer.notify(
            AnswerDiscarded(backend=self._backend, channel=self._channel, session_id=self._session_id)
        )

    def truncated(self, manifest: WindowManifest) -> None:
        """A window was read; told only if it leaves something out or cuts it."""
        if manifest.dropped or manifest.cuts:
            self._observer.notify(
                HistoryTruncated(
                    channel=self._channel,
                    dropped=manifest.dropped,
                    cut=bool(manifest.cuts),
                    session_id=self._session_id,
                )
            )
