"""The API keys of the HTTP service, and their table."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import ApiKeyNotFound, InvalidInput
from threadkeep.records.sessions import check_user_id
from threadkeep.store.codec import time_of, time_text
from threadkeep.store.driver import Connection
from threadkeep.store.statements import ClockedTables

type KeyScope = Literal["read", "write", "admin"]
"""The requests that a key allows: `write` includes `read`, and `admin` includes both others."""

KEY_SCOPES: tuple[KeyScope, ...] = ("read", "write", "admin")


@dataclass(frozen=True)
class ApiKey:
    """An API key as stored in the database. A key with a `user_id` is valid only for requests of that user."""

    key_id: str
    name: str
    digest: str
    scope: KeyScope
    user_id: str | None
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """Return True if requests with the key are accepted at the time `now`."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True)
class NewKey:
    """A new key with its secret. The secret is not stored, so it cannot be read later."""

    name: str
    scope: KeyScope
    user_id: str | None
    expires_at: datetime | None
    secret: str


_PREFIX: Final = "tk_"
_SECRET_BYTES: Final = 32
_MAX_NAME: Final = 64


def digest_of(secret: bytes) -> str:
    """Return the digest of a key. Keys are random, so the digest needs no salt and no repeated hashing."""
    return hashlib.sha256(secret).hexdigest()


class ApiKeys(ClockedTables, sql=("api_keys.sql",)):
    """The table `chat_api_keys`, shared by all processes of a service."""

    async def all(self) -> list[ApiKey]:
        """Return all keys, oldest first, including revoked and expired keys."""
        rows = await self._driver.fetch(self._sql["all"], {})
        return [ApiKey(*row[:5], *(time_of(moment) for moment in row[5:])) for row in rows]

    async def add(
        self, name: str, *, scope: KeyScope = "write", user_id: str | None = None, valid_for: timedelta | None = None
    ) -> NewKey:
        """Create a key that expires after `valid_for` (None: never), and return it with its secret.

        Raises:
            InvalidInput: the name, the scope or the user is not allowed, or a valid key already has this name.
        """
        _check(name, scope, user_id)
        now = self._clock()
        key = _new(name, scope, user_id, None if valid_for is None else now + valid_for)
        async with self._driver.writing() as connection:
            if await connection.fetch(self._sql["active"], {"name": name, "now": time_text(now)}):
                raise InvalidInput("A valid key already has this name; use another one, rotate that key, or revoke it.")
            await self._insert(connection, key, now)
        return key

    async def rotate(self, name: str, *, overlap: timedelta) -> NewKey:
        """Replace the valid key with this name by a new key that has the same scope, user and expiry.

        The old key stays valid for at most `overlap`.

        Raises:
            ApiKeyNotFound: no valid key has this name.
        """
        now = self._clock()
        async with self._driver.writing() as connection:
            found = await connection.fetch(self._sql["active"], {"name": name, "now": time_text(now)})
            if not found:
                raise ApiKeyNotFound(name)
            scope, user_id, expires_at = found[0]
            await connection.execute(self._sql["expire"], {"name": name, "expires_at": time_text(now + overlap)})
            key = _new(name, scope, user_id, time_of(expires_at))
            await self._insert(connection, key, now)
        return key

    async def revoke(self, name: str) -> int:
        """Revoke all valid keys with the given name; return how many were revoked.

        Raises:
            ApiKeyNotFound: there is no key with this name, or all of them are revoked.
        """
        count = await self._execute("revoke", {"name": name, "now": time_text(self._clock())})
        if not count:
            raise ApiKeyNotFound(name)
        return count

    async def note_use(self, key_id: str, moment: datetime) -> None:
        """Store the time of the last use of a key."""
        await self._driver.write([(self._sql["note_use"], {"key_id": key_id, "used_at": time_text(moment)})])

    async def _insert(self, connection: Connection, key: NewKey, now: datetime) -> None:
        row = {
            "key_id": str(uuid7()),
            "name": key.name,
            "digest": digest_of(key.secret.encode()),
            "scope": key.scope,
            "user_id": key.user_id,
            "now": time_text(now),
            "expires_at": None if key.expires_at is None else time_text(key.expires_at),
        }
        await connection.execute(self._sql["add"], row)


def _new(name: str, scope: KeyScope, user_id: str | None, expires_at: datetime | None) -> NewKey:
    return NewKey(name, scope, user_id, expires_at, _PREFIX + secrets.token_urlsafe(_SECRET_BYTES))


def _check(name: str, scope: KeyScope, user_id: str | None) -> None:
    if not name.isprintable() or not 0 < len(name.strip()) <= _MAX_NAME:
        raise InvalidInput(f"The name of a key must have 1 to {_MAX_NAME} printable characters.")
    if scope not in KEY_SCOPES:
        raise InvalidInput(f"The scope of a key is one of {', '.join(KEY_SCOPES)}.")
    check_user_id(user_id)
    if user_id is not None and scope == "admin":
        raise InvalidInput("A key of one user cannot have the scope admin; take read or write.")
