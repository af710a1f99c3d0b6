"""Positions of runs in conversations that agents keep under their own keys."""

from __future__ import annotations

import asyncio
import contextlib

from threadkeep.store.driver import Driver
from threadkeep.store.runs.locks import RunLocks
from threadkeep.store.statements import load_statements


class RunPlaces:
    """The positions that runs take after they have begun, because an agent's key may not be known earlier."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sql = load_statements("runs_order.sql")
        self._locks = RunLocks(driver.backend)
        self._freed = asyncio.Event()

    async def has(self, run_id: str, place: str) -> bool:
        """Return whether a run is in the order of a conversation, or part of a turn there."""
        return await self._is("inside", parent_run_id=run_id, place=place)

    async def take(self, run_id: str, place: str) -> None:
        """Append a run to the order of a conversation; do nothing for a run that is not stored."""
        async with self._driver.writing() as connection:
            await self._locks.hold_orders(connection, [place])
            await connection.execute(self._sql["take_place"], {"run_id": run_id, "place": place})

    async def of(self, run_id: str) -> list[str]:
        """Return the conversations in whose order a run is, besides its session."""
        async with self._driver.reading() as connection:
            return [place for (place,) in await connection.fetch(self._sql["places_of"], {"run_id": run_id})]

    async def forget(self, place: str) -> None:
        """Remove runs that are over from the order of a conversation that is erased."""
        await self._driver.write([(self._sql["forget_place"], {"place": place})])

    async def leave(self, run_id: str, place: str) -> None:
        """Remove a run from the order of a conversation."""
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["leave_place"], {"run_id": run_id, "place": place})

    async def is_first(self, run_id: str, place: str) -> bool:
        """Return whether no earlier run is queued or running in a conversation."""
        return not await self._is("before_in", run_id=run_id, place=place)

    async def waits_for_itself(self, run_id: str) -> bool:
        """Return whether a run waits for itself, directly or through other runs."""
        known: set[str] = set()
        following = [run_id]
        async with self._driver.reading() as connection:
            while following:
                rows = await connection.fetch(self._sql["awaited"], {"run_id": following.pop()})
                found = {awaited for (awaited,) in rows} - known
                if run_id in found:
                    return True
                known |= found
                following += found
        return False

    def tell_freed(self) -> None:
        """Wake the waiters of this process: a run is over or waits for a person."""
        self._freed.set()
        self._freed = asyncio.Event()

    async def freed(self, seconds: float) -> None:
        """Wait until a position may be free, at most `seconds`: other processes do not notify this one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._freed.wait()

    async def _is(self, statement: str, **parameters: object) -> bool:
        async with self._driver.reading() as connection:
            return bool(await connection.fetch(self._sql[statement], parameters))
