"""Startup of the bots of a process: clients, delivery of answers, and polling."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import assert_never

import httpx2

from threadkeep.channels.bots import Bot, SenderRates
from threadkeep.channels.configuration import (
    AnyBot,
    ChannelsFile,
    TelegramSettings,
    WeComAIBotSettings,
    WeComDirectSettings,
    WeComServiceSettings,
)
from threadkeep.channels.contract import Channel, ChannelClient
from threadkeep.channels.delivery import Delivery
from threadkeep.channels.intake import Intake
from threadkeep.channels.service import ChannelService
from threadkeep.channels.telegram import TelegramChannel
from threadkeep.channels.telegram_client import TelegramClient, TelegramPolling
from threadkeep.channels.wecom_client import WeComAIBotClient, WeComApi, WeComDirectClient, WeComServiceClient
from threadkeep.channels.wecom_connection import AIBotConnection
from threadkeep.channels.wecom_cs import DeskFetching, WeComServiceChannel
from threadkeep.memory import Memory
from threadkeep.runs.service import RunsOnDemand

_FINISH_SECONDS = 10.0


@asynccontextmanager
async def open_channels(memory: Memory, runs: RunsOnDemand, file: ChannelsFile) -> AsyncIterator[ChannelService]:
    """Run the bots inside the block: accept callbacks, poll updates, deliver answers.

    Raises:
        InvalidInput: the options of a bot are invalid.
    """
    runs.open_soon()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(follow_redirects=False))
        bots: dict[str, Bot] = {}
        delivery = Delivery(memory, bots, file.delivery)
        intake = Intake(memory, runs, wake=delivery.wake)
        service = ChannelService(memory, bots, intake)
        fetching: list[Awaitable[None]] = []
        for each in file.channels:
            channel = each.channel()
            client = client_of(each, channel, memory, http)
            bot = bots[each.name] = bot_of(each, channel, client)
            match channel, client:
                case TelegramChannel(), TelegramClient() if each.receive == "polling":
                    fetching.append(TelegramPolling(memory, intake, bot, channel, client).keep_polling())
                case TelegramChannel(), TelegramClient():
                    fetching.append(client.keep_learning(channel))
                case WeComServiceChannel(), WeComServiceClient():
                    desks = DeskFetching(memory, intake, bot, channel, client)
                    service.fetch_with(bot, desks.notice)
                    fetching.append(desks.keep_fetching())
                case _, AIBotConnection():
                    fetching.append(client.keep_connected(intake, bot))
        stack.push_async_callback(delivery.finish, seconds=_FINISH_SECONDS)
        await stack.enter_async_context(_running(delivery.keep_delivering()))
        # What fetches messages ends before the intake, so that nothing is taken after it.
        stack.push_async_callback(intake.close)
        for each_work in fetching:
            await stack.enter_async_context(_running(each_work))
        yield service


def bot_of(settings: AnyBot, channel: Channel, client: ChannelClient) -> Bot:
    """Return the bot for its settings.

    Raises:
        InvalidInput: there is no text of that name.
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
    """Return the client of a bot."""
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


@asynccontextmanager
async def _running(work: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
