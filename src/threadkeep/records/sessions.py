"""Metadata of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from threadkeep.records.json_values import Json
from threadkeep.records.retention import Retention


@dataclass(frozen=True)
class SessionInfo:
    """Metadata of a session, available without reading its messages.

    Messages up to `deleted_seq` are gone. Messages up to `archived_seq`, which is never smaller, are in no window
    and no search. Both are 0 until retention has run. `retention` holds the session's own limits, which replace all
    rules. `revision` increases whenever messages are superseded; it starts at 0. A branch names its origin session
    (`parent_session_id`) and the last position that it shares with it (`parent_seq`). `namespace` is its location in
    the graph store, for a conversation that an agent stores by itself.
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
    revision: int = 0
    parent_session_id: str | None = None
    parent_seq: int | None = None
    namespace: tuple[str, ...] = ()
