"""Tables that coordinate processes: duties that one process does at a time, and the state of channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from threadkeep.store.codec import time_text
from threadkeep.store.driver import Driver, Statement
from threadkeep.store.outbox import WRONG_CLOCK_SECONDS, Outbox
from threadkeep.store.statements import ClockedTables


class Duties(ClockedTables, sql=("duties.sql",)):
    """The table `chat_duties`: the owner of each duty, and when it was last done by the owner's clock.

    Each write is a single call to the database. A transaction of several calls would stay open while blocking code
    stops the event loop; it would never end if this code waits for the lock of the file.
    """

    async def claim(self, duty: str, owner: str, *, seconds: float, every_seconds: float) -> bool:
        """Claim a duty for a time, or extend the claim.

        Return False if another process has claimed it, or if it was done within the last `every_seconds`. A claim
        that was not renewed in time, or was made by a clock far ahead, does not count.
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
            # Check first, because a claim that would fail must not take a lock.
            if await connection.fetch(self._sql["taken"], parameters):
                return False
        [claimed] = await self._driver.write([(self._sql["claim"], parameters)])
        return bool(claimed)

    async def done(self, duty: str, owner: str) -> None:
        """Record that a duty was done now; do nothing if another process has claimed it."""
        await self._end("done", duty, owner)

    async def release(self, duty: str, owner: str) -> None:
        """Release a duty that was not done, so that another process may take it at once."""
        await self._end("release", duty, owner)

    async def _end(self, statement: str, duty: str, owner: str) -> None:
        parameters = {"duty": duty, "owner": owner, "now": time_text(self._clock())}
        await self._driver.write([(self._sql[statement], parameters)])


class ChannelState(ClockedTables, sql=("{backend}/sessions.sql", "channel_state.sql")):
    """The table `chat_channel_state`: offsets, cursors, tokens and earlier chat ids, shared by all processes.

    A value has a name within a `scope`, which identifies the bot independently of its channel's name.
    """

    async def value(self, scope: str, name: str) -> str | None:
        """Return a value that has not expired."""
        parameters = {"scope": scope, "name": name, "now": time_text(self._clock())}
        rows = await self._driver.fetch(self._sql["value"], parameters)
        return str(rows[0][0]) if rows else None

    async def values_of(self, scope: str, prefix: str) -> dict[str, str]:
        """Return the values of a scope by name, for names that begin with a prefix."""
        parameters = {"scope": scope, "prefix": prefix, "now": time_text(self._clock())}
        rows = await self._driver.fetch(self._sql["values_of"], parameters)
        return {str(name): str(value) for name, value in rows}

    async def keep(self, scope: str, name: str, value: str, *, expires_at: datetime | None = None) -> None:
        """Store a value, replacing the previous one; with `expires_at`, also delete expired values of the scope."""
        await self._keep(self.keep_statement(scope, name, value, expires_at=expires_at))

    def keep_statement(self, scope: str, name: str, value: str, *, expires_at: datetime | None = None) -> Statement:
        """Return the statement of `keep`, for a transaction of the caller."""
        expiry = None if expires_at is None else time_text(expires_at)
        return self._sql["keep"], {"scope": scope, "name": name, "value": value, "expires_at": expiry}

    async def keep_first(self, scope: str, name: str, value: str, *, expires_at: datetime | None = None) -> bool:
        """Store a value, unless there is an unexpired one; return False if there is."""
        _, parameters = self.keep_statement(scope, name, value, expires_at=expires_at)
        return await self._keep((self._sql["keep_first"], {**parameters, "now": time_text(self._clock())}))

    async def _keep(self, statement: Statement) -> bool:
        # Store the value first: a transaction that waits for this row has then locked no other row, so none deadlocks.
        statements, parameters = [statement], statement[1]
        if parameters["expires_at"] is not None:
            forgotten = {"scope": parameters["scope"], "now": time_text(self._clock())}
            statements.append((self._sql["forget_expired"], forgotten))
        return bool((await self._driver.write(statements))[0])

    async def keep_for_duty(self, scope: str, name: str, value: str, *, duty: str, owner: str) -> bool:
        """Store a value for the owner of a duty; return False if another process has the duty."""
        held = {"duty": duty, "owner": owner, "now": time_text(self._clock())}
        return await self._execute("keep_for_duty", {"scope": scope, "name": name, "value": value, **held}) > 0

    async def replace(self, scope: str, name: str, old: str, value: str, *, expires_at: datetime) -> bool:
        """Replace the value `old`; return False if the stored value differs or is missing."""
        given = {"scope": scope, "name": name, "old": old, "value": value, "expires_at": time_text(expires_at)}
        return await self._execute("replace", given) > 0

    async def forget(self, scope: str, name: str, value: str) -> None:
        """Delete a value, unless it has been replaced."""
        await self._execute("forget", {"scope": scope, "name": name, "value": value})


@dataclass(frozen=True)
class ChannelTables:
    """The tables of channels: the outbox, the state, and the duties of polling and syncing."""

    outbox: Outbox
    state: ChannelState
    duties: Duties

    @classmethod
    def over(cls, driver: Driver, *, clock: Callable[[], datetime]) -> Self:
        """Return the tables of a database."""
        return cls(Outbox(driver, clock=clock), ChannelState(driver, clock=clock), Duties(driver, clock=clock))
