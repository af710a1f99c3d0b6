"""Fetching of messages of WeCom customer service, one process at a time for each desk."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from langchain_core.utils.uuid import uuid7

from threadkeep.channels.bot import Bot
from threadkeep.channels.contract import DeskNotified, IncomingMessage, Update
from threadkeep.channels.payloads import object_in, read_json, text_in
from threadkeep.channels.service import ChannelService
from threadkeep.channels.wecom_client import WeComServiceClient
from threadkeep.channels.wecom_cs import WeComServiceChannel
from threadkeep.errors import StoreError
from threadkeep.history.memory import Memory
from threadkeep.observe import ChannelTrouble
from threadkeep.store.codec import time_of

_CLAIM_SECONDS = 60.0
_LOOK_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_TOKEN_SECONDS = 540
_UNKNOWN_AGE = timedelta(minutes=10)
_NOTICE = "notice:"


class DeskFetching:
    """The fetcher of the desks of one bot.

    A notice is stored before its callback is answered, and stays until the desk is fetched to its end. The cursor of a
    desk is stored after the messages of its page are taken; a message that comes twice is taken once.
    """

    def __init__(
        self,
        memory: Memory,
        service: ChannelService,
        bot: Bot,
        channel: WeComServiceChannel,
        client: WeComServiceClient,
    ) -> None:
        self._memory = memory
        self._service = service
        self._bot = bot
        self._channel = channel
        self._client = client
        self._state = memory.channels.state
        self._duties = memory.channels.duties
        self._owner = str(uuid7())
        self._noticed = asyncio.Event()

    async def notice(self, notified: DeskNotified) -> None:
        """Store that a desk has messages, and have them fetched."""
        value = json.dumps({"token": notified.token, "at": self._memory.clock().isoformat()})
        await self._state.keep(self._channel.scope, f"{_NOTICE}{notified.open_kf_id}", value)
        self._noticed.set()

    async def keep_fetching(self) -> None:
        """Fetch noticed desks until cancelled; retry after a pause on failure."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            error = None
            try:
                for name, value in (await self._state.values_of(self._channel.scope, _NOTICE)).items():
                    error = await self.fetch(name.removeprefix(_NOTICE), value) or error
            except Exception as raised:  # noqa: BLE001 - the loop outlives any failure, which is told
                error = type(raised).__name__
            if error is None:
                pause, seconds = _FIRST_PAUSE_SECONDS, _LOOK_SECONDS
            else:
                self._memory.observers.notify(ChannelTrouble(channel="wecom_cs", work="polling", error=error))
                seconds, pause = pause, min(pause * 2, _LONGEST_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._noticed.wait()
            self._noticed.clear()

    async def fetch(self, desk: str, notice: str) -> str | None:
        """Take all messages of a desk, unless another process does so; return the kind of an error, or None."""
        duty = f"fetch:{self._channel.scope}:{desk}"
        if not await self._duties.claim(duty, self._owner, seconds=_CLAIM_SECONDS, every_seconds=0.0):
            return None
        try:
            error = await self._fetch_pages(desk, notice, duty)
            if error is None:
                # A newer notice has another value and stays.
                await self._state.forget(self._channel.scope, f"{_NOTICE}{desk}", notice)
            return error
        finally:
            with contextlib.suppress(StoreError):  # it ends by itself
                await asyncio.shield(self._duties.release(duty, self._owner))

    async def _fetch_pages(self, desk: str, notice: str, duty: str) -> str | None:
        scope, token = self._channel.scope, self._token_in(notice)
        first = cursor = await self._state.value(scope, f"cursor:{desk}")
        while True:
            answer = await self._client.page(desk, cursor=cursor, token=token)
            if not answer.ok:
                return answer.problem
            page = self._channel.read_page(dict(answer.fields))
            fresh = page.updates if first is not None else self._begun_recently(page.updates)
            await self._service.take_page(self._bot, fresh)
            if page.next_cursor and page.next_cursor != cursor:
                cursor = page.next_cursor
                if not await self._state.keep_for_duty(scope, f"cursor:{desk}", cursor, duty=duty, owner=self._owner):
                    return "LostDuty"
            elif page.has_more:
                return "NoCursor"
            if not page.has_more:
                return None
            if not await self._duties.claim(duty, self._owner, seconds=_CLAIM_SECONDS, every_seconds=0.0):
                return "LostDuty"

    def _begun_recently(self, updates: Iterable[Update]) -> list[Update]:
        """Return the updates of a desk that was never fetched, which come with up to three days of history.

        Older messages are stored without an answer.
        """
        since = self._memory.clock() - _UNKNOWN_AGE
        found: list[Update] = []
        for update in updates:
            if not isinstance(update, IncomingMessage) or _sent_after(update, since):
                found.append(update)
            else:
                found.append(replace(update, wants_answer=False))
        return found

    def _token_in(self, notice: str) -> str | None:
        """Return the token of a notice, if it is still valid; without one WeCom allows few calls."""
        fields = object_in(read_json(notice))
        at = time_of(text_in(fields, "at"))
        is_valid = self._memory.clock() - at < timedelta(seconds=_TOKEN_SECONDS)
        return text_in(fields, "token") or None if is_valid else None


def _sent_after(message: IncomingMessage, since: datetime) -> bool:
    return message.sent_at is None or message.sent_at >= since
