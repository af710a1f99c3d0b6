"""Delivery states of a channel's answer."""

from __future__ import annotations

from typing import Literal, get_args

type OutboxStatus = Literal["waiting", "ready", "failed", "delivered", "dropped", "nothing"]
"""`waiting` for the run; `ready` to be sent; `nothing`: the run gave no answer to this message."""

OUTBOX_STATUSES: tuple[OutboxStatus, ...] = get_args(OutboxStatus.__value__)
