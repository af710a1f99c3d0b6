"""Metadata and retention limits of sessions, and summaries of their messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, TypeGuard
from uuid import uuid4

from threadkeep.errors import InvalidInput
from threadkeep.records.json_values import Json, is_finite, is_whole

_MOST_DAYS = 36_500
_MOST_USER_ID = 512


def is_user_id(value: object) -> TypeGuard[str]:
    """Return True for a text of 1 to 512 printable characters that are not only spaces."""
    return isinstance(value, str) and len(value) <= _MOST_USER_ID and value.isprintable() and value.strip() != ""


def check_user_id(user_id: str | None) -> None:
    """Reject an invalid user id; None is valid. See `is_user_id`.

    Raises:
        InvalidInput: the user id is not valid; the message does not repeat it.
    """
    if user_id is not None and not is_user_id(user_id):
        raise InvalidInput("A user_id must be text of 1 to 512 printable characters, not only spaces, or None.")


_KINDS: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "True or False",
    Mapping: "a mapping",
    Collection: "a list",
}


def check_argument(name: str, value: object, kind: type, *, required: bool = False) -> None:
    """Raise `InvalidInput` if `value` is not of the type `kind`. None is accepted unless the argument is `required`."""
    if value is None and not required:
        return
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = _KINDS.get(kind, f"of the type {kind.__name__}")
        raise InvalidInput(f"{name} is {wanted}{'' if required else ' or None'}, not {type(value).__name__}.")


def check_each(name: str, values: Collection[object], kind: type) -> None:
    """Raise `InvalidInput` if `values` is not a collection, or if an item is not of the type `kind`."""
    check_argument(name, values, Collection, required=True)
    for value in values:
        check_argument(f"Each of {name}", value, kind, required=True)


def check_cursor(name: str, cursor: object, *kinds: type) -> None:
    """Raise `InvalidInput` unless `cursor` is None or a tuple of values of these types."""
    check_argument(name, cursor, tuple)
    if isinstance(cursor, tuple) and (len(cursor) != len(kinds) or not all(map(isinstance, cursor, kinds))):
        raise InvalidInput(f"{name} is a cursor that an earlier page returned, or None.")


@dataclass(frozen=True)
class RetentionLimits:
    """Limits of retention. None means no limit, which is the default.

    With `max_age_days`, messages that were stored longer ago than this are removed. With `max_messages`, only this many
    of the newest messages stay, but always the newest user message and everything after it. With `max_idle_days`, all
    messages of a session are removed after this many days without a new message.
    """

    max_age_days: float | None = None
    max_messages: int | None = None
    max_idle_days: float | None = None

    def __post_init__(self) -> None:
        """Reject limits that are not positive numbers or are too large for dates."""
        for name in ("max_age_days", "max_idle_days"):
            days = getattr(self, name)
            if days is not None and not (is_finite(days) and 0 < days <= _MOST_DAYS):
                raise InvalidInput(f"{name} is a number of days above 0 and up to {_MOST_DAYS}, or None for no limit.")
        if self.max_messages is not None and not is_whole(self.max_messages, 1):
            raise InvalidInput("max_messages is a whole number from 1, or None for no limit.")

    @property
    def nothing(self) -> bool:
        """True if no limit is set, so that everything stays."""
        return self.max_age_days is None and self.max_messages is None and self.max_idle_days is None


@dataclass(frozen=True)
class Retention:
    """Limits for archiving and for deleting messages. By default everything stays.

    Archived messages are left out of windows, recall and search; they can still be read by `seq` and exported. Deleted
    messages no longer exist.
    """

    archive: RetentionLimits = RetentionLimits()
    delete: RetentionLimits = RetentionLimits()

    def __post_init__(self) -> None:
        """Reject limits that are not `RetentionLimits`: with them, each later attempt to apply retention would fail."""
        if not isinstance(self.archive, RetentionLimits) or not isinstance(self.delete, RetentionLimits):
            raise InvalidInput("archive and delete must be RetentionLimits; RetentionLimits() means no limit.")

    @property
    def nothing(self) -> bool:
        """True if no limit is set, so that everything stays."""
        return self.archive.nothing and self.delete.nothing

    def to_dict(self) -> dict[str, Json]:
        """Return the limits that are set, as JSON values."""
        return {
            action: {name: value for name, value in asdict(limits).items() if value is not None}
            for action, limits in (("archive", self.archive), ("delete", self.delete))
            if not limits.nothing
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Retention:
        """Create a retention from a dict that `to_dict` returned.

        Raises:
            InvalidInput: a name or a value is not valid for a retention.
        """
        if not isinstance(values, Mapping) or set(values) - {"archive", "delete"}:
            raise InvalidInput("A retention has limits under archive, under delete, or under both.")
        return cls(**{action: _limits(given) for action, given in values.items()})


def _limits(values: Any) -> RetentionLimits:
    names = [field.name for field in fields(RetentionLimits)]
    if not isinstance(values, Mapping) or set(values) - set(names):
        raise InvalidInput(f"The limits of a retention are {', '.join(names)}.")
    return RetentionLimits(**values)


@dataclass(frozen=True)
class SessionInfo:
    """Metadata of a session, available without reading its messages.

    - `deleted_seq`: messages up to this `seq` are deleted; 0 until retention removes messages.
    - `archived_seq`: messages up to this `seq`, which is at least `deleted_seq`, are in no window and no search.
    - `retention`: the session's own limits, which replace the general ones.
    - `revision`: 0 at first; it increases whenever messages are superseded or erased.
    - `parent_session_id` and `parent_seq`: for a branch, the session and the `seq` at which it was made.
    - `agent`: for an agent's own conversation, which belongs to the session `parent_session_id`, the agent's name.
    - `namespace`: for a conversation that an agent stores by itself, its location in the LangGraph store.
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
    agent: str | None = None


_MOST = {"first_seq": 2**53, "last_seq": 2**53, "tokens": 2**53, "level": 2**31}
_MOST_CHARACTERS = 512


@dataclass(frozen=True)
class Summary:
    """A text that replaces a `seq` range of a session's messages, both ends included.

    `level` is 1 for a summary of messages; for a summary of summaries, it is one more than the highest level of its
    sources. `model` wrote the text with the prompt `prompt_version`. The store sets `created_at` unless it is given.
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
        """Reject an invalid summary, such as one of an empty range. The error never quotes its text."""
        if not isinstance(self.text, str) or not self.text.strip():
            raise InvalidInput("A summary's text must not be blank.")
        for name in ("session_id", "model", "prompt_version", "id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not 0 < len(value) <= _MOST_CHARACTERS or not value.isprintable():
                raise InvalidInput(f"A summary's {name} is text of 1 to {_MOST_CHARACTERS} printable characters.")
        for name, least in (("first_seq", 1), ("last_seq", self.first_seq), ("tokens", 0), ("level", 1)):
            value = getattr(self, name)
            if not is_whole(value, least, _MOST[name] - 1):
                raise InvalidInput(f"A summary's {name} is a whole number from {least}, and below {_MOST[name]}.")
        moment = self.created_at
        if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
            raise InvalidInput("A summary's created_at is a datetime with a time zone, or None.")
