"""A configured bot: its channel, client, workflow and limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from threadkeep.channels.contract import Channel, IncomingMessage
from threadkeep.channels.rates import SenderRates
from threadkeep.channels.sending import ChannelClient
from threadkeep.channels.texts import TEXTS, Texts
from threadkeep.records.runs import DoubleTexting


@dataclass(frozen=True, kw_only=True)
class Bot:
    """A bot. If `allowed_users` (ids of the platform) is not empty, it accepts only their messages.

    `double_texting` replaces the workflow's own policy for a message that arrives during a turn.
    """

    channel: Channel
    client: ChannelClient = field(repr=False)
    workflow: str = "chat"
    texts: Texts = TEXTS["en"]
    allowed_users: frozenset[str] = frozenset()
    max_characters: int = 20_000
    double_texting: DoubleTexting | None = None
    rates: SenderRates = field(default_factory=SenderRates, repr=False)

    @property
    def name(self) -> str:
        """The configured name."""
        return self.channel.name

    def allows(self, message: IncomingMessage) -> bool:
        """Return True if the bot answers the sender of this message."""
        sender = message.sender.id.rpartition(":")[2] if message.sender is not None else ""
        return not self.allowed_users or sender in self.allowed_users
