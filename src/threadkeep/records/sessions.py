"""Metadata of a session, and summaries of its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid4

from threadkeep.errors import InvalidInput
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


_MOST = {"first_seq": 2**53, "last_seq": 2**53, "tokens": 2**53, "level": 2**31}
_MOST_CHARACTERS = 512


@dataclass(frozen=True)
class Summary:
    """A text that replaces an exact range of a session's messages, both ends included.

    `level` is 1 for a summary of messages, and one more than its sources for a summary of summaries. `model` and
    `prompt_version` describe its origin. `created_at` is set by the store unless it is given.
    """

    session_id: str
    first_seq: int
    last_seq: int
    text: str
    model: str
    prompt_version: str
    tokens: int
    level: int = 1
    id: str = field(default_factory=lambda: str(uuid4()))
    created_at: datetime | None = None

    def __post_init__(self) -> None:
        """Reject a summary of an empty range.

        Raises:
            InvalidInput: names the field, never its text.
        """
        if not isinstance(self.text, str) or not self.text.strip():
            raise InvalidInput("A summary's text is not blank.")
        for name in ("session_id", "model", "prompt_version", "id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not 0 < len(value) <= _MOST_CHARACTERS or not value.isprintable():
                raise InvalidInput(f"A summary's {name} is text of 1 to {_MOST_CHARACTERS} printable characters.")
        for name, least in (("first_seq", 1), ("last_seq", self.first_seq), ("tokens", 0), ("level", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _MOST[name]:
                raise InvalidInput(f"A summary's {name} is a whole number from {least}, and below {_MOST[name]}.")
        moment = self.created_at
        if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
            raise InvalidInput("A summary's created_at is a datetime with a time zone, or None.")
