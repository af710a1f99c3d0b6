"""Keys of the HTTP service, without their secrets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

type KeyScope = Literal["read", "write", "admin"]
"""The requests that a key may make: `write` includes `read`, and `admin` includes both."""

KEY_SCOPES: tuple[KeyScope, ...] = ("read", "write", "admin")


@dataclass(frozen=True)
class ApiKey:
    """A key as the database knows it. With a `user_id` it speaks for that user only."""

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
        """Return whether requests with the key are served."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True)
class NewKey:
    """A new key with its secret, which is not stored and cannot be read again."""

    name: str
    scope: KeyScope
    user_id: str | None
    expires_at: datetime | None
    secret: str
