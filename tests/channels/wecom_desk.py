"""A service with a WeCom bot and a given model, and the callbacks of the platform."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
from langchain_core.language_models import BaseChatModel

from tests.channels.desk import SOON
from tests.channels.fake_wecom import SECRET, FakeWeCom
from tests.channels.platforms import AES_KEY, CORP, WECOM_TOKEN, WeCom, WeComAIBot, WeComDirect, WeComService
from tests.web.services import client_of, opened_app, settings_for, until
from threadkeep import Memory
from threadkeep.app import App
from threadkeep.channels.configuration import (
    AnyBot,
    ChannelsFile,
    WeComAIBotSettings,
    WeComDirectSettings,
    WeComServiceSettings,
)
from threadkeep.channels.opening import open_channels
from threadkeep.records.messages import OutboxStatus

KINDS: dict[str, type[WeCom]] = {"wecom_dm": WeComDirect, "wecom_cs": WeComService, "wecom_aibot": WeComAIBot}


@dataclass(frozen=True)
class WeComDesk:
    """An open service with a bot."""

    app: App
    client: httpx2.AsyncClient
    wecom: FakeWeCom
    platform: Any

    @property
    def memory(self) -> Memory:
        """The memory of the service."""
        return self.app.memory

    async def post(self, body: str) -> httpx2.Response:
        """Call the callback URL with an encrypted body; repeat after 503, as WeCom does."""
        callback = self.platform.callback(body, at=int(time.time()))
        url = f"/channels/one?{callback.query}"
        while (response := await self.client.post(url, content=callback.body)).status_code == 503:
            pass
        return response

    async def say(self, text: str, number: int = 1, **changes: Any) -> httpx2.Response:
        """Send a message, and require status 200."""
        response = await self.post(self.platform.body(text, number, **changes))
        assert response.status_code == 200
        return response

    async def answered(self, count: int = 1) -> list[str]:
        """Wait for this many replies and an empty outbox; return the texts that people got."""
        await until(lambda: len(self.wecom.texts()) >= count)
        await until(self.outbox_is_idle)
        return self.wecom.texts()

    async def outbox_is_idle(self) -> bool:
        """Return whether each entry of the outbox is delivered or has failed."""
        counts = await self.memory.channels.outbox.counts()
        return not any(status in ("waiting", "ready") for _, status in counts)

    async def statuses(self) -> list[OutboxStatus]:
        """Return the status of each entry of the outbox, in order."""
        return [entry.status for entry in await self.memory.channels.outbox.entries()]

    async def transcript(self, session_id: str) -> list[tuple[str, str]]:
        """Return roles and texts of a session."""
        return [(message.role, message.content) for message in await self.memory.session(session_id).tail(100)]


def wecom_settings(kind: str, wecom: FakeWeCom, **changes: Any) -> AnyBot:
    """Return the settings of a bot at the fake platform."""
    given: dict[str, Any] = {"kind": kind, "name": "one", "token": WECOM_TOKEN, "encoding_aes_key": AES_KEY}
    given |= {"api": wecom.address}
    match kind:
        case "wecom_dm":
            given |= {"corp_id": CORP, "agent_id": "1", "secret": SECRET}
            return WeComDirectSettings.model_validate(given | changes)
        case "wecom_cs":
            given |= {"corp_id": CORP, "secret": SECRET}
            return WeComServiceSettings.model_validate(given | changes)
        case _:
            return WeComAIBotSettings.model_validate(given | changes)


@asynccontextmanager
async def opened_wecom(
    kind: str, url: str, folder: Path, wecom: FakeWeCom, model: BaseChatModel, **settings: Any
) -> AsyncIterator[WeComDesk]:
    """Open a service over a database, with one bot."""
    options = settings.pop("options", SOON)
    environment: dict[str, Any] = settings.pop("environment", {})
    async with opened_app(model, settings_for(folder, database_url=url, **environment)) as app:
        file = ChannelsFile(channels=[wecom_settings(kind, wecom, **settings)], delivery=options)
        async with open_channels(app.memory, app.runs, file) as service:
            with_bots = replace(app, channels=service)
            async with client_of(with_bots) as client:
                yield WeComDesk(with_bots, client, wecom, KINDS[kind]())
