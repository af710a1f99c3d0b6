"""Compresses sessions off the turn's path: a bounded queue of sessions to look at, and one task that does it.

`consider` is called after an answer is stored, and returns at once. What fails changes nothing, and is tried again at a
turn of the session after a pause that grows; also by another process, since all that counts is in the database.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from threadkeep.context.compression import UNLIMITED, WindowRoom
from threadkeep.context.tokens import TokenCounter
from threadkeep.errors import StoreError
from threadkeep.history.compression import Compression, CompressionFailed, Summarizer
from threadkeep.history.keys import channel_of
from threadkeep.history.summary_range import CompressionRequest, RangeReader
from threadkeep.history.summary_writer import SummaryWriter
from threadkeep.observe import Observer, SummaryFailed, SummaryFailure
from threadkeep.records import Summary
from threadkeep.store.summaries import Summaries
from threadkeep.store.transcripts import Transcripts

_MOST_SESSIONS = 1_000


@dataclass(frozen=True)
class CompressorOptions:
    """How long to wait. Times in seconds.

    After a failure a session is left alone for the first pause, then twice as long each time, up to the longest. Work
    that is queued when the memory closes gets `closing_seconds` to end: what is not done by then is done after the next
    turn, wherever that is.
    """

    first_pause_seconds: float = 60.0
    longest_pause_seconds: float = 3600.0
    closing_seconds: float = 5.0


@dataclass(frozen=True)
class _Trouble:
    """How often a session could not be compressed, how often for what was too long, and until when it is left alone."""

    failures: int
    too_long: int
    until: datetime


class Compressor:
    """Makes the summaries of a memory's sessions; see the module."""

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
        self._waiting: OrderedDict[str, CompressionRequest] = OrderedDict()
        self._troubles: OrderedDict[str, _Trouble] = OrderedDict()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def consider(
        self,
        session_id: str,
        compression: Compression,
        summarizer: Summarizer,
        *,
        budget: int,
        left_out_upto_seq: int = 0,
        window: WindowRoom = UNLIMITED,
    ) -> None:
        """Look at a session soon, and compress it if that is due; returns at once.

        Args:
            session_id: the session, whose newest answer is stored.
            compression: when and how much.
            summarizer: who writes the summary.
            budget: the tokens of a model call, of which fractions are meant.
            left_out_upto_seq: the newest message that the window had to leave out, 0 for none; up to it all is
                summarised before the trigger too.
            window: how much the window may hold: what it would have to leave out next is summarised now.
        """
        if self._closed:
            return
        self._put(CompressionRequest(session_id, compression, summarizer, budget, left_out_upto_seq, window))
        if len(self._waiting) > _MOST_SESSIONS:
            crowded_out, _ = self._waiting.popitem(last=False)
            self._tell(crowded_out, "crowded")
        self._idle.clear()
        self._wake.set()
        if self._task is None:
            # A context of its own: else it would keep the whole run of whoever came first, and stream into it.
            self._task = asyncio.create_task(self._until_closed(), context=Context(), name="threadkeep-compression")

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
        """Compress a session if that is due, whatever failed before.

        Answers the newest summary that was made; None if there was nothing to do, or another process is at it.

        Raises:
            CompressionFailed: nothing else has changed; what was made before that stays.
            StoreUnavailable: the database does not answer.
        """
        newest: Summary | None = None
        rest: CompressionRequest | None = CompressionRequest(
            session_id, compression, summarizer, budget, left_out_upto_seq, window
        )
        while rest is not None:
            writer = self._writer(rest)
            newest = await writer.compress() or newest
            rest = writer.rest
        return newest

    async def idle(self) -> None:
        """Return when nothing waits any more and nothing is being done."""
        await self._idle.wait()

    async def close(self) -> None:
        """Let what is queued end for a moment, then stop."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.closing_seconds):
                await self._idle.wait()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _until_closed(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                _, request = self._waiting.popitem(last=False)
                await self._attempt(request)
            self._idle.set()

    async def _attempt(self, request: CompressionRequest) -> None:
        session_id = request.session_id
        trouble = self._troubles.get(session_id)
        if trouble is not None and self._clock() < trouble.until:
            return
        writer = self._writer(replace(request, shorter=trouble.too_long if trouble else 0))
        try:
            await writer.compress()
        except CompressionFailed as error:
            self._failed(session_id, error.reason, error.kind)
        except StoreError as error:
            self._failed(session_id, "store", type(error).__name__)
        except Exception as error:  # noqa: BLE001 - one session's trouble does not end the work on all others
            self._failed(session_id, "model", type(error).__name__)
        else:
            self._troubles.pop(session_id, None)
            if writer.rest is not None:
                # Behind the others, who should not have to wait for a session with a long past.
                self._put(self._waiting.get(session_id, writer.rest), writer.rest.upto_seq)

    def _put(self, request: CompressionRequest, left_out_upto_seq: int = 0) -> None:
        """Queue a session, last; nothing that was to be summarised of it is forgotten."""
        before = self._waiting.pop(request.session_id, request)
        left_out = max(request.left_out_upto_seq, before.left_out_upto_seq, left_out_upto_seq)
        self._waiting[request.session_id] = replace(request, left_out_upto_seq=left_out)

    def _writer(self, request: CompressionRequest) -> SummaryWriter:
        return SummaryWriter(request, self._reader, self._summaries, observer=self._observer, counter=self._counter)

    def _failed(self, session_id: str, reason: SummaryFailure, error: str | None) -> None:
        self._tell(session_id, reason, error)
        if reason == "outdated":
            return  # somebody else did it, or there is nothing to do any more
        before = self._troubles.pop(session_id, _Trouble(0, 0, self._clock()))
        failures, too_long = before.failures + 1, before.too_long + (reason == "too_long")
        pause = min(self._options.first_pause_seconds * 2 ** min(failures - 1, 30), self._options.longest_pause_seconds)
        self._troubles[session_id] = _Trouble(failures, too_long, self._clock() + timedelta(seconds=pause))
        if len(self._troubles) > _MOST_SESSIONS:
            self._troubles.popitem(last=False)

    def _tell(self, session_id: str, reason: SummaryFailure, error: str | None = None) -> None:
        self._observer.notify(
            SummaryFailed(channel=channel_of(session_id), reason=reason, error=error, session_id=session_id)
        )
