"""Startup of the bots of a process: clients, delivery of answers, and polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, assert_never

import httpx2

from threadkeep.boundary import running
from threadkeep.channels.bots import Bot, SenderRates
from threadkeep.channels.configuration import (
    AnyBot,
    ChannelsFile,
    TelegramSettings,
    WeComAIBotSettings,
    WeComDirectSettings,
    WeComServiceSettings,
)
from threadkeep.channels.contract import Callback, CallbackResponse, Channel, ChannelClient, DeskNotified, Received
from threadkeep.channels.delivery import Delivery
from threadkeep.channels.intake import Intake
from threadkeep.channels.telegram import TelegramChannel
from threadkeep.channels.telegram_client import TelegramClient, TelegramPolling
from threadkeep.channels.wecom_aibot import WeComAIBotChannel
from threadkeep.channels.wecom_client import WeComAIBotClient, WeComApi, WeComDirectClient, WeComServiceClient
from threadkeep.channels.wecom_connection import AIBotConnection
from threadkeep.channels.wecom_cs import DeskFetching, WeComServiceChannel
from threadkeep.errors import CallbackRefused, ChannelNotFound
from threadkeep.memory import Memory
from threadkeep.runs.chat import RunsOnDemand

TAKE_SECONDS = 4.0
"""Seconds for processing a callback. WeCom waits for five seconds and then repeats it."""


class ChannelService:
    """The bots of this process.

    A callback is acknowledged only after its messages are stored, so that no message is lost.
    """

    def __init__(self, bots: Mapping[str, Bot], intake: Intake) -> None:
        self._bots = bots
        self._intake = intake
        self._desks: dict[str, Callable[[DeskNotified], Awaitable[None]]] = {}

    @property
    def names(self) -> list[str]:
        """The names of the bots."""
        return list(self._bots)

    def fetch_with(self, bot: Bot, notice: Callable[[DeskNotified], Awaitable[None]]) -> None:
        """Register `notice`, which is called if a WeCom customer service desk of the bot has messages to fetch."""
        self._desks[bot.name] = notice

    async def receive(self, name: str, callback: Callback) -> CallbackResponse:
        """Process a callback.

        Raises:
            ChannelNotFound: there is no bot of that name.
            CallbackRefused: the callback is not from the platform, is too old or is unreadable.
            StoreUnavailable, TimeoutError: the callback was not processed in time; the platform sends it again.
        """
        bot = self._bots.get(name)
        if bot is None:
            raise ChannelNotFound(name)
        try:
            received = bot.channel.receive(callback)
        except CallbackRefused as refusal:
            self._intake.notify(bot, "refused", refusal.reason)
            raise
        responding = asyncio.create_task(self._respond(bot, received))
        done, _ = await asyncio.wait([responding], timeout=TAKE_SECONDS)
        if not done:
            # The task continues, and usually stores the messages before the platform repeats the callback.
            self._intake.in_background(responding)
            raise TimeoutError
        return await responding

    async def _respond(self, bot: Bot, received: Received) -> CallbackResponse:
        """Store the updates of a callback, and start runs for messages; return the HTTP response to the callback."""
        for update in received.updates:
            if isinstance(update, DeskNotified):
                await self._desks[bot.name](update)
            await self._intake.take(bot, update)
        if isinstance(bot.channel, WeComAIBotChannel):
            for update in received.updates:
                if response := await self._intake.streams.response(bot, bot.channel, update):
                    return response
        return received.response


_FINISH_SECONDS = 10.0


@asynccontextmanager
async def open_channels(memory: Memory, runs: RunsOnDemand, file: ChannelsFile) -> AsyncIterator[ChannelService]:
    """Run the bots inside the block: accept callbacks, poll for updates, deliver answers.

    Raises:
        InvalidInput: the options of a bot are invalid.
    """
    runs.open_soon()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(follow_redirects=False))
        bots: dict[str, Bot] = {}
        delivery = Delivery(memory, bots, file.delivery)
        intake = Intake(memory, runs, bots, wake=delivery.wake)
        service = ChannelService(bots, intake)
        fetching: list[Coroutine[Any, Any, None]] = []
        for each in file.channels:
            channel = each.channel()
            client = client_of(each, channel, memory, http)
            bot = bots[each.name] = bot_of(each, channel, client)
            match channel, client:
                case TelegramChannel(), TelegramClient() if each.receive == "polling":
                    fetching.append(TelegramPolling(memory, intake, bot, channel, client).keep_polling())
                case TelegramChannel(), TelegramClient():
                    fetching.append(client.keep_learning(memory, channel))
                case WeComServiceChannel(), WeComServiceClient():
                    desks = DeskFetching(memory, intake, bot, channel, client)
                    service.fetch_with(bot, desks.notice)
                    fetching.append(desks.keep_fetching())
                case _, AIBotConnection():
                    fetching.append(client.keep_connected(intake, bot))
        stack.push_async_callback(delivery.finish, seconds=_FINISH_SECONDS)
        work = running(delivery.keep_delivering(intake.take_orphaned), "threadkeep-deliveries")
        _ = await stack.enter_async_context(work)
        # Register `intake.close` before the polling tasks. The stack closes in reverse order, so polling ends first.
        stack.push_async_callback(intake.close)
        for each_work in fetching:
            _ = await stack.enter_async_context(running(each_work, "threadkeep-receiving"))
        yield service


def bot_of(settings: AnyBot, channel: Channel, client: ChannelClient) -> Bot:
    """Create a bot from its settings, with its channel and its client.

    Raises:
        InvalidInput: the settings have a text with a name that bots do not use.
    """
    return Bot(
        channel=channel,
        client=client,
        workflow=settings.workflow,
        texts=settings.all_texts(),
        allowed_users=settings.allowed_users,
        max_characters=settings.max_characters,
        double_texting=settings.double_texting,
        rates=SenderRates(settings.messages_per_minute),
    )


def client_of(settings: AnyBot, channel: Channel, memory: Memory, http: httpx2.AsyncClient) -> ChannelClient:
    """Create the client that calls the platform's API for a bot."""
    match settings:
        case TelegramSettings():
            return TelegramClient(settings.token.get_secret_value(), http, api=settings.api)
        case WeComAIBotSettings() if settings.receive == "connection":
            secret = settings.secret.get_secret_value()
            return AIBotConnection(memory, settings.channel(), secret=secret, address=settings.connection)
        case WeComAIBotSettings():
            return WeComAIBotClient(http, api=settings.api)
        case WeComDirectSettings() | WeComServiceSettings():
            secret = settings.secret.get_secret_value()
            api = WeComApi(memory, http, scope=channel.scope, corp_id=settings.corp_id, secret=secret, api=settings.api)
            if isinstance(settings, WeComServiceSettings):
                return WeComServiceClient(api)
            return WeComDirectClient(api, settings.agent_id)
    assert_never(settings)
