"""The client interface of a Graphiti server, its records, and a circuit breaker."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol

from threadkeep.records import Json

type Step = Callable[[], Awaitable[str | None]]
"""A check that returns a problem and its solution, or None. A `GraphitiError` that it raises is a problem, too."""

type MayContinue = Callable[[], Awaitable[bool]]
"""A check that returns True if the next message may still be sent."""

type EpisodeRole = Literal["user", "assistant", "system"]


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A message or fact in the form that Graphiti receives. Its `name` identifies it in its group.

    `speaker` becomes the entity that said the message, so it must be stable and must not be empty.
    """

    name: str
    role: EpisodeRole
    speaker: str
    content: str = field(repr=False)
    said_at: datetime
    source: str = ""


@dataclass(frozen=True)
class SeenEpisode:
    """A message or fact that the Graphiti server has stored, with the server's `uuid`."""

    uuid: str
    name: str


@dataclass(frozen=True, kw_only=True)
class GraphFact:
    """A statement found in Graphiti's graph. It is untrusted: any writer of its group may have caused it."""

    uuid: str
    fact: str = field(repr=False)
    name: str = ""
    valid_at: datetime | None = None
    invalid_at: datetime | None = None
    created_at: datetime | None = None
    expired_at: datetime | None = None

    def superseded(self, now: datetime) -> bool:
        """Return True if the fact is no longer valid."""
        return self.expired_at is not None or (self.invalid_at is not None and self.invalid_at <= now)

    @property
    def since(self) -> datetime | None:
        """The time when the fact became valid; if unknown, the time of its creation, or None."""
        return self.valid_at or self.created_at


class GraphitiClient(Protocol):
    """A Graphiti server.

    Guarantees of each implementation: every call ends within its time limit. Every failure is a `GraphitiError`. Errors
    and log lines contain no text of messages. Group ids are checked before they are sent. Messages are sent, read and
    searched only with the ids of their groups.
    """

    newest_first: bool
    """True if `episodes` returns the newest episodes; false if their order is undefined."""
    stores_in_order: bool
    """True if the server stores messages in the order of sending, so a message is lost once a later one is stored."""

    async def send(self, group_id: str, episodes: Sequence[Episode], *, may_continue: MayContinue | None = None) -> int:
        """Send messages in order, and return how many were sent.

        If each message needs its own request, `may_continue` is called before each further request; False stops the
        client. The server stores messages later and may lose them; use `episodes` to verify.
        """

    async def episodes(self, group_id: str, last: int) -> list[SeenEpisode]:
        """Return up to `last` messages of a group, or none if the group is unknown. `newest_first` tells the order."""

    async def search(
        self, group_ids: Sequence[str], query: str, limit: int, *, seconds: float | None = None
    ) -> list[GraphFact]:
        """Return facts of some groups, best first, possibly with duplicates and more than `limit`."""

    async def delete_episode(self, group_id: str, uuid: str) -> None:
        """Delete a message by its uuid. Some servers report success but delete nothing, so check that it is gone."""

    async def delete_group(self, group_id: str) -> None:
        """Delete a group. Some servers report success but delete nothing, so check that it is gone."""

    def checks(self) -> list[tuple[str, Step]]:
        """Return the read-only checks of a connection test, each with its name."""

    async def close(self) -> None:
        """Close the connections to the server."""


def fact_in(value: Json) -> GraphFact | None:
    """Parse a fact in a server's response; return None if `value` is not a fact. Older servers omit some fields."""
    if not isinstance(value, Mapping):
        return None
    uuid, fact, name = value.get("uuid"), value.get("fact"), value.get("name")
    if not isinstance(uuid, str) or not isinstance(fact, str) or not uuid or not fact.strip():
        return None
    times = {one: time_in(value.get(one)) for one in ("valid_at", "invalid_at", "created_at", "expired_at")}
    return GraphFact(uuid=uuid, fact=fact, name=name if isinstance(name, str) else "", **times)


def episode_in(value: Json) -> SeenEpisode | None:
    """Parse a stored message in a server's response; return None if `value` is not a message."""
    if not isinstance(value, Mapping):
        return None
    uuid, name = value.get("uuid"), value.get("name")
    return SeenEpisode(uuid, name) if isinstance(uuid, str) and isinstance(name, str) else None


def time_in(value: Json) -> datetime | None:
    """Parse a time and return it in UTC; None if it is not a time. Some databases send UTC times without a zone."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class Breaker:
    """A circuit breaker. After `failures` consecutive failures it opens, and allows one call after each pause.

    The pause doubles with each failure up to a maximum, with jitter, so that processes retry at different times.
    """

    def __init__(
        self,
        *,
        failures: int,
        first_seconds: float,
        longest_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._most = failures
        self._first = first_seconds
        self._longest = longest_seconds
        self._clock = clock
        self._failures = 0
        self._pause = 0.0
        self._failed_at = 0.0
        self._probing = False

    @property
    def is_open(self) -> bool:
        """True after too many consecutive failures, until a call succeeds."""
        return self._failures >= self._most

    def allows(self) -> bool:
        """Return True if a call may be made now. An open breaker allows one call at a time, after the pause.

        Report the result of an allowed call by `succeeded`, `failed` or `give_back`; only then is the next one allowed.
        """
        if not self.is_open:
            return True
        # If the clock was set back, the pause might not end, so allow a call.
        if self._probing or 0 <= self._clock() - self._failed_at < self._pause:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        """Close the breaker after a successful call."""
        self._failures, self._probing = 0, False

    def give_back(self) -> None:
        """Allow another call, because the call that `allows` permitted was not made."""
        self._probing = False

    def failed(self, *, at_least_seconds: float = 0.0) -> None:
        """Count a failed call; `at_least_seconds` is the pause that the server requested."""
        self._failures += 1
        self._probing = False
        most = min(self._first * 2.0 ** min(self._failures - self._most, 30), self._longest)
        self._failed_at = self._clock()
        self._pause = max(most * random.uniform(0.5, 1.0), at_least_seconds)
