"""The callbacks of all bots of a process: each is verified, taken, and responded to within the platform's limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from threadkeep.channels.bots import Bot
from threadkeep.channels.contract import Callback, CallbackResponse, DeskNotified, Received
from threadkeep.channels.intake import Intake
from threadkeep.channels.wecom_aibot import AnswerStreams, WeComAIBotChannel
from threadkeep.errors import CallbackRefused, ChannelNotFound
from threadkeep.memory import Memory

TAKE_SECONDS = 4.0
"""Seconds that a callback may take. WeCom waits five seconds, then repeats it."""


class ChannelService:
    """The bots of this process.

    A callback is acknowledged only after its messages are stored. The platform repeats unacknowledged callbacks, so no
    message is lost.
    """

    def __init__(self, memory: Memory, bots: Mapping[str, Bot], intake: Intake) -> None:
        self._bots = bots
        self._intake = intake
        self._streams = AnswerStreams(memory)
        self._desks: dict[str, Callable[[DeskNotified], Awaitable[None]]] = {}

    @property
    def names(self) -> list[str]:
        """The names of the bots."""
        return list(self._bots)

    def fetch_with(self, bot: Bot, notice: Callable[[DeskNotified], Awaitable[None]]) -> None:
        """Call `notice` with each notice of a bot's desks."""
        self._desks[bot.name] = notice

    async def receive(self, name: str, callback: Callback) -> CallbackResponse:
        """Process a callback.

        Raises:
            ChannelNotFound: there is no bot of that name.
            CallbackRefused: the callback is not from the platform.
            StoreUnavailable, TimeoutError: it was not taken; the platform sends it again.
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
            # The task continues; when the platform repeats the callback, its messages are found stored.
            self._intake.in_background(responding)
            raise TimeoutError
        return await responding

    async def _respond(self, bot: Bot, received: Received) -> CallbackResponse:
        """Take the updates of a callback and return the response to it."""
        for update in received.updates:
            if isinstance(update, DeskNotified):
                await self._desks[bot.name](update)
            await self._intake.take(bot, update)
        if isinstance(bot.channel, WeComAIBotChannel):
            for update in received.updates:
                if response := await self._streams.response(bot, bot.channel, update):
                    return response
        return received.response
