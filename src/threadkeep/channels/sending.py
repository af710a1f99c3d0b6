"""The contract of sending: one part of an answer to one address, and the platform's response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from threadkeep.records import Json

type Address = Mapping[str, Json]
type Account = Mapping[str, Json]


@dataclass(frozen=True)
class Part:
    """A text that fits into one message.

    `key` is the same for each attempt, for platforms that drop duplicates. Only the `first` part is sent as a reply.
    `again` means that the part may have been sent before.
    """

    text: str = field(repr=False)
    key: str
    first: bool = True
    again: bool = False


@dataclass(frozen=True)
class Sent:
    """The part has arrived."""


@dataclass(frozen=True)
class Later:
    """The part must be sent again, after `seconds` if the platform says so. `error` names a kind.

    `uncertain` means that the part may have arrived, because the connection broke after sending.
    """

    error: str
    seconds: float | None = None
    uncertain: bool = False


@dataclass(frozen=True)
class Refused:
    """The part can never be delivered: the person blocked the bot, or a limit of the platform is reached."""

    error: str


@dataclass(frozen=True)
class Moved:
    """The chat has a new address."""

    address: Address = field(repr=False)


type Outcome = Sent | Later | Refused | Moved


class ChannelClient(Protocol):
    """The calls to a platform for one bot. Failures of the platform or the network are returned, never raised."""

    async def send(self, address: Address, part: Part) -> Outcome:
        """Send one part of an answer."""

    async def show_working(self, address: Address) -> None:
        """Show the person that the bot is working, if the platform supports it."""

    async def account(self) -> Account | str:
        """Return the bot as the platform knows it, for operators; or the kind of an error."""
