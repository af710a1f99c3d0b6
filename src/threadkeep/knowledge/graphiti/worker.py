"""Delivery of queued messages to Graphiti, in order within a group, and in parallel for several groups."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from langchain_core.utils.uuid import uuid7

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import GraphitiError, StoreError
from threadkeep.knowledge.graphiti.client import Breaker, Episode, EpisodeRole, GraphitiClient
from threadkeep.knowledge.graphiti.consent import Consents, GitMetadata
from threadkeep.knowledge.graphiti.deliveries import Deliveries, Lease, Unconfirmed, Waiting
from threadkeep.knowledge.graphiti.maintenance import delete_episodes
from threadkeep.knowledge.graphiti.turns import TurnQueue, clamped, sendable, source_of
from threadkeep.observe import EpisodesDelivered, GraphitiTrouble, Observer
from threadkeep.records.graphiti import DataClass, GraphitiOptions
from threadkeep.store.codec import WRONG_CLOCK_SECONDS

_GROUPS_AT_ONCE = 8
# A lease lasts this many timeouts of a call: it is renewed before a call, and must last longer than the call.
_LEASE_TIMEOUTS = 3
_LONGEST_POLL_SECONDS = 15.0
_DENIED_SECONDS = 300.0
# Other writers may have added newer episodes, so read this many more.
_EPISODES_OF_OTHERS = 50
_MOST_EPISODES = 10_000
# The episode of a forgotten fact may be stored late, so wait this many times longer for it than for other messages.
_DELETION_TIMEOUTS = 10
_BEGINNING = datetime(1, 1, 2, tzinfo=UTC)


class _Pause(NamedTuple):
    """The time until a group is served again, the number of its consecutive failures, and the last error."""

    seconds: float
    failures: int = 0
    error: str | None = None


class DeliveryWorker:
    """A worker that sends queued messages to Graphiti and reads them back, because the server may lose some.

    A group has at most one unconfirmed batch. Messages that the server does not show in time are sent again, before any
    later message.
    """

    def __init__(
        self,
        client: GraphitiClient,
        deliveries: Deliveries,
        turns: TurnQueue,
        consents: Consents,
        options: GraphitiOptions,
        *,
        observer: Observer,
        clock: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._deliveries = deliveries
        self._turns = turns
        self._consents = consents
        self._options = options
        self._observer = observer
        self._clock = clock
        self._owner = str(uuid7())
        self._git = GitMetadata(options.git_folder)
        self._breaker = Breaker(
            failures=3,
            first_seconds=options.first_pause_seconds,
            longest_seconds=options.longest_pause_seconds,
            clock=lambda: clock().timestamp(),
        )
        self._known_progress: tuple[datetime, tuple[int, datetime | None]] | None = None
        self._last_stored = _BEGINNING
        """The latest time of sending among the messages that this process has read back."""
        self._woken = asyncio.Event()
        self._serving: dict[str, asyncio.Task[None]] = {}

    def wake(self) -> None:
        """Make `keep_delivering` look for queued messages immediately."""
        self._woken.set()

    async def keep_delivering(self) -> None:
        """Deliver queued messages until cancelled. After failures, the pauses are longer."""
        failures = 0
        try:
            while True:
                with ErrorBoundary() as attempt:
                    await self.deliver_due()
                failures = failures + 1 if attempt.error else 0
                if attempt.error is not None:
                    self._observer.notify(GraphitiTrouble(work="delivery", error=type(attempt.error).__name__))
                pause = self._options.poll_seconds * 2.0 ** min(failures, 5)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), pause)
                self._woken.clear()
        finally:
            for task in self._serving.values():
                task.cancel()
            if self._serving:
                await asyncio.wait(self._serving.values())

    async def deliver_due(self, *, wait: bool = False) -> None:
        """Queue the messages of new turns, and start a task for each group whose next delivery is due.

        After failures, start fewer tasks or none, as the circuit breaker allows. If `wait` is true, wait for the tasks.
        """
        while await self._turns.make_deliveries():
            pass
        free = 1 if self._breaker.is_open else _GROUPS_AT_ONCE - len(self._serving)
        due = [one for one in await self._deliveries.due_groups(max(free, 0)) if one not in self._serving]
        for group_id in due if due and self._breaker.allows() else ():
            task = asyncio.create_task(self._serve(group_id), name="threadkeep-graphiti")
            self._serving[group_id] = task
            task.add_done_callback(partial(self._served, group_id))
        if wait and self._serving:
            await asyncio.wait(list(self._serving.values()))

    def _served(self, group_id: str, _: asyncio.Task[None]) -> None:
        self._serving.pop(group_id, None)
        self._breaker.give_back()  # the task may have failed before it sent a request

    async def _serve(self, group_id: str) -> None:
        try:
            lease = await self._deliveries.claim(group_id, self._owner, seconds=self._lease_seconds)
            if lease is None:
                return
            pause = _Pause(self._options.poll_seconds, lease.failures)
            try:
                pause = await self._deliver(lease)
                self._breaker.succeeded()
            except GraphitiError as error:
                pause = self._pause_after(error, lease)
            finally:
                await self._deliveries.release(lease, seconds=pause.seconds, failures=pause.failures, error=pause.error)
        except StoreError as error:
            # The group need not be released, because the lease expires.
            self._observer.notify(GraphitiTrouble(work="delivery", error=type(error).__name__))

    @property
    def _lease_seconds(self) -> float:
        return _LEASE_TIMEOUTS * self._options.timeout_seconds

    async def _deliver(self, lease: Lease) -> _Pause:
        """Confirm unconfirmed messages, or send the next ones; return the pause until the next poll.

        Raises:
            GraphitiError: the server failed.
        """
        if not await self._consents.granted():
            return _Pause(_LONGEST_POLL_SECONDS, error="no_consent")
        unconfirmed = await self._deliveries.unconfirmed(lease.group_id)
        if forgotten := [one for one in unconfirmed if one.forgotten]:
            await self._delete(lease, forgotten)
        if sent := [one for one in unconfirmed if not one.forgotten]:
            left = await self._read_back(lease, sent)
            if left:
                return await self._wait_for(lease, left, progressed=len(left) < len(sent))
        return await self._send_next(lease)

    async def _delete(self, lease: Lease, forgotten: Sequence[Unconfirmed]) -> None:
        """Delete forgotten facts on the server, once it shows their episodes. A failed deletion is tried again later.

        Raises:
            GraphitiError: the server does not answer.
        """
        found = await delete_episodes(self._client, lease.group_id, {one.name for one in forgotten})
        waited, timeout = await self._waited(lease, forgotten)
        is_late = waited > _DELETION_TIMEOUTS * timeout
        done = [
            one.number for one in forgotten if one.name in found.deleted or (is_late and one.name not in found.left)
        ]
        await self._deliveries.give_up(done, "undone")
        kept = [one.number for one in forgotten if one.name in found.left - found.failed]
        await self._deliveries.give_up(kept, "not_deleted")

    async def _send_next(self, lease: Lease) -> _Pause:
        """Send the next messages of a group; return the pause until the next poll.

        Raises:
            GraphitiError: the server did not accept all messages.
        """
        batch = await self._deliveries.waiting(lease.group_id, self._options.max_batch)
        done = [one.number for one in batch if one.content is None]
        await self._deliveries.give_up(done, "gone")
        batch = [one for one in batch if one.content is not None]
        if not batch:
            # Pause longer if only deletions, or messages without consent, are waiting.
            queued, deletions = (0, 0) if done else await self._deliveries.open_of(lease.group_id)
            seconds = _LONGEST_POLL_SECONDS if queued or deletions else self._options.poll_seconds
            return _Pause(0.0 if done else seconds, error="no_consent" if queued else None)
        # Backfill is sent last: if the first message is backfill, so are all others.
        is_backfill = batch[0].backfill
        if not await self._deliveries.renew(lease, seconds=self._lease_seconds):
            return _Pause(0.0)
        started = time.monotonic()
        classes = {one.number: _class_of(one) for one in batch}
        limit = self._options.backfill_per_minute
        marked = await self._deliveries.mark_sent(lease, classes, backfill_per_minute=limit)
        batch = [one for one in batch if one.number in marked]
        if not batch:
            waits = is_backfill and "backfill" in await self._consents.granted()
            return _Pause(_LONGEST_POLL_SECONDS, error=None if waits else "no_consent")
        if time.monotonic() - started > self._lease_seconds / 2:
            # It is too late to send: this process was suspended, and another process may own the group soon.
            await self._deliveries.take_back(marked)
            return _Pause(0.0)
        await self._send(lease, batch)
        return _Pause(min(self._options.poll_seconds, 1.0) / 2)

    async def _progress(self) -> tuple[int, datetime | None]:
        """Return the number of unconfirmed messages and the time of the last confirmation, cached for some seconds."""
        now = self._clock()
        if (
            self._known_progress is None
            or abs((now - self._known_progress[0]).total_seconds()) >= self._options.poll_seconds
        ):
            self._known_progress = (now, await self._deliveries.progress())
        return self._known_progress[1]

    async def _read_back(self, lease: Lease, sent: Sequence[Unconfirmed], *, deep: bool = False) -> list[Unconfirmed]:
        """Confirm the sent messages that the server returns, and return the rest. With `deep`, read more messages."""
        oldest = min(one.said_at for one in sent) if self._client.newest_first else _BEGINNING
        newer = await self._deliveries.newer_episodes(lease.group_id, oldest)
        last = min(newer + _EPISODES_OF_OTHERS * (20 if deep else 1), _MOST_EPISODES)
        names = {episode.name for episode in await self._client.episodes(lease.group_id, last)}
        seen = [one for one in sent if one.name in names]
        if seen:
            await self._deliveries.confirm(lease.group_id, [one.number for one in seen])
            self._last_stored = max(self._last_stored, *(one.sent_at for one in seen))
        return [one for one in sent if one.name not in names]

    async def _wait_for(self, lease: Lease, left: Sequence[Unconfirmed], *, progressed: bool) -> _Pause:
        """Return the pause before messages are read back again; send overdue messages again, or give them up."""
        if progressed:
            return _Pause(self._options.poll_seconds)
        waited, timeout = await self._waited(lease, left)
        if waited < timeout:
            return _Pause(min(max(waited / 4, self._options.poll_seconds), _LONGEST_POLL_SECONDS))
        if not await self._deliveries.renew(lease, seconds=self._lease_seconds):
            return _Pause(0.0)
        if not (left := await self._read_back(lease, left, deep=True)):
            return _Pause(0.0)
        lost = [one.number for one in left if one.attempts >= self._options.max_attempts]
        await self._deliveries.give_up(lost, "not_stored")
        again = [one.number for one in left if one.number not in lost]
        await self._deliveries.repeat(again)
        return _Pause(0.0, error="not_stored")

    async def _waited(self, lease: Lease, sent: Sequence[Unconfirmed]) -> tuple[float, float]:
        """Return how many seconds messages have waited without progress, and after how many they count as lost.

        If the server stores all messages in order, each stored message of any group counts as progress, until a message
        is stored that was sent after these. Otherwise only stored messages of this group count as progress.
        """
        unconfirmed, seen_at = await self._progress()
        now = self._clock()
        # Ignore times that are far ahead: they were stored while a clock was wrong.
        beyond = now + timedelta(seconds=WRONG_CLOCK_SECONDS)
        times = [one.sent_at for one in sent]
        if not self._client.stores_in_order:
            times += [lease.seen_at or _BEGINNING]
        elif seen_at is not None and not max(times) < self._last_stored <= beyond:
            times.append(seen_at)
        waited = (now - max((at for at in times if at <= beyond), default=_BEGINNING)).total_seconds()
        timeout = self._options.confirm_seconds + self._options.confirm_seconds_each * unconfirmed
        return waited, timeout * 2.0 ** (max(one.attempts for one in sent) - 1)

    async def _send(self, lease: Lease, batch: Sequence[Waiting]) -> None:
        """Send messages to the server. They are already marked as sent.

        Raises:
            GraphitiError: the server did not accept all of them. Messages that it certainly does not have are
                queued again.
        """
        may_read = self._options.git_folder is not None and "git_metadata" in await self._consents.granted()
        git = await self._git.read() if may_read else None
        episodes = [self._episode(one, git) for one in batch]
        try:
            count = await self._client.send(lease.group_id, episodes, may_continue=partial(self._may_send, batch))
        except GraphitiError as error:
            if error.accepted is not None:
                await self._stopped_at(lease, batch[error.accepted], batch[error.accepted + 1 :], error)
                return
            if error.is_final and len(batch) > 1:
                await self._send_each(lease, batch, episodes)
                return
            if error.is_final:
                await self._deliveries.give_up([batch[0].number], "refused", status=error.status)
                return
            if not error.uncertain:
                await self._deliveries.take_back([one.number for one in batch])
            raise
        await self._deliveries.take_back([one.number for one in batch[count:]])
        self._observer.notify(EpisodesDelivered(result="sent", count=count))

    async def _may_send(self, batch: Sequence[Waiting]) -> bool:
        """Return True if there is still consent to send these messages, which are marked as sent already."""
        return {_class_of(one) for one in batch} <= await self._consents.granted()

    async def _stopped_at(self, lease: Lease, failed: Waiting, later: Sequence[Waiting], error: GraphitiError) -> None:
        """Handle a failed message of a batch. The failure stopped the batch, so the `later` messages were not sent.

        The server may refuse a message temporarily, so a refused message is given up only after several attempts.

        Raises:
            GraphitiError: the message was not given up.
        """
        await self._deliveries.take_back([one.number for one in later])
        if error.is_final:
            await self._deliveries.try_again(failed.number)
            if failed.attempts + 1 >= self._options.max_attempts:
                await self._client.episodes(lease.group_id, 1)  # it fails if the server refuses all requests
                await self._deliveries.give_up([failed.number], "refused")
                return
        elif not error.uncertain:
            await self._deliveries.take_back([failed.number])
        raise error

    async def _send_each(self, lease: Lease, batch: Sequence[Waiting], episodes: Sequence[Episode]) -> None:
        """Send messages one by one, so that a refused message does not block the others."""
        for position, (one, episode) in enumerate(zip(batch, episodes, strict=True)):
            if not await self._may_send(batch):
                await self._deliveries.take_back([one.number for one in batch[position:]])
                return
            if not await self._deliveries.renew(lease, seconds=self._lease_seconds):
                return
            try:
                await self._client.send(lease.group_id, [episode])
                self._observer.notify(EpisodesDelivered(result="sent", count=1))
            except GraphitiError as error:
                if error.is_final:
                    await self._deliveries.give_up([one.number], "refused", status=error.status)
                    continue
                certain = batch[position + 1 :] if error.uncertain else batch[position:]
                await self._deliveries.take_back([one.number for one in certain])
                raise

    def _episode(self, one: Waiting, git: dict[str, object] | None) -> Episode:
        role: EpisodeRole = "assistant" if one.role == "assistant" else "system" if one.role == "system" else "user"
        return Episode(
            name=one.name,
            role=role,
            speaker=one.speaker,
            content=sendable(one.content or "", self._options.max_message_chars),
            said_at=clamped(one.said_at, self._clock()),
            source=source_of(one.scope, git),
        )

    def _pause_after(self, error: GraphitiError, lease: Lease) -> _Pause:
        """Report a failure, and count it in the circuit breaker; return the pause until the group is tried again."""
        self._observer.notify(GraphitiTrouble(work="delivery", error=error.kind))
        asked = _DENIED_SECONDS if error.kind == "denied" else error.retry_after or 0.0
        self._breaker.failed(at_least_seconds=asked)
        failures = lease.failures + 1
        most = min(self._options.first_pause_seconds * 2.0 ** min(failures, 30), self._options.longest_pause_seconds)
        return _Pause(max(random.uniform(0.0, most), asked), failures, error.kind)


def _class_of(one: Waiting) -> DataClass:
    """Return a message's kind of data; consent is given for kinds of data."""
    if one.session_id is None:
        return "promoted_facts"
    if one.role == "system":
        return "system_messages"
    return "backfill" if one.backfill else "chat_text"
