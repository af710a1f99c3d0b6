"""The tables of messages for Graphiti, and the leases that let only one process at a time send a group's messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import NamedTuple

from threadkeep.errors import KnowledgeNotFound
from threadkeep.observe import DeadReason, EpisodesDelivered, Observer
from threadkeep.records.graphiti import CONSENT_VERSION, DataClass, Delivery, DeliveryStatus
from threadkeep.records.knowledge import Scope
from threadkeep.store.codec import WRONG_CLOCK_SECONDS, time_of, time_text
from threadkeep.store.driver import Driver, Parameters, Row, Statement
from threadkeep.store.statements import ClockedTables
from threadkeep.store.transcripts import END

_DEAD_PERIOD = timedelta(minutes=1)


class Unconfirmed(NamedTuple):
    """A sent message that the server has not shown as stored yet or, if `forgotten`, that must be deleted there."""

    number: int
    name: str
    said_at: datetime
    attempts: int
    sent_at: datetime
    forgotten: bool


@dataclass(frozen=True)
class Waiting:
    """A queued message or fact for Graphiti. If it was deleted or superseded, `content` is None: do not send it."""

    number: int
    name: str
    said_at: datetime
    attempts: int
    role: str
    scope: str
    content: str | None = field(repr=False)
    author: str | None = None
    session_id: str | None = None
    backfill: bool = False
    user_id: str | None = field(default=None, repr=False)

    @property
    def speaker(self) -> str:
        """The name that the speaker of the message has in Graphiti, or a stable pseudonym; never empty."""
        if self.role == "user" and self.author is None and self.user_id is not None:
            return f"user_{hashlib.sha256(self.user_id.encode()).hexdigest()[:8]}"
        # The server takes the text before the first colon as the speaker.
        return " ".join((self.author or "").replace(":", " ").replace("(", " ").split()) or self.role


class GroupState(NamedTuple):
    """An owner's Graphiti group, if there is one, with the numbers of queued and of sent but unconfirmed messages."""

    owner: str
    group_id: str | None
    queued: int
    sent: int


class FactDelivery(NamedTuple):
    """The state of sending a promoted fact, which is stored and also sent to Graphiti."""

    number: int
    group_id: str
    status: DeliveryStatus
    reason: str | None


@dataclass(frozen=True)
class Lease:
    """A process's right to send a group's messages for a time. `seen_at`: when the server last showed one."""

    group_id: str
    owner: str
    failures: int
    seen_at: datetime | None = None


class Deliveries(ClockedTables, sql=("graph_deliveries.sql", "postgres/knowledge.sql")):
    """The tables of messages for Graphiti (`chat_graph_deliveries`) and of their groups (`chat_graph_groups`).

    A message is queued, sent, confirmed or dead, which means given up. Guarantees: one process at a time owns a group.
    Only that process marks a message as sent, before sending it, and only with consent. A message is in a group at most
    once.
    """

    def __init__(self, driver: Driver, endpoint: str, *, observer: Observer, clock: Callable[[], datetime]) -> None:
        super().__init__(driver, clock=clock)
        self._observer = observer
        self._endpoint = endpoint
        self._dead: tuple[datetime, dict[str, int]] | None = None

    async def due_groups(self, limit: int) -> list[str]:
        """Return up to `limit` groups that have messages to deliver now, and that no process has leased."""
        times = {"now": self._now(), "beyond": self._beyond()}
        return [row[0] for row in await self._fetch("due_groups", {**times, "limit": limit})]

    async def claim(self, group_id: str, owner: str, *, seconds: float) -> Lease | None:
        """Lease a group for `seconds`; return None if its next delivery is not due, or if it is leased already."""
        until = time_text(self._clock() + timedelta(seconds=seconds))
        times = {"until": until, "now": self._now(), "beyond": self._beyond()}
        async with self._driver.writing() as connection:
            rows = await connection.fetch(self._sql["claim"], {"group_id": group_id, "owner": owner, **times})
        return Lease(group_id, owner, rows[0][0], time_of(rows[0][1])) if rows else None

    async def renew(self, lease: Lease, *, seconds: float) -> bool:
        """Extend a lease; return False if it has expired, or if another process owns the group now."""
        now = self._clock()
        until = time_text(now + timedelta(seconds=seconds))
        row = {"group_id": lease.group_id, "owner": lease.owner, "until": until, "now": time_text(now)}
        return await self._execute("renew", row) > 0

    async def release(self, lease: Lease, *, seconds: float, failures: int = 0, error: str | None = None) -> None:
        """End the lease of a group, and store its failures and error; the group is due again after `seconds`."""
        at = time_text(self._clock() + timedelta(seconds=seconds))
        row = {"group_id": lease.group_id, "owner": lease.owner, "at": at, "failures": failures, "error": error}
        await self._execute("release", row)

    async def unconfirmed(self, group_id: str) -> list[Unconfirmed]:
        """Return a group's sent messages that are not confirmed, or must be deleted on the server, oldest first."""
        rows = await self._fetch("unconfirmed", {"group_id": group_id})
        return [Unconfirmed(row[0], row[1], time_of(row[2]), row[3], time_of(row[4]), bool(row[5])) for row in rows]

    async def waiting(self, group_id: str, limit: int) -> list[Waiting]:
        """Return up to `limit` messages of a group that may be sent now. New turns come first, a backfill last."""
        allowed = {"endpoint": self._endpoint, "version": CONSENT_VERSION}
        rows = await self._fetch("waiting", {"group_id": group_id, "limit": limit, **allowed})
        return [Waiting(number, name, time_of(said_at), *others) for number, name, said_at, *others in rows]

    async def mark_sent(
        self, lease: Lease, messages: Mapping[int, DataClass], *, backfill_per_minute: int = 60
    ) -> list[int]:
        """Mark messages as sent if the lease is valid and they may still be sent; return the numbers that were marked.

        In each workspace, all processes together send at most `backfill_per_minute` messages of earlier turns.
        """
        marked: list[int] = []
        now = self._clock()
        async with self._driver.writing() as connection:
            if self.backend == "postgres" and "backfill" in messages.values():
                await connection.fetch(self._sql["lock_backfill"], {})
            for number, data_class in messages.items():
                row = {
                    "most": backfill_per_minute,
                    "since": time_text(now - timedelta(minutes=1)),
                    "number": number,
                    "owner": lease.owner,
                    "endpoint": self._endpoint,
                    "version": CONSENT_VERSION,
                    "data_class": f"% {data_class} %",
                    "now": time_text(now),
                }
                marked += [found[0] for found in await connection.fetch(self._sql["mark_sent"], row)]
        return marked

    async def confirm(self, group_id: str, numbers: Sequence[int]) -> None:
        """Mark messages as confirmed, because the server returns them as stored episodes."""
        now = self._now()
        async with self._driver.writing() as connection:
            await connection.execute_many(self._sql["confirm"], [{"number": one, "now": now} for one in numbers])
            await connection.execute(self._sql["note_seen"], {"group_id": group_id, "now": now})
        self._observer.notify(EpisodesDelivered(result="confirmed", count=len(numbers)))

    async def take_back(self, numbers: Sequence[int]) -> None:
        """Queue messages again, because the server did not accept them. This does not count as an attempt."""
        await self._execute_each("take_back", [{"number": number} for number in numbers])

    async def try_again(self, number: int) -> None:
        """Queue a message again, because the server refused it. This counts as an attempt."""
        await self._execute("try_again", {"number": number})

    async def repeat(self, numbers: Sequence[int]) -> None:
        """Queue messages again, because the server accepted but did not store them. Count the repetition."""
        await self._execute_each("repeat", [{"number": number} for number in numbers])
        if numbers:
            self._observer.notify(EpisodesDelivered(result="repeated", count=len(numbers)))

    async def give_up(self, numbers: Sequence[int], reason: DeadReason, *, status: int | None = None) -> None:
        """Give up messages and store the reason; `status` is the HTTP status of a refusal."""
        now, stored = self._now(), reason if status is None else f"{reason}_{status}"
        await self._execute_each("give_up", [{"number": one, "reason": stored, "now": now} for one in numbers])
        self._count_dead(len(numbers), reason)

    async def give_up_open(self, reason: DeadReason, group_id: str | None = None, *, queued_only: bool = False) -> int:
        """Give up queued and, unless `queued_only`, unconfirmed messages of one group or of all. Return how many."""
        row = {"group_id": group_id, "reason": reason, "queued_only": queued_only, "now": self._now()}
        return self._count_dead(await self._execute("give_up_open", row), reason)

    async def accepted(self, group_id: str, period: timedelta) -> set[str]:
        """Return the names of unconfirmed messages, and of messages sent in the last `period` that lost consent."""
        row = {"group_id": group_id, "since": time_text(self._clock() - period)}
        return {str(name) for (name,) in await self._fetch("accepted", row)}

    async def purge_dead(self, group_id: str) -> None:
        """Delete the content of a deleted group's given-up (dead) messages, so that `retry` does not send them."""
        await self._execute("purge_dead", {"group_id": group_id})

    async def episode_of(self, name: str) -> FactDelivery | None:
        """Find the delivery of a fact to Graphiti by the name of the fact's message, or return None."""
        rows = await self._fetch("episode_of", {"name": name})
        return FactDelivery(*rows[0]) if rows else None

    async def progress(self) -> tuple[int, datetime | None]:
        """Return the number of unconfirmed messages in all groups, and the time of the last confirmation, if any."""
        [(count, seen_at)] = await self._fetch("progress", {"beyond": self._beyond()})
        return int(count), time_of(seen_at)

    async def newer_episodes(self, group_id: str, said_at: datetime) -> int:
        """Return the number of messages that were written at `said_at` or later, and sent to a group."""
        [(count,)] = await self._fetch("newer_episodes", {"group_id": group_id, "said_at": time_text(said_at)})
        return int(count)

    async def wake(self, group_id: str | None = None) -> None:
        """Make one group, or all groups, due for delivery now, if no process has leased them."""
        await self._execute("wake", {"group_id": group_id, "now": self._now()})

    async def entries(self, status: DeliveryStatus | None, *, after: int, limit: int) -> list[Delivery]:
        """Return up to `limit` messages with numbers above `after` and this delivery status; None allows any status."""
        rows = await self._fetch("entries", {"status": status, "after": after, "limit": limit})
        return [_delivery(row) for row in rows]

    async def retry(self, number: int | None = None) -> int:
        """Queue a given-up (dead) message again. Return how many messages were queued.

        Without a `number`, queue all given-up messages except dropped and deleted ones.

        Raises:
            KnowledgeNotFound: no dead message has this number.
        """
        return self._checked(number, await self._execute("retry", {"number": number}))

    async def drop(self, number: int | None = None, status: DeliveryStatus | None = None) -> int:
        """Permanently drop queued or dead messages: one by number, all with a status, or all. Return how many.

        Raises:
            KnowledgeNotFound: no queued or dead message has this number.
        """
        row = {"number": number, "status": status, "now": self._now()}
        return self._count_dead(self._checked(number, await self._execute("drop", row)), "dropped")

    async def counts(self) -> tuple[dict[str, int], dict[str, int], int]:
        """Return a triple: message counts by status, counts of given-up (dead) messages by reason, number of resends.

        In the first map, `turns` is the number of turns that are not split into messages yet.
        """
        by_status: dict[str, int] = {}
        dead: dict[str, int] = {}
        repeats = 0
        for status, reason, count, again in await self._fetch("counts", {}):
            by_status[status] = by_status.get(status, 0) + int(count)
            repeats += int(again or 0)
            if status == "dead":
                dead[reason] = int(count)
        [(unmade,)] = await self._fetch("unmade", {})
        return {**by_status, "turns": int(unmade)}, dead, repeats

    async def troubles(self) -> dict[str, int]:
        """Return the number of groups whose messages cannot be delivered now, by error."""
        return {str(error): int(count) for error, count in await self._fetch("troubles", {})}

    async def open_of(self, group_id: str) -> tuple[int, int]:
        """Return a pair: how many messages of a group are queued, and how many are sent but unconfirmed."""
        [(queued, sent)] = await self._fetch("open_of_groups", {"group_id": group_id})
        return int(queued), int(sent)

    def groups_statement(self, scope: Scope, limit: int = 20) -> Statement:
        """Return the SQL statement for a scope's `GroupState` rows; a person has a row for each of the person's ids."""
        return self._sql["groups_of_scope"], {"scope": scope.kind, "owner": scope.owner, "limit": limit}

    async def groups_of(self, scope: Scope) -> list[str]:
        """Return the ids of the existing groups of a scope; for a person, the groups of all of the person's ids."""
        rows = await self._driver.fetch(*self.groups_statement(scope, END))
        return [str(row[1]) for row in rows if row[1] is not None]

    async def dead_of_groups(self) -> dict[str, int]:
        """Return the number of given-up (dead) messages of each group, without dropped and deleted ones.

        The result is cached for up to a minute, because it counts all dead messages.
        """
        now = self._clock()
        if self._dead is None or now - self._dead[0] >= _DEAD_PERIOD:
            rows = await self._fetch("dead_of_groups", {})
            self._dead = (now, {str(group_id): int(count) for group_id, count in rows})
        return self._dead[1]

    async def is_taken(self, group_id: str) -> bool:
        """Return True if a group with this id exists."""
        return bool(await self._fetch("group_with_id", {"group_id": group_id}))

    @staticmethod
    def _checked(number: int | None, count: int) -> int:
        if number is not None and not count:
            raise KnowledgeNotFound("delivery", str(number))
        return count

    def _count_dead(self, count: int, reason: DeadReason) -> int:
        if count:
            self._observer.notify(EpisodesDelivered(result="dead", count=count, reason=reason))
        return count

    async def _fetch(self, statement: str, parameters: Parameters) -> list[Row]:
        return await self._driver.fetch(self._sql[statement], parameters)

    async def _execute_each(self, statement: str, rows: Sequence[Parameters]) -> None:
        if rows:
            async with self._driver.writing() as connection:
                await connection.execute_many(self._sql[statement], rows)

    def _now(self) -> str:
        return time_text(self._clock())

    def _beyond(self) -> str:
        return time_text(self._clock() + timedelta(seconds=WRONG_CLOCK_SECONDS))


def _delivery(row: Row) -> Delivery:
    values = dict(zip((field.name for field in fields(Delivery)), row, strict=True))
    for name in ("created_at", "sent_at", "ended_at"):
        values[name] = time_of(values[name])
    return Delivery(**values)
