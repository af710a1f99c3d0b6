"""Calls to Telegram's Bot API, and long polling for bots without a webhook."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import httpx2

from threadkeep.channels.bots import Bot, Receiver, notify_trouble
from threadkeep.channels.contract import (
    LONGEST_DEMAND_SECONDS,
    Account,
    Address,
    ChannelClient,
    Later,
    Moved,
    Outcome,
    Part,
    Refused,
    Response,
    Sent,
    id_in,
    list_in,
    number_in,
    object_in,
    request,
    text_in,
)
from threadkeep.channels.formatting import markdown_v2
from threadkeep.channels.intake import Intake
from threadkeep.channels.telegram import ADDRESS, TelegramChannel
from threadkeep.history.memory import Memory
from threadkeep.records import Json

API = "https://api.telegram.org"

_CALL_SECONDS = 20.0
_MARGIN_SECONDS = 10.0
_WAIT_SECONDS = 25
# A conflict means that a webhook is set, or that another program polls this bot.
_PROBLEMS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "Unauthorized", 409: "Conflict"}


class TelegramClient(ChannelClient):
    """The API calls of one bot. Every URL contains the token, so URLs are never logged or shown."""

    def __init__(self, token: str, http: httpx2.AsyncClient, *, api: str = API) -> None:
        self._root = f"{api.rstrip('/')}/bot{token}"
        self._http = http

    async def call(
        self, method: str, values: Mapping[str, Json] | None = None, *, seconds: float = _CALL_SECONDS
    ) -> Response:
        """Call a method of the Bot API; leave out values that are None."""
        given = {name: value for name, value in (values or {}).items() if value is not None}
        answer = await request(self._http, "POST", f"{self._root}/{method}", seconds=seconds, values=given)
        fields, status = answer.fields, answer.code
        if status is None:
            return answer
        if status == 200:
            return answer if fields.get("ok") is True else Response(error="UnreadableAnswer", uncertain=True)
        if status < 500 and "ok" not in fields:  # a proxy or a firewall has answered, not Telegram
            return replace(answer, code=None, error=f"Status{status}")
        if (demanded := number_in(object_in(fields, "parameters"), "retry_after")) is not None:
            answer = replace(answer, retry_after=min(max(float(demanded), 1.0), LONGEST_DEMAND_SECONDS))
        return replace(answer, error=_PROBLEMS.get(status, f"Status{status}"))

    async def send(self, address: Address, part: Part) -> Outcome:
        """Send a formatted part, or plain text if Telegram rejects the format."""
        answer = await self._send_message(address, part)
        if answer.code == 400 and "message_thread_id" in address and not text_in(address, "chat_id").startswith("-"):
            # The person may have deleted the topic of the private chat, so write to the chat without a topic.
            answer = await self._send_message({**address, "message_thread_id": ""}, part)
        return _outcome(answer, address)

    async def show_working(self, address: Address) -> None:
        """Acknowledge a pressed button, and show that the bot is typing."""
        if query := text_in(address, "callback_query_id"):
            await self.call("answerCallbackQuery", {"callback_query_id": query})
        await self.call("sendChatAction", {"action": "typing", **_chat_of(address)})

    async def account(self) -> Account | str:
        """Return the name of the bot and the state of its webhook, or the name of an error."""
        found: dict[str, Json] = {}
        for method in ("getMe", "getWebhookInfo"):
            answer = await self.call(method)
            if answer.error:
                return answer.error
            fields = object_in(answer.fields, "result")
            found |= {key: text_in(fields, key) for key in ("username", "url", "last_error_message") if key in fields}
            if (waiting := number_in(fields, "pending_update_count")) is not None:
                found["pending_update_count"] = waiting
        return found

    async def learn_username(self, channel: TelegramChannel) -> Response | None:
        """Set the channel's username if it is unknown. Return Telegram's response if that fails."""
        if channel.username:
            return None
        answer = await self.call("getMe")
        channel.username = text_in(object_in(answer.fields, "result"), "username")
        return None if channel.username else answer

    async def keep_learning(self, memory: Memory, channel: TelegramChannel) -> None:
        """Request the bot's username until it is known. Report each failure, such as a wrong token."""
        pause = Receiver.first_pause_seconds
        while failed := await self.learn_username(channel):
            notify_trouble(memory, "polling", failed.error or "UnreadableAnswer", channel)
            await asyncio.sleep(failed.retry_after or pause)
            pause = min(pause * 2, Receiver.longest_pause_seconds)

    async def _send_message(self, address: Address, part: Part) -> Response:
        answered = number_in(_numbers(address), "message_id") if part.number == 0 else None
        reply: Json = {"message_id": answered, "allow_sending_without_reply": True}
        plain = {**_chat_of(address), "text": part.text, "reply_parameters": None if answered is None else reply}
        formatted: dict[str, Json] = {"text": markdown_v2(part.text), "parse_mode": "MarkdownV2"}
        answer = await self.call("sendMessage", {**plain, **formatted})
        if answer.code == 400 and "migrate_to_chat_id" not in object_in(answer.fields, "parameters"):
            answer = await self.call("sendMessage", plain)
        return answer


class TelegramPolling(Receiver):
    """The poller of one bot. Only one process polls at a time; if it dies, another takes over.

    The offset is stored only after all updates before it are stored. An update that arrives twice is processed once.
    """

    _channel: TelegramChannel

    def __init__(
        self, memory: Memory, intake: Intake, bot: Bot, channel: TelegramChannel, client: TelegramClient
    ) -> None:
        super().__init__(memory, channel)
        self._intake = intake
        self._bot = bot
        self._client = client
        self._duty = f"poll:{channel.scope}"

    async def keep_polling(self) -> None:
        """Poll Telegram for updates until cancelled; after a failure, pause and poll again."""
        try:
            await self._keep_trying(self.poll)
        finally:
            await asyncio.shield(self._release(self._duty))

    async def poll(self) -> str | None:
        """Wait for updates and take them, unless another process polls. Return the error's name, if any."""
        if not await self._claim(self._duty):
            await asyncio.sleep(self.look_seconds)
            return None
        if failed := await self._client.learn_username(self._channel):
            return await self._refused(self._duty, failed)
        loop = asyncio.get_running_loop()
        began = loop.time()
        stored = await self._state.value(self._channel.scope, "offset")
        offset = int(stored) if stored else None
        kinds: Json = list(self._channel.options.allowed_updates)
        wanted = {"offset": offset, "timeout": _WAIT_SECONDS, "limit": 100, "allowed_updates": kinds}
        answer = await self._client.call("getUpdates", wanted, seconds=_WAIT_SECONDS + _MARGIN_SECONDS)
        # Something else than Telegram may have answered, without a list.
        if answer.error or not isinstance(answer.fields.get("result"), list):
            return await self._refused(self._duty, answer)
        for update in map(object_in, list_in(answer.fields, "result")):
            await self._intake.take_fetched(self._bot, self._channel.read_update(update))
            # After a week without updates, Telegram starts again at a random number, which may be lower.
            offset = (number_in(update, "update_id") or 0) + 1
        if offset is None or str(offset) == stored:
            # A proxy may respond at once, instead of waiting for updates as Telegram does.
            if (rest := began + self.first_pause_seconds - loop.time()) > 0:
                await self._sleep(rest)
            return None
        held = {"duty": self._duty, "owner": self._owner}
        kept = await self._state.keep_for_duty(self._channel.scope, "offset", str(offset), **held)
        return None if kept else "LostDuty"


def _outcome(answer: Response, address: Address) -> Outcome:
    if not answer.error:
        return Sent()
    if chat := id_in(object_in(answer.fields, "parameters"), "migrate_to_chat_id"):
        return Moved({**address, "chat_id": chat})
    if answer.code == 429:
        return Later("TooManyRequests", answer.retry_after or 1.0)
    if answer.code in (400, 403):
        return Refused(answer.error)
    # Retry even after 401 and 404 (a wrong token), because an operator can correct the token.
    return Later(answer.error, answer.retry_after, uncertain=answer.uncertain)


def _chat_of(address: Address) -> dict[str, Json]:
    return {name: number for name, number in _numbers(address).items() if name != "message_id"}


def _numbers(address: Address) -> dict[str, Json]:
    """Return the ids in an address as numbers; the address stores them as strings."""
    texts = {name: text_in(address, name) for name in ADDRESS}
    return {name: int(text) for name, text in texts.items() if text.removeprefix("-").isdecimal()}
