"""Tests of sending several statements at once, on both drivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.databases import migrated_driver
from tests.limits import HANG_SECONDS
from threadkeep import InvalidInput, StoreError
from threadkeep.store.driver import Driver, DuplicateRow, Statement

_FACTORS = "SELECT model, samples FROM chat_token_factors ORDER BY model"


@pytest.fixture
async def driver(database_url: str) -> AsyncIterator[Driver]:
    """Open a migrated database of each engine, and close it after the test."""
    async with migrated_driver(database_url) as opened:
        yield opened


def added(model: str, samples: int) -> Statement:
    """Return a statement that inserts a row."""
    sql = (
        "INSERT INTO chat_token_factors (model, factor, samples, updated_at) VALUES (:model, 1, :samples, :now)"
        " RETURNING samples"
    )
    return sql, {"model": model, "samples": samples, "now": "2026-01-01T00:00:00+00:00"}


async def test_statements_see_the_changes_of_earlier_ones(driver: Driver) -> None:
    """Each statement returns its rows, and all are committed together."""
    found = await driver.write([added("a", 1), (_FACTORS, {}), added("b", 2), (_FACTORS, {})])
    assert found == [[(1,)], [("a", 1)], [(2,)], [("a", 1), ("b", 2)]]
    async with driver.writing() as connection:
        assert await connection.fetch_each([added("c", 3), (_FACTORS, {})]) == [
            [(3,)],
            [("a", 1), ("b", 2), ("c", 3)],
        ]
    async with driver.reading() as connection:
        assert await connection.fetch_each([]) == []


@pytest.mark.parametrize("wrong", [added("a", 9), ("SELECT nothing FROM nowhere", {})])
async def test_statements_are_committed_all_or_none(driver: Driver, wrong: Statement) -> None:
    await driver.write([added("a", 1)])
    with pytest.raises(DuplicateRow if wrong[1] else StoreError):
        await driver.write([added("b", 2), wrong, added("c", 3)])
    assert await driver.write([(_FACTORS, {})]) == [[("a", 1)]]


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancelled_group_leaves_no_lock_behind(driver: Driver, steps: int) -> None:
    writing = asyncio.create_task(driver.write([added("a", 1), (_FACTORS, {})]))
    for _ in range(steps):
        await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    async with asyncio.timeout(HANG_SECONDS):
        await driver.write([added("b", 2)])


async def test_rows_are_counted_however_a_statement_begins(driver: Driver) -> None:
    """A statement that begins with `WITH` returns the number of rows that it changed."""
    await driver.write([added("a", 1), added("b", 2), added("c", 3)])
    gone = "WITH gone (model) AS (VALUES ('a'), ('b')) DELETE FROM chat_token_factors WHERE model IN"
    async with driver.writing() as connection:
        assert await connection.execute(f"{gone} (SELECT model FROM gone)", {}) == 2
        assert await connection.execute(f"{gone} (SELECT model FROM gone)", {}) == 0


@pytest.mark.parametrize("text", ["a secret\ud800", "a secret\x00"], ids=["half a pair", "nul"])
async def test_a_text_that_the_engine_cannot_store_is_refused(driver: Driver, text: str) -> None:
    if driver.backend == "sqlite" and "\x00" in text:
        pytest.skip("SQLite stores NUL.")
    for call in (driver.fetch(_FACTORS + " LIMIT length(:text)", {"text": text}), driver.write([added(text, 1)])):
        with pytest.raises(InvalidInput, match="no database stores") as caught:
            await call
        assert "secret" not in repr(caught.value)
        assert caught.value.__cause__ is None
    assert await driver.write([added("a", 1), (_FACTORS, {})]) == [[(1,)], [("a", 1)]]
