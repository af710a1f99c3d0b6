"""Tests of a WeCom AI bot with a long connection, with a fake gateway in another process."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langchain_core.language_models import BaseChatModel
from websockets.asyncio.client import connect

from tests.channels.desk import SOON
from tests.channels.fake_openws import SECRET, FakeGateway, faking_gateway
from tests.channels.platforms import WeComAIBot, aibot_message
from tests.limits import HANG_SECONDS
from tests.outages import Outage
from tests.web.services import client_of, opened_app, settings_for, until
from threadkeep import Memory
from threadkeep.app import App
from threadkeep.channels import wecom_connection
from threadkeep.channels.bots import Receiver
from threadkeep.channels.configuration import ChannelsFile, WeComAIBotSettings
from threadkeep.channels.intake import Intake
from threadkeep.channels.opening import open_channels
from threadkeep.errors import InvalidInput, StoreUnavailable
from threadkeep.store.duties import Duties
from threadkeep.testing import Gate, ScriptedModel

SESSION = "wecom_aibot:B1:single:U1"


@dataclass(frozen=True)
class ConnectedDesk:
    """An open service with a bot that is connected to the gateway."""

    app: App
    client: httpx2.AsyncClient
    gateway: FakeGateway

    @property
    def memory(self) -> Memory:
        """The memory of the service."""
        return self.app.memory

    async def answered(self, count: int = 1) -> list[str]:
        """Wait for this many replies and an empty outbox; return the texts that people got."""
        await until(lambda: len(self.gateway.texts()) >= count)
        await until(self.outbox_is_idle)
        return self.gateway.texts()

    async def outbox_is_idle(self) -> bool:
        """Return whether each entry of the outbox is delivered or has failed."""
        counts = await self.memory.channels.outbox.counts()
        return not any(status in ("waiting", "ready") for _, status in counts)

    async def transcript(self) -> list[tuple[str, str]]:
        """Return roles and texts of the transcript."""
        return [(message.role, message.content) for message in await self.memory.session(SESSION).tail(100)]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    """Start a gateway for the test."""
    with faking_gateway(tmp_path) as fake:
        yield fake


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses of the connection."""
    for name in ("_PING_SECONDS", "_GROW_SECONDS"):
        monkeypatch.setattr(wecom_connection, name, 0.05)
    for name in ("look_seconds", "first_pause_seconds"):
        monkeypatch.setattr(Receiver, name, 0.05)


@asynccontextmanager
async def connected(
    url: str, folder: Path, gateway: FakeGateway, model: BaseChatModel, **changes: Any
) -> AsyncIterator[ConnectedDesk]:
    """Open a service over a database, with one bot."""
    environment: Mapping[str, Any] = changes.pop("environment", {})
    given = {"kind": "wecom_aibot", "name": "one", "receive": "connection", "bot_id": "B1", "secret": SECRET}
    settings = WeComAIBotSettings.model_validate({**given, "connection": gateway.address, **changes})
    async with opened_app(model, settings_for(folder, database_url=url, **environment)) as app:
        file = ChannelsFile(channels=[settings], delivery=SOON)
        async with open_channels(app.memory, app.runs, file) as service:
            with_bots = replace(app, channels=service)
            async with client_of(with_bots) as client:
                yield ConnectedDesk(with_bots, client, gateway)


def message(text: str, number: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a message as the gateway sends it, without a response URL."""
    body = {**aibot_message(text, number), **changes}
    del body["response_url"]
    return body


@pytest.mark.slow
async def test_a_reply_is_streamed_over_the_connection(
    shared_url: str, tmp_path: Path, gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """A repeated message is one turn and gets no second reply. The log contains no frames and no secret."""
    caplog.set_level(logging.DEBUG)
    gate = Gate()
    model = ScriptedModel([["Your parcel ", gate, "is on its way."]])
    async with connected(shared_url, tmp_path, gateway, model) as desk:
        req_id = gateway.push(message("Where is it?"))
        await gate.reached()
        await until(lambda: ("Your parcel", False) in gateway.streams(req_id))
        assert gateway.texts() == []
        gate.open()
        assert await desk.answered() == ["Your parcel is on its way."]
        again = gateway.push(message("Where is it?"))
        gateway.push(message("/help", 2))
        assert "/new" in (await desk.answered(2))[1]
        assert gateway.streams(again) == []
        assert await desk.transcript() == [("user", "Where is it?"), ("assistant", "Your parcel is on its way.")]
    assert gateway.streams(req_id)[-1] == ("Your parcel is on its way.", True)
    assert [finished for _, finished in gateway.streams(req_id)].count(True) == 1
    assert gateway.subscriptions() == [0]
    assert len(model.calls) == 1
    assert SECRET not in caplog.text
    assert "Where is it?" not in "".join(one.getMessage() for one in caplog.records if "websockets" in one.name)
    assert not [one for one in caplog.records if one.name.startswith("threadkeep.channels.wecom_connection")]


async def test_a_message_repeated_during_its_reply_starts_no_stream(tmp_path: Path, gateway: FakeGateway) -> None:
    gate = Gate()
    model = ScriptedModel([["Your parcel ", gate, "is on its way."]])
    async with connected("sqlite://", tmp_path, gateway, model) as desk:
        req_id = gateway.push(message("Where is it?"))
        await gate.reached()
        await until(lambda: ("Your parcel", False) in gateway.streams(req_id))
        again = gateway.push(message("Where is it?"))
        gateway.push(message("/help", 2))
        await until(lambda: len(gateway.texts()) == 1)
        gate.open()
        assert "Your parcel is on its way." in await desk.answered(2)
    assert gateway.streams(again) == []


async def test_a_message_with_an_unknown_error_is_sent_again(tmp_path: Path, gateway: FakeGateway) -> None:
    """An unknown code may mean a limit; only codes that are known to be final end the delivery."""
    async with connected("sqlite://", tmp_path, gateway, ScriptedModel(["ok"])) as desk:
        gateway.push(message("hi"))
        await desk.answered(1)
        gateway.refuse(846_607)
        await desk.memory.channels.outbox.send(SESSION, "reminder-1", "Your parcel is here.")
        assert await desk.answered(2) == ["ok", "Your parcel is here."]


@pytest.mark.slow
async def test_a_reply_after_a_reconnect_is_sent_as_a_message(
    shared_url: str, tmp_path: Path, gateway: FakeGateway
) -> None:
    gate = Gate()
    async with connected(shared_url, tmp_path, gateway, ScriptedModel([[gate, "late"]])) as desk:
        gateway.push(message("hi", chattype="group", chatid="wrGROUP"))
        await gate.reached()
        gateway.drop()
        await until(lambda: gateway.subscriptions() == [0, 0])
        gate.open()
        assert await desk.answered() == ["late"]
    [sent] = gateway.frames("aibot_send_msg")
    assert sent["body"] == {"chatid": "wrGROUP", "msgtype": "markdown", "markdown": {"content": "late"}}


async def test_a_late_reply_is_sent_as_a_message(
    tmp_path: Path, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends with a notice after its time. A reply to a stream that WeCom has ended is a message, too."""
    monkeypatch.setattr(wecom_connection, "STREAM_TIME", timedelta(0))
    gate = Gate()
    async with connected("sqlite://", tmp_path, gateway, ScriptedModel([[gate, "late"], "next"])) as desk:
        req_id = gateway.push(message("hi"))
        await gate.reached()
        await until(lambda: gateway.streams(req_id) == [("This takes longer. The answer follows.", True)])
        gate.open()
        assert (await desk.answered(2))[1:] == ["late"]
        monkeypatch.setattr(wecom_connection, "STREAM_TIME", timedelta(seconds=60))
        monkeypatch.setattr(wecom_connection, "_GROW_SECONDS", 60.0)
        monkeypatch.setattr(wecom_connection, "_FINISH_SECONDS", 0.05)
        gateway.refuse(846608, 846608)
        gateway.push(message("hello", 2))
        assert (await desk.answered(3))[2:] == ["next"]
    assert [frame["body"]["chatid"] for frame in gateway.frames("aibot_send_msg")] == ["U1", "U1"]


async def test_a_long_reply_is_a_stream_and_messages(tmp_path: Path, gateway: FakeGateway) -> None:
    """A frame has at most 20,480 bytes, so a longer reply is a stream and messages."""
    answer = "a" * 15_000 + "\n\n" + "b" * 15_000
    async with connected("sqlite://", tmp_path, gateway, ScriptedModel([answer])) as desk:
        gateway.push(message("hi"))
        assert await desk.answered(2) == ["a" * 15_000, "b" * 15_000]
        [entry] = await desk.memory.channels.outbox.entries()
    assert (entry.status, entry.parts_sent) == ("delivered", 2)


async def test_an_unprompted_message_is_sent_over_the_connection(tmp_path: Path, gateway: FakeGateway) -> None:
    """The recipient is the chat of the newest message; a repeated id is sent once."""
    async with connected("sqlite://", tmp_path, gateway, ScriptedModel(["ok"])) as desk:
        gateway.push(message("hi"))
        await desk.answered()
        for _ in range(2):
            await desk.memory.channels.outbox.send(SESSION, "reminder-1", "Your parcel is here.")
        assert await desk.answered(2) == ["ok", "Your parcel is here."]
    [sent] = gateway.frames("aibot_send_msg")
    assert sent["body"]["chatid"] == "U1"


async def test_streams_of_all_kinds_of_messages_are_ended(tmp_path: Path, gateway: FakeGateway) -> None:
    """A new chat gets a welcome. The stream of the first of two coalesced messages ends without a reply."""
    gate = Gate()
    model = ScriptedModel([[gate, "one"], "all"])
    settings = {"double_texting": "coalesce"}
    async with connected("sqlite://", tmp_path, gateway, model, **settings) as desk:
        gateway.push(message("", 1, msgtype="event", event={"eventtype": "enter_chat"}))
        await until(lambda: len(gateway.frames("aibot_respond_welcome_msg")) == 1)
        gateway.push(message("/help", 2))
        assert "/new" in (await desk.answered(1))[0]
        gateway.push(message("", 3, msgtype="image", image={"url": "https://x"}))
        assert (await desk.answered(2))[1] == "I can only read text."
        gateway.push(message("a", 4))
        await gate.reached()
        streams = [gateway.push(message(text, number)) for number, text in ((5, "b"), (6, "c"))]
        await until(lambda: all(gateway.streams(req_id) for req_id in streams))
        gate.open()
        await until(lambda: all(gateway.streams(req_id)[-1][1] for req_id in streams))
        assert [gateway.streams(req_id)[-1][0] for req_id in streams] == ["…", "all"]
    [welcome] = gateway.frames("aibot_respond_welcome_msg")
    assert welcome["body"]["text"]["content"].startswith("Hello!")


@pytest.mark.slow
async def test_only_one_process_is_connected(shared_url: str, tmp_path: Path, gateway: FakeGateway) -> None:
    model = ScriptedModel(repeat("ok"))
    async with AsyncExitStack() as first:
        await first.enter_async_context(connected(shared_url, tmp_path, gateway, model))
        await until(lambda: gateway.subscriptions() == [0])
        async with connected(shared_url, tmp_path, gateway, model) as desk:
            gateway.push(message("hi", 1))
            assert await desk.answered(1) == ["ok"]
            gateway.push(message("hello", 2))
            assert await desk.answered(2) == ["ok", "ok"]
            assert gateway.subscriptions() == [0]
            await first.aclose()
            await until(lambda: gateway.subscriptions() == [0, 0])
            gateway.push(message("more", 3))
            assert await desk.answered(3) == ["ok", "ok", "ok"]


async def test_a_replaced_connection_is_opened_again(
    tmp_path: Path, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program with the same secret replaces the connection; the bot reconnects after the longest pause."""
    monkeypatch.setattr(Receiver, "longest_pause_seconds", 0.1)
    async with connected("sqlite://", tmp_path, gateway, ScriptedModel(["ok"])) as desk:
        await until(lambda: gateway.subscriptions() == [0])
        async with connect(gateway.address) as other:
            body = {"bot_id": "B1", "secret": SECRET}
            await other.send(json.dumps({"cmd": "aibot_subscribe", "headers": {"req_id": "o"}, "body": body}))
            await until(lambda: gateway.subscriptions() == [0, 0, 0])
        gateway.push(message("hi"))
        assert await desk.answered() == ["ok"]


async def test_a_wrong_secret_is_reported_and_retried(tmp_path: Path, gateway: FakeGateway) -> None:
    async with connected("sqlite://", tmp_path, gateway, ScriptedModel(), secret="wrong") as desk:
        await until(lambda: len(gateway.subscriptions()) >= 2)
        callback = WeComAIBot().callback(WeComAIBot().body("hi"))
        response = await desk.client.post(f"/channels/one?{callback.query}", content=callback.body)
        assert response.status_code == 403
        metrics = (await desk.client.get("/metrics")).text
    assert set(gateway.subscriptions()) == {853000}
    assert 'threadkeep_channel_troubles_total{channel="wecom_aibot",work="polling"}' in metrics


@pytest.mark.parametrize("changes", [{"bot_id": ""}, {"secret": ""}, {"receive": "webhook"}])
def test_a_bot_with_a_missing_option_is_refused(changes: dict[str, str]) -> None:
    given = {"kind": "wecom_aibot", "name": "one", "receive": "connection", "bot_id": "B1", "secret": SECRET}
    with pytest.raises(InvalidInput, match="needs its") as refused:
        WeComAIBotSettings.model_validate({**given, **changes}).channel()
    assert SECRET not in str(refused.value)


async def test_the_connection_survives_a_database_outage(
    tmp_path: Path, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages stay in memory in order during the outage, because WeCom does not repeat them."""
    monkeypatch.setattr(Receiver, "longest_pause_seconds", 0.2)
    outage = Outage(tmp_path / "channels.db")
    model = ScriptedModel(lambda messages: f"to {messages[-1].text}" for _ in range(3))
    async with connected(outage.url, tmp_path, gateway, model, environment={"lock_timeout": 0.05}) as desk:
        await until(lambda: gateway.subscriptions() == [0])
        async with outage():
            for number, text in enumerate(["one", "two"], 1):
                gateway.push(message(text, number))
                seen = gateway.pings()
                await until(lambda seen=seen: gateway.pings() > seen + 3)  # type: ignore[misc]
        gateway.push(message("three", 3))
        assert await desk.answered(3) == ["to one", "to two", "to three"]
    assert gateway.subscriptions() == [0]


async def test_the_connection_is_claimed_soon_after_an_outage(
    tmp_path: Path, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process would connect otherwise, and take newer messages before those that wait in this process.

    During the outage, WeCom gets no more pings than usually.
    """
    claim, claims = Duties.claim, list[str]()

    async def failing(self: Duties, duty: str, owner: str, *, seconds: float, every_seconds: float) -> bool:
        if duty.startswith("connect:"):
            claims.append(duty)
            if 2 <= len(claims) < 5:
                monkeypatch.setattr(wecom_connection, "_PING_SECONDS", 2 * HANG_SECONDS)
                raise StoreUnavailable("no database")
        return await claim(self, duty, owner, seconds=seconds, every_seconds=every_seconds)

    monkeypatch.setattr(Duties, "claim", failing)
    async with connected("sqlite://", tmp_path, gateway, ScriptedModel()):
        await until(lambda: len(claims) == 5)
        assert gateway.pings() <= 2  # at the beginning and after the end of the outage


async def test_a_message_received_during_shutdown_is_stored(
    tmp_path: Path, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is closed first, then its messages are stored. The next process replies."""
    comes, is_continued, take = asyncio.Event(), asyncio.Event(), Intake.take

    async def slow(*args: Any, **named: Any) -> None:
        comes.set()
        await is_continued.wait()
        await take(*args, **named)

    url = f"sqlite:///{tmp_path / 'channels.db'}"
    async with AsyncExitStack() as first:
        await first.enter_async_context(connected(url, tmp_path, gateway, ScriptedModel(["ok"])))
        await until(gateway.is_connected)
        monkeypatch.setattr(Intake, "take", slow)
        gateway.push(message("hi"))
        await comes.wait()
        closing = asyncio.create_task(first.aclose())
        await until(lambda: not gateway.is_connected())
        is_continued.set()
        await closing
    async with connected(url, tmp_path, gateway, ScriptedModel(["ok"])) as desk:
        assert await desk.answered() == ["ok"]
        assert await desk.transcript() == [("user", "hi"), ("assistant", "ok")]
