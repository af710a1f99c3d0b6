"""Records of model calls, written in the background, so that they never delay an answer or make it fail.

Records wait in memory and are written in groups. If too many are waiting, the oldest are dropped and counted. No
conversation depends on these records, which are called manifests.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import InvalidInput, StoreClosed, StoreError
from threadkeep.history.pending import is_outage
from threadkeep.observe import ManifestLoss, ManifestsDropped, ManifestWriteFailed, Observer
from threadkeep.records.sessions import check_argument, check_cursor, check_each
from threadkeep.store.driver import DuplicateRow, RowLocked, Statement, waiting_until
from threadkeep.store.manifests import Cursor, ManifestRows, NotedManifest, StoredManifest

_MOST_WAITING = 1_000
_MOST_CHARACTERS = 50_000_000
_GROUP = 100
_GATHERING_SECONDS = 0.2
_WRITE_SECONDS = 10.0
_READER_SECONDS = 2.0
_CLOSING_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_PURGE_SECONDS = 3600.0
_PURGED_AT_ONCE = 500
_FOR_GOOD_DAYS = 36_500  # a longer retention counts as forever


class Manifests:
    """A memory's manifests (records of model calls), some still queued, the others in the database.

    `retention_days` is the number of days for which manifests are kept: None means forever, 0 stores none.
    """

    def __init__(
        self, rows: ManifestRows, *, observer: Observer, clock: Callable[[], datetime], retention_days: float | None
    ) -> None:
        if retention_days is not None and not retention_days >= 0:
            raise InvalidInput("The retention of manifests is a number of days from 0, or None to keep them forever.")
        self._rows = rows
        self._observer = observer
        self._clock = clock
        self._retention_days = retention_days
        self.origin: object = None
        self._waiting: deque[NotedManifest] = deque()
        self._characters = 0
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()

    def joined(self, entry: NotedManifest) -> list[Statement]:
        """Return the SQL statements that store a record in the transaction that also stores the record's turn."""
        return [] if self._retention_days == 0 else self._rows.joined(entry)

    def has_earlier(self, entry: NotedManifest) -> bool:
        """Return True if earlier records of the run may still be queued: these must be stored before `entry`."""
        return self._writing.locked() or entry.run_id in [earlier.run_id for earlier in self._waiting]

    def queue(self, entry: NotedManifest) -> None:
        """Queue the record of a model call to be written in the background, and return at once."""
        if self._retention_days == 0:
            return
        self._waiting.append(entry)
        self._characters += _weight(entry)
        self._drop_the_oldest()
        self._wake.set()

    async def of_run(self, run_id: str, *, user_id: str | None = None) -> list[StoredManifest]:
        """Return a run's records of model calls in order; with `user_id`, only if this user owns the run or session."""
        check_argument("run_id", run_id, str, required=True)
        check_argument("user_id", user_id, str)
        await self._flush_for_reader()
        return self._ours(await self._rows.of_run(run_id, user_id=user_id))

    async def of_runs(self, run_ids: Collection[str]) -> list[StoredManifest]:
        """Return the records of the model calls of several runs, in any order."""
        check_each("run_ids", run_ids, str)
        await self._flush_for_reader()
        return self._ours(await self._rows.of_runs(run_ids))

    async def of_session(
        self, session_id: str, *, user_id: str | None = None, limit: int = 50, before: Cursor | None = None
    ) -> list[StoredManifest]:
        """Return up to `limit` records of a session's model calls, newest first, after the cursor `before`."""
        check_argument("session_id", session_id, str, required=True)
        check_argument("user_id", user_id, str)
        check_argument("limit", limit, int, required=True)
        check_cursor("before", before, datetime, str, int)
        if limit < 1:
            raise InvalidInput("A page of manifests has at least one entry; use a limit from 1.")
        await self._flush_for_reader()
        return self._ours(await self._rows.of_session(session_id, user_id=user_id, limit=limit, before=before))

    async def texts(
        self, session_id: str | None, digests: Collection[str], *, run_id: str | None = None
    ) -> dict[str, str]:
        """Return a map from digests to texts that were sent in model calls but are in no transcript."""
        check_argument("session_id", session_id, str)
        check_argument("run_id", run_id, str)
        check_each("digests", digests, str)
        await self._flush_for_reader()
        return await self._rows.texts(session_id, digests, run_id=run_id)

    async def flush(self) -> bool:
        """Write the queued records now; report a failure, and return False if some records are still queued."""
        async with self._writing:
            left = len(self._waiting)
            again: list[NotedManifest] = []
            group: list[NotedManifest] = []
            try:
                while left > 0 and self._waiting:
                    group = self._take(min(left, _GROUP))
                    left -= len(group)
                    await self._write(group)
                    again += group
                    group = []
            except (StoreError, TimeoutError) as error:
                self._notify_failure(error)
            finally:
                # Put the records to try again back at the head of the queue, although some may be stored already.
                self._waiting.extendleft(replace(entry, again=True) for entry in reversed([*again, *group]))
                self._characters += sum(map(_weight, [*again, *group]))
                self._drop_the_oldest()
        return not self._waiting

    def kept_since(self) -> datetime | None:
        """Return the time before which `purge` deletes records; None if records are kept forever."""
        if self._retention_days is None or self._retention_days > _FOR_GOOD_DAYS:
            return None
        return self._clock() - timedelta(days=self._retention_days)

    async def purge(self) -> int:
        """Delete records of model calls older than `retention_days`; return the number of deleted rows."""
        before = self.kept_since()
        if before is None:
            return 0
        deleted = step = await self._rows.purge(before, _PURGED_AT_ONCE)
        while step >= _PURGED_AT_ONCE:
            step = await self._rows.purge(before, _PURGED_AT_ONCE)
            deleted += step
        return deleted

    async def keep_writing(self) -> None:
        """Write queued records of model calls, and delete old ones, until cancelled."""
        loop = asyncio.get_running_loop()
        next_purge = loop.time() + _PURGE_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_purge):
                    await self._wake.wait()
                    # Wait a moment: the turn is then written first, and more records can be written together.
                    await asyncio.sleep(_GATHERING_SECONDS)
            self._wake.clear()
            pause = _FIRST_PAUSE_SECONDS
            while not await self.flush():
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            if loop.time() >= next_purge:
                next_purge = loop.time() + _PURGE_SECONDS
                with contextlib.suppress(StoreError):
                    await self.purge()

    async def close(self) -> None:
        """Write the queued records within five seconds; drop the rest, and report their number."""
        with contextlib.suppress(TimeoutError), waiting_until(time.monotonic() + _CLOSING_SECONDS):
            async with asyncio.timeout(_CLOSING_SECONDS):
                await self.flush()
        self._dropped(len(self._waiting), "closing")
        self._waiting.clear()

    async def _write(self, group: list[NotedManifest]) -> None:
        """Write the records in `group`, and remove them from the list, except those that must be tried again later.

        Raises:
            StoreError, TimeoutError: the database is not available; `group` is unchanged.
        """
        # Catch all errors: one rejected row must not block the others, and each database driver has its own errors.
        with ErrorBoundary() as attempt:
            async with asyncio.timeout(_WRITE_SECONDS):
                stored = await self._rows.add(group)
        if attempt.error is None:
            self._dropped(len(group) - stored, "session_gone")
        elif isinstance(attempt.error, TimeoutError | StoreClosed) or is_outage(attempt.error):
            raise attempt.error
        elif len(group) > 1:
            await self._write_one_by_one(group)
            return
        else:
            self._notify_failure(attempt.error)
            if isinstance(attempt.error, RowLocked | DuplicateRow):
                return
            self._dropped(1, "refused")
        group.clear()

    async def _write_one_by_one(self, group: list[NotedManifest]) -> None:
        """Write the records of a failed group one by one, so that none can block the others."""
        locked: set[tuple[bool, str]] = set()
        for entry in tuple(group):
            if entry.lock_key in locked:
                continue
            alone = [entry]
            await self._write(alone)
            if alone:
                locked.add(entry.lock_key)
            else:
                group.remove(entry)

    async def _flush_for_reader(self) -> None:
        """Write the queued records before a read, so that it finds them; wait two seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READER_SECONDS):
                await self.flush()

    def _ours(self, found: Iterable[StoredManifest]) -> list[StoredManifest]:
        return [replace(manifest, origin=self.origin) for manifest in found]

    def _take(self, count: int) -> list[NotedManifest]:
        group = [self._waiting.popleft() for _ in range(count)]
        self._characters -= sum(map(_weight, group))
        return group

    def _drop_the_oldest(self) -> None:
        dropped = 0
        while len(self._waiting) > _MOST_WAITING or (self._characters > _MOST_CHARACTERS and len(self._waiting) > 1):
            self._take(1)
            dropped += 1
        self._dropped(dropped, "crowded")

    def _dropped(self, count: int, reason: ManifestLoss) -> None:
        if count > 0:
            self._observer.notify(ManifestsDropped(backend=self._rows.backend, count=count, reason=reason))

    def _notify_failure(self, error: Exception) -> None:
        event = ManifestWriteFailed(backend=self._rows.backend, error=type(error).__name__, waiting=len(self._waiting))
        self._observer.notify(event)


def _weight(entry: NotedManifest) -> int:
    return sum(map(len, entry.texts.values()))
