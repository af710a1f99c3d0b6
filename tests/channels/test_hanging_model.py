"""Tests of callbacks while the model does not respond: each platform gets its response within its limit."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.channels.desk import BotDesk, opened_bot
from tests.channels.platforms import WeComService
from tests.channels.wecom_desk import WeComDesk, opened_wecom
from threadkeep.testing import Gate, ScriptedModel

LIMIT_SECONDS = 5.0
CHECK_SECONDS = 1.0
"""Seconds that a platform waits for the response to a message, and to the check of the address."""


async def take(desk: BotDesk | WeComDesk, number: int) -> None:
    """Deliver a message, and require its response within the limit."""
    if isinstance(desk, WeComDesk) and isinstance(desk.platform, WeComService):
        desk.wecom.write(WeComService().item("hi", number, send_time=int(time.time())))
    async with asyncio.timeout(LIMIT_SECONDS):
        await desk.say("hi", number)


async def check_address(desk: WeComDesk) -> None:
    """Send an echo request, and require the plain text within the limit."""
    encrypted, query = desk.platform.sealed("1616140317555161061", at=int(time.time()))
    async with asyncio.timeout(CHECK_SECONDS):
        response = await desk.client.get(f"/channels/one?{query}&echostr={quote(encrypted, safe='')}")
    assert (response.status_code, response.content) == (200, b"1616140317555161061")


@pytest.mark.parametrize("kind", ["telegram", "wecom_dm", "wecom_cs", "wecom_aibot"])
async def test_callbacks_succeed_while_the_model_hangs(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A message, its repeat and the next message get their responses.

    The replies are sent when the model responds.
    """
    gate = Gate()
    model = ScriptedModel([[gate, "one"], "two"])
    fake = request.getfixturevalue("telegram" if kind == "telegram" else "wecom")
    opening = (
        opened_bot("sqlite://", tmp_path, fake, model)
        if kind == "telegram"
        else opened_wecom(kind, "sqlite://", tmp_path, fake, model)
    )
    async with opening as desk:
        for number in (1, 1, 2):
            await take(desk, number)
            await gate.reached()
        if isinstance(desk, WeComDesk):
            await check_address(desk)
        assert fake.texts() == []
        assert set(await desk.statuses()) == {"waiting"}
        gate.open()
        if kind != "wecom_aibot":  # the platform fetches its replies
            assert await desk.answered(2) == ["one", "two"]
