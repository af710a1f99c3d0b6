"""The writer of a session's summaries: a model summarises due messages and merges older summaries."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from uuid import uuid4

from threadkeep.boundary import ErrorBoundary
from threadkeep.context.compression import SummaryText, fitting_facts, merged_facts, packed, sources_of, to_merge
from threadkeep.context.cut import pieces
from threadkeep.context.quotation import quoted_summary
from threadkeep.context.tokens import TokenCounter
from threadkeep.errors import StoreError
from threadkeep.history.compression import CompressionFailed, CompressionRequest, RangeReader, SummaryTask, is_due
from threadkeep.history.keys import channel_of
from threadkeep.observe import Observer, SummaryMade
from threadkeep.records import Summary
from threadkeep.store.codec import clean_text
from threadkeep.store.summaries import Summaries, Uncovered

_SHORTER = 3
"""If a summary is too long, another is requested, shorter by this factor."""

PURPOSE = "compression"
CLAIM_SECONDS = 300.0
"""The timeout of one summarizer call, and the time after which a dead process loses its claim."""
_LEAST_ASKED = 30
_MOST_STEPS = 8
_MOST_PARTS = 50
"""A merge also reads the sources of earlier merges: at most this number of summaries."""
_READ_AGAIN = 4
"""The most tokens of a merge's sources, as a multiple of the limit for all active summaries."""


class SummaryWriter:
    """A writer of a session's summaries, for one request to compress the session."""

    def __init__(
        self,
        request: CompressionRequest,
        reader: RangeReader,
        summaries: Summaries,
        *,
        observer: Observer,
        counter: TokenCounter,
    ) -> None:
        self._request = request
        self._room = request.room
        self._reader = reader
        self._summaries = summaries
        self._observer = observer
        self._counter = counter
        self._owner = str(uuid4())
        self.rest: CompressionRequest | None = None
        """The remaining work, if there was too much for the steps of one call; otherwise None."""

    async def compress(self, *, most_steps: int | None = _MOST_STEPS) -> Summary | None:
        """Write the due summaries; return the newest, or None if none was written.

        If `most_steps` is None, write all due summaries before another process can claim the session.

        Raises:
            CompressionFailed: the summary could not be written; earlier summaries stay.
        """
        session_id = self._request.session_id
        uncovered = Uncovered() if self._request.upto_seq else await self._summaries.uncovered(session_id)
        if not (self._request.upto_seq or is_due(uncovered, self._request)) or not await self._claim():
            return None
        try:
            return await self._until_done(await self._due(uncovered), most_steps)
        finally:
            with contextlib.suppress(StoreError):  # if the release fails, the claim expires by itself
                await self._summaries.release(session_id, PURPOSE, self._owner)

    async def _claim(self) -> bool:
        return await self._summaries.claim(self._request.session_id, PURPOSE, self._owner, CLAIM_SECONDS)

    async def _due(self, uncovered: Uncovered) -> tuple[int, int]:
        """Return the `seq` after which summaries begin if none is active yet, and the last `seq` to summarise."""
        session_id = self._request.session_id
        if self._request.upto_seq:
            return self._request.upto_seq, self._request.upto_seq
        active = await self._summaries.active(session_id)
        if active and active[-1].last_seq != uncovered.after_seq:
            # Another process stored a summary before this process claimed the session, so count again.
            uncovered = await self._summaries.uncovered(session_id)
        return uncovered.after_seq, await self._reader.upto(self._request, uncovered)

    async def _until_done(self, due: tuple[int, int], most_steps: int | None) -> Summary | None:
        session_id = self._request.session_id
        lowest, upto = due
        newest: Summary | None = None
        for _ in count() if most_steps is None else range(most_steps):
            active = await self._summaries.active(session_id)
            after = active[-1].last_seq if active else lowest
            if merging := to_merge(active, self._room):
                newest = await self._merge(merging)
            elif after < upto and (part := await self._reader.part(session_id, after, upto, self._room.record)):
                started = time.perf_counter()
                text = await self._write(part.records, "messages", active[-1].text if active else None)
                newest = self._summary(part.first_seq, part.last_seq, text.render())
                await self._store(newest, started, last_id=part.last_id, revision=part.revision)
            else:
                return newest
        self.rest = replace(self._request, upto_seq=upto)
        return newest

    async def _merge(self, summaries: Sequence[Summary]) -> Summary:
        """Store one summary in place of several, with their facts and new prose from a model."""
        started = time.perf_counter()
        carried = merged_facts(SummaryText.read(summary.text) for summary in summaries)
        facts = fitting_facts(carried, self._room.facts, self._counter)
        parts = await self._summaries.merged(self._request.session_id, summaries[0].last_seq, _MOST_PARTS)
        sources = sources_of(summaries, parts, min(_READ_AGAIN * self._room.all, self._room.record))
        texts = [(summary, SummaryText.read(summary.text).prose) for summary in sources]
        prose = [replace(summary, text=text) for summary, text in texts if text]
        text = await self._write(self._records_of(prose), "summaries", None, facts)
        level = max(summary.level for summary in sources) + 1
        summary = self._summary(summaries[0].first_seq, summaries[-1].last_seq, text.render(), level=level)
        await self._store(summary, started, replaces=[one.id for one in summaries])
        return summary

    def _records_of(self, summaries: Sequence[Summary]) -> Sequence[str]:
        limit = self._room.record
        lines = [
            quoted_summary(summary, piece)
            for summary in summaries
            for piece in pieces(summary.text, limit, lambda text, one=summary: self._counter(quoted_summary(one, text)))
        ]
        return packed(lines, [self._counter(line) + 1 for line in lines], limit)

    async def _write(
        self, records: Sequence[str], task: SummaryTask, earlier: str | None, facts: tuple[str, ...] = ()
    ) -> SummaryText:
        """Return one summary text for all records. If `facts` are given, they replace the model's facts."""
        text = SummaryText("", facts)
        room = self._room.one - self._counter(text.render())
        for record in records:
            answer = await self._ask(record, earlier, task, room)
            text = replace(answer, facts=text.facts) if facts else replace(answer, facts=merged_facts((text, answer)))
            text = text.within(self._room.one, self._room.facts, self._counter)
            earlier, task = text.prose, "continuation"
        return text

    async def _ask(self, record: str, earlier: str | None, task: SummaryTask, room: int) -> SummaryText:
        """Return a summary of a record in up to `room` tokens; if it is too long, ask for a shorter one, or cut it."""
        known = self._counter(earlier) if earlier and task == "continuation" else 0
        most = self._room.asked * room // self._room.one
        asked = max(min(most, (self._counter(record) + known) // 2), _LEAST_ASKED)
        text = ""
        for length in (asked, asked // _SHORTER):
            try:
                text = await self._answer(record, earlier, task, length)
            except CompressionFailed as error:
                # The model ran out of tokens and returned no text to cut: ask for a shorter summary.
                if error.reason != "too_long" or length != asked:
                    raise
                continue
            if self._counter(text) <= room:
                break
        # Cut a text that is still too long: without a summary, no model call would have these messages.
        return SummaryText.read(text).within(room, self._room.facts, self._counter)

    async def _answer(self, record: str, earlier: str | None, task: SummaryTask, length: int) -> str:
        if not await self._claim():
            raise CompressionFailed("outdated")
        try:
            with ErrorBoundary(raising=(TimeoutError, CompressionFailed)) as call:
                async with asyncio.timeout(CLAIM_SECONDS):
                    answer = await self._request.summarizer.summarize(
                        record, earlier=earlier, task=task, max_tokens=length
                    )
        except TimeoutError:
            raise CompressionFailed("timeout") from None
        except asyncio.CancelledError:
            if (running := asyncio.current_task()) is None or running.cancelling() > 0:
                raise
            # The model raised the `CancelledError`. This task was not cancelled, and must go on with other sessions.
            raise CompressionFailed("model", "CancelledError") from None
        if call.error is not None:
            # Do not chain the error, because the error of a model may quote the record.
            raise CompressionFailed("model", type(call.error).__name__)
        # Some models answer `[]` or an empty code block.
        if not any(map(str.isalnum, text := clean_text(answer).strip())):
            raise CompressionFailed("empty")
        return text

    def _summary(self, first_seq: int, last_seq: int, text: str, *, level: int = 1) -> Summary:
        return Summary(
            self._request.session_id,
            first_seq,
            last_seq,
            text,
            model=self._request.summarizer.name,
            prompt_version=self._request.summarizer.prompt_version,
            tokens=self._counter(text),
            level=level,
        )

    async def _store(
        self,
        summary: Summary,
        started: float,
        *,
        replaces: Sequence[str] = (),
        last_id: str | None = None,
        revision: int | None = None,
    ) -> None:
        """Store a summary, and report it to the observer.

        Raises:
            CompressionFailed: the stored messages or summaries have changed since they were read.
        """
        if not await self._summaries.add(summary, replaces, last_id=last_id, revision=revision):
            raise CompressionFailed("outdated")
        self._observer.notify(
            SummaryMade(
                channel=channel_of(summary.session_id),
                messages=summary.last_seq - summary.first_seq + 1,
                tokens=summary.tokens,
                of="messages" if summary.level == 1 else "summaries",
                milliseconds=(time.perf_counter() - started) * 1000,
                session_id=summary.session_id,
            )
        )
