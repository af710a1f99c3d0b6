"""Duties: work that one process at a time does for all sessions, at a limited rate."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from threadkeep.store.codec import time_text
from threadkeep.store.driver import Driver
from threadkeep.store.statements import load_statements


class Duties:
    """The table `chat_duties`: the owner of each duty and when it was last done, by the owners' clocks.

    Its writes go to the database in one call each. A transaction of several would stay open while a blocking call stops
    the event loop, and that call may need the lock of the file.
    """

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime]) -> None:
        self._driver = driver
        self._clock = clock
        self._sql = load_statements("duties.sql")

    async def claim(self, duty: str, owner: str, *, seconds: float, every_seconds: float) -> bool:
        """Claim a duty for a time, or extend the claim.

        Return False if another process has it, or if it was done within the last `every_seconds`. A claim that is not
        renewed in time may be taken by another process.
        """
        now = self._clock()
        parameters = {
            "duty": duty,
            "owner": owner,
            "now": time_text(now),
            "until": time_text(now + timedelta(seconds=seconds)),
            "due": time_text(now - timedelta(seconds=every_seconds)),
        }
        async with self._driver.reading() as connection:
            # A check that fails takes no lock.
            if await connection.fetch(self._sql["taken"], parameters):
                return False
        [claimed] = await self._driver.write([(self._sql["claim"], parameters)])
        return bool(claimed)

    async def done(self, duty: str, owner: str) -> None:
        """Record that a duty was done just now; do nothing if another process has it."""
        await self._end("done", duty, owner)

    async def release(self, duty: str, owner: str) -> None:
        """Release a duty that was not done, so that another process may take it at once."""
        await self._end("release", duty, owner)

    async def _end(self, statement: str, duty: str, owner: str) -> None:
        parameters = {"duty": duty, "owner": owner, "now": time_text(self._clock())}
        await self._driver.write([(self._sql[statement], parameters)])
