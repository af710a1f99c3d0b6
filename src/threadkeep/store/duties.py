"""Tables that coordinate processes: duties, which are tasks for one process at a time, and the state of channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from threadkeep.store.codec import WRONG_CLOCK_SECONDS, time_text
from threadkeep.store.driver import Driver, Statement
from threadkeep.store.outbox import Outbox
from threadkeep.store.statements import ClockedTables


class Duties(ClockedTables, sql=("duties.sql",)):
    """The table `chat_duties`: the current owner of each duty (a task for one process), and when it was last done.

    Each write is a single call to the database. A transaction of several calls would hold the lock of the SQLite file
    between them. If other code then blocked the event loop to wait for this lock, neither would continue.
    """

    async def claim(self, duty: str, owner: str, *, seconds: float, every_seconds: float) -> bool:
        """Claim a duty for some seconds, or extend this owner's claim.

        Return False if another process has claimed it, or if it was done within the last `every_seconds`.
        """
        now = self._clock()
        parameters = {
            "duty": duty,
            "owner": owner,
            "now": time_text(now),
            "until": time_text(now + timedelta(seconds=seconds)),
            "due": time_text(now - timedelta(seconds=every_seconds)),
            "beyond": time_text(now + timedelta(seconds=seconds + WRONG_CLOCK_SECONDS)),
        }
        async with self._driver.reading() as connection:
            # Check first, because a claim that would fail should not take a write lock.
            if await connection.fetch(self._sql["taken"], parameters):
                return False
        [claimed] = await self._driver.write([(self._sql["claim"], parameters)])
        return bool(claimed)

    async def done(self, duty: str, owner: str) -> None:
        """Record that a duty (a task for one process) is done; do nothing if another process has claimed it."""
        await self._end("done", duty, owner)

    async def release(self, duty: str, owner: str) -> None:
        """Release a duty that was not completed, so that another process may claim it at once."""
        await self._end("release", duty, owner)

    async def _end(self, statement: str, duty: str, owner: str) -> None:
        parameters = {"duty": duty, "owner": owner, "now": time_text(self._clock())}
        await self._driver.write([(self._sql[statement], parameters)])


class ChannelState(ClockedTables, sql=("{backend}/sessions.sql", "channel_state.sql")):
    """The table `chat_channel_state`: offsets, cursors, tokens and earlier chat ids of channels, for all processes.

    Each value has a name within a `scope`. The scope identifies the bot; it does not depend on the name of its channel.
    """

    async def value(self, scope: str, name: str) -> str | None:
        """Return the value stored under this name, or None if it is missing or has expired."""
        parameters = {"scope": scope, "name": name, "now": time_text(self._clock())}
        rows = await self._driver.fetch(self._sql["value"], parameters)
        return str(rows[0][0]) if rows else None

    async def values_of(self, scope: str, prefix: str) -> dict[str, str]:
        """Return a scope's values whose names begin with `prefix`, by name; omit expired values."""
        parameters = {"scope": scope, "prefix": prefix, "now": time_text(self._clock())}
        rows = await self._driver.fetch(self._sql["values_of"], parameters)
        return {str(name): str(value) for name, value in rows}

    async def keep(self, scope: str, name: str, value: str, *, expires_at: datetime | None = None) -> None:
        """Store a value instead of the previous one; with `expires_at`, also delete up to 100 expired values."""
        await self._keep(self.keep_statement(scope, name, value, expires_at=expires_at))

    def keep_statement(self, scope: str, name: str, value: str, *, expires_at: datetime | None = None) -> Statement:
        """Return the statement of `keep`, to be executed in a transaction of the caller."""
        expiry = None if expires_at is None else time_text(expires_at)
        return self._sql["keep"], {"scope": scope, "name": name, "value": value, "expires_at": expiry}

    async def keep_first(self, scope: str, name: str, value: str, *, expires_at: datetime | None = None) -> bool:
        """Store a value and return True, or return False if a value that has not expired is stored already."""
        _, parameters = self.keep_statement(scope, name, value, expires_at=expires_at)
        return await self._keep((self._sql["keep_first"], {**parameters, "now": time_text(self._clock())}))

    async def _keep(self, statement: Statement) -> bool:
        # Store the value first, because a transaction that locks another row first could cause a deadlock.
        statements, parameters = [statement], statement[1]
        if parameters["expires_at"] is not None:
            forgotten = {"scope": parameters["scope"], "now": time_text(self._clock())}
            statements.append((self._sql["forget_expired"], forgotten))
        return bool((await self._driver.write(statements))[0])

    async def keep_for_duty(self, scope: str, name: str, value: str, *, duty: str, owner: str) -> bool:
        """Store a value if `owner` still has the duty; otherwise, store nothing and return False."""
        held = {"duty": duty, "owner": owner, "now": time_text(self._clock())}
        return await self._execute("keep_for_duty", {"scope": scope, "name": name, "value": value, **held}) > 0

    async def replace(self, scope: str, name: str, old: str, value: str, *, expires_at: datetime) -> bool:
        """Replace the value `old` by `value`; return False if another value, or none, is stored."""
        given = {"scope": scope, "name": name, "old": old, "value": value, "expires_at": time_text(expires_at)}
        return await self._execute("replace", given) > 0

    async def forget(self, scope: str, name: str, value: str) -> None:
        """Delete a value; do nothing if another value has replaced it."""
        await self._execute("forget", {"scope": scope, "name": name, "value": value})


@dataclass(frozen=True)
class ChannelTables:
    """The tables of channels: the outbox, the channels' state, and duties (tasks for one process, such as polling)."""

    outbox: Outbox
    state: ChannelState
    duties: Duties

    @classmethod
    def over(cls, driver: Driver, *, clock: Callable[[], datetime]) -> Self:
        """Return an object that accesses these tables through `driver`."""
        return cls(Outbox(driver, clock=clock), ChannelState(driver, clock=clock), Duties(driver, clock=clock))
