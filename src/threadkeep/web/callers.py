"""Callers of the service: the scope of their key, and the one user that they may speak for.

`Access` checks each request before it reaches its route. GET and HEAD need the scope `read`, other methods `write`; a
route that differs says so with `openapi_extra=READS` or `openapi_extra=ADMINISTERS`. A caller who speaks for one user
reaches only routes that ask who the user is, by the parameter `UserId`, `KnowledgeUser` or `CallerInUse`, and routes
with `openapi_extra=PUBLIC`, which show no user's data. All other routes are closed to that caller.
"""

from __future__ import annotations

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
    """Token buckets by name. Each holds the requests of a minute, and is refilled evenly; 0 limits nothing."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> float:
        """Take a token; return 0, or the seconds until there is one."""
        if not self._per_minute:
            return 0.0
        now, rate = self._clock(), self._per_minute / 60
        tokens, since = self._buckets.pop(name, (float(self._per_minute), now))
        tokens = min(tokens + (now - since) * rate, float(self._per_minute))
        allowed = tokens >= 1
        self._buckets[name] = (tokens - 1 if allowed else tokens, now)  # the last used one is the last of the dict
        if len(self._buckets) > _MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return 0.0 if allowed else (1 - tokens) / rate


@dataclass(frozen=True)
class RateLimits:
    """The limits of a service. Each process counts for itself."""

    keys: Buckets = field(default_factory=lambda: Buckets(0))
    users: Buckets = field(default_factory=lambda: Buckets(0))

    def count_user(self, user_id: str) -> None:
        """Count a request of a user.

        Raises:
            ProblemRaised: there were too many (429).
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
    """The sender of a request. `user_id` is the only user for whom it may speak; None: it names its users."""

    name: str
    scope: KeyScope
    user_id: str | None = None
    limits: RateLimits = RateLimits()

    def user(self, named: str | None) -> str | None:
        """Return the user that a request is about, from the user that it names, if any.

        Raises:
            ProblemRaised: the caller may not speak for that user (404), or the user sent too many requests (429).
        """
        if self.user_id is None:
            if named is not None:
                self.limits.count_user(named)
            return named
        if named is not None and named != self.user_id:
            sentence = (
                "There is no such user for this key: it speaks for one user. Leave `user_id` out, or name that one."
            )
            raise ProblemRaised(make_problem(404, "user-not-found", sentence))
        return self.user_id

    def count(self) -> None:
        """Count a request, for the key and for the user that it speaks for.

        Raises:
            ProblemRaised: there were too many (429).
        """
        _raise_after(self.limits.keys.take(self.name), "This key")
        if self.user_id is not None:
            self.limits.count_user(self.user_id)

    def check(self, routes: Iterable[BaseRoute], scope: Scope) -> None:
        """Check that the caller may reach the route of a request.

        Raises:
            ProblemRaised: the key has not the scope for it, or speaks for one user (403).
        """
        if self.scope == "admin" and self.user_id is None:
            return
        route = next((route for route in routes if route.matches(scope)[0] is Match.FULL), None)
        if route is None:
            return  # an unknown address, or a method that it does not take
        needed, of_users = _access_of(route, scope["method"])
        if KEY_SCOPES.index(self.scope) < KEY_SCOPES.index(needed):
            sentence = f"This needs a key with the scope `{needed}`; this one has `{self.scope}`."
            raise ProblemRaised(make_problem(403, "scope-missing", sentence))
        if self.user_id is not None and not of_users:
            sentence = "This key speaks for one user, and this address is about more; use a key without a user."
            raise ProblemRaised(make_problem(403, "key-of-one-user", sentence))


async def caller_of(request: Request) -> Caller:
    """Return the caller of a request, whom `Access` has recognised."""
    return cast("Caller", request.state.caller)


type CallerInUse = Annotated[Caller, Depends(caller_of)]


def _access_of(route: BaseRoute, method: str) -> tuple[KeyScope, bool]:
    """Return the scope that a route needs, and whether a caller who speaks for one user may reach it."""
    if isinstance(route, Mount):
        return "read", isinstance(route.app, StaticFiles)
    usual: KeyScope = "read" if method in _READING else "write"
    if not isinstance(route, APIRoute):
        return usual, False
    said = (route.openapi_extra or {}).get(_ACCESS, {})
    return said.get("scope", usual), said.get("of_no_user", False) or _asks_who(route.dependant)


def _asks_who(dependant: Dependant) -> bool:
    return any(one.call is caller_of or _asks_who(one) for one in dependant.dependencies)
