"""The interface of a Graphiti server for all transports, its records, and a circuit breaker."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol

from threadkeep.records import Json

type Look = Callable[[], Awaitable[str | None]]
"""Looks at something, and returns what is wrong with the cure; None if nothing is."""

type EpisodeRole = Literal["user", "assistant", "system"]


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A message as the server takes it; it is known again by its `name`.

    `speaker` is the entity that the server takes for who said it, so it is stable and never empty.
    """

    name: str
    role: EpisodeRole
    speaker: str
    content: str = field(repr=False)
    said_at: datetime
    source: str = ""


@dataclass(frozen=True)
class SeenEpisode:
    """A message that the server has stored."""

    uuid: str
    name: str


@dataclass(frozen=True, kw_only=True)
class GraphFact:
    """A statement of the graph. It was written by whoever may write into the group, so it is quoted, never obeyed."""

    uuid: str
    fact: str = field(repr=False)
    name: str = ""
    valid_at: datetime | None = None
    invalid_at: datetime | None = None
    created_at: datetime | None = None
    expired_at: datetime | None = None

    def superseded(self, now: datetime) -> bool:
        """Return whether it does not hold any more."""
        return self.expired_at is not None or (self.invalid_at is not None and self.invalid_at <= now)

    @property
    def since(self) -> datetime | None:
        """The time from which it holds, or was known."""
        return self.valid_at or self.created_at


class GraphitiClient(Protocol):
    """A Graphiti server.

    Guarantees of each implementation: a call ends within its time limit, whatever the server sends. Every failure is a
    `GraphitiError`, and none of them, nor a log line, has a word of the messages. A group id is checked before it is
    sent. No request leaves out the groups that it is about.
    """

    newest_first: bool
    """Whether a short list of episodes has the newest ones."""

    async def send(self, group_id: str, episodes: Sequence[Episode]) -> None:
        """Hand messages over, in their order. The server stores them later, or never: read them back."""
        ...

    async def episodes(self, group_id: str, last: int) -> list[SeenEpisode]:
        """Return the last messages that a group has by their time, oldest first; nothing for an unknown group."""
        ...

    async def search(
        self, group_ids: Sequence[str], query: str, limit: int, *, seconds: float | None = None
    ) -> list[GraphFact]:
        """Return facts of some groups, the best first. There may be more than the limit, and some twice."""
        ...

    async def delete_episode(self, group_id: str, uuid: str) -> None:
        """Ask the server to delete a message by its uuid. Look whether it did: some say so and do not."""
        ...

    async def delete_group(self, group_id: str) -> None:
        """Ask the server to delete a group. Look whether it did: some say so and do not."""
        ...

    def checks(self) -> list[tuple[str, Look]]:
        """Return what can be looked at without writing: a name, and a function that says what is wrong."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def fact_in(value: Json) -> GraphFact | None:
    """Return the fact in an answer; None if there is none in it. Fields that a server does not have are left out."""
    if not isinstance(value, Mapping):
        return None
    uuid, fact, name = value.get("uuid"), value.get("fact"), value.get("name")
    if not isinstance(uuid, str) or not isinstance(fact, str) or not uuid or not fact.strip():
        return None
    return GraphFact(
        uuid=uuid,
        fact=fact,
        name=name if isinstance(name, str) else "",
        valid_at=time_in(value.get("valid_at")),
        invalid_at=time_in(value.get("invalid_at")),
        created_at=time_in(value.get("created_at")),
        expired_at=time_in(value.get("expired_at")),
    )


def episode_in(value: Json) -> SeenEpisode | None:
    """Return the episode in an answer; None if there is none in it."""
    if not isinstance(value, Mapping):
        return None
    uuid, name = value.get("uuid"), value.get("name")
    return SeenEpisode(uuid, name) if isinstance(uuid, str) and isinstance(name, str) else None


def time_in(value: Json) -> datetime | None:
    """Return a time of an answer in UTC; one without a zone is in UTC, as some databases behind the server give it."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class Breaker:
    """Opens after some failures in a row, and lets one call through when its pause is over.

    The pause doubles with each failure up to the longest, with full jitter, so that processes do not come together.
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
        self._open_until = 0.0
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Return whether calls are held back."""
        return self._failures >= self._most

    def allows(self) -> bool:
        """Return whether a call may be made now; of those that an open one lets through there is one at a time."""
        if not self.is_open:
            return True
        if self._probing or self._clock() < self._open_until:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        """Close: the server answered."""
        self._failures, self._probing = 0, False

    def give_back(self) -> None:
        """Note that a call which was let through was not made."""
        self._probing = False

    def failed(self, *, at_least_seconds: float = 0.0) -> None:
        """Count a failure; `at_least_seconds` is a pause that the server asked for."""
        self._failures += 1
        self._probing = False
        most = min(self._first * 2.0 ** min(self._failures - self._most, 30), self._longest)
        self._open_until = self._clock() + max(most * random.uniform(0.5, 1.0), at_least_seconds)
