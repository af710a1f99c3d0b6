"""Callers of the service and their credentials: API keys and tokens of users.

A key has a scope, and may be limited to one user. The middleware `Access` checks each request before it reaches its
route. GET and HEAD need the scope `read`, and other methods `write`, unless the route has `openapi_extra=READS` or
`openapi_extra=ADMINISTERS`. A caller who is limited to one user reaches two kinds of routes: those with a parameter
`UserId` or `CallerInUse`, and those with `openapi_extra=PUBLIC`, which show no user's data.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, cast

import jwt
from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from threadkeep.boundary import Tasks
from threadkeep.errors import StoreError
from threadkeep.memory import Memory
from threadkeep.records.sessions import is_user_id
from threadkeep.settings import Settings
from threadkeep.store.api_keys import KEY_SCOPES, ApiKey, ApiKeys, KeyScope, digest_of
from threadkeep.web.problems import ProblemRaised, make_problem

_MOST_BUCKETS = 10_000
_MOST_OPEN = 100
"""The maximum number of open requests of one user, including streams."""


class Buckets:
    """Token buckets for rate limits, by name. Each bucket gets `per_minute` tokens a minute; 0 means no limit."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> float:
        """Take a token from the bucket `name` and return 0 or, if there is none, the seconds until its next token."""
        if not self._per_minute:
            return 0.0
        now, rate = self._clock(), self._per_minute / 60
        tokens, since = self._buckets.pop(name, (float(self._per_minute), now))
        tokens = min(tokens + (now - since) * rate, float(self._per_minute))
        allowed = tokens >= 1
        self._buckets[name] = (tokens - 1 if allowed else tokens, now)  # last, because the first is deleted below
        if len(self._buckets) > _MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return 0.0 if allowed else (1 - tokens) / rate


@dataclass(frozen=True)
class RateLimits:
    """The rate limits for keys and for users. Each process counts separately."""

    keys: Buckets = field(default_factory=lambda: Buckets(0))
    users: Buckets = field(default_factory=lambda: Buckets(0))
    open: Counter[str] = field(default_factory=Counter)

    def count_user(self, user_id: str) -> None:
        """Count a request toward the rate limit of a user.

        Raises:
            ProblemRaised: the user sent too many requests (429).
        """
        if seconds := self.users.take(user_id):
            raise _too_many("This user", seconds)

    @contextlib.contextmanager
    def opened(self, user_id: str) -> Iterator[None]:
        """Count a user's request as open while the block runs. The limit keeps one user from occupying all connections.

        Raises:
            ProblemRaised: the user already has 100 open requests (429).
        """
        if self.open[user_id] >= _MOST_OPEN:
            sentence = f"This user has {_MOST_OPEN} open requests; close a stream, or wait until a request ends."
            raise ProblemRaised(make_problem(429, "too-many-requests", sentence), {"Retry-After": "1"})
        self.open[user_id] += 1
        try:
            yield
        finally:
            self.open[user_id] -= 1
            if not self.open[user_id]:
                del self.open[user_id]


def _too_many(who: str, seconds: float) -> ProblemRaised:
    wait = math.ceil(seconds)
    sentence = f"{who} has sent too many requests; try again in {wait} seconds."
    return ProblemRaised(make_problem(429, "too-many-requests", sentence), {"Retry-After": str(wait)})


_ACCESS: Final = "x-access"
READS: Final[dict[str, Any]] = {_ACCESS: {"scope": "read"}}
ADMINISTERS: Final[dict[str, Any]] = {_ACCESS: {"scope": "admin"}}
PUBLIC: Final[dict[str, Any]] = {_ACCESS: {"scope": "read", "of_no_user": True}}

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True)
class Caller:
    """The sender of a request, who may act only for `user_id`, or for all users if it is None."""

    name: str
    scope: KeyScope
    user_id: str | None = None
    limits: RateLimits = RateLimits()
    digest: str | None = None  # set if the key is in the database
    expires_at: float = math.inf  # the time (Unix) at which a token ends

    def user(self, named: str | None) -> str | None:
        """Return the user for whom a request acts: the caller's own user, or `named` if the caller acts for all users.

        Raises:
            ProblemRaised: the caller may not act for that user (404), or the user sent too many requests (429).
        """
        if self.user_id is None:
            if named is not None:
                self.limits.count_user(named)
            return named
        if named is not None and named != self.user_id:
            sentence = (
                "This key is limited to one user, and `user_id` names another one. Omit `user_id`, or name that user."
            )
            raise ProblemRaised(make_problem(404, "user-not-found", sentence))
        return self.user_id

    def repeat_id(self, user_id: str | None, key: str | None) -> str | None:
        """Return an id derived from an idempotency key, the same for a repeated request, or None without a key."""
        if key is None:
            return None
        return hashlib.sha256(f"{self.name}\n{user_id or ''}\n{key}".encode()).hexdigest()[:32]

    def count(self) -> None:
        """Count a request toward the rate limit of the key and, if it belongs to one user, of that user.

        Raises:
            ProblemRaised: the key or the user sent too many requests (429).
        """
        if seconds := self.limits.keys.take(self.name):
            raise _too_many("This key", seconds)
        if self.user_id is not None:
            self.limits.count_user(self.user_id)

    def check_scope(self, needed: KeyScope) -> None:
        """Check that the caller has the scope `needed` or a higher scope.

        Raises:
            ProblemRaised: the key lacks the scope (403).
        """
        if KEY_SCOPES.index(self.scope) < KEY_SCOPES.index(needed):
            sentence = f"This needs a key with the scope `{needed}`; this one has `{self.scope}`."
            raise ProblemRaised(make_problem(403, "scope-missing", sentence))

    def check(self, routes: Iterable[BaseRoute], scope: Scope) -> None:
        """Check that the caller may reach the route of a request.

        Raises:
            ProblemRaised: the key lacks the scope, or the route rejects callers who are limited to one user (403).
        """
        if self.scope == "admin" and self.user_id is None:
            return
        route = next((route for route in routes if route.matches(scope)[0] is Match.FULL), None)
        if route is None:
            return  # an unknown address or method: the router answers 404 or 405
        declared: dict[str, Any] = {}
        of_users = isinstance(route, Mount) and isinstance(route.app, StaticFiles)
        if isinstance(route, APIRoute):
            declared = (route.openapi_extra or {}).get(_ACCESS, {})
            of_users = declared.get("of_no_user", False) or _requests_identity(route.dependant)
        reads = isinstance(route, Mount) or scope["method"] in _READING
        self.check_scope(declared.get("scope", "read" if reads else "write"))
        if self.user_id is not None and not of_users:
            sentence = "This key is limited to one user and may not use this address; use a key without a user."
            raise ProblemRaised(make_problem(403, "key-of-one-user", sentence))


async def caller_of(request: Request) -> Caller:
    """Return the caller that `Access` stored in the state of the request."""
    return cast("Caller", request.state.caller)


type CallerInUse = Annotated[Caller, Depends(caller_of)]


def _requests_identity(dependant: Dependant) -> bool:
    return any(one.call is caller_of or _requests_identity(one) for one in dependant.dependencies)


REFRESH_SECONDS = 5.0
_TIMEOUT_SECONDS = 1.0
_FIRST_TIMEOUT_SECONDS = 10.0
_RECORD_SECONDS = 60.0

_logger = logging.getLogger("threadkeep.web")


class KeyRing:
    """The API keys of the service, from the settings and from the database.

    The database's keys are read again at most every five seconds. While reads fail, the keys of the last successful
    read stay valid. `in_use` is true if there are keys, even if all of them are revoked or expired.
    """

    def __init__(self, keys: ApiKeys, configured: Mapping[str, str], *, clock: Callable[[], datetime]) -> None:
        self._keys = keys
        self._clock = clock
        # Look keys up by digest. The duration of a comparison with the keys themselves would reveal a part of them.
        self._configured = {digest_of(key.encode()): name for name, key in configured.items()}
        self._known: dict[str, ApiKey] = {}
        self.in_use = bool(configured)
        self._was_read = False
        self._failing = False
        self._next_read = 0.0
        self._work: asyncio.Task[None] | None = None
        self._next_record: dict[str, float] = {}
        self._recording = Tasks()

    async def refresh(self) -> bool:
        """Read the keys from the database, at most every five seconds. Return False if no read has succeeded yet."""
        if time.monotonic() >= self._next_read:
            if self._work is None or self._work.done():
                self._work = asyncio.create_task(self._read(), name="threadkeep-keys")
            await asyncio.wait([self._work])
        return self._was_read

    def caller(self, given: bytes, limits: RateLimits) -> Caller | None:
        """Return the caller who owns a key, or None if the key is not valid. Record the use of a database key."""
        digest = digest_of(given)
        key = self._known.get(digest)
        if key is None:
            name = self._configured.get(digest)
            return None if name is None else Caller(name, "admin", limits=limits)
        now = self._clock()
        if not key.is_valid(now):
            return None
        if time.monotonic() >= self._next_record.get(key.key_id, 0.0):
            self._next_record[key.key_id] = time.monotonic() + _RECORD_SECONDS
            _ = self._recording.start(self._record_use(key.key_id, now))
        return Caller(key.name, key.scope, key.user_id, limits, digest)

    async def check(self, caller: Caller) -> None:
        """Check that the caller's key or token is still valid. Keys in the settings are valid for a whole request.

        Raises:
            ProblemRaised: the key was revoked, or the key or token has expired (401).
        """
        if self._clock().timestamp() >= caller.expires_at:
            raise ProblemRaised(make_problem(401, "token-invalid", _EXPIRED))
        if caller.digest is not None:
            await self.refresh()
            if (key := self._known.get(caller.digest)) is None or not key.is_valid(self._clock()):
                raise ProblemRaised(make_problem(401, "api-key-revoked", _REVOKED))

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS if self._was_read else _FIRST_TIMEOUT_SECONDS):
                found = await self._keys.all()
        except (StoreError, TimeoutError) as error:
            if not self._failing:
                _logger.warning("the keys cannot be read: %s", type(error).__name__)
            self._failing = True
        else:
            self._failing = False
            self._known = {key.digest: key for key in found}
            self.in_use = bool(self._configured or self._known)
            self._was_read = True
        finally:
            self._next_read = time.monotonic() + REFRESH_SECONDS

    async def _record_use(self, key_id: str, moment: datetime) -> None:
        with contextlib.suppress(StoreError):  # the next use after a minute is recorded instead
            await self._keys.note_use(key_id, moment)


_PUBLIC_KEY_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
_SHARED_KEY_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
_LEEWAY_SECONDS: Final = 10
_KEYS_TIMEOUT_SECONDS: Final = 5

_INVALID = "The token is expired, not for this service, or not signed by its issuer; sign in again."
_REVOKED = "The API key was revoked or has expired, so the stream ends; use another key."
_EXPIRED = "The token has expired, so the stream ends; sign in again."
_KEYS_UNREAD = "The keys cannot be read, because the database does not answer; try again."
_KEYS_AWAY = "The keys of the tokens' issuer cannot be read; try again."


class UserTokens:
    """A verifier of signed tokens (JWT). Each token identifies one user.

    `key` is the issuer's public key, the URL of the issuer's keys, or a shared secret.
    """

    def __init__(self, settings: Settings, key: str) -> None:
        self._settings = settings
        self._key = key
        self._jwks: jwt.PyJWKClient | None = None
        if key.startswith(("https://", "http://")):
            self._jwks = jwt.PyJWKClient(key, timeout=_KEYS_TIMEOUT_SECONDS)
        # Never use a public key as a shared secret, because everybody could sign tokens with it.
        shared = self._jwks is None and not key.lstrip().startswith("-----BEGIN")
        self._algorithms = _SHARED_KEY_ALGORITHMS if shared else _PUBLIC_KEY_ALGORITHMS

    async def caller(self, given: bytes, limits: RateLimits) -> Caller:
        """Return the caller whom a token identifies.

        Raises:
            ProblemRaised: the token is not valid (401), or the issuer's keys cannot be read (503).
        """
        try:
            claims = await self._claims(given.decode("ascii"))
        except jwt.PyJWKClientConnectionError as error:
            _logger.warning("the keys of the tokens' issuer cannot be read: %s", type(error).__name__)
            raise ProblemRaised(make_problem(503, "issuer-unavailable", _KEYS_AWAY)) from None
        except (jwt.PyJWTError, ValueError):
            raise _refusal() from None
        user_id = claims.get(self._settings.jwt_user_claim)
        if not is_user_id(user_id):
            raise _refusal()
        expires_at = float(claims["exp"]) + _LEEWAY_SECONDS
        return Caller(f"token of {user_id}", self._settings.jwt_scope, user_id, limits, expires_at=expires_at)

    async def _claims(self, token: str) -> dict[str, Any]:
        settings = self._settings
        key: object = self._key
        if self._jwks is not None:
            key = (await asyncio.to_thread(self._jwks.get_signing_key_from_jwt, token)).key
        return jwt.decode(
            token,
            key,  # type: ignore[arg-type]
            algorithms=self._algorithms,
            issuer=settings.jwt_issuer,
            audience=settings.jwt_audience,
            leeway=_LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud", settings.jwt_user_claim]},
        )


class Credentials:
    """A verifier of API keys and of users' tokens, with the rate limits of callers."""

    def __init__(self, settings: Settings, memory: Memory) -> None:
        configured = {name: key.get_secret_value() for name, key in settings.api_keys.items()}
        self.keys = KeyRing(memory.api_keys, configured, clock=memory.clock)
        per_key, per_user = settings.requests_per_minute()
        self.limits = RateLimits(Buckets(per_key), Buckets(per_user))
        self.tokens = None if settings.jwt_key is None else UserTokens(settings, settings.jwt_key.get_secret_value())

    async def caller(self, given: bytes) -> Caller | None:
        """Return the caller to whom a key or token belongs, or None if the key is missing or not valid.

        Raises:
            ProblemRaised: 401 if a token is not valid; 503 if the service's keys have never been read, or if the keys
                of the token's issuer cannot be read.
        """
        if self.tokens is not None and given.startswith(b"eyJ") and given.count(b".") == 2:  # a token, not a key
            return await self.tokens.caller(given, self.limits)
        if not await self.keys.refresh():
            raise ProblemRaised(make_problem(503, "database-unavailable", _KEYS_UNREAD))
        return self.keys.caller(given, self.limits) if given else None


def _refusal() -> ProblemRaised:
    return ProblemRaised(
        make_problem(401, "token-invalid", _INVALID), {"WWW-Authenticate": 'Bearer error="invalid_token"'}
    )
