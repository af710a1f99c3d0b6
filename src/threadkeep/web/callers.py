"""Callers of the service: the scope of their key, and the user to whom a key may be limited.

`Access` checks each request before it reaches its route. GET and HEAD need the scope `read`, other methods `write`; a
route with another scope has `openapi_extra=READS` or `openapi_extra=ADMINISTERS`. A caller who is limited to one
user reaches only routes with a parameter `UserId`, `KnowledgeUser` or `CallerInUse`, and routes with
`openapi_extra=PUBLIC`, which show no user's data. All other routes reject that caller.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, cast

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from threadkeep.store.api_keys import KEY_SCOPES, KeyScope
from threadkeep.web.problems import ProblemRaised, make_problem

_MOST_BUCKETS = 10_000


class Buckets:
    """Token buckets by name. Each bucket is refilled evenly with `per_minute` tokens a minute; 0 means no limit."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> float:
        """Take a token and return 0; if there is none, return the seconds until the next one."""
        if not self._per_minute:
            return 0.0
        now, rate = self._clock(), self._per_minute / 60
        tokens, since = self._buckets.pop(name, (float(self._per_minute), now))
        tokens = min(tokens + (now - since) * rate, float(self._per_minute))
        allowed = tokens >= 1
        self._buckets[name] = (tokens - 1 if allowed else tokens, now)  # at the end: the dict is in order of last use
        if len(self._buckets) > _MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return 0.0 if allowed else (1 - tokens) / rate


@dataclass(frozen=True)
class RateLimits:
    """The rate limits for keys and for users. Each process counts separately."""

    keys: Buckets = field(default_factory=lambda: Buckets(0))
    users: Buckets = field(default_factory=lambda: Buckets(0))

    def count_user(self, user_id: str) -> None:
        """Count a request of a user.

        Raises:
            ProblemRaised: the user sent too many requests (429).
        """
        _raise_after(self.users.take(user_id), "This user")


def _raise_after(seconds: float, who: str) -> None:
    if seconds > 0:
        wait = math.ceil(seconds)
        sentence = f"{who} has sent too many requests; try again in {wait} seconds."
        raise ProblemRaised(make_problem(429, "too-many-requests", sentence), {"Retry-After": str(wait)})


_ACCESS: Final = "x-access"
READS: Final[dict[str, Any]] = {_ACCESS: {"scope": "read"}}
ADMINISTERS: Final[dict[str, Any]] = {_ACCESS: {"scope": "admin"}}
PUBLIC: Final[dict[str, Any]] = {_ACCESS: {"scope": "read", "of_no_user": True}}

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True)
class Caller:
    """The sender of a request, who may act only for `user_id`. If `user_id` is None, a request may name any user."""

    name: str
    scope: KeyScope
    user_id: str | None = None
    limits: RateLimits = RateLimits()

    def user(self, named: str | None) -> str | None:
        """Return the user of a request: the caller's only user, or else the user whom the request names, if any.

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
        """Return a hash of the caller, a user and an idempotency key, the same for each repeat; None without a key."""
        if key is None:
            return None
        return hashlib.sha256(f"{self.name}\n{user_id or ''}\n{key}".encode()).hexdigest()[:32]

    def count(self) -> None:
        """Count a request for the key, and for the user to whom the key is limited.

        Raises:
            ProblemRaised: the key or the user sent too many requests (429).
        """
        _raise_after(self.limits.keys.take(self.name), "This key")
        if self.user_id is not None:
            self.limits.count_user(self.user_id)

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
        needed, of_users = _access_of(route, scope["method"])
        if KEY_SCOPES.index(self.scope) < KEY_SCOPES.index(needed):
            sentence = f"This needs a key with the scope `{needed}`; this one has `{self.scope}`."
            raise ProblemRaised(make_problem(403, "scope-missing", sentence))
        if self.user_id is not None and not of_users:
            sentence = "This key is limited to one user and may not use this address; use a key without a user."
            raise ProblemRaised(make_problem(403, "key-of-one-user", sentence))


async def caller_of(request: Request) -> Caller:
    """Return the caller that `Access` stored in the state of the request."""
    return cast("Caller", request.state.caller)


type CallerInUse = Annotated[Caller, Depends(caller_of)]


def _access_of(route: BaseRoute, method: str) -> tuple[KeyScope, bool]:
    """Return the scope that a route requires, and whether callers who are limited to one user may call it."""
    if isinstance(route, Mount):
        return "read", isinstance(route.app, StaticFiles)
    usual: KeyScope = "read" if method in _READING else "write"
    if not isinstance(route, APIRoute):
        return usual, False
    declared = (route.openapi_extra or {}).get(_ACCESS, {})
    return declared.get("scope", usual), declared.get("of_no_user", False) or _asks_who(route.dependant)


def _asks_who(dependant: Dependant) -> bool:
    return any(one.call is caller_of or _asks_who(one) for one in dependant.dependencies)
