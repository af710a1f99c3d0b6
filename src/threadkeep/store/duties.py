"""What one process at a time does for all sessions, and not more often than it is due."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from threadkeep.store.driver import Driver
from threadkeep.store.statements import load_statements
from threadkeep.store.times import time_text


class Duties:
    """The table `chat_duties`: who does a duty now, and when it was last done, by the clocks of those who do it."""

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime]) -> None:
        self._driver = driver
        self._clock = clock
        self._sql = load_statements("duties.sql")

    async def claim(self, duty: str, owner: str, *, seconds: float, every_seconds: float) -> bool:
        """Take a duty for a time, or have it longer.

        False when somebody else has it, or it was done within the last `every_seconds`. Who does not come back in time
        is taken for dead, and another may have it.
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
            # Who only looks takes no lock.
            if await connection.fetch(self._sql["taken"], parameters):
                return False
        async with self._driver.writing() as connection:
            return await connection.execute(self._sql["claim"], parameters) > 0

    async def done(self, duty: str, owner: str) -> None:
        """Note that a duty was done just now; nothing happens if somebody else has it by now."""
        await self._end("done", duty, owner)

    async def release(self, duty: str, owner: str) -> None:
        """Give a duty back that was not done, so that another may take it at once."""
        await self._end("release", duty, owner)

    async def _end(self, statement: str, duty: str, owner: str) -> None:
        parameters = {"duty": duty, "owner": owner, "now": time_text(self._clock())}
        async with self._driver.writing() as connection:
            await connection.execute(self._sql[statement], parameters)
