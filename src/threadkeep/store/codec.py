"""Conversion between records and table columns: messages, sessions, times and cleaned text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from threadkeep.errors import InvalidMessage, RecordUnreadable
from threadkeep.records import Json, Message, Retention, SessionInfo, Turn, dump_json
from threadkeep.records.graphiti import CONSENT_VERSION
from threadkeep.store.compressed_json import json_of, reads_record
from threadkeep.store.driver import Backend, Row

WRONG_CLOCK_SECONDS = 1_800.0
"""The largest accepted difference between the clocks of two processes. No claim of a message may be longer."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIT = timedelta(microseconds=1)
_LAST_TIME = "9999-12-31T23:59:59.999999+00:00"


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def time_of(value: Any) -> Any:
    """Convert a time from either database (text, microseconds or datetime) to a datetime."""
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return _EPOCH + value * _UNIT if isinstance(value, int) else value


def in_utc(moment: datetime) -> datetime:
    """Convert a time from a request or a file to UTC; raise ValueError if its UTC year is not 1 to 9999."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time must be in the years 1 to 9999 of UTC; send another one") from None


def time_text(moment: datetime) -> str:
    """Return a time as UTC text of fixed width; such texts sort in the order of the times."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def cursor_parameters(cursor: tuple[datetime, str] | None, moment: str, name: str) -> dict[str, object]:
    """Return two statement parameters, named by `moment` and `name`, for a cursor. None selects the newest page."""
    before, last_name = cursor or (None, "~")
    return {moment: time_text(before) if before else _LAST_TIME, name: last_name}


def time_microseconds(moment: datetime) -> int:
    """Return a time in microseconds since 1970."""
    return (moment - _EPOCH) // _UNIT


def short_time(moment: datetime, backend: Backend) -> int | str:
    """Return a time for a compact column: microseconds for SQLite, text for PostgreSQL."""
    return (moment - _EPOCH) // _UNIT if backend == "sqlite" else time_text(moment)


_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")
# The pattern begins with a character set, because a pattern of plain alternatives takes nine times as long.
_UNKEEPABLE_JSON = re.compile(r"[\\\ud800-\udfff](?:(?<!\\)|u0000)")
_REPLACEMENT = "\ufffd"

TITLE_CHARACTERS = 50
LAST_MESSAGE_CHARACTERS = 100
_MARKS = 16  # the number of columns that `message_of` reads

_from_text = datetime.fromisoformat
_new = object.__new__
_set = object.__setattr__

type Counter = Callable[[str], int]


ERROR_KEY = "threadkeep:error"
"""The metadata key that marks a damaged session in a list."""

_ERASED_KEY = "threadkeep:erased"
ERASED = '{"threadkeep:erased":true}'
"""The stored metadata of an erased message. Such a message keeps its `seq` and `id`, but is empty and in no window."""


def shorten(text: str, characters: int) -> str:
    """Return the text; if it has more than `characters`, return its beginning and an ellipsis."""
    return text if len(text) <= characters else text[:characters] + "…"


def listed_texts(messages: Sequence[Message]) -> tuple[str | None, str | None]:
    """Return a session's title (its first user text) and its last text, shortened; None if there is no such text."""
    texts = [message.content for message in messages if message.content]
    asked = [message.content for message in messages if message.content and message.role == "user"]
    last = shorten(texts[-1], LAST_MESSAGE_CHARACTERS) if texts else None
    return shorten(asked[0], TITLE_CHARACTERS) if asked else None, last


def clean_text(text: str) -> str:
    """Return the text with characters that databases cannot store (NUL, lone surrogates) replaced by U+FFFD."""
    return text if text.isascii() and "\x00" not in text else _UNKEEPABLE.sub(_REPLACEMENT, text)


def clean_json[J: Json](value: J) -> J:
    """Return a JSON value with `clean_text` applied to all its texts; the same object if nothing is replaced."""
    if not value or not (isinstance(value, str) or _UNKEEPABLE_JSON.search(dump_json(value))):
        return value
    # Compare the values, because the match may be a text that only looks like an escape sequence.
    cleaned = _clean_inside(value)
    return value if cleaned == value else cast("J", cleaned)


def json_text(value: Json) -> str:
    """Return a value as JSON text; characters that databases cannot store are replaced."""
    return clean_json_text(dump_json(value))


def clean_json_text(text: str) -> str:
    """Return JSON text with characters replaced that databases cannot store; the same text if there are none."""
    # ASCII text without a backslash needs no replacement; this test is a hundred times as fast as the pattern.
    if (text.isascii() and "\\" not in text) or not _UNKEEPABLE_JSON.search(text):
        return text
    return dump_json(_clean_inside(json.loads(text)))


def _clean_inside(value: Json) -> Json:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(key): _clean_inside(inner) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_clean_inside(inner) for inner in value]
    return value


def clean_message(message: Message) -> Message:
    """Return a message with `clean_text` applied to its texts; the same object if nothing is replaced."""
    content = clean_text(message.content)
    metadata = clean_json(message.metadata) if message.metadata else message.metadata
    original = clean_json(message.original) if message.original else message.original
    if content is message.content and metadata is message.metadata and original is message.original:
        return message
    return replace(message, content=content, metadata=metadata, original=original)


def identified(message: Message) -> Message:
    """Return the message; if it has no id, return a copy with a new id, without validating the fields again."""
    if message.id is not None:
        return message
    from langchain_core.utils.uuid import uuid7  # this import loads pydantic, which reading does not need

    copy = _new(Message)
    _set(copy, "__dict__", {**message.__dict__, "id": str(uuid7())})
    return copy


def message_parameters(message: Message, *, count: Counter, now: str) -> dict[str, object]:
    """Return the parameters of the statement `insert_message`, except `session_id` and `seq`."""
    metadata = dump_json(dict(message.metadata)) if message.metadata else "{}"
    return {
        "id": message.id,
        "role": message.role,
        "content": message.content,
        "tokens": count(message.content) if message.tokens is None else message.tokens,
        "status": "complete" if message.status == "erased" else message.status,
        "confidence": None if message.confidence is None else float(message.confidence),
        "escalated": message.escalated,
        "run_id": message.run_id,
        "metadata": ERASED if message.status == "erased" else metadata,
        "original": None if message.original is None else dump_json(message.original),
        "sent_at": message.sent_at and time_text(message.sent_at),
        "created_at": now,
        "author": message.author,
        "answers": message.answers,
        "ordinal": message.ordinal,
        "told_at": None,
    }


def marks_of(message: Message) -> dict[str, object]:
    """Return the values of the columns that mark a message as superseded."""
    return {
        "superseded_at": message.superseded_at and time_text(message.superseded_at),
        "superseded_by": message.superseded_by,
    }


def message_of(row: Row) -> Message:
    """Return the message in a row.

    Messages are validated when they are written, but not here, because every model call reads many of them.
    """
    (
        seq, id_, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at,
        author, answers, ordinal,
    ) = row[:_MARKS]  # fmt: skip
    message = _new(Message)
    _set(
        message,
        "__dict__",
        {
            "role": role,
            "content": content,
            "id": id_,
            "seq": seq,
            "sent_at": None if sent_at is None else time_of(sent_at),
            # Parse a text here, not in `time_of`: this saves a function call for each message of a window.
            "created_at": _from_text(created_at) if created_at.__class__ is str else time_of(created_at),
            "tokens": tokens,
            "status": status,
            "confidence": confidence,
            "escalated": escalated == 1,
            "run_id": run_id,
            "metadata": {} if metadata == "{}" else json.loads(metadata),
            "original": None if original is None else json.loads(original),
            "author": author,
            "answers": answers,
            "ordinal": ordinal,
            "superseded_at": None,
            "superseded_by": None,
        },
    )
    return message


def marked_message_of(row: Row) -> Message:
    """Return the message in a row that also has the columns `superseded_at` and `superseded_by`, in this order."""
    message = message_of(row)
    if (superseded_at := row[_MARKS]) is not None:
        superseded_by = row[_MARKS + 1]
        message.__dict__.update(superseded_at=time_of(superseded_at), superseded_by=superseded_by)
        if _ERASED_KEY in message.metadata:
            message.__dict__.update(status="erased", metadata={})
    return message


# The columns of the statement `session`, in order.
_SESSION_COLUMNS = (
    "session_id", "user_id", "title", "last_message", "message_count", "last_seq", "reset_seq", "archived_seq",
    "deleted_seq", "retention", "active", "tags", "metadata", "created_at", "updated_at", "revision",
    "parent_session_id", "parent_seq", "agent",
)  # fmt: skip


def session_of(row: Row, *, damaged: bool = False) -> SessionInfo:
    """Return the session in a row of the statement `session`.

    If the session cannot be read and `damaged` is true, return it without the damaged columns. Its metadata then have
    the entry `threadkeep:error` with the value `RecordUnreadable`.

    Raises:
        RecordUnreadable: `damaged` is false, and the session cannot be read; the error names the session.
    """
    values: dict[str, Any] = dict(zip(_SESSION_COLUMNS, row, strict=True))
    for name in ("created_at", "updated_at"):
        values[name] = time_of(values[name])
    values["active"] = bool(values["active"])
    mark: dict[str, Json] = {}
    for name, (read, empty) in _SESSION_READERS.items():
        try:
            values[name] = read(values[name])
        except RecordUnreadable as error:
            if not damaged:
                raise RecordUnreadable(f"The session {values['session_id']} cannot be read. {error}") from None
            values[name], mark = empty, {ERROR_KEY: RecordUnreadable.__name__}
    return SessionInfo(**{**values, "metadata": {**values["metadata"], **mark}})


@reads_record
def _tags_of(text: str) -> tuple[str, ...]:
    tags = json_of(text, list)
    if not all(isinstance(tag, str) for tag in tags):
        raise TypeError
    return tuple(tags)


@reads_record
def retention_of(text: str | None) -> Retention | None:
    """Return a session's own limits for archiving and deleting messages, from its column `retention`."""
    return None if text is None else Retention.from_dict(json_of(text))


_SESSION_READERS: Mapping[str, tuple[Callable[[str], Any], Any]] = {
    "tags": (_tags_of, ()),
    "metadata": (lambda text: json_of(text, dict), {}),
    "retention": (retention_of, None),
}


def session_parameters(turn: Turn, messages: list[Message], *, now: str) -> dict[str, object]:
    """Return the parameters of `reserve`, which reserves `seq` values for messages of one session."""
    asked = [position for position, message in enumerate(messages, start=1) if message.role == "user"]
    parent_session_id, agent = turn.parent or (None, None)
    title, last_message = listed_texts(messages)
    return {
        "session_id": turn.session_id,
        "user_id": turn.user_id,
        "title": title,
        "last_message": last_message,
        "added": len(messages),
        "newest_user": asked[-1] if asked else 0,
        "now": now,
        "parent_session_id": parent_session_id,
        "agent": agent,
    }


@dataclass(frozen=True)
class Prepared:
    """Messages to store, with their column values. `cleaned`: the ids of messages in which characters were replaced."""

    messages: list[Message]
    columns: list[dict[str, object]]
    cleaned: tuple[str, ...] = ()


def prepare_turn(turn: Turn, *, count: Counter, now: str) -> Prepared:
    """Prepare the messages of a turn for storing; set the column `told_at` of answers that are returned to a caller.

    Raises:
        InvalidMessage: the turn has no messages, or one of them cannot be stored.
    """
    ready = prepare(turn.messages, count=count, stored_at=now)
    answers = {(one.answer_key, one.id) for one in ready.messages if len(ready.messages) > 1 and one.answer_key}
    if len(answers) > len({key for key, _ in answers}):
        raise InvalidMessage("An append has two complete answers of one author to a question; set different ordinals.")
    if turn.told or turn.told_at is not None:
        told_at = now if turn.told_at is None else time_text(turn.told_at)
        for message, columns in zip(ready.messages, ready.columns, strict=True):
            columns["told_at"] = told_at if message.role == "assistant" else None
    return ready


def prepare(messages: Sequence[Message], *, count: Counter, stored_at: str | Callable[[Message], str]) -> Prepared:
    """Prepare messages for storing. `stored_at` is the time for all of them, or returns the time for each message.

    Raises:
        InvalidMessage: there are no messages, or one of them cannot be stored.
    """
    if not messages:
        raise InvalidMessage("A turn needs at least one message.")
    kept: list[Message] = []
    cleaned: list[str] = []
    for given in messages:
        with_id = identified(given)
        message = clean_message(with_id)
        if message is not with_id:
            cleaned.append(str(message.id))
        kept.append(message)
    times = [stored_at if isinstance(stored_at, str) else stored_at(message) for message in kept]
    columns = [message_parameters(one, count=count, now=now) for one, now in zip(kept, times, strict=True)]
    return Prepared(kept, columns, tuple(cleaned))


@dataclass(frozen=True)
class GraphTurns:
    """A factory of rows that queue turns to be sent to Graphiti. A turn without a complete answer gets no row.

    `workspace` is the default for turns without a workspace. The database stores a row only if there is consent to send
    data to `endpoint`.
    """

    endpoint: str
    workspace: str | None = None

    def row(self, turn: Turn, messages: Sequence[Message], *, now: str) -> dict[str, object] | None:
        """Return the columns of the row for a turn, except the `seq` values; None if it has no complete answer."""
        if not any(message.role == "assistant" and message.status == "complete" for message in messages):
            return None
        workspace = turn.workspace or self.workspace
        return {
            "session_id": turn.session_id,
            "workspace": None if workspace is None else clean_text(workspace),
            "endpoint": self.endpoint,
            "version": CONSENT_VERSION,
            "now": now,
        }
