"""Tests of `waiting_until`: one limit for all waits of a call for connections and locks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psycopg
import pytest

from tests.databases import migrated_driver
from tests.limits import HANG_SECONDS
from tests.outages import locked_meanwhile
from threadkeep.errors import StoreUnavailable
from threadkeep.store.driver import Driver, StoreOptions, seconds_left, waiting_until
from threadkeep.store.postgres import PostgresDriver
from threadkeep.store.sqlite import SqliteDriver

type Write = Callable[[Driver, str], Awaitable[None]]

_INSERT = "INSERT INTO chat_duties (duty, claimed_until) VALUES (:duty, 'now')"
_PATIENT = StoreOptions(lock_timeout_seconds=600.0, pool_max_size=1, pool_timeout_seconds=600.0)


async def write_in_block(driver: Driver, duty: str) -> None:
    """Write in the block of a transaction."""
    async with driver.writing() as connection:
        await connection.execute(_INSERT, {"duty": duty})


async def write_at_once(driver: Driver, duty: str) -> None:
    """Write a transaction in one call."""
    await driver.write([(_INSERT, {"duty": duty})])


async def duties(driver: Driver) -> list[str]:
    """Return the rows that were written."""
    async with driver.reading() as connection:
        return sorted(str(duty) for (duty,) in await connection.fetch("SELECT duty FROM chat_duties", {}))


@pytest.mark.parametrize("write", [write_in_block, write_at_once])
async def test_the_wait_for_a_locked_file_is_limited(tmp_path: Path, write: Write) -> None:
    """The limit also covers waiting behind other writes of the process; after the block the usual timeout applies."""
    path = tmp_path / "held.db"
    async with migrated_driver(f"sqlite:///{path}"):
        pass
    driver = SqliteDriver(path, _PATIENT)
    try:
        async with asyncio.timeout(HANG_SECONDS):
            async with locked_meanwhile(path):
                with pytest.raises(StoreUnavailable, match="locked"), waiting_until(time.monotonic() + 0.05):
                    await write(driver, "too late")
                patient = asyncio.create_task(write_at_once(driver, "patient"))
                await asyncio.sleep(0)
                with pytest.raises(StoreUnavailable, match="in time"), waiting_until(time.monotonic() + 0.05):
                    await write(driver, "behind others")
                assert seconds_left() is None
                assert not patient.done()
            await patient
            await write(driver, "after")
        assert await duties(driver) == ["after", "patient"]
    finally:
        await driver.close()


@pytest.mark.parametrize("write", [write_in_block, write_at_once])
async def test_the_wait_for_a_locked_row_is_limited(postgres_url: str, write: Write) -> None:
    """The limit also covers waiting for a connection of the pool."""
    driver = await PostgresDriver.open(postgres_url, _PATIENT)
    try:
        async with asyncio.timeout(HANG_SECONDS), await psycopg.AsyncConnection.connect(postgres_url) as other:
            await other.execute("LOCK TABLE chat_duties")
            with pytest.raises(StoreUnavailable, match="held a lock"), waiting_until(time.monotonic() + 0.05):
                await write(driver, "too late")
            async with driver.reading():
                with pytest.raises(StoreUnavailable, match="no connection"), waiting_until(time.monotonic() + 0.05):
                    await write(driver, "no connection")
            await other.rollback()
            await write(driver, "after")
        assert await duties(driver) == ["after"]
    finally:
        await driver.close()
