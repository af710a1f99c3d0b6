"""Damage in a database: errors that the engine finds in its files, and sessions that lack messages."""

from __future__ import annotations

from dataclasses import dataclass

from threadkeep.errors import StoreError, StoreUnavailable
from threadkeep.store.driver import Driver
from threadkeep.store.statements import load_statements

_SOUND = "ok"


@dataclass(frozen=True)
class SessionGap:
    """A session that lacks messages, or has unexpected ones."""

    session_id: str
    expected: int
    found: int


@dataclass(frozen=True)
class Integrity:
    """The result of a check.

    `damage` has the engine's messages, which quote no rows; at most 20 of each kind. `indexes` is the number of
    PostgreSQL's indexes that amcheck has checked; None if it is not installed, or not for this user.
    """

    damage: tuple[str, ...] = ()
    gaps: tuple[SessionGap, ...] = ()
    indexes: int | None = None


async def check_integrity(driver: Driver, *, transcripts: bool) -> Integrity:
    """Check a database for damage; with `transcripts` also the sessions in its tables.

    SQLite reads the whole file. PostgreSQL reports known errors, and checks its indexes if it has the extension
    amcheck.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    sql = load_statements("integrity.sql", f"{driver.backend}/integrity.sql")
    async with driver.reading() as connection:
        damage = [str(said) for (said,) in await connection.fetch(sql["damage"], {}) if said != _SOUND]
        rows = await connection.fetch(sql["gaps"], {}) if transcripts and not damage else []
        amcheck = "amcheck" in sql and bool(await connection.fetch(sql["amcheck"], {}))
        indexes = await connection.fetch(sql["indexes"], {}) if amcheck else []
    for index, name in indexes:
        damage += await _damage_of(driver, sql["check_index"], int(index), str(name))
    gaps = tuple(SessionGap(str(session_id), int(expected), int(found)) for session_id, expected, found in rows)
    return Integrity(tuple(damage), gaps, len(indexes) if amcheck else None)


async def _damage_of(driver: Driver, sql: str, index: int, name: str) -> list[str]:
    try:
        async with driver.reading() as connection:
            await connection.fetch(sql, {"index": index})
    except StoreUnavailable:
        raise
    except StoreError as error:
        return [f"the index {name} is damaged: {error}"]
    return []
