"""Calls to Telegram's Bot API, and long polling for bots without a webhook."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2

from threadkeep.channels.bots import Bot, Receiver
from threadkeep.channels.contract import (
    Account,
    Address,
    ChannelClient,
    Later,
    Moved,
    Outcome,
    Part,
    Refused,
    Sent,
    id_in,
    number_in,
    object_in,
    read_json,
    text_in,
    unlogged_requests,
)
from threadkeep.channels.formatting import markdown_v2
from threadkeep.channels.intake import Intake
from threadkeep.channels.telegram import ADDRESS, TelegramChannel
from threadkeep.history.memory import Memory
from threadkeep.records import Json

API = "https://api.telegram.org"

_CALL_SECONDS = 20.0
_LONGEST_DEMAND_SECONDS = 86_400.0
_MARGIN_SECONDS = 10.0
_WAIT_SECONDS = 25
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_PROBLEMS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "Unauthorized", 409: "Conflict"}


@dataclass(frozen=True)
class TelegramAnswer:
    """A response of the Bot API. If no readable response arrived, `status` is 0, and `error` names the problem.

    If `uncertain` is True, the call may have been executed.
    """

    status: int
    result: Json = field(default=None, repr=False)
    parameters: Mapping[str, Json] = field(default_factory=dict)
    error: str = ""
    uncertain: bool = False

    @property
    def ok(self) -> bool:
        """True if the call succeeded."""
        return self.status == 200

    @property
    def retry_after(self) -> float | None:
        """The pause that Telegram demands before the next call, in seconds from 1 to 86,400; None if there is none."""
        after = number_in(self.parameters, "retry_after")
        return None if after is None else min(max(float(after), 1.0), _LONGEST_DEMAND_SECONDS)

    @property
    def problem(self) -> str:
        """The error's name. `Conflict` means that a webhook is set, or that another program polls this bot."""
        return self.error or _PROBLEMS.get(self.status, f"Status{self.status}")


class TelegramClient(ChannelClient):
    """The API calls of one bot. Every URL contains the token, so URLs are never logged or shown."""

    def __init__(self, token: str, http: httpx2.AsyncClient, *, api: str = API) -> None:
        self._root = f"{api.rstrip('/')}/bot{token}"
        self._http = http

    async def call(
        self, method: str, values: Mapping[str, Json] | None = None, *, seconds: float = _CALL_SECONDS
    ) -> TelegramAnswer:
        """Call a method of the Bot API; leave out values that are None."""
        given = {name: value for name, value in (values or {}).items() if value is not None}
        try:
            with unlogged_requests():
                async with asyncio.timeout(seconds):  # httpx limits only the time between two bytes
                    # Give up a connection before the whole time is over.
                    limits = httpx2.Timeout(seconds, connect=seconds / 2, pool=seconds / 2)
                    response = await self._http.post(f"{self._root}/{method}", json=given, timeout=limits)
        except (httpx2.HTTPError, TimeoutError) as error:
            return TelegramAnswer(0, error=type(error).__name__, uncertain=not isinstance(error, _NOT_SENT))
        fields, status = object_in(read_json(response.content)), response.status_code
        if status == 200 and fields.get("ok") is not True:
            return TelegramAnswer(0, error="UnreadableAnswer", uncertain=True)
        if status < 500 and "ok" not in fields:  # a proxy or a firewall has answered, not Telegram
            return TelegramAnswer(0, error=f"Status{status}")
        return TelegramAnswer(status, fields.get("result"), object_in(fields, "parameters"), uncertain=status >= 500)

    async def send(self, address: Address, part: Part) -> Outcome:
        """Send a formatted part, or plain text if Telegram rejects the format."""
        answer = await self._send_message(address, part)
        if answer.status == 400 and "message_thread_id" in address and not text_in(address, "chat_id").startswith("-"):
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
            if not answer.ok:
                return answer.problem
            fields = object_in(answer.result)
            found |= {key: text_in(fields, key) for key in ("username", "url", "last_error_message") if key in fields}
            if (waiting := number_in(fields, "pending_update_count")) is not None:
                found["pending_update_count"] = waiting
        return found

    async def learn_username(self, channel: TelegramChannel) -> TelegramAnswer | None:
        """Set the channel's username if it is unknown. Return Telegram's response if that fails."""
        if channel.username:
            return None
        answer = await self.call("getMe")
        channel.username = text_in(object_in(answer.result), "username")
        return None if channel.username else answer

    async def keep_learning(self, channel: TelegramChannel) -> None:
        """Request the bot's username, with retries, until it is known."""
        pause = Receiver.first_pause_seconds
        while await self.learn_username(channel) is not None:
            await asyncio.sleep(pause)
            pause = min(pause * 2, Receiver.longest_pause_seconds)

    async def _send_message(self, address: Address, part: Part) -> TelegramAnswer:
        answered = number_in(_numbers(address), "message_id") if part.number == 0 else None
        reply: Json = {"message_id": answered, "allow_sending_without_reply": True}
        plain = {**_chat_of(address), "text": part.text, "reply_parameters": None if answered is None else reply}
        formatted: dict[str, Json] = {"text": markdown_v2(part.text), "parse_mode": "MarkdownV2"}
        answer = await self.call("sendMessage", {**plain, **formatted})
        if answer.status == 400 and "migrate_to_chat_id" not in answer.parameters:
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
            return await self._refused(failed)
        stored = await self._state.value(self._channel.scope, "offset")
        offset = int(stored) if stored else None
        kinds: Json = list(self._channel.options.allowed_updates)
        wanted = {"offset": offset, "timeout": _WAIT_SECONDS, "limit": 100, "allowed_updates": kinds}
        answer = await self._client.call("getUpdates", wanted, seconds=_WAIT_SECONDS + _MARGIN_SECONDS)
        if not answer.ok or not isinstance(answer.result, list):  # something else than Telegram may have answered
            return await self._refused(answer)
        for update in map(object_in, answer.result):
            await self._intake.take_fetched(self._bot, self._channel.read_update(update))
            # After a week without updates, Telegram starts again at a random number, which may be lower.
            offset = (number_in(update, "update_id") or 0) + 1
        if offset is None or str(offset) == stored:
            return None
        held = {"duty": self._duty, "owner": self._owner}
        kept = await self._state.keep_for_duty(self._channel.scope, "offset", str(offset), **held)
        return None if kept else "LostDuty"

    async def _refused(self, answer: TelegramAnswer) -> str:
        """Return the error of a response. If Telegram demands a pause, extend the claim on polling for the pause."""
        if answer.retry_after is not None:
            self._pause = answer.retry_after
            await self._claim(self._duty)
        return answer.problem


def _outcome(answer: TelegramAnswer, address: Address) -> Outcome:
    if answer.ok:
        return Sent()
    if chat := id_in(answer.parameters, "migrate_to_chat_id"):
        return Moved({**address, "chat_id": chat})
    if answer.status == 429:
        return Later("TooManyRequests", answer.retry_after or 1.0)
    if answer.status in (400, 403):
        return Refused(answer.problem)
    # Retry even after 401 and 404 (a wrong token), because an operator can correct the token.
    return Later(answer.problem, answer.retry_after, uncertain=answer.uncertain)


def _chat_of(address: Address) -> dict[str, Json]:
    return {name: number for name, number in _numbers(address).items() if name != "message_id"}


def _numbers(address: Address) -> dict[str, Json]:
    """Return the ids in an address as numbers; the address stores them as strings."""
    texts = {name: text_in(address, name) for name in ADDRESS}
    return {name: int(text) for name, text in texts.items() if text.removeprefix("-").isdecimal()}
