"""The compression of sessions in the background: summaries replace older messages in prompts.

`consider` is called after an answer is stored, and returns at once. A failed compression leaves earlier summaries
unchanged. The session is then skipped for a while, longer after each further failure. Another process can try again,
because summaries and messages are in the database.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from threadkeep.boundary import ErrorBoundary, WorkQueue
from threadkeep.context.compression import UNLIMITED, WindowRoom
from threadkeep.context.tokens import TokenCounter
from threadkeep.errors import StoreError
from threadkeep.history.compression import Compression, CompressionFailed, CompressionRequest, RangeReader, Summarizer
from threadkeep.history.keys import channel_of
from threadkeep.history.summary_writer import SummaryWriter
from threadkeep.observe import Observer, SummaryFailed, SummaryFailure
from threadkeep.records import Summary
from threadkeep.records.sessions import check_argument
from threadkeep.store.summaries import Summaries
from threadkeep.store.transcripts import Transcripts

_MOST_SESSIONS = 1_000
_MOST_AT_ONCE = 4
"""The most sessions that are compressed at once, so that one slow model does not delay the others."""


@dataclass(frozen=True)
class CompressorOptions:
    """Options of the compressor. Times are in seconds.

    After a failure, a session is skipped for `first_pause_seconds` or `first_pause_turns`, whichever ends first. Both
    double after each further failure. When the memory closes, queued work has `closing_seconds` to finish; the rest is
    compressed after the next turn of the session, in any process.
    """

    first_pause_seconds: float = 60.0
    first_pause_turns: int = 10
    longest_pause_seconds: float = 3600.0
    closing_seconds: float = 5.0


@dataclass(frozen=True)
class _Trouble:
    """A session's consecutive failures. The session is skipped until `until`, but for at most `turns` turns."""

    failures: int
    until: datetime
    turns: int


class Compressor:
    """A service that writes summaries of a memory's sessions in the background."""

    def __init__(
        self,
        transcripts: Transcripts,
        summaries: Summaries,
        *,
        observer: Observer,
        clock: Callable[[], datetime],
        counter: TokenCounter,
        options: CompressorOptions | None = None,
    ) -> None:
        self._reader = RangeReader(transcripts, counter)
        self._summaries = summaries
        self._observer = observer
        self._clock = clock
        self._counter = counter
        self._options = options or CompressorOptions()
        self._queue = WorkQueue(self._attempt, "threadkeep-compression", most_at_once=_MOST_AT_ONCE)
        self._troubles: OrderedDict[str, _Trouble] = OrderedDict()

    def consider(self, request: CompressionRequest) -> None:
        """Queue a session, to be compressed if enough messages have no summary, and return at once.

        The newest answer must be stored already. If too many sessions wait, the one that has waited longest is dropped
        and reported. After `close`, nothing is queued.
        """
        before = self._queue.waiting.get(request.session_id, request)
        request = replace(request, left_out_upto_seq=max(request.left_out_upto_seq, before.left_out_upto_seq))
        if (crowded_out := self._queue.put(request.session_id, request)) is not None:
            self._report(crowded_out, "crowded")

    async def compress_now(
        self,
        session_id: str,
        compression: Compression,
        summarizer: Summarizer,
        *,
        budget: int,
        left_out_upto_seq: int = 0,
        window: WindowRoom = UNLIMITED,
    ) -> Summary | None:
        """Compress a session if it is due, even after failures, and return the newest new summary.

        Return None if nothing was due, or if another process is compressing the session.

        Raises:
            InvalidInput: an argument has a wrong type.
            CompressionFailed: the summary could not be written; earlier summaries stay.
        """
        check_argument("session_id", session_id, str, required=True)
        check_argument("compression", compression, Compression, required=True)
        check_argument("budget", budget, int, required=True)
        request = CompressionRequest(session_id, compression, summarizer, budget, left_out_upto_seq, window)
        return await self._writer(request).compress(most_steps=None)

    async def idle(self) -> None:
        """Wait until the queue is empty and no work is in progress."""
        await self._queue.idle()

    async def close(self) -> None:
        """Wait up to `closing_seconds` for queued work to finish, then cancel the rest."""
        await self._queue.close(self._options.closing_seconds)

    async def _attempt(self, request: CompressionRequest) -> None:
        session_id = request.session_id
        trouble = self._troubles.get(session_id)
        if trouble is not None and trouble.turns > 1 and self._clock() < trouble.until:
            self._troubles[session_id] = replace(trouble, turns=trouble.turns - 1)
            return
        writer = self._writer(request)
        # Catch every error, so that one session's failure does not stop the work on others.
        with ErrorBoundary(lambda error: self._failed(session_id, error)):
            await writer.compress()
            self._troubles.pop(session_id, None)
            if writer.rest is not None:
                # Queue the remaining work last, so that other sessions do not wait for one with a long history.
                newest = self._queue.waiting.pop(session_id, writer.rest)
                left_out = max(newest.left_out_upto_seq, writer.rest.upto_seq)
                self._queue.waiting[session_id] = replace(newest, left_out_upto_seq=left_out)

    def _writer(self, request: CompressionRequest) -> SummaryWriter:
        return SummaryWriter(request, self._reader, self._summaries, observer=self._observer, counter=self._counter)

    def _failed(self, session_id: str, error: Exception) -> None:
        reason: SummaryFailure = "store" if isinstance(error, StoreError) else "model"
        kind: str | None = type(error).__name__
        if isinstance(error, CompressionFailed):
            reason, kind = error.reason, error.kind
        self._report(session_id, reason, kind)
        if reason == "outdated":
            return  # another process has compressed the session, or the session has changed
        before = self._troubles.pop(session_id, None)
        failures = before.failures + 1 if before else 1
        doubled = 2 ** min(failures - 1, 30)
        pause = min(self._options.first_pause_seconds * doubled, self._options.longest_pause_seconds)
        until = self._clock() + timedelta(seconds=pause)
        self._troubles[session_id] = _Trouble(failures, until, self._options.first_pause_turns * doubled)
        if len(self._troubles) > _MOST_SESSIONS:
            self._troubles.popitem(last=False)

    def _report(self, session_id: str, reason: SummaryFailure, error: str | None = None) -> None:
        self._observer.notify(
            SummaryFailed(channel=channel_of(session_id), reason=reason, error=error, session_id=session_id)
        )
