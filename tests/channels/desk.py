"""A service with a Telegram bot and a given model, and the messages of one person."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
from langchain_core.language_models import BaseChatModel

from tests.channels.fake_telegram import FakeTelegram, Values
from tests.channels.platforms import SENT_AT, TELEGRAM_SECRET, TELEGRAM_TOKEN
from tests.web.services import client_of, opened_app, settings_for, until
from threadkeep import Memory
from threadkeep.app import App
from threadkeep.channels.configuration import AnyBot, ChannelsFile, TelegramSettings
from threadkeep.channels.delivery import DeliveryOptions
from threadkeep.channels.opening import open_channels
from threadkeep.records.messages import OutboxStatus

SESSION = "telegram:4242:7"
SOON = DeliveryOptions(poll_seconds=0.05, first_pause_seconds=0.05, longest_pause_seconds=0.2)


@dataclass(frozen=True)
class BotDesk:
    """An open service with a bot."""

    app: App
    client: httpx2.AsyncClient
    telegram: FakeTelegram

    @property
    def memory(self) -> Memory:
        """The memory of the service."""
        return self.app.memory

    async def send(self, update: Values, *, secret: str = TELEGRAM_SECRET, bot: str = "one") -> int:
        """Call the webhook of the bot; repeat after 503, as Telegram does. Return the status."""
        headers = {"X-Telegram-Bot-Api-Secret-Token": secret}
        while (response := await self.client.post(f"/channels/{bot}", json=update, headers=headers)).status_code == 503:
            pass
        return response.status_code

    async def say(self, text: str, number: int = 1, **changes: Any) -> None:
        """Send a message, and require status 200."""
        assert await self.send(update(text, number, **changes)) == 200

    async def answered(self, count: int = 1) -> list[str]:
        """Wait for this many replies and an empty outbox; return the texts that the person got."""
        await until(lambda: len(self.telegram.texts()) >= count)
        await until(self.outbox_is_idle)
        return self.telegram.texts()

    async def outbox_is_idle(self) -> bool:
        """Return whether each entry of the outbox is delivered or has failed."""
        counts = await self.memory.channels.outbox.counts()
        return not any(status in ("waiting", "ready") for _, status in counts)

    async def statuses(self) -> list[OutboxStatus]:
        """Return the status of each entry of the outbox, in order."""
        return [entry.status for entry in await self.memory.channels.outbox.entries()]

    async def transcript(self, session_id: str = SESSION) -> list[tuple[str, str]]:
        """Return roles and texts of a session."""
        return [(message.role, message.content) for message in await self.memory.session(session_id).tail(100)]


def telegram_settings(telegram: FakeTelegram, **changes: Any) -> TelegramSettings:
    """Return the settings of a bot with a webhook at the fake platform."""
    given = {"kind": "telegram", "name": "one", "token": TELEGRAM_TOKEN, "receive": "webhook"}
    given |= {"secret": TELEGRAM_SECRET, "username": "KeepBot", "api": telegram.address}
    return TelegramSettings.model_validate({**given, **changes})


@asynccontextmanager
async def opened_bot(
    url: str, folder: Path, telegram: FakeTelegram, model: BaseChatModel, **settings: Any
) -> AsyncIterator[BotDesk]:
    """Open a service over a database, with one bot and optional `others`."""
    others: list[Mapping[str, Any]] = settings.pop("others", [])
    environment: Mapping[str, Any] = settings.pop("environment", {})
    options = settings.pop("options", SOON)
    async with opened_app(model, settings_for(folder, database_url=url, **environment)) as app:
        bots: list[AnyBot] = [telegram_settings(telegram, **each) for each in (settings, *others)]
        file = ChannelsFile(channels=bots, delivery=options)
        async with open_channels(app.memory, app.runs, file) as service:
            with_bots = replace(app, channels=service)
            async with client_of(with_bots) as client:
                yield BotDesk(with_bots, client, telegram)


def update(text: str, number: int = 1, **changes: Any) -> Values:
    """Return an update with a message of a private chat."""
    sender = {"id": 7, "is_bot": False, "first_name": "Anna", "username": "anna"}
    message = {"message_id": 100 + number, "date": SENT_AT, "from": sender, "chat": {"id": 7, "type": "private"}}
    return {"update_id": number, "message": {**message, "text": text, **changes}}
