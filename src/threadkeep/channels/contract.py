"""The interface of a chat platform: a channel reads the platform's callbacks, and a client sends answers.

A `Channel` verifies callbacks, parses them into updates, and splits answers into messages, without I/O. A
`ChannelClient` calls the platform's API with `request`. The functions at the end read a platform's JSON; they treat a
field of an unexpected type as missing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol
from urllib.parse import unquote

import httpx2

from threadkeep.boundary import retry_after
from threadkeep.errors import InvalidInput
from threadkeep.history.keys import KEY_CANDIDATES, resolve_key
from threadkeep.observe import Channel as ChannelKind
from threadkeep.observe import UpdateReason
from threadkeep.records import Json
from threadkeep.records.messages import Role

LONGEST_DEMAND_SECONDS = 86_400.0
"""The longest pause that a platform may demand."""

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_unlogged: ContextVar[bool] = ContextVar("unlogged", default=False)
# httpx2 logs each URL at INFO, and programs that embed Threadkeep may log at that level.
logging.getLogger("httpx2").addFilter(lambda record: not _unlogged.get())


@dataclass(frozen=True, kw_only=True)
class Callback:
    """An HTTP request from a platform: the raw query and the exact bytes of the body."""

    method: Literal["GET", "POST"]
    received_at: datetime
    query: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)

    def header(self, name: str) -> str:
        """Return the header with a case-insensitive name, or an empty string if it is missing."""
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), "")

    def parameter(self, name: str) -> str:
        """Return a query parameter, decoded once, or an empty string if it is missing.

        A `+` stays a `+`, because the values of WeCom are base64, and some servers send them unencoded.
        """
        for pair in self.query.split("&"):
            key, _, value = pair.partition("=")
            if unquote(key) == name:
                return unquote(value)
        return ""


@dataclass(frozen=True)
class CallbackResponse:
    """The body of a response to a callback; the status is 200."""

    body: bytes = b""
    media_type: str = "text/plain"


@dataclass(frozen=True)
class Sender:
    """The person who wrote a message. `id` is unique on the platform, and begins with the channel's kind."""

    id: str
    name: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class IncomingMessage:
    """A message that a person sent in a chat with a bot.

    - `message_id`: stays the same if the platform sends the message again.
    - `results`: the fields of the message that a workflow's templates can use.
    - `reply_to`: the address of the answer, as JSON that the outbox stores; it may contain secrets.
    - `sent_at`: the platform's time; None if it is unknown.
    - `quoted_text`: the text to which the message replies; it is not part of the transcript.
    - `private`: True if the chat has only one person.
    - `wants_answer`: False if the message is stored, but starts no run.
    - `album`: the id of the album that the message is part of; empty if there is none.
    """

    message_id: str
    text: str = field(repr=False)
    results: Mapping[str, Json] = field(repr=False)
    reply_to: Mapping[str, Json] = field(repr=False)
    sender: Sender | None = None
    sent_at: datetime | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict, repr=False)
    quoted_text: str = field(default="", repr=False)
    private: bool = False
    role: Role = "user"
    wants_answer: bool = True
    album: str = ""

    @property
    def session_id(self) -> str:
        """The id of the session, built from fields such as the chat's id; empty if one of these fields is missing."""
        return resolve_key(KEY_CANDIDATES, {"results": self.results}).key or ""

    @property
    def user_id(self) -> str | None:
        """The owner of the session: the sender in a private chat, or None for a group."""
        return self.sender.id if self.private and self.sender is not None else None


@dataclass(frozen=True)
class Ignored:
    """An update from a platform that starts no run. `message` is set only if it is a message without text."""

    reason: UpdateReason
    message: IncomingMessage | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ChatMigrated:
    """The change of a Telegram group into a supergroup. The session id keeps the old chat id."""

    old_chat_id: str
    new_chat_id: str


@dataclass(frozen=True)
class DeskNotified:
    """A notice that a WeCom customer service desk has messages to fetch. The token is valid for 10 minutes."""

    open_kf_id: str
    token: str = field(repr=False)


@dataclass(frozen=True)
class MessageRecalled:
    """A message that its sender took back. `user_id` is the owner of the session."""

    session_id: str
    message_id: str
    user_id: str


@dataclass(frozen=True)
class AnswerFailed:
    """A part of an answer that the platform first accepted and then could not deliver.

    `sent_id` is the id of the sent part, `address` the address for sending it again.
    """

    session_id: str
    sent_id: str
    error: str
    address: Mapping[str, Json] = field(repr=False)


@dataclass(frozen=True)
class StreamRefresh:
    """WeCom's request for the current text of an AI bot's answer. WeCom shows the text while it grows."""

    stream_id: str


@dataclass(frozen=True)
class ChatEntered:
    """A notice that a person opened the chat with a WeCom AI bot. The response may welcome the person."""

    session_id: str


type Update = (
    IncomingMessage
    | Ignored
    | ChatMigrated
    | DeskNotified
    | MessageRecalled
    | AnswerFailed
    | StreamRefresh
    | ChatEntered
)


@dataclass(frozen=True)
class Received:
    """The content of a verified callback: the HTTP response to return, and the parsed updates in order."""

    response: CallbackResponse = CallbackResponse()
    updates: tuple[Update, ...] = ()


class Channel(Protocol):
    """A bot of one platform, configured with its secrets.

    Guarantees:

    - Before `receive` parses more than the envelope of a callback, it verifies the exact bytes in constant time.
    - After verification, `receive` raises no error: an update that it cannot interpret is `Ignored`.
    - An `IncomingMessage` has a text that is not blank. Its `session_id` and `message_id` are the same each time that
      the platform sends it.
    - Errors and the `repr` of records contain no secrets and no text of a message.
    """

    @property
    def kind(self) -> ChannelKind:
        """The platform's name. It is a label of the metrics and the first part of each session id."""

    @property
    def name(self) -> str:
        """The bot's configured name. It is also the last part of the path of the bot's callback URL."""

    @property
    def scope(self) -> str:
        """The bot's identity on its platform. Polling offsets and access tokens are stored under this name."""

    def receive(self, callback: Callback) -> Received:
        """Verify that a callback is from the platform, and parse it.

        Raises:
            CallbackRefused: the callback is not from the platform, is too old or is unreadable; the response is 403.
        """

    def split(self, text: str) -> tuple[str, ...]:
        """Split an answer into the texts of its messages. A blank answer has none."""


def check_name(name: str) -> None:
    """Reject a bot's name that cannot be part of a URL path.

    Raises:
        InvalidInput: the name is not valid.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            "A channel's name has 1 to 64 of a-z, 0-9, _ and -, and begins with a letter or digit; rename it."
        )


def complete(message: IncomingMessage) -> IncomingMessage | Ignored:
    """Return the message if it can be answered, otherwise an `Ignored` with the reason."""
    if not message.session_id:
        return Ignored("incomplete")
    return message if message.text.strip() else Ignored("no_text", message)


def message_in(update: Update) -> IncomingMessage | None:
    """Return the message of an update, also if the message is ignored because it has no text."""
    message = update.message if isinstance(update, Ignored) else update
    return message if isinstance(message, IncomingMessage) else None


def stored_message(message: IncomingMessage) -> str:
    """Serialize a message as JSON, with an empty `reply_to`: the address of the answer is stored separately."""
    fields = {**vars(message), "sent_at": message.sent_at and message.sent_at.isoformat(), "reply_to": {}}
    return json.dumps({**fields, "sender": message.sender and vars(message.sender)})


def restored_message(stored: str, address: Address) -> IncomingMessage:
    """Restore a message from its JSON, with `address` as its `reply_to`."""
    fields = json.loads(stored)
    fields["sender"] = fields["sender"] and Sender(**fields["sender"])
    fields["sent_at"] = fields["sent_at"] and datetime.fromisoformat(fields["sent_at"])
    return IncomingMessage(**{**fields, "reply_to": address})


type Address = Mapping[str, Json]
type Account = Mapping[str, Json]


@dataclass(frozen=True)
class Part:
    """A part of an answer that fits into one message.

    `key` is the same for each attempt, so that platforms can drop duplicates. Parts are numbered from 0; only the first
    is sent as a reply to the message. `first` is above 0 if a person retries an answer from this part on, in the first
    attempt after the retry. If `again` is True, the part may have been sent before.
    """

    text: str = field(repr=False)
    key: str
    number: int = 0
    first: int = 0
    last: bool = True
    again: bool = False

    @property
    def sent_id(self) -> str:
        """A hash of `key`, 32 characters long, for platforms that allow only short ids."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Sent:
    """An outcome of sending a part: the part has arrived. If `is_all` is True, the platform accepts no further part."""

    is_all: bool = False


@dataclass(frozen=True)
class Later:
    """An outcome of sending a part: the part must be sent again, after `seconds` if the platform named a time.

    If `uncertain` is True, the part may have arrived: it was sent, but no clear reply came.
    """

    error: str
    seconds: float | None = None
    uncertain: bool = False


@dataclass(frozen=True)
class Refused:
    """An outcome of sending a part: the part can never be delivered, for example to a person who blocked the bot."""

    error: str


@dataclass(frozen=True)
class Moved:
    """An outcome of sending a part: the chat has a new address, to which the part must be sent."""

    address: Address = field(repr=False)


type Outcome = Sent | Later | Refused | Moved


class ChannelClient(Protocol):
    """A client of a platform for one bot. Failures are returned, never raised."""

    @property
    def can_send(self) -> bool:
        """False if the client can send only over a long connection to the platform, and has none now."""
        return True

    async def send(self, address: Address, part: Part) -> Outcome:
        """Send one part of an answer to a chat, and return the outcome."""

    async def show_working(self, address: Address) -> None:
        """Show the person that the bot is working. By default, do nothing: not every platform can show it."""
        return

    async def account(self) -> Account | str:
        """Return the platform's data about the bot, or the name of an error. By default, there is no data."""
        return {}


@dataclass(frozen=True)
class Response:
    """A platform's response to a call. If the call failed, `error` names the problem; otherwise it is empty.

    `code` is the status of Telegram or the `errcode` of WeCom, and None if no readable response arrived. If `uncertain`
    is True, the call may have been executed. `retry_after` is the pause in seconds, from 1 to 86,400, that the platform
    or a proxy demands.
    """

    code: int | None = None
    fields: Mapping[str, Json] = field(default_factory=dict, repr=False)
    error: str = ""
    uncertain: bool = False
    retry_after: float | None = None


async def request(
    http: httpx2.AsyncClient,
    verb: Literal["GET", "POST"],
    url: str,
    *,
    seconds: float,
    query: Mapping[str, str] | None = None,
    values: Mapping[str, Json] | None = None,
) -> Response:
    """Call a platform's API, for at most `seconds`. `code` in the response is the HTTP status.

    The request is not logged, because its URL contains secrets.
    """
    token = _unlogged.set(True)
    try:
        async with asyncio.timeout(seconds):  # httpx limits only the time between two bytes
            # Give up a connection before the whole time is over.
            limits = httpx2.Timeout(seconds, connect=seconds / 2, pool=seconds / 2)
            response = await http.request(verb, url, params=query, json=values, timeout=limits)
    except (httpx2.HTTPError, TimeoutError) as error:
        return Response(error=type(error).__name__, uncertain=not isinstance(error, _NOT_SENT))
    finally:
        _unlogged.reset(token)
    pause = retry_after(response.headers, longest=LONGEST_DEMAND_SECONDS)
    fields, status = object_in(read_json(response.content)), response.status_code
    return Response(status, fields, uncertain=status >= 500, retry_after=pause)


def read_json(text: str | bytes) -> Json:
    """Return the JSON value of a text, or None if it is not JSON."""
    try:
        value: Json = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return value


def object_in(value: Json, *names: str) -> Mapping[str, Json]:
    """Return the object at a path of field names in a JSON value, or an empty object."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def list_in(fields: Mapping[str, Json], name: str) -> Sequence[Json]:
    """Return the list in a field of a JSON object, or an empty list."""
    value = fields.get(name)
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def text_in(fields: Mapping[str, Json], name: str) -> str:
    """Return the text in a field of a JSON object, or an empty string."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def number_in(fields: Mapping[str, Json], name: str) -> int | None:
    """Return the integer in a field, or None if it is missing or needs more than 64 bits."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def id_in(fields: Mapping[str, Json], name: str) -> str:
    """Return the integer or text in a field as a string, or an empty string if it cannot be an id."""
    number = number_in(fields, name)
    text = text_in(fields, name) if number is None else str(number)
    return text if text.isprintable() and len(text) <= 256 else ""


def time_in(fields: Mapping[str, Json], name: str) -> datetime | None:
    """Return the time in a field that has the seconds since 1970 as an integer or a string; None if not valid."""
    text = id_in(fields, name)
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
    return datetime.fromtimestamp(seconds, UTC) if 0 < seconds < 253_402_300_800 else None
