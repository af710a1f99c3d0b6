"""What is known of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from threadkeep.records.json_values import Json
from threadkeep.records.retention import Retention


@dataclass(frozen=True)
class SessionInfo:
    """What is known of a session without reading its messages.

    Messages up to `deleted_seq` are gone. Those up to `archived_seq`, which is never behind it, are in no window and no
    search. Both are 0 while everything is as it was. `retention` are limits of its own, which stand in the place of all
    rules. `namespace` is where in the graph store it is, for a conversation that an agent keeps by itself.
    """

    session_id: str
    user_id: str | None
    title: str | None
    last_message: str | None
    message_count: int
    last_seq: int
    reset_seq: int
    active: bool
    tags: tuple[str, ...]
    metadata: Mapping[str, Json]
    created_at: datetime
    updated_at: datetime
    archived_seq: int = 0
    deleted_seq: int = 0
    retention: Retention | None = None
    namespace: tuple[str, ...] = ()
