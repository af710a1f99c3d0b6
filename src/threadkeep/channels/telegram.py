"""Telegram: verification of webhooks, and parsing of Bot API updates into messages."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from threadkeep.channels.contract import (
    Callback,
    ChatMigrated,
    Ignored,
    IncomingMessage,
    Received,
    Sender,
    Update,
    check_name,
    complete,
    id_in,
    list_in,
    number_in,
    object_in,
    read_json,
    text_in,
    time_in,
)
from threadkeep.channels.formatting import split_markdown, utf16_length
from threadkeep.errors import CallbackRefused, InvalidInput
from threadkeep.observe import UpdateReason
from threadkeep.records import Json

type UpdateKind = Literal[
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "callback_query",
    "inline_query",
    "my_chat_member",
    "chat_member",
    "chat_join_request",
]
type ChatType = Literal["private", "group", "supergroup", "channel"]

UPDATE_KINDS: tuple[UpdateKind, ...] = get_args(UpdateKind.__value__)
MAX_MESSAGE = 4096
"""The maximum number of UTF-16 units of a message, without its markup."""

PARSER = "telegram_events_parser"
SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - the name of the header

ADDRESS = ("chat_id", "message_id", "message_thread_id")
"""The ids of a message that are part of its answer's address."""
_WORDS = frozenset({"text", "caption"})
_MEDIA = frozenset(
    {"animation", "audio", "checklist", "contact", "dice", "document", "game", "live_photo", "location", "paid_media"}
    | {"photo", "poll", "rich_message", "sticker", "story", "venue", "video", "video_note", "voice"}
)

_TOKEN = re.compile(r"([0-9]{1,20}):[A-Za-z0-9_-]{1,256}")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")
_USERNAME = re.compile(r"[A-Za-z0-9_]{1,64}")


@dataclass(frozen=True, kw_only=True)
class TelegramOptions:
    """Options of a Telegram bot.

    `secret` is the secret of the webhook; without it every callback is rejected. Updates of other kinds than
    `allowed_updates` and from other chats than `chat_types` are ignored. An allowed `edited_message` is processed as a
    new message. In a group, the bot accepts commands, replies to the bot's messages, and messages that mention
    `username`. If `group_messages` is `all` or the `username` is not known yet, it accepts everything.
    """

    name: str
    token: str = field(repr=False)
    secret: str = field(default="", repr=False)
    username: str = ""
    allowed_updates: tuple[UpdateKind, ...] = ("message",)
    chat_types: tuple[ChatType, ...] = ("private", "group", "supergroup")
    group_messages: Literal["addressed", "all"] = "addressed"

    def __post_init__(self) -> None:
        """Raise `InvalidInput` if an option is invalid. The error names the option, but never a secret."""
        check_name(self.name)
        if not _TOKEN.fullmatch(self.token):
            raise InvalidInput("A Telegram token consists of digits, a colon and a key; copy it from @BotFather.")
        if self.secret and not _SECRET.fullmatch(self.secret):
            raise InvalidInput("A webhook's secret is 1 to 256 of A-Z, a-z, 0-9, _ and -; choose another one.")
        if self.username and not _USERNAME.fullmatch(self.username):
            raise InvalidInput("A bot's username has only letters, digits and _; write it without the @.")

    @property
    def bot_id(self) -> str:
        """The bot's id: the digits of the token before the colon."""
        return self.token.partition(":")[0]


class TelegramChannel:
    """A Telegram bot. `TelegramClient` sets the `username` if none is configured."""

    kind: Literal["telegram"] = "telegram"

    def __init__(self, options: TelegramOptions) -> None:
        self.name = options.name
        self.options = options
        self.username = options.username

    @property
    def scope(self) -> str:
        """The bot's id on the platform."""
        return f"telegram:{self.options.bot_id}"

    def receive(self, callback: Callback) -> Received:
        """Verify the secret of a webhook and parse its update."""
        given = callback.header(SECRET_HEADER)
        if not given or not self.options.secret or callback.method != "POST":
            raise CallbackRefused("signature_missing")
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self.options.secret.encode()):
            raise CallbackRefused("signature_wrong")
        return Received(updates=(self.read_update(read_json(callback.body)),))

    def read_update(self, update: Json) -> Update:
        """Parse an update from a webhook or from `getUpdates`."""
        fields = object_in(update)
        kind = next((kind for kind in UPDATE_KINDS if object_in(fields, kind)), None)
        if kind is None:
            return Ignored("kind" if fields else "malformed")
        event = object_in(fields, kind)
        # The message with the button is from the bot; the event names the person who pressed the button.
        message = object_in(event, "message") if kind == "callback_query" else event
        if migrated := _migration(message):
            return migrated
        if reason := self._reason_to_ignore(kind, event, message):
            return Ignored(reason)
        update_id = number_in(fields, "update_id")
        return Ignored("incomplete") if update_id is None else self._message(kind, update_id, event, message)

    def split(self, text: str) -> tuple[str, ...]:
        """Split an answer into parts of at most 4,096 UTF-16 units, with complete code blocks."""
        return split_markdown(text, MAX_MESSAGE, size=utf16_length)

    def _reason_to_ignore(
        self, kind: UpdateKind, event: Mapping[str, Json], message: Mapping[str, Json]
    ) -> UpdateReason | None:
        if kind not in self.options.allowed_updates:
            return "kind"
        chat = object_in(message, "chat")
        # All people who write to a channel share its chat of direct messages, and would share a session.
        if chat.get("is_direct_messages") is True or text_in(chat, "type") not in self.options.chat_types:
            return "chat_type"
        if _sender_of(event).get("is_bot") is True:
            return "from_bot"
        # Ignore service messages, such as a new member, and moves of a live location.
        known = _WORDS if kind.startswith("edited_") else _WORDS | _MEDIA
        return None if kind == "callback_query" or not known.isdisjoint(message) else "kind"

    def _message(
        self, kind: UpdateKind, update_id: int, event: Mapping[str, Json], message: Mapping[str, Json]
    ) -> IncomingMessage | Ignored:
        text = text_in(event, "data") if kind == "callback_query" else self._text(message)
        if text is None:
            return Ignored("not_addressed")
        sender = _sender(_sender_of(event))
        fields = self._fields(kind, event, message, text)
        address = {name: fields[name] for name in ADDRESS if name in fields}
        # Telegram sends each picture of an album as a message. Pictures without text share one id and one answer.
        album = id_in(message, "media_group_id")
        metadata: dict[str, Json] = {"channel": self.name, "platform_message_id": fields["message_id"]}
        if sender is not None:
            metadata |= {"sender_id": sender.id, "sender_name": sender.name}
        if kind == "callback_query":
            address["callback_query_id"] = id_in(event, "id")
            sent_at = None  # the time of a button press is unknown
        else:
            sent_at = time_in(message, "edit_date") or time_in(message, "date")
        if kind.startswith("edited_"):
            metadata["edited"] = True
        return complete(
            IncomingMessage(
                message_id=f"telegram:{self.options.bot_id}:{f'album:{album}' if album and not text else update_id}",
                text=text,
                results={PARSER: fields},
                reply_to=address,
                sender=sender,
                sent_at=sent_at,
                metadata=metadata,
                quoted_text=_quoted(message),
                private=fields["chat_type"] == "private",
                album=album,
            )
        )

    def _fields(
        self, kind: UpdateKind, event: Mapping[str, Json], message: Mapping[str, Json], text: str
    ) -> dict[str, Json]:
        """Return the fields of an update that the templates of a workflow can use."""
        chat, person = object_in(message, "chat"), _sender_of(event)
        fields: dict[str, Json] = {
            "bot_id": self.options.bot_id,
            "chat_id": id_in(chat, "id"),
            "chat_type": text_in(chat, "type"),
            "user_id": id_in(person, "id"),
            "username": _name(person),
            "text": text,
            "message_id": id_in(message, "message_id"),
            "update_type": kind,
            "should_process": bool(text),
        }
        # Do not use the thread id of other messages: replies in a group without topics have one, too.
        if message.get("is_topic_message") is True:
            fields["message_thread_id"] = id_in(message, "message_thread_id")
        return fields

    def _text(self, message: Mapping[str, Json]) -> str | None:
        """Return the text or caption without the bot's name, if the message is for the bot."""
        in_group = text_in(object_in(message, "chat"), "type") in ("group", "supergroup")
        name = "text" if text_in(message, "text") else "caption"
        entities = list_in(message, "entities" if name == "text" else "caption_entities")
        units = text_in(message, name).encode("utf-16-le", "surrogatepass")
        asked_by_name = False
        for start, end in sorted(self._own_names(entities, units, in_group=in_group), reverse=True):
            asked_by_name = True
            units = units[:start] + units[end:]
        text = units.decode("utf-16-le", "surrogatepass").strip()
        if not in_group:
            return text
        command = text.startswith("/")
        if command and self.username and "@" in text.split(maxsplit=1)[0]:
            return None  # a command for another bot
        takes_all = self.options.group_messages == "all" or not self.username
        answered = object_in(message, "reply_to_message")
        # In a topic, Telegram marks even plain messages as replies, to the service message that created the topic.
        answers_bot = id_in(object_in(answered, "from"), "id") == self.options.bot_id
        answers_bot &= "forum_topic_created" not in answered
        return text if takes_all or asked_by_name or command or answers_bot else None

    def _own_names(self, entities: Sequence[Json], units: bytes, *, in_group: bool) -> Iterator[tuple[int, int]]:
        """Yield the UTF-16 byte ranges of the bot's name in a text."""
        own_name = f"@{self.username}".lower() if self.username else None
        for entity in entities:
            fields = object_in(entity)
            offset, length = number_in(fields, "offset"), number_in(fields, "length")
            if offset is None or length is None or offset < 0 or length < 1 or 2 * (offset + length) > len(units):
                continue
            start, end = 2 * offset, 2 * (offset + length)
            named = units[start:end].decode("utf-16-le", "replace")
            kind = text_in(fields, "type")
            if kind == "bot_command" and own_name and named.lower().endswith(own_name):
                yield end - 2 * len(own_name), end
            elif in_group and (
                (kind == "mention" and named.lower() == own_name)
                or (kind == "text_mention" and id_in(object_in(fields, "user"), "id") == self.options.bot_id)
            ):
                yield start, end + 2 if units[end : end + 2] == b" \0" else end


def in_chat(message: IncomingMessage, chat_id: str) -> IncomingMessage:
    """Return the message with another `chat_id` in its session key. The answer's address stays."""
    return replace(message, results={PARSER: {**object_in(message.results, PARSER), "chat_id": chat_id}})


def _migration(message: Mapping[str, Json]) -> ChatMigrated | None:
    """Return the old and the new id of a chat if the message announces a change, otherwise None."""
    here = id_in(object_in(message, "chat"), "id")
    new, old = id_in(message, "migrate_to_chat_id"), id_in(message, "migrate_from_chat_id")
    if here and new:
        return ChatMigrated(here, new)
    return ChatMigrated(old, here) if here and old else None


def _sender_of(event: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the sender of an event or, for an anonymous administrator, the chat."""
    user, chat = object_in(event, "from"), object_in(event, "sender_chat")
    return chat if chat and user.get("is_bot") is True else user


def _sender(fields: Mapping[str, Json]) -> Sender | None:
    user_id = id_in(fields, "id")
    return Sender(f"telegram:{user_id}", _name(fields)) if user_id else None


def _name(fields: Mapping[str, Json]) -> str:
    return text_in(fields, "first_name") or text_in(fields, "title") or text_in(fields, "username")


def _quoted(message: Mapping[str, Json]) -> str:
    """Return the text that a message replies to: the part that its sender has quoted, or else the whole text."""
    answered = object_in(message, "reply_to_message")
    return text_in(object_in(message, "quote"), "text") or text_in(answered, "text") or text_in(answered, "caption")
