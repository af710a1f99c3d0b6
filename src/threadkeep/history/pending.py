"""Pending writes: a turn that the database does not take is kept on disk and retried until it is written or dropped.

`record` is the append of those who cannot stop for a broken database: the middleware and the service. One task delivers
what was kept, with growing, jittered pauses. A session that has something kept gets its later turns kept behind it, so
the turns of this process stay in their order; the ids given before the first try make every turn arrive exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from langchain_core.utils.uuid import uuid7
from platformdirs import user_data_path

from threadkeep.errors import InvalidMessage, QuestionGone, StoreClosed, StoreError, StoreUnavailable
from threadkeep.history.pending_files import PendingFiles
from threadkeep.history.session_events import SessionEvents
from threadkeep.observe import Observer, PendingWrites
from threadkeep.records import Receipt, Turn
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import RowLocked
from threadkeep.store.spool import KeptTurn
from threadkeep.store.transcripts import Transcripts


def default_folder() -> Path:
    """Where turns wait when no folder is named; each database has a folder of its own below."""
    return user_data_path("threadkeep") / "pending"


def folder_of(address: DatabaseAddress, folder: Path | None = None) -> Path:
    """Where the turns for a database wait, in the folder that is named or the default."""
    return (folder or default_folder()) / address.fingerprint


@dataclass(frozen=True)
class PendingOptions:
    """Where and how long turns wait. Without a folder they are kept in memory only, as for a database in memory."""

    folder: Path | None = None
    write_timeout_seconds: float = 5.0
    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 10.0


class PendingTurns:
    """The turns of this process that wait to be written, and those of processes that died."""

    def __init__(
        self, transcripts: Transcripts, options: PendingOptions, *, observer: Observer, clock: Callable[[], datetime]
    ) -> None:
        self._transcripts = transcripts
        self._options = options
        self._observer = observer
        self._clock = clock
        self.database_fails = False
        """Whether the newest call found no database: others need not wait long to find the same."""
        self._kept: list[KeptTurn] = []
        self._recording: set[asyncio.Task[Receipt | None]] = set()
        self._withheld: set[str] = set()
        self._delivering = asyncio.Lock()
        self._files = PendingFiles(options.folder)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._all: list[PendingTurns] = [self]

    def beside(self, transcripts: Transcripts, options: PendingOptions) -> PendingTurns:
        """Those of other transcripts, which are counted together with these."""
        other = PendingTurns(transcripts, options, observer=self._observer, clock=self._clock)
        self._all.append(other)
        other._all = self._all
        return other

    @property
    def options(self) -> PendingOptions:
        """Where and how long turns wait."""
        return self._options

    @property
    def entries(self) -> tuple[KeptTurn, ...]:
        """What waits, oldest first."""
        return tuple(self._kept)

    @property
    def count(self) -> int:
        """How many turns wait, those of conversations beside included."""
        return sum(len(each.entries) for each in self._all)

    async def start(self) -> None:
        """Take over what dead processes kept, and begin to deliver."""
        self._kept += await self._files.take_over()
        if self._kept:
            self._tell_count()
            self._ensure_delivery()

    async def record(self, turn: Turn) -> Receipt | None:
        """Store a turn, or keep it: None says that it waits. A caller that is cancelled does not stop it half-way.

        Raises:
            InvalidMessage: the turn can never be stored.
            WrongUser: the session is somebody else's.
            QuestionGone: what it answers was deleted.
        """
        task = asyncio.create_task(self._record(turn), name="threadkeep-record")
        self._recording.add(task)
        task.add_done_callback(self._recorded)
        return await asyncio.shield(task)

    def _recorded(self, task: asyncio.Task[Receipt | None]) -> None:
        self._recording.discard(task)
        if not task.cancelled():
            task.exception()  # a caller who was cancelled does not ask for it

    async def _record(self, turn: Turn) -> Receipt | None:
        turn = replace(
            turn, messages=tuple(m if m.id is not None else replace(m, id=str(uuid7())) for m in turn.messages)
        )
        if not self.database_fails and not self._waits(turn.session_id):
            try:
                async with asyncio.timeout(self._options.write_timeout_seconds):
                    return await self._transcripts.append(turn)
            except StoreClosed:
                raise
            except (StoreError, TimeoutError) as error:
                self.database_fails = isinstance(error, TimeoutError) or _is_outage(error)
                self._tell_failure(turn, error)
        await self._keep(turn)
        return None

    async def drop(self, entry_id: str) -> bool:
        """Give a turn up for good; False when it does not wait here, or was written just now."""
        async with self._delivering:  # what is being written cannot be dropped
            entry = next((entry for entry in self._kept if entry.entry_id == entry_id), None)
            if entry is None:
                return False
            await self._forget(entry)
        self._events(entry.turn).dropped()
        return True

    @asynccontextmanager
    async def withheld(self, session_id: str) -> AsyncIterator[None]:
        """While a session is being deleted nothing of it is delivered; what waits goes with it, if it went."""
        async with self._delivering:
            self._withheld.add(session_id)
        try:
            yield
            for entry in [entry for entry in self._kept if entry.turn.session_id == session_id]:
                await self.drop(entry.entry_id)
        finally:
            self._withheld.discard(session_id)

    async def deliver(self, session_id: str | None = None) -> bool:
        """Try all that waits (of one session or of all), once, in order; True when nothing of it is left."""
        if not self._files.writing.locked():  # a slow disk holds nobody up whom the database takes
            await self._spool_the_rest()
        blocked: set[str] = set()
        timeouts = 0
        wanted = [entry for entry in self._kept if session_id in (None, entry.turn.session_id)]
        for entry in wanted:
            if entry.turn.session_id in blocked:
                continue
            entry.tries += 1
            try:
                delivered = await self._deliver(entry)
            except Exception as error:  # noqa: BLE001 - whatever a turn's own trouble is, it holds up its session only
                await self._note_failure(entry, error)
                # One session may be locked by somebody; when a second one does not come through, it is the database.
                timeouts += isinstance(error, TimeoutError)
                if timeouts > 1 or _is_outage(error):
                    return False
                if not entry.refused:
                    blocked.add(entry.turn.session_id)
            else:
                self.database_fails = self.database_fails and not delivered
        if not self._kept:
            self.database_fails = False
        return not any(entry in self._kept for entry in wanted)

    async def _deliver(self, entry: KeptTurn) -> bool:
        """Write one turn that waits; False when it waits no more, or must not be written now."""
        async with self._delivering:
            if entry not in self._kept or entry.turn.session_id in self._withheld:
                return False
            async with asyncio.timeout(self._options.write_timeout_seconds):
                stored = await self._append(entry.turn)
        await self._forget(entry)
        if stored:
            self._events(entry.turn).recovered(entry.tries)
        return True

    async def _append(self, turn: Turn) -> bool:
        """Write a turn; False when it is an answer to what is not there any more, which is told."""
        try:
            await self._transcripts.append(turn)
        except QuestionGone:
            self._events(turn).discarded()
            return False
        return True

    async def close(self) -> None:
        """Finish what is being recorded, stop delivering. What still waits stays on disk for the next start."""
        while self._recording:
            await asyncio.gather(*self._recording, return_exceptions=True)
        await self._spool_the_rest()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._files.close()

    def _waits(self, session_id: str) -> bool:
        """Whether the session has turns that others have to wait behind."""
        return any(entry.turn.session_id == session_id and not entry.refused for entry in self._kept)

    async def _keep(self, turn: Turn) -> None:
        _check_turn(turn)
        entry = KeptTurn(str(uuid7()), turn, self._clock())
        self._kept.append(entry)
        await self._spool_the_rest()
        self._events(turn).deferred(len(turn.messages))
        self._tell_count()
        self._ensure_delivery()

    async def _spool_the_rest(self) -> None:
        """Put on disk what is not there yet. Without a disk too it waits in memory, told as a failure of its own."""
        await self._files.keep(self._kept, self._tell_failure)

    async def _note_failure(self, entry: KeptTurn, error: Exception) -> None:
        """Tell that a turn still waits; on disk too, once for each kind of error."""
        self._tell_failure(entry.turn, error)
        kind = type(error).__name__
        if kind != entry.error:
            entry.error = kind
            await self._files.note(entry)

    async def _forget(self, entry: KeptTurn) -> None:
        if entry not in self._kept:
            return  # a person dropped it while it was being delivered
        self._kept.remove(entry)
        await self._files.done(entry)
        self._tell_count()

    def _ensure_delivery(self) -> None:
        self._wake.set()
        if self._task is None:
            # A context of its own: whoever comes first would be kept as long as the memory, with an agent's whole run.
            self._task = asyncio.create_task(
                self._deliver_until_closed(), context=Context(), name="threadkeep-pending-writes"
            )

    async def _deliver_until_closed(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            pause = self._options.first_pause_seconds
            while self._kept:
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, self._options.longest_pause_seconds)
                try:
                    await self.deliver()
                except Exception as error:  # noqa: BLE001 - the loop outlives a disk that fails; the turns are kept
                    for entry in self._kept[:1]:
                        self._tell_failure(entry.turn, error)

    def _tell_failure(self, turn: Turn, error: Exception) -> None:
        self._events(turn).write_failed(error, "fallback")

    def _events(self, turn: Turn) -> SessionEvents:
        return SessionEvents(self._observer, self._transcripts.backend, turn.session_id)

    def _tell_count(self) -> None:
        backend = self._transcripts.backend
        count = sum(len(each._kept) for each in self._all if each._transcripts.backend == backend)  # noqa: SLF001 - ours
        self._observer.notify(PendingWrites(backend=backend, count=count))


def _is_outage(error: Exception) -> bool:
    """Whether other turns would fail too. A row that somebody has locked says nothing of the database."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, RowLocked)


def _check_turn(turn: Turn) -> None:
    """Refuse what would wait for ever, as the database would.

    Raises:
        InvalidMessage: names what cannot be stored.
    """
    if not turn.messages:
        raise InvalidMessage("A turn has at least one message.")
    for message in turn.messages:
        message.to_json()
