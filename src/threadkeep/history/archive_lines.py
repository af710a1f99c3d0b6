"""The lines of an export: one for each session, then one for each of its messages and summaries.

Each line is a JSON object in UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from threadkeep.errors import InvalidInput, InvalidMessage
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.keys import check_session_id
from threadkeep.records import Json, Message, Retention, SessionInfo, Summary, dump_json
from threadkeep.store.summaries import ArchivedSummary

_MOST_TOKENS = 2**31 - 1
_MOST_PLACES = 2**53
_LAYOUT_FIELDS = ("namespace", "meta_key_suffix", "value_field")


@dataclass(frozen=True)
class SessionLine:
    """The exported metadata of a session; only the id is required."""

    session_id: str
    user_id: str | None = None
    title: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Json] = field(default_factory=dict)
    active: bool = True
    reset_seq: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    archived_seq: int = 0
    deleted_seq: int = 0
    retention: Retention | None = None
    parent_session_id: str | None = None
    parent_seq: int | None = None
    agent: str | None = None
    namespace: tuple[str, ...] = ()
    meta_key_suffix: str = GraphLayout.meta_key_suffix
    value_field: str = GraphLayout.value_field

    @property
    def layout(self) -> GraphLayout | None:
        """Return the layout if this is a conversation in a LangGraph store, or None if it is a session in tables.

        Raises:
            InvalidInput: the layout is not valid.
        """
        if not self.namespace:
            return None
        return GraphLayout(self.namespace, self.meta_key_suffix, value_field=self.value_field)

    def info(self, messages: Sequence[Message], now: datetime) -> SessionInfo:
        """Return the session to restore. Missing times are taken from `messages` or, if there are none, are `now`."""
        times = [message.created_at or now for message in messages] or [now]
        values = {name: value for name, value in vars(self).items() if name not in _LAYOUT_FIELDS}
        values |= {"created_at": self.created_at or min(times), "updated_at": self.updated_at or max(times)}
        return SessionInfo(**values, last_message=None, message_count=0, last_seq=0)


@dataclass(frozen=True)
class MessageLine:
    """A line of an export: a message with the id of its session."""

    session_id: str
    message: Message


@dataclass(frozen=True)
class SummaryLine:
    """A line of an export: a summary. The messages that it covers come before it, unless they were deleted."""

    session_id: str
    archived: ArchivedSummary


class BadLine(InvalidInput):
    """An invalid line of an export; `session_id` is set if the line describes a session."""

    def __init__(self, sentence: str, *, session_id: str | None = None) -> None:
        super().__init__(sentence)
        self.session_id = session_id


def session_line(info: SessionInfo, layout: GraphLayout | None = None) -> str:
    """Return the line of JSON that describes a session in an export. Some fields are written only if they are set."""
    values: dict[str, Json] = {
        "type": "session",
        "session_id": info.session_id,
        "user_id": info.user_id,
        "title": info.title,
        "tags": list(info.tags),
        "metadata": _sorted(info.metadata),
        "active": info.active,
        "reset_seq": info.reset_seq,
        "created_at": info.created_at.astimezone(UTC).isoformat(),
        "updated_at": info.updated_at.astimezone(UTC).isoformat(),
    }
    if info.archived_seq:
        values["archived_seq"] = info.archived_seq
    if info.deleted_seq:
        values["deleted_seq"] = info.deleted_seq
    if info.retention is not None:
        values["retention"] = info.retention.to_dict()
    if info.parent_session_id is not None:
        values["parent_session_id"] = info.parent_session_id
        values["parent_seq"] = info.parent_seq
    if info.agent is not None:
        values["agent"] = info.agent
    if layout is not None:
        values["namespace"] = list(layout.namespace)
        for name in ("meta_key_suffix", "value_field"):
            if (value := getattr(layout, name)) != getattr(GraphLayout, name):
                values[name] = value
    return dump_json(values) + "\n"


def message_line(session_id: str, message: Message) -> str:
    """Return the line of JSON that contains a message in an export."""
    values = {"type": "message", "session_id": session_id, **message.to_dict()}
    values["metadata"] = _sorted(message.metadata)
    return dump_json(values) + "\n"


def summary_line(archived: ArchivedSummary) -> str:
    """Return the line of JSON that contains a summary in an export."""
    summary = archived.summary
    values = {
        "type": "summary",
        "session_id": summary.session_id,
        "id": summary.id,
        "first_seq": summary.first_seq,
        "last_seq": summary.last_seq,
        "messages": archived.messages,
        "first_id": archived.first_id,
        "last_id": archived.last_id,
        "level": summary.level,
        "text": summary.text,
        "model": summary.model,
        "prompt_version": summary.prompt_version,
        "tokens": summary.tokens,
        "created_at": summary.created_at and summary.created_at.astimezone(UTC).isoformat(),
    }
    return dump_json(values) + "\n"


def parse_line(line: bytes) -> SessionLine | MessageLine | SummaryLine:
    """Parse a line of an export.

    Raises:
        BadLine: the line is not valid. The error gives the reason and quotes no values.
    """
    values = _object(line)
    kind = values.pop("type", None)
    session_id = values.pop("session_id", None)
    if kind not in ("session", "message", "summary"):
        raise BadLine("A line's type is session, message or summary.")
    if not isinstance(session_id, str):
        raise BadLine("A line needs a session_id, which is a text.")
    try:
        check_session_id(session_id)
        if kind == "session":
            return _session(session_id, values)
        if kind == "summary":
            return SummaryLine(session_id, _summary(session_id, values))
        return MessageLine(session_id, _message(values))
    except InvalidInput as error:
        raise BadLine(str(error), session_id=session_id if kind == "session" else None) from error


def _object(line: bytes) -> dict[str, Any]:
    try:
        values = _DECODER.decode(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadLine("This is not JSON in UTF-8.") from error
    if not isinstance(values, dict):
        raise BadLine("A line is one JSON object.")
    return values


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _message(values: dict[str, Any]) -> Message:
    try:
        message = Message.from_dict(values)
    except (TypeError, OverflowError) as error:
        raise InvalidMessage("A field of the message has the wrong type.") from error
    if message.tokens is not None and message.tokens > _MOST_TOKENS:
        raise InvalidMessage(f"A message's tokens are at most {_MOST_TOKENS}.")
    if message.metadata or message.original is not None:
        dump_json([dict(message.metadata), message.original])
    for time in (message.created_at, message.superseded_at):
        _check_year(time)
    return message


def _summary(session_id: str, values: dict[str, Any]) -> ArchivedSummary:
    missing = _SUMMARY_FIELDS ^ set(values)
    if missing:
        raise InvalidInput(f"A summary has the fields {', '.join(sorted(_SUMMARY_FIELDS))}.")
    messages, first_id, last_id = (values.pop(name) for name in ("messages", "first_id", "last_id"))
    for id_ in (first_id, last_id):
        if not (isinstance(id_, str) and id_.isprintable() if messages else id_ is None):
            raise InvalidInput("A summary's first_id and last_id are ids of messages, or null when none is left.")
    if values["created_at"] is not None:
        values["created_at"] = _time("created_at", values["created_at"])
    summary = Summary(session_id=session_id, **values)
    most = summary.last_seq - summary.first_seq + 1
    if type(messages) is not int or not 0 <= messages <= most:
        raise InvalidInput(f"messages is a whole number from 0 to {most}, the length of the summary's range.")
    return ArchivedSummary(summary, messages, first_id, last_id)


def _session(session_id: str, values: dict[str, Any]) -> SessionLine:
    _check_fields(values)
    for name in ("tags", "namespace"):
        values[name] = tuple(values.get(name, ()))
    if values.get("retention") is not None:
        values["retention"] = Retention.from_dict(values["retention"])
    for name in ("created_at", "updated_at"):
        if values.get(name) is not None:
            values[name] = _time(name, values[name])
    line = SessionLine(session_id, **values)
    _ = line.layout
    return line


def _check_fields(values: dict[str, Any]) -> None:
    known = {f.name for f in fields(SessionLine)}
    if unknown := sorted(set(values) - known):
        raise InvalidInput(f"A session has no field {unknown[0]!r}; it has {', '.join(sorted(known))}.")
    for name, accepted in _SESSION_TYPES.items():
        if name in values and (not isinstance(values[name], accepted) or type(values[name]) is bool is not accepted):
            raise InvalidInput(f"A session's {name} has the wrong type.")
    for name in ("tags", "namespace"):
        if not all(isinstance(one, str) for one in values.get(name, ())):
            raise InvalidInput(f"A session's {name} is a list of texts.")
    for name in ("reset_seq", "archived_seq", "deleted_seq", "parent_seq"):
        if not 0 <= (values.get(name) or 0) < _MOST_PLACES:
            raise InvalidInput(f"A session's {name} is a whole number from 0.")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
_SUMMARY_FIELDS = {
    *("id", "first_seq", "last_seq", "messages", "first_id", "last_id", "level", "text", "model", "prompt_version"),
    *("tokens", "created_at"),
}
_SESSION_TYPES: Mapping[str, Any] = {
    "user_id": str | None,
    "title": str | None,
    "tags": list,
    "metadata": dict,
    "active": bool,
    "reset_seq": int,
    "created_at": str | None,
    "updated_at": str | None,
    "archived_seq": int,
    "deleted_seq": int,
    "retention": dict | None,
    "parent_session_id": str | None,
    "parent_seq": int | None,
    "agent": str | None,
    "namespace": list,
    "meta_key_suffix": str,
    "value_field": str,
}


def _time(name: str, text: object) -> datetime:
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError as error:
        raise InvalidInput(f"{name} is a time in ISO 8601 with a time zone.") from error
    if moment is None or moment.tzinfo is None:
        raise InvalidInput(f"{name} is a time in ISO 8601 with a time zone.")
    _check_year(moment)
    return moment


def _check_year(moment: datetime | None) -> None:
    """Reject the years 1 and 9999, because their times may be out of range when converted to UTC."""
    if moment is not None and not 1 < moment.year < 9999:
        raise InvalidInput("A time is in one of the years 2 to 9998.")


def _sorted(metadata: Mapping[str, Json]) -> Json:
    """Return metadata with sorted keys: PostgreSQL does not keep their order, and exports must be reproducible."""
    if not metadata:
        return {}
    ordered: Json = json.loads(json.dumps(dict(metadata), ensure_ascii=False, sort_keys=True))
    return ordered
