"""The long connection of a WeCom AI bot: a WebSocket that needs no public address.

A frame is `{"cmd", "headers": {"req_id"}, "body"}`. WeCom acknowledges each frame by its `req_id`, and never resends
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakValueDictionary

from langchain_core.utils.uuid import uuid7
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from threadkeep.boundary import ErrorBoundary, Tasks
from threadkeep.channels.bots import Bot, Receiver, notify_trouble
from threadkeep.channels.contract import (
    Address,
    ChannelClient,
    ChatEntered,
    Ignored,
    IncomingMessage,
    Later,
    Outcome,
    Part,
    Response,
    Sent,
    Update,
    id_in,
    message_in,
    object_in,
    read_json,
    text_in,
)
from threadkeep.channels.intake import Intake
from threadkeep.channels.wecom_aibot import NOTHING, STREAM_TIME, WeComAIBotChannel
from threadkeep.channels.wecom_client import answer_in, outcome_of
from threadkeep.errors import StoreError
from threadkeep.history.memory import Memory
from threadkeep.records import Json
from threadkeep.runs.streams import retry_until_available
from threadkeep.store.outbox import Outgoing

ADDRESS = "wss://openws.work.weixin.qq.com"

_ACK_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_FINISH_SECONDS = 5.0
_PING_SECONDS = 20.0
_UNAVAILABLE_SECONDS = 0.5
_GROW_SECONDS = 0.5
_CALLBACKS = ("aibot_msg_callback", "aibot_event_callback")
# Turn DEBUG off, because the library would log whole frames, with the secret and people's messages.
_QUIET = logging.getLogger(f"{__name__}.frames")
_QUIET.setLevel(logging.WARNING)


@dataclass(eq=False)
class _Stream:
    """The answer to one message, which WeCom shows in the chat while it grows."""

    req_id: str
    ends_at: float
    id: str = field(default_factory=lambda: uuid7().hex)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def body(self, text: str, *, finished: bool) -> Mapping[str, Json]:
        """Return the body of a WebSocket frame with the whole text of the answer so far."""
        return {"msgtype": "stream", "stream": {"id": self.id, "finish": finished, "content": text}}


class AIBotConnection(Receiver, ChannelClient):
    """The connection of an AI bot, and the client that sends its answers.

    Only one process at a time is connected. Answers are streamed until the connection or the stream's time ends; after
    that, they are sent as separate messages.
    """

    _channel: WeComAIBotChannel

    def __init__(self, memory: Memory, channel: WeComAIBotChannel, *, secret: str, address: str = ADDRESS) -> None:
        super().__init__(memory, channel)
        self._secret = secret
        self._address = address
        self._duty = f"connect:{channel.scope}"
        self._socket: ClientConnection | None = None
        self._subscribed = False
        self._acks: dict[str, asyncio.Future[Mapping[str, Json]]] = {}
        self._streams: dict[str, _Stream] = {}
        self._tasks = Tasks()
        # One lock per session keeps its messages in order, even if storing one of them is retried for a while.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def can_send(self) -> bool:
        """True while this process is connected."""
        return self._subscribed

    async def send(self, address: Address, part: Part) -> Outcome:
        """Send the answer as the last text of its stream. Without a stream or after a rejection, send a new message."""
        stream = self._streams.pop(text_in(address, "req_id"), None)
        if stream is not None:
            async with stream.lock:
                answer = await self._ask("aibot_respond_msg", stream.body(part.text, finished=True), stream.req_id)
            if answer.uncertain or not answer.error:
                return Later(answer.error, uncertain=True) if answer.error else Sent()
        message: dict[str, Json] = {"chatid": text_in(address, "chat"), "msgtype": "markdown"}
        answer = await self._ask("aibot_send_msg", {**message, "markdown": {"content": part.text}})
        return outcome_of(answer)

    async def keep_connected(self, intake: Intake, bot: Bot) -> None:
        """Stay connected until cancelled; after a failure, pause and connect again."""
        try:
            await self._keep_trying(partial(self._connect, intake, bot))
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_FINISH_SECONDS)
            for task in self._tasks:
                task.cancel()
            await asyncio.shield(self._release(self._duty))

    async def _connect(self, intake: Intake, bot: Bot) -> str | None:
        """Connect and process messages until an error ends the connection; return the name of the error."""
        if not await self._claim(self._duty):
            await asyncio.sleep(self.look_seconds)
            return None
        async with connect(
            self._address, open_timeout=_ACK_SECONDS, close_timeout=_CLOSE_SECONDS, ping_interval=None, logger=_QUIET
        ) as socket:
            self._socket = socket
            reading = asyncio.create_task(self._keep_reading(socket, intake, bot))
            try:
                answer = await self._ask(
                    "aibot_subscribe", {"bot_id": self._channel.options.bot_id, "secret": self._secret}
                )
                if not answer.error:
                    self._subscribed, self._pause = True, self.first_pause_seconds
                seconds, ping_at = _PING_SECONDS, 0.0
                while not answer.error and not reading.done():
                    await asyncio.wait([reading], timeout=seconds)
                    # Stay connected if the database does not answer, because WeCom does not send messages again. When
                    # it answers, claim the connection before another process does: that process would take newer
                    # messages before those that wait in this process.
                    seconds = _UNAVAILABLE_SECONDS
                    with contextlib.suppress(StoreError, TimeoutError):
                        async with asyncio.timeout(_ACK_SECONDS):
                            if not await self._claim(self._duty):
                                return "LostDuty"
                            seconds = _PING_SECONDS
                    if (now := asyncio.get_running_loop().time()) >= ping_at or seconds == _PING_SECONDS:
                        ping_at = now + _PING_SECONDS
                        answer = await self._ask("ping", None)
                return answer.error
            finally:
                self._socket, self._subscribed = None, False
                await socket.close()
                await asyncio.wait([reading])  # until all messages that have arrived are read

    async def _keep_reading(self, socket: ClientConnection, intake: Intake, bot: Bot) -> None:
        try:
            async for text in socket:
                frame = object_in(read_json(text))
                req_id = id_in(object_in(frame, "headers"), "req_id")
                body = object_in(frame, "body")
                if text_in(object_in(body, "event"), "eventtype") == "disconnected_event":
                    self._pause = self.longest_pause_seconds  # another client has connected
                elif text_in(frame, "cmd") in _CALLBACKS:
                    _ = self._tasks.start(self._receive(intake, bot, req_id, body), "threadkeep-connection")
                elif (waiting := self._acks.get(req_id)) is not None and not waiting.done():
                    waiting.set_result(frame)
        except ConnectionClosed:
            return
        finally:
            self._end_streams()

    async def _receive(self, intake: Intake, bot: Bot, req_id: str, body: Mapping[str, Json]) -> None:
        """Store and process a message or an event; retry until stored, because WeCom does not send it again."""
        with ErrorBoundary(lambda error: notify_trouble(self._memory, "following", error, self._channel)):
            update = self._addressed(self._channel.read(body), req_id, body)
            stream = None
            if (message := message_in(update)) is not None:
                ends_at = asyncio.get_running_loop().time() + STREAM_TIME.total_seconds()
                stream = self._streams[req_id] = _Stream(req_id, ends_at)
            async with self._locks.setdefault(message.session_id if message else "", asyncio.Lock()):
                await retry_until_available(partial(intake.take, bot, update))
            if isinstance(update, ChatEntered) and bot.texts.welcome:
                text: Json = {"content": bot.texts.welcome}
                await self._ask("aibot_respond_welcome_msg", {"msgtype": "text", "text": text}, req_id)
            elif stream is not None and message is not None:
                await self._grow(stream, bot, message)

    def _addressed(self, update: Update, req_id: str, body: Mapping[str, Json]) -> Update:
        """Return the update with `reply_to` set in its message, if it has one."""
        if (message := message_in(update)) is None:
            return update
        chat = id_in(body, "chatid") or id_in(object_in(body, "from"), "userid")
        message = replace(message, reply_to={"req_id": req_id, "chat": chat})
        return replace(update, message=message) if isinstance(update, Ignored) else message

    async def _grow(self, stream: _Stream, bot: Bot, message: IncomingMessage) -> None:
        """Send the text of an answer to its stream as it grows, until the answer is complete or the stream ends."""
        shown = None
        while self._streams.get(stream.req_id) is stream:
            found = await self._memory.channels.outbox.find(bot.name, message.session_id, message.message_id)
            # Without an outbox entry, the message gets no answer. An entry with another `req_id` means that WeCom has
            # repeated the message, and that the stream of the other request shows the answer.
            if found is None or text_in(found.address, "req_id") not in ("", stream.req_id):
                self._streams.pop(stream.req_id, None)
                return
            text, finished = self._text(stream, bot, found)
            if finished and text == NOTHING and shown is None:  # the message was repeated, and its answer was sent
                self._streams.pop(stream.req_id, None)
                return
            if finished or text not in (None, shown):
                async with stream.lock:
                    if self._streams.get(stream.req_id) is not stream:
                        return
                    if finished:
                        del self._streams[stream.req_id]
                    await self._ask("aibot_respond_msg", stream.body(text or NOTHING, finished=finished), stream.req_id)
                shown = text
            await asyncio.sleep(_GROW_SECONDS)

    def _text(self, stream: _Stream, bot: Bot, found: Outgoing) -> tuple[str | None, bool]:
        """Return the text to show in a stream (None: no change), and whether it ends the stream."""
        if found.status not in ("waiting", "ready"):
            return NOTHING, True  # for example, a later message's answer is also the answer to this one
        if asyncio.get_running_loop().time() >= stream.ends_at:
            return bot.texts.later, True
        if found.status == "ready":
            return None, False
        parts = self._channel.split(found.partial)
        return parts[0] if parts else NOTHING, False

    async def _ask(self, cmd: str, body: Mapping[str, Json] | None, req_id: str | None = None) -> Response:
        """Send a frame and wait for its acknowledgement."""
        req_id = req_id or f"{cmd}_{uuid7().hex}"
        frame: dict[str, object] = {"cmd": cmd, "headers": {"req_id": req_id}}
        if self._socket is None:
            return Response(error="NotConnected")
        waiting = self._acks[req_id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_ACK_SECONDS):
                await self._socket.send(json.dumps(frame if body is None else {**frame, "body": body}))
                answer = await waiting
        except (ConnectionClosed, TimeoutError) as error:
            return Response(error=type(error).__name__, uncertain=True)
        finally:
            self._acks.pop(req_id, None)
        return answer_in(answer, if_unreadable="Disconnected")

    def _end_streams(self) -> None:
        """Forget all streams of the ended connection, and wake the calls that wait for an acknowledgement."""
        self._streams.clear()
        for waiting in self._acks.values():
            if not waiting.done():
                waiting.set_result({})
