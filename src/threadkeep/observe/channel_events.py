"""Events of channel messages, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from threadkeep.observe.events import Channel, Event

type UpdateOutcome = Literal["taken", "repeated", "ignored", "refused"]
type UpdateReason = Literal[
    "malformed",
    "kind",
    "chat_type",
    "no_text",
    "incomplete",
    "from_bot",
    "not_addressed",
    "not_for_us",
    "too_long",
    "too_many",
    "signature_missing",
    "signature_wrong",
    "stale",
    "unreadable",
    "receiver_wrong",
]
type DeliveryOutcome = Literal["delivered", "nothing", "postponed", "failed"]
type ChannelWork = Literal["taking", "delivery", "polling", "following"]

UPDATE_OUTCOMES: tuple[UpdateOutcome, ...] = get_args(UpdateOutcome.__value__)
UPDATE_REASONS: tuple[UpdateReason, ...] = get_args(UpdateReason.__value__)
DELIVERY_OUTCOMES: tuple[DeliveryOutcome, ...] = get_args(DeliveryOutcome.__value__)
CHANNEL_WORKS: tuple[ChannelWork, ...] = get_args(ChannelWork.__value__)


@dataclass(frozen=True, kw_only=True)
class UpdateReceived(Event):
    """A platform delivered an update: it was `taken`, or it was `ignored` or `refused` for a reason."""

    channel: Channel
    outcome: UpdateOutcome
    reason: UpdateReason | None = None
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerSent(Event):
    """An attempt to deliver an answer ended. `milliseconds` is the time since its message was taken.

    `uncertain` means that a part may have arrived twice, because a process died while sending one.
    """

    channel: Channel
    outcome: DeliveryOutcome
    parts: int = 0
    error: str | None = None
    uncertain: bool = False
    milliseconds: float
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChannelTrouble(Event):
    """Work of a channel failed and will be retried."""

    channel: Channel
    work: ChannelWork
    error: str
