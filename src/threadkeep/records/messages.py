"""Messages and turns, and the results of store calls with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from html import escape
from typing import Any, Literal, NamedTuple, get_args

from threadkeep.errors import InvalidMessage
from threadkeep.records.json_values import Json, as_json, dump_json, is_finite, is_whole

type Role = Literal["user", "assistant", "system"]
type Status = Literal["complete", "interrupted", "failed", "erased"]
type View = Literal["active", "history"]
"""`active`: the messages of a session without superseded ones; `history`: all messages."""

ROLES: tuple[str, ...] = get_args(Role.__value__)
STATUSES: tuple[str, ...] = get_args(Status.__value__)
SPEAKERS: tuple[Role, ...] = ("user", "assistant")
"""The roles that take part in a conversation; `system` messages are notes in the transcript."""

TAKEN_BACK = "recalled"
"""The metadata key of a note about a message that its author took back; its value is the message's id."""

MAX_ID_CHARACTERS = 512
_TIMES = ("sent_at", "created_at", "superseded_at")


@dataclass(frozen=True)
class Message:
    """A visible message of a session.

    `id` is the id on the platform where it was written; the store assigns one to a message without an id. `sent_at` is
    the platform's time. The store sets `seq` and `created_at`; it counts the tokens unless `tokens` is set. `original`
    is the full LangChain message as JSON, stored only if full fidelity is requested.

    `author` is the name of the person or agent that wrote the message. `answers` is the id of the question that an
    assistant's message answers, or the id of its run if there is no question. `ordinal` numbers the answers of one
    author to one question, from 1. A session has at most one active complete answer for each (`answers`, `author`,
    `ordinal`).

    From `superseded_at` on, the message is in no window and no search; `superseded_by` is the id of the message that
    replaces it. The store sets both; they are None for an active message.
    """

    role: Role
    content: str
    id: str | None = None
    seq: int | None = None
    sent_at: datetime | None = None
    created_at: datetime | None = None
    tokens: int | None = None
    status: Status = "complete"
    confidence: float | None = None
    escalated: bool = False
    run_id: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    original: Json = None
    author: str | None = None
    answers: str | None = None
    ordinal: int | None = None
    superseded_at: datetime | None = None
    superseded_by: str | None = None

    def __post_init__(self) -> None:
        """Reject a message that could not be stored and read back unchanged."""
        if self.role not in ROLES:
            raise InvalidMessage(f"A message's role is one of {', '.join(ROLES)}.")
        if not isinstance(self.content, str):
            raise InvalidMessage(f"A message's content is text (str), not {type(self.content).__name__}.")
        if self.status not in STATUSES:
            raise InvalidMessage(f"A message's status is one of {', '.join(STATUSES)}.")
        values = vars(self)
        for names, check in _CHECKS:
            for name in names:
                if (value := values[name]) is not None:
                    check(name, value)
        if self.confidence is not None and not is_finite(self.confidence):
            raise InvalidMessage("A message's confidence is a finite number or None.")
        if not isinstance(self.escalated, bool):
            raise InvalidMessage("A message's escalated is True or False.")
        self._take_json()

    def _take_json(self) -> None:
        if not isinstance(self.metadata, Mapping):
            raise InvalidMessage("A message's metadata is a mapping with text keys.")
        if self.metadata:
            object.__setattr__(self, "metadata", as_json(self.metadata))
        if self.original is not None:
            object.__setattr__(self, "original", as_json(self.original))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values; times are in ISO 8601, in UTC."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in _TIMES:
            if values[name] is not None:
                values[name] = values[name].astimezone(UTC).isoformat()
        values["metadata"] = dict(self.metadata)
        return values

    def to_json(self) -> str:
        """Return the message as one line of JSON; `from_json` restores it."""
        return dump_json(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Message:
        """Return the message with the fields in `values`, as `to_dict` returned them.

        Raises:
            InvalidMessage: a field is missing, unknown or of the wrong type.
        """
        if not isinstance(values, Mapping):
            raise InvalidMessage(f"A message is made from a mapping of its fields, not from {type(values).__name__}.")
        known = {f.name for f in fields(cls)}
        if set(values) - known:
            # Do not name the unknown fields in the error: their names may come from a person's text.
            raise InvalidMessage(f"A message has only the fields {', '.join(sorted(known))}.")
        if missing := {"role", "content"} - set(values):
            raise InvalidMessage(f"A message needs the field {min(missing)!r}.")
        given = dict(values)
        for name in _TIMES:
            if isinstance(given.get(name), str):
                given[name] = _parse_time(name, given[name])
        return cls(**given)

    @classmethod
    def from_json(cls, line: str) -> Message:
        """Return the message that `to_json` wrote.

        Raises:
            InvalidMessage: the line is not JSON, or not a message.
        """
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            # Suppress the cause, because the original error quotes the whole text.
            raise InvalidMessage("A message in JSON is one object; this is not JSON.") from None
        if not isinstance(values, dict):
            raise InvalidMessage(f"A message in JSON is one object, not a {type(values).__name__}.")
        return cls.from_dict(values)

    @property
    def answer_key(self) -> tuple[str, str | None, int] | None:
        """The question, author and ordinal, which together identify a complete answer; None for other messages."""
        if self.answers is None or self.status != "complete":
            return None
        return self.answers, self.author, self.ordinal or 1

    def with_fields(self, **changes: Any) -> Message:
        """Return a copy in which some fields have other values; the copy is validated."""
        return Message(**{**vars(self), **changes})


@dataclass(frozen=True)
class Turn:
    """The messages that one append stores, in one transaction.

    Attributes:
        answers: the id of the question; if this message is not in the session, the turn is not stored.
        told: True if a caller waits for the answer and gets it as soon as the turn is stored.
        told_at: the time at which a caller got the answer although the database was down.
        workspace: the workspace of the run; None if the run has none.
        parent: if the turn creates an agent's own conversation, the id of the session to which the conversation belongs
            and the agent's name. The conversation is deleted with this session.
        completes: the id of an incomplete message, which the turn's answer supersedes.
    """

    session_id: str
    messages: tuple[Message, ...]
    user_id: str | None = None
    answers: str | None = None
    told: bool = False
    told_at: datetime | None = None
    workspace: str | None = None
    parent: tuple[str, str] | None = None
    completes: str | None = None


@dataclass(frozen=True)
class Receipt:
    """The result of an append.

    Attributes:
        first_seq, last_seq: the `seq` of the first and last stored message, or of existing ones if all were duplicates.
        duplicates: the ids that were stored already.
        deleted: the duplicates whose messages have been deleted; they are not stored again.
        cleaned: the ids of messages in which U+FFFD replaces characters that databases reject (NUL, lone surrogates).
        adopted: the id of an earlier answer to the same question. The answer of this call was not stored, or was stored
            as superseded. If the earlier answer is still pending, `first_seq` and `last_seq` are 0.
    """

    first_seq: int
    last_seq: int
    duplicates: tuple[str, ...] = ()
    cleaned: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    adopted: str | None = None


@dataclass(frozen=True)
class Page:
    """A page of messages, oldest first. Pass `next_before` as `before` to read the next older page."""

    messages: tuple[Message, ...]
    next_before: int | None


class SearchHit(NamedTuple):
    """A message that a search found. A higher score is a better match, but only within the same search result."""

    session_id: str
    message: Message
    score: float


@dataclass(frozen=True)
class SearchResult:
    """The hits of a search, best first, and the data that it could not search.

    `unindexed` messages are not indexed yet. `damaged` sessions have items in the LangGraph store that cannot be read.
    """

    hits: list[SearchHit]
    unindexed: int = 0
    damaged: tuple[str, ...] = ()


def _check_id(name: str, value: object) -> None:
    if not isinstance(value, str) or not value or len(value) > MAX_ID_CHARACTERS:
        raise InvalidMessage(f"A message's {name} is text of 1 to {MAX_ID_CHARACTERS} characters, or None.")
    if not value.isprintable():
        raise InvalidMessage(f"A message's {name} has characters that cannot be printed.")


def _check_time(name: str, value: object) -> None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidMessage(f"A message's {name} is a datetime with a time zone, or None.")
    if not 1 < value.year < 9999:
        try:
            value.astimezone(UTC)
        except OverflowError:
            raise InvalidMessage(f"A message's {name} is before the year 1 or after the year 9999 in UTC.") from None


def _check_count(name: str, value: object) -> None:
    if not is_whole(value, 0):
        raise InvalidMessage(f"A message's {name} is a whole number from 0, or None.")


_CHECKS: tuple[tuple[tuple[str, ...], Callable[[str, object], None]], ...] = (
    (("id", "run_id", "author", "answers", "superseded_by"), _check_id),
    (_TIMES, _check_time),
    (("seq", "tokens", "ordinal"), _check_count),
)
"""The checks of fields that may be None, by field names."""


def _parse_time(name: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidMessage(f"A message's {name} is a time in ISO 8601 with a time zone.") from None


type OutboxStatus = Literal["waiting", "ready", "failed", "delivered", "dropped", "nothing"]
"""`waiting`: the run has not answered yet; `ready`: the answer can be sent; `nothing`: there is no answer to send."""

OUTBOX_STATUSES: tuple[OutboxStatus, ...] = get_args(OutboxStatus.__value__)
OPEN_STATUSES: tuple[OutboxStatus, ...] = ("waiting", "ready", "failed")
"""The statuses of undelivered answers: waiting for a run, ready to send, or failed."""

_CELL = 'style="text-align: left; vertical-align: top; white-space: pre-wrap"'
_MOST_CHARACTERS = 2_000


def session_html(session_id: str, user_id: str | None, messages: Iterable[Message] = (), *, note: str = "") -> str:
    """Return HTML that shows a session: its owner, some messages, and a note below them."""
    owner = "" if user_id is None else f", user <code>{escape(user_id)}</code>"
    return messages_html(f"Session <code>{escape(session_id)}</code>{owner}", messages, note=note)


def messages_html(title: str, messages: Iterable[Message], *, note: str = "") -> str:
    """Return an HTML table of messages. `title` is HTML, and `note` is plain text."""
    rows = "".join(_row(message) for message in messages)
    table = f"<table><thead><tr><th>seq</th><th>role</th><th>content</th></tr></thead><tbody>{rows}</tbody></table>"
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<div><p>{title}</p>{table if rows else ''}{below}</div>"


def _row(message: Message) -> str:
    content = message.content
    shown = content if len(content) <= _MOST_CHARACTERS else f"{content[:_MOST_CHARACTERS]}…"
    speaker = message.role if message.author is None else f"{message.role} {message.author}"
    status = "" if message.status == "complete" else f" ({message.status})"
    cells = ("" if message.seq is None else str(message.seq), speaker + status, shown)
    return "<tr>" + "".join(f'<td dir="auto" {_CELL}>{escape(cell)}</td>' for cell in cells) + "</tr>"
