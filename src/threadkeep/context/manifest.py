"""Why a window holds what it holds: places, counts and reasons, never text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from threadkeep.records import Message

type ExclusionReason = Literal["over_budget", "over_limit", "reset"]


@dataclass(frozen=True)
class Cut:
    """One message that stands shortened, with the mark, in the window."""

    seq: int
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True)
class Exclusion:
    """A range of places (both ends included) that is out of the window, and why."""

    first_seq: int
    last_seq: int
    reason: ExclusionReason


@dataclass(frozen=True)
class WindowManifest:
    """The record of one window.

    `included` are the places of its messages in order. `dropped` is how many messages since the last reset are out;
    when the caller could not say how many there are, it is the number of places in the excluded ranges.
    """

    counter: str
    max_messages: int | None
    max_tokens: int | None
    tokens: int
    included: tuple[int, ...] = ()
    cuts: tuple[Cut, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    dropped: int = 0


@dataclass(frozen=True)
class Window:
    """The newest messages that fit, oldest first."""

    messages: tuple[Message, ...]
    tokens: int
    manifest: WindowManifest
