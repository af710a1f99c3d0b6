"""Pending turns. A turn that the database does not accept is stored on disk, and retried until written or dropped.

`record` is for callers that must continue without a database. One task delivers the pending turns, which means that it
writes them to the database; after each failure it pauses longer. If a turn of a session is pending, later turns of the
session wait behind it, so they stay in order. Ids are assigned before the first attempt, so that no turn is stored
twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from langchain_core.utils.uuid import uuid7
from platformdirs import user_data_path

from threadkeep.boundary import ErrorBoundary, Tasks, retrieve_exception
from threadkeep.errors import (
    InvalidMessage,
    QuestionGone,
    StoreClosed,
    StoreError,
    StoreUnavailable,
    ThreadkeepError,
    TurnInMemoryOnly,
)
from threadkeep.history.pending_files import PendingFiles
from threadkeep.history.session_events import SessionEvents
from threadkeep.observe import Observer, PendingWrites
from threadkeep.records import Message, Receipt, Turn, dump_json
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.codec import identified
from threadkeep.store.driver import Joined, Row, RowLocked, TurnRefused
from threadkeep.store.spool import DamagedTurn, PendingTurn
from threadkeep.store.tables import TableTranscripts
from threadkeep.store.transcripts import Transcripts

type Join = Callable[[Sequence[Message]], Joined | None]
"""A function that returns statements to execute with a turn's messages, or None if they are too large."""


def default_folder() -> Path:
    """Return the default folder for turns that wait to be written; it has a subfolder for each database."""
    return user_data_path("threadkeep") / "pending"


def folder_of(address: DatabaseAddress, folder: Path | None = None) -> Path:
    """Return the folder for turns that wait to be written to a database, by default below the default folder."""
    return Path(folder or default_folder()) / address.fingerprint


@dataclass(frozen=True)
class PendingOptions:
    """Options of pending turns. In `MemoryOptions`, no `folder` means the default folder.

    Pending turns of an in-memory database are kept in memory only.
    """

    folder: Path | None = None
    write_timeout_seconds: float = 5.0
    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 10.0


WAIT_SECONDS_IN_AN_OUTAGE = 0.5
_SOON_SECONDS = 1.0
_IDS = UUID("3f5e0a52-8d0c-4b0e-9a57-6f2f6f1d9c11")


class PendingTurns:
    """The turns of this process that wait to be written, including those taken over from dead processes."""

    def __init__(
        self, transcripts: Transcripts, options: PendingOptions, *, observer: Observer, clock: Callable[[], datetime]
    ) -> None:
        self._transcripts = transcripts
        self.options = options
        self._observer = observer
        self._clock = clock
        self.database_fails = False
        """True if the newest call could not reach the database, so the next calls wait only briefly."""
        self.own: list[PendingTurn] = []
        """The pending turns of this object, in order. Each namespace has its own object."""
        self._unfinished = Tasks()
        # The sessions that are being deleted, with the number of their deletions.
        self._withheld: Counter[str] = Counter()
        self._delivering = asyncio.Lock()
        self._files = PendingFiles(options.folder)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._namespace: tuple[str, ...] = ()
        self._all: list[PendingTurns] = [self]

    @property
    def wait_seconds(self) -> float:
        """The seconds that a reply may wait for the database; less while the database fails."""
        seconds = self.options.write_timeout_seconds
        return min(seconds, WAIT_SECONDS_IN_AN_OUTAGE) if self.database_fails else seconds

    def of_namespace(
        self, transcripts: Transcripts, options: PendingOptions, *, namespace: tuple[str, ...] = ()
    ) -> PendingTurns:
        """Create the pending turns of a LangGraph store namespace, and include them in `entries` and `count`."""
        other = PendingTurns(transcripts, options, observer=self._observer, clock=self._clock)
        other._namespace = namespace
        self._all.append(other)
        other._all = self._all
        return other

    @property
    def entries(self) -> tuple[PendingTurn, ...]:
        """The pending turns, oldest first. A memory's main object also lists the turns of its store namespaces."""
        return tuple(sorted((entry for each in self._listed for entry in each.own), key=lambda entry: entry.kept_at))

    @property
    def count(self) -> int:
        """The number of turns that wait to be written, including those for the memory's LangGraph store namespaces."""
        return sum(len(each.own) for each in self._all)

    def turns_of(self, session_id: str) -> list[Turn]:
        """Return a session's unwritten turns in order, without rejected turns: later turns need not wait for them."""
        return [entry.turn for entry in self.own if entry.turn.session_id == session_id and not entry.refused]

    @property
    def _listed(self) -> list[PendingTurns]:
        return self._all if self._all[0] is self else [self]

    async def start(self) -> None:
        """Take over the turns that dead processes left on disk, and start to write them to the database.

        Raises:
            PendingFolderUnusable: the folder cannot store turns.
        """
        for entry in await self._files.take_over():
            entry.namespace = self._namespace
            self.own.append(entry)
        if self.own:
            self._report_count()
            self._ensure_delivery()

    async def adopt(self, session_id: str) -> None:
        """Write pending turns of a session that are in the files of other processes, dead or alive.

        A process that takes over a run calls this first, because the run's answer may be among these turns. If the
        other process is alive, it later finds that the turn is stored. Turns that cannot be written now are skipped.
        """
        for turn in await self._files.of_others(session_id):
            with contextlib.suppress(StoreError, ThreadkeepError, TimeoutError):
                async with asyncio.timeout(self.options.write_timeout_seconds):
                    await self._transcripts.append(turn)

    async def record(self, turn: Turn) -> Receipt | None:
        """Store a turn; if this is not possible now, keep it pending and return None.

        Cancelling the caller does not stop the write. If another answer to the same question is pending, the turn's
        answer is not stored, and the receipt names the pending answer.

        Raises:
            InvalidMessage: the turn can never be stored.
            WrongUser: the session belongs to another user.
            QuestionGone: the question of the answer was deleted.
            TurnInMemoryOnly: neither the database nor the disk accepts the turn; it is retried while this process
                lives.
            StoreClosed: the memory is closed; the turn is not kept.
        """
        return await self._uninterrupted(self._record(turn), "threadkeep-record")

    async def record_joined(self, turn: Turn, join: Join | Joined) -> tuple[Receipt, Sequence[list[Row]]] | None:
        """Store a turn and execute the caller's SQL statements (`join`) in one transaction; return None if this fails.

        Return None at once if the messages are in a LangGraph store, the database is known to fail, or earlier turns
        of the session are pending. Even if None is returned, the turn may have been stored; storing it again is safe.
        """
        transcripts = self._transcripts
        if not isinstance(transcripts, TableTranscripts) or self.database_fails or self.turns_of(turn.session_id):
            return None
        try:
            async with asyncio.timeout(self.options.write_timeout_seconds):
                return await transcripts.append_joined(turn, join)
        except (StoreClosed, TurnRefused):
            return None
        except (StoreError, TimeoutError) as error:
            self._note_failed_write(turn, error)
        return None

    async def _uninterrupted[T](self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Await work that continues even if the caller is cancelled; `close` waits for it."""
        task = self._unfinished.start(work, name)
        task.add_done_callback(retrieve_exception)
        return await asyncio.shield(task)

    async def _record(self, turn: Turn) -> Receipt | None:
        turn = replace(turn, messages=tuple(map(identified, turn.messages)))
        if not self.database_fails and not self.turns_of(turn.session_id):
            try:
                async with asyncio.timeout(self.options.write_timeout_seconds):
                    return await self._append_answer(turn, is_new=True)
            except StoreClosed:
                raise
            except (StoreError, TimeoutError) as error:
                self._note_failed_write(turn, error)
        if earlier := self._answer_at(turn):
            return Receipt(0, 0, adopted=earlier.id)
        # The caller gets the answer now, before it is in the database, so keep this time with the turn.
        await self._keep(replace(turn, told_at=self._clock()) if turn.told else turn)
        return None

    def _answer_at(self, turn: Turn) -> Message | None:
        """Return another pending answer to the same question, or None."""
        if len(turn.messages) != 1 or (key := turn.messages[0].answer_key) is None:
            return None
        pending = (message for each in self.turns_of(turn.session_id) for message in each.messages)
        return next((one for one in pending if one.answer_key == key and one.id != turn.messages[0].id), None)

    async def tell(self, message: Message) -> Message:
        """Record that a caller receives this pending answer. Later it replaces any answer that no caller received."""
        for entry in self.own:
            if message in entry.turn.messages and entry.turn.told_at is None:
                entry.turn = replace(entry.turn, told_at=self._clock())
                await self._files.renew(entry)
        return message

    async def ensure_kept(self, session_id: str, message_id: str) -> None:
        """Ensure that a message is in the database or on disk; callers confirm its receipt only after this.

        Raises:
            TurnInMemoryOnly: neither the database nor the disk accepts the message; a crash would lose it.
        """
        for each in list(self._all):
            if each._in_memory_only(session_id, message_id):  # noqa: SLF001 - ours
                await each._spool_pending()  # noqa: SLF001 - ours
                if each._in_memory_only(session_id, message_id):  # noqa: SLF001 - ours
                    raise TurnInMemoryOnly(session_id)

    def _in_memory_only(self, session_id: str, message_id: str) -> bool:
        return self._files.on_disk and any(
            entry.file is None
            and entry.turn.session_id == session_id
            and message_id in [m.id for m in entry.turn.messages]
            for entry in self.own
        )

    async def damaged(self) -> list[DamagedTurn]:
        """Return the unreadable lines of pending files. A line stays until it is repaired or dropped."""
        return [turn for each in list(self._listed) for turn in await each._files.damaged()]  # noqa: SLF001 - ours

    async def drop(self, entry_id: str) -> bool:
        """Permanently drop a pending turn or an unreadable line; return False if there is none."""
        return any([await each._drop(entry_id) for each in list(self._listed)])  # noqa: SLF001 - ours

    async def _drop(self, entry_id: str) -> bool:
        async with self._delivering:  # so that no turn is dropped while it is being written
            entry = next((entry for entry in self.own if entry.entry_id == entry_id), None)
            if entry is None:
                return await self._files.drop_damaged(entry_id)
            await self._forget(entry)
        self._events(entry.turn).dropped()
        return True

    async def discard(self, matches: Callable[[Turn], bool]) -> None:
        """Permanently drop matching turns of this process, and remove their texts from the disk."""
        for each in list(self._listed):
            for entry in [entry for entry in each.own if matches(entry.turn)]:
                await each._drop(entry.entry_id)  # noqa: SLF001 - ours

    async def delete(self, session_id: str, *, run_id: str | None = None) -> bool:
        """Delete a session with its pending turns; return False if it did not exist or run `run_id` may not delete it.

        During the deletion, pending turns are not written; a turn that becomes pending meanwhile stays. Cancelling the
        caller, for example by deleting its own run, does not interrupt the deletion: pending turns that are left would
        create the session again.
        """
        return await self._uninterrupted(self._delete(session_id, run_id), "threadkeep-delete")

    async def _delete(self, session_id: str, run_id: str | None) -> bool:
        async with self._delivering:
            self._withheld[session_id] += 1
        waiting = [entry for entry in self.own if entry.turn.session_id == session_id]
        try:
            was_there = await self._transcripts.delete(session_id, run_id=run_id)
            for entry in waiting if was_there is not None else ():
                await self._drop(entry.entry_id)
        finally:
            self._withheld -= Counter([session_id])  # keeps only positive numbers
        return bool(was_there)

    async def deliver(self, session_id: str | None = None) -> bool:
        """Try once to write all pending turns, or those of one session, in order; return True if none are left."""
        listed = [self] if session_id is not None else list(self._listed)
        return all([await each._deliver_own(session_id) for each in listed])  # noqa: SLF001 - ours

    async def _deliver_own(self, session_id: str | None = None) -> bool:
        if not self._files.writing.locked():  # a slow disk must not delay turns that the database would accept
            await self._spool_pending()
        blocked, tried, timeouts = set[str](), set[str](), 0
        # Also try turns that become pending during the loop. A busy session's turns might otherwise never be written.
        while entry := self._next(session_id, blocked, tried):
            tried.add(entry.entry_id)
            entry.tries += 1
            # An error in one turn must block only the later turns of its session.
            with ErrorBoundary() as attempt:
                delivered = await self._deliver(entry)
            if attempt.error is None:
                self.database_fails = self.database_fails and not delivered
                if not delivered and entry in self.own:  # its session is being deleted
                    blocked.add(entry.turn.session_id)
                continue
            await self._note_failure(entry, attempt.error)
            # A first timeout may be due to a locked session; a second one means that the database is down.
            timeouts += isinstance(attempt.error, TimeoutError)
            if timeouts > 1 or is_outage(attempt.error):
                return False
            if not entry.refused:
                blocked.add(entry.turn.session_id)
        if not self.own:
            self.database_fails = False
        return not any(session_id in (None, entry.turn.session_id) for entry in self.own)

    def _next(self, session_id: str | None, blocked: set[str], tried: set[str]) -> PendingTurn | None:
        """Return the oldest pending turn that is not in `tried`, and whose session is not in `blocked`."""
        for entry in self.own:
            wanted = session_id in (None, entry.turn.session_id)
            if wanted and entry.turn.session_id not in blocked and entry.entry_id not in tried:
                return entry
        return None

    async def _deliver(self, entry: PendingTurn) -> bool:
        """Write one pending turn; return False if the turn was dropped or its session is being deleted."""
        async with self._delivering:
            if entry not in self.own or entry.turn.session_id in self._withheld:
                return False
            async with asyncio.timeout(self.options.write_timeout_seconds):
                turn = entry.turn
                stored = await self._append(turn)
                if entry.turn is not turn:  # a caller received its answer, which replaces one that nobody received
                    with contextlib.suppress(QuestionGone):
                        receipt = await self._transcripts.append(entry.turn)
                        for message_id in receipt.duplicates:
                            await self._transcripts.tell(turn.session_id, message_id)
        await self._forget(entry)
        if stored:
            self._events(entry.turn).recovered(entry.tries)
        return True

    async def _append(self, turn: Turn) -> bool:
        """Write a turn; if its question is gone, report this and return False."""
        try:
            await self._append_answer(turn, is_new=False)
        except QuestionGone:
            self._events(turn).discarded()
            return False
        return True

    async def _append_answer(self, turn: Turn, *, is_new: bool) -> Receipt:
        """Append a turn; give its answer a new id if the session has another message with this id.

        A model may return the same id twice, for example from LangChain's cache. If the turn may have been stored
        before, pass `is_new=False`.
        """
        receipt = await self._transcripts.append(turn)
        while (renamed := await self._renamed(turn, receipt, is_new=is_new)) is not None:
            turn, receipt = renamed, await self._transcripts.append(renamed)
        return receipt

    async def _renamed(self, turn: Turn, receipt: Receipt, *, is_new: bool) -> Turn | None:
        """Return the turn with a new, reproducible id for its answer, or None if the answer needs no new id."""
        answer = turn.messages[-1]
        if answer.answers is None or len(turn.messages) > 1 or answer.id not in receipt.duplicates:
            return None
        stored = await self._transcripts.find(turn.session_id, answer.id)
        if not is_new and (stored is None or _is_same(answer, stored)):
            return None
        if stored is not None and stored.superseded_at is None and _is_same(answer, stored):
            return None
        free = str(uuid5(_IDS, dump_json([answer.id, answer.answers, answer.author, answer.ordinal, answer.status])))
        completes = stored is not None and _completes(answer, stored)
        return replace(turn, messages=(replace(answer, id=free),), completes=answer.id if completes else turn.completes)

    async def close(self) -> None:
        """Finish running writes, and try to write the pending turns once more; the rest stays on disk."""
        while self._unfinished:
            await asyncio.wait(self._unfinished)
        await self._spool_pending()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self.wait_seconds):
                await self._deliver_own()
        await self._files.close()

    async def _keep(self, turn: Turn) -> None:
        if not turn.messages:
            raise InvalidMessage("A turn has at least one message.")
        for message in turn.messages:
            message.to_json()  # raises InvalidMessage if the database would never accept it
        entry = PendingTurn(str(uuid7()), turn, self._clock(), namespace=self._namespace)
        self.own.append(entry)
        await self._spool_pending()
        self._events(turn).deferred(len(turn.messages))
        self._report_count()
        self._ensure_delivery()
        if self._files.on_disk and entry.file is None and entry in self.own:
            raise TurnInMemoryOnly(turn.session_id)

    async def _spool_pending(self) -> None:
        """Save pending turns on disk. A failure is reported, and the turns stay in memory."""
        await self._files.keep(self.own, self._report_failure)

    async def _note_failure(self, entry: PendingTurn, error: Exception) -> None:
        """Report that an attempt to write a turn failed. If the error has a new type, record the type on disk."""
        self._report_failure(entry.turn, error)
        kind = type(error).__name__
        if kind != entry.error:
            entry.error = kind
            await self._files.note(entry)

    async def _forget(self, entry: PendingTurn) -> None:
        if entry not in self.own:
            return  # another task dropped this turn while it was being written
        self.own.remove(entry)
        await self._files.done(entry)
        self._report_count()

    def _ensure_delivery(self) -> None:
        self._wake.set()
        if self._task is None:
            # Use an empty context: the first caller's context would keep its run in memory.
            self._task = asyncio.create_task(
                self._deliver_until_closed(), context=Context(), name="threadkeep-pending-writes"
            )

    async def _deliver_until_closed(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            pause = self.options.first_pause_seconds
            while self.own:
                await self._pause(pause * random.uniform(0.5, 1.5))
                self._wake.clear()
                pause = min(pause * 2, self.options.longest_pause_seconds)
                # Continue if the disk fails; the turns then stay pending.
                with ErrorBoundary(self._report_failure_of_oldest):
                    await self._deliver_own()

    async def _pause(self, seconds: float) -> None:
        """Wait for `seconds` before the next attempt; after the first second, stop if another turn becomes pending."""
        soon = min(seconds, _SOON_SECONDS)
        await asyncio.sleep(soon)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds - soon)

    def _report_failure_of_oldest(self, error: Exception) -> None:
        for entry in self.own[:1]:
            self._report_failure(entry.turn, error)

    def _note_failed_write(self, turn: Turn, error: Exception) -> None:
        self.database_fails = isinstance(error, TimeoutError) or is_outage(error)
        self._report_failure(turn, error)

    def _report_failure(self, turn: Turn, error: Exception) -> None:
        self._events(turn).write_failed(error, "fallback")

    def _events(self, turn: Turn) -> SessionEvents:
        return SessionEvents(self._observer, self._transcripts.backend, turn.session_id)

    def _report_count(self) -> None:
        backend = self._transcripts.backend
        count = sum(len(each.own) for each in self._all if each._transcripts.backend == backend)  # noqa: SLF001 - ours
        self._observer.notify(PendingWrites(backend=backend, count=count))


def is_outage(error: Exception) -> bool:
    """Return True if an error affects the whole database. A locked row, for example, affects only one session."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, RowLocked)


def _completes(answer: Message, stored: Message) -> bool:
    """Return True if an answer completes a stored answer that was cut off."""
    same = (answer.answers, answer.author, answer.content) == (stored.answers, stored.author, stored.content)
    return same and answer.status == "complete" != stored.status


def _is_same(answer: Message, stored: Message) -> bool:
    """Return True if two messages are the same answer to the same question. Partial answers must have the same text."""
    if (answer.answers, answer.status) != (stored.answers, stored.status):
        return False
    return answer.content == stored.content or (answer.status == "complete" and answer.answer_key == stored.answer_key)
