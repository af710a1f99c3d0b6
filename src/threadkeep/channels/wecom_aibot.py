"""WeCom AI bots. WeCom sends JSON callbacks, and polls any process for the growing text of an answer."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from urllib.parse import urlsplit

from threadkeep.channels.bots import Bot
from threadkeep.channels.contract import (
    Callback,
    CallbackResponse,
    ChatEntered,
    Ignored,
    IncomingMessage,
    Received,
    Sender,
    StreamRefresh,
    Update,
    check_name,
    complete,
    id_in,
    list_in,
    object_in,
    read_json,
    text_in,
    time_in,
)
from threadkeep.channels.delivery import answer_text, notify_sent
from threadkeep.channels.formatting import split_markdown, utf8_length
from threadkeep.channels.wecom import WeComCrypto
from threadkeep.errors import RunNotFound, StoreError
from threadkeep.history.keys import KEY_CANDIDATES, resolve_key
from threadkeep.history.memory import Memory
from threadkeep.records import Json
from threadkeep.runs.service import Followed
from threadkeep.runs.streams import RunPiece
from threadkeep.store.outbox import Outgoing

MAX_MESSAGE_BYTES = 20_480
PARSER = "wecom_ai_bot_events_parser"
STREAM_TIME = timedelta(seconds=330)
"""The time for which an answer is streamed (WeCom allows 6 minutes). Later answers are sent separately."""

_HOST = ".weixin.qq.com"
_WRITE_SECONDS = 0.5
NOTHING = "…"
_MENTION = re.compile(r"@\S+(?:\s+|$)")


@dataclass(frozen=True, kw_only=True)
class WeComAIBotOptions:
    """Options of an AI bot.

    A group message begins with a mention of the bot, which is removed: `@bot_name`, or any mention if `bot_name` is
    empty. With a `bot_id`, callbacks for other bots are ignored. `receive_id` is empty for a company's own bot.
    Besides WeCom's addresses, answers may be sent to addresses below `api`. A bot with a `connection` needs no token
    and no key, and accepts no callbacks over HTTP.
    """

    name: str
    token: str = field(default="", repr=False)
    encoding_aes_key: str = field(default="", repr=False)
    connection: bool = False
    bot_id: str = ""
    bot_name: str = ""
    receive_id: str | None = ""
    api: str = ""

    def __post_init__(self) -> None:
        """Raise `InvalidInput` if the name is not valid."""
        check_name(self.name)


class WeComAIBotChannel:
    """The channel of a WeCom AI bot: it reads callbacks, and formats the responses to them."""

    kind: Literal["wecom_aibot"] = "wecom_aibot"

    def __init__(self, options: WeComAIBotOptions) -> None:
        self.name = options.name
        self.options = options
        token, key = options.token, options.encoding_aes_key
        if options.connection:
            # Use a random key, so that every callback over HTTP is rejected.
            token, key = secrets.token_hex(), base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        self._crypto = WeComCrypto(token, key, options.receive_id)

    @property
    def scope(self) -> str:
        """The bot's id, or its configured name if it has no id."""
        return f"wecom_aibot:{self.options.bot_id or self.name}"

    def receive(self, callback: Callback) -> Received:
        """Verify, decrypt and parse a callback. A message gets its response from `stream_response`."""
        opened = self._crypto.receive(callback, lambda body: text_in(object_in(read_json(body)), "encrypt"))
        if isinstance(opened, Received):
            return opened
        return Received(updates=(self.read(object_in(read_json(opened))),))

    def stream_response(self, stream_id: str, text: str, now: datetime, *, finished: bool) -> CallbackResponse:
        """Return the encrypted response with the whole text of an answer so far."""
        stream: Json = {"id": stream_id, "finish": finished, "content": text}
        return self._response({"msgtype": "stream", "stream": stream}, now)

    def welcome_response(self, text: str, now: datetime) -> CallbackResponse:
        """Return the encrypted response to `ChatEntered` with a welcome text."""
        return self._response({"msgtype": "text", "text": {"content": text}}, now)

    def split(self, text: str) -> tuple[str, ...]:
        """Split an answer into parts of at most 20,480 bytes, with complete code blocks."""
        return split_markdown(text, MAX_MESSAGE_BYTES, size=utf8_length)

    def _response(self, message: Json, now: datetime) -> CallbackResponse:
        timestamp, nonce = int(now.timestamp()), secrets.token_hex(8)
        encrypted = self._crypto.encrypt(json.dumps(message, ensure_ascii=False))
        signature = self._crypto.sign(str(timestamp), nonce, encrypted)
        body = {"encrypt": encrypted, "timestamp": timestamp, "nonce": nonce, "msgsignature": signature}
        return CallbackResponse(json.dumps(body).encode(), "application/json")

    def read(self, fields: Mapping[str, Json]) -> Update:
        """Parse the decrypted JSON of a callback or a frame."""
        bot, kind = id_in(fields, "aibotid"), text_in(fields, "msgtype")
        if self.options.bot_id and bot != self.options.bot_id:
            return Ignored("not_for_us" if fields else "malformed")
        if kind == "stream":
            stream_id = id_in(object_in(fields, "stream"), "id")
            return StreamRefresh(stream_id) if stream_id else Ignored("incomplete")
        chat_type = text_in(fields, "chattype")
        if chat_type not in ("single", "group"):
            return Ignored("chat_type" if fields else "malformed")
        person = object_in(fields, "from")
        user, chat = id_in(person, "userid"), id_in(fields, "chatid")
        if not user or (chat_type == "group" and not chat):
            return Ignored("incomplete")  # without the group's id, the key would be that of the person's private chat
        if corporation := id_in(person, "corpid"):
            # Add the corporation, because members of two corporations may have the same id.
            user = f"{corporation}:{user}"
        found: dict[str, Json] = {"bot_id": bot, "chat_type": chat_type, "user": user, "msg_type": kind}
        if chat_type == "group":
            found["chat_id"] = chat
        if kind == "event":
            return _event(fields, found)
        return self._message(fields, found, user=user, group=chat_type == "group")

    def _message(
        self, fields: Mapping[str, Json], found: Mapping[str, Json], *, user: str, group: bool
    ) -> IncomingMessage | Ignored:
        number = id_in(fields, "msgid")
        if not number:
            return Ignored("incomplete")
        text = self._without_mention(_text(fields)) if group else _text(fields)
        sender = Sender(f"wecom_aibot:{found['bot_id']}:{user}")
        address = text_in(fields, "response_url")
        return complete(
            IncomingMessage(
                message_id=number,
                text=text,
                results={PARSER: {**found, "content": text}},
                reply_to={"response_url": address} if is_response_url(address, self.options.api) else {},
                sender=sender,
                sent_at=time_in(fields, "create_time"),
                metadata={"channel": self.name, "platform_message_id": number, "sender_id": sender.id},
                quoted_text=_text(object_in(fields, "quote")),
                private=not group,
            )
        )

    def _without_mention(self, text: str) -> str:
        name = f"@{self.options.bot_name}"
        if not self.options.bot_name:
            return _MENTION.sub("", text, count=1) if text.startswith("@") else text
        after = text[len(name) :]
        return after.lstrip() if text.startswith(name) and (not after or after[0].isspace()) else text


class AnswerStreams:
    """The streamed answers of all AI bots that use this database.

    The id of a stream is the number of its answer in the outbox. The process that follows the run writes the text into
    the outbox, and each refresh by WeCom reads it from there.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._outbox = memory.channels.outbox

    async def response(self, bot: Bot, channel: WeComAIBotChannel, update: Update) -> CallbackResponse | None:
        """Return the HTTP response to an update that is already stored, or None to respond with an empty body."""
        match update:
            case ChatEntered() if bot.texts.welcome:
                return channel.welcome_response(bot.texts.welcome, self._memory.clock())
            case StreamRefresh(stream_id):
                number = int(stream_id) if stream_id.isdecimal() and len(stream_id) < 19 else 0
                # WeCom would request an unknown stream again for minutes, so end it.
                found = await self._outbox.entry(bot.name, number)
                return await self._stream(bot, channel, found) if found else self._sealed(channel, stream_id, NOTHING)
            case (IncomingMessage() as message) | Ignored(_, IncomingMessage() as message):
                found = await self._outbox.find(bot.name, message.session_id, message.message_id)
                return await self._stream(bot, channel, found) if found else None
        return None

    async def record(self, bot: Bot, message: IncomingMessage, events: AsyncIterator[Followed]) -> None:
        """Write the growing text of a run's answer into the outbox until the run ends."""
        outgoing = await self._outbox.find(bot.name, message.session_id, message.message_id)
        if outgoing is None:
            return
        pieces: list[RunPiece] = []
        writing = asyncio.create_task(self._keep_writing(outgoing.number, pieces))
        try:
            with contextlib.suppress(RunNotFound):  # the run was deleted with its session
                async for each in events:
                    if isinstance(each, RunPiece) and each.text:
                        pieces.append(each)  # noqa: PERF401 - the writer reads while it grows
        finally:
            writing.cancel()
            await asyncio.wait([writing])

    async def _keep_writing(self, number: int, pieces: Sequence[RunPiece]) -> None:
        """Write the text of the run's newest message into the outbox entry `number`, as `pieces` grows."""
        written = 0
        while True:
            if len(pieces) > written:
                written = len(pieces)
                newest = pieces[-1].message_id
                text = "".join(piece.text for piece in pieces if piece.message_id == newest)
                with contextlib.suppress(StoreError):  # the outbox gets the whole text when the run ends
                    await self._outbox.note_partial(number, text)
            await asyncio.sleep(_WRITE_SECONDS)

    async def _stream(self, bot: Bot, channel: WeComAIBotChannel, outgoing: Outgoing) -> CallbackResponse:
        """Return a response with the text so far. A complete answer counts as delivered."""
        stream_id = str(outgoing.number)
        if outgoing.status == "waiting":
            await self._outbox.make_ready(outgoing.session_id)
            outgoing = await self._outbox.entry(bot.name, outgoing.number) or outgoing
        is_late = self._memory.clock() - outgoing.created_at >= STREAM_TIME
        if outgoing.status == "waiting":
            if not is_late:
                begun = channel.split(outgoing.partial)[:1]
                return self._sealed(channel, stream_id, "".join(begun), finished=False)
            return self._sealed(channel, stream_id, bot.texts.later)
        parts = channel.split(await answer_text(self._memory, bot, outgoing))
        first = parts[0] if parts else NOTHING
        if outgoing.status == "ready":
            if await self._outbox.note_fetched(outgoing.number, is_all=len(parts) < 2):
                notify_sent(self._memory, bot, outgoing, "delivered", parts=len(parts[:1]))
                return self._sealed(channel, stream_id, first)
            outgoing = await self._outbox.entry(bot.name, outgoing.number) or outgoing
        # If the answer was sent as a separate message instead, do not show it again in the stream.
        is_sent = not outgoing.partial if len(parts) > 1 else outgoing.status == "ready" or outgoing.parts_sent > 0
        return self._sealed(channel, stream_id, bot.texts.later if is_sent else first)

    def _sealed(
        self, channel: WeComAIBotChannel, stream_id: str, text: str, *, finished: bool = True
    ) -> CallbackResponse:
        return channel.stream_response(stream_id, text, self._memory.clock(), finished=finished)


def is_response_url(url: str, api: str = "") -> bool:
    """Return True for a WeCom URL with https and the standard port, to which answers may be sent.

    URLs below `api` are accepted too: operators replace WeCom's API in tests or behind a proxy.
    """
    if api and url.startswith(f"{api.rstrip('/')}/"):
        return True
    try:
        parts = urlsplit(url)
        return (
            parts.scheme == "https"
            and parts.port in (None, 443)
            and parts.username is None
            and (parts.hostname or "").endswith(_HOST)
        )
    except ValueError:
        return False


def _text(fields: Mapping[str, Json]) -> str:
    """Return the text of a message, or an empty string if its kind has no text."""
    kind = text_in(fields, "msgtype")
    if kind in ("text", "voice"):  # a voice message includes the recognized words
        return text_in(object_in(fields, kind), "content").strip()
    items = list_in(object_in(fields, "mixed"), "msg_item") if kind == "mixed" else ()
    return "\n".join(text for item in items if (text := text_in(object_in(item, "text"), "content"))).strip()


def _event(fields: Mapping[str, Json], found: Mapping[str, Json]) -> Update:
    if text_in(object_in(fields, "event"), "eventtype") != "enter_chat":
        return Ignored("kind")
    session_id = resolve_key(KEY_CANDIDATES, {"results": {PARSER: found}}).key
    return ChatEntered(session_id) if session_id else Ignored("incomplete")
