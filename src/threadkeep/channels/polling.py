"""Long polling of Telegram, for bots without a webhook."""

from __future__ import annotations

import asyncio
import contextlib

from langchain_core.utils.uuid import uuid7

from threadkeep.channels.bot import Bot
from threadkeep.channels.payloads import number_in
from threadkeep.channels.service import ChannelService
from threadkeep.channels.telegram import TelegramChannel
from threadkeep.channels.telegram_client import TelegramClient, updates_in
from threadkeep.errors import StoreError
from threadkeep.history.memory import Memory
from threadkeep.observe import ChannelTrouble

_WAIT_SECONDS = 25
_CLAIM_SECONDS = 60.0
_LOOK_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


class TelegramPolling:
    """The poller of one bot. Only one process polls at a time; another takes over if it dies.

    The offset is stored after its updates are taken; an update that arrives twice is taken once.
    """

    def __init__(
        self, memory: Memory, service: ChannelService, bot: Bot, channel: TelegramChannel, client: TelegramClient
    ) -> None:
        self._memory = memory
        self._service = service
        self._bot = bot
        self._channel = channel
        self._client = client
        self._state = memory.channels.state
        self._duties = memory.channels.duties
        self._duty = f"poll:{channel.scope}"
        self._owner = str(uuid7())

    async def keep_polling(self) -> None:
        """Poll until cancelled; retry after a pause on failure."""
        pause = _FIRST_PAUSE_SECONDS
        try:
            while True:
                try:
                    error = await self.poll()
                except Exception as raised:  # noqa: BLE001 - the loop outlives any failure, which is told
                    error = type(raised).__name__
                if error is None:
                    pause = _FIRST_PAUSE_SECONDS
                    continue
                self._memory.observers.notify(ChannelTrouble(channel="telegram", work="polling", error=error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        finally:
            await asyncio.shield(self._release())

    async def poll(self) -> str | None:
        """Take the available updates, or wait for some; return the kind of an error, or None."""
        if not await self._duties.claim(self._duty, self._owner, seconds=_CLAIM_SECONDS, every_seconds=0.0):
            await asyncio.sleep(_LOOK_SECONDS)
            return None
        stored = await self._state.value(self._channel.scope, "offset")
        offset = int(stored) if stored else None
        answer = await self._client.updates(offset, self._channel.options.allowed_updates, seconds=_WAIT_SECONDS)
        if not answer.ok:
            # 409: a webhook is set, or another program polls this bot.
            return answer.error or {409: "Conflict", 401: "Unauthorized"}.get(answer.status, f"Status{answer.status}")
        for update in updates_in(answer):
            await self._service.take(self._bot, self._channel.read_update(update))
            offset = max(offset or 0, (number_in(update, "update_id") or 0) + 1)
        if offset is not None and str(offset) != stored:
            kept = await self._state.keep_for_duty(
                self._channel.scope, "offset", str(offset), duty=self._duty, owner=self._owner
            )
            return None if kept else "LostDuty"
        return None

    async def _release(self) -> None:
        with contextlib.suppress(StoreError):  # it ends by itself
            await self._duties.release(self._duty, self._owner)
