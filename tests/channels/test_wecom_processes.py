"""Tests of two services on one database, with callbacks of WeCom to both of them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from wechatpy.enterprise.crypto import WeChatCrypto

from tests.channels.fake_wecom import SECRET, FakeWeCom
from tests.channels.platforms import AES_KEY, CORP, WECOM_TOKEN, WeComAIBot, WeComService, aibot_message
from tests.web.processes import running
from tests.web.provider import providing
from tests.web.services import until
from threadkeep import MemoryOptions, open_memory

CUSTOMERS = ("wm1", "wm2")
MESSAGES = 12

pytestmark = [pytest.mark.process, pytest.mark.slow]


async def test_any_process_returns_the_reply_of_another(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    rest = threading.Event()
    with providing() as provider:
        provider.answer = lambda _: ["Your parcel ", rest, "is on its way."]
        environment = _environment(shared_url, tmp_path, wecom, "wecom_aibot") | provider.environment
        async with running(tmp_path / "a", environment) as (a, _), running(tmp_path / "b", environment) as (b, _):
            stream = await _aibot(a, json.dumps(aibot_message("Where is it?")))
            body = json.dumps({"aibotid": "B1", "msgtype": "stream", "stream": {"id": stream["id"]}})

            async def has_begun() -> bool:
                return bool((await _aibot(b, body))["content"] == "Your parcel")

            async def has_ended() -> bool:
                return bool((await _aibot(b, body))["finish"])

            await until(has_begun)
            rest.set()
            await until(has_ended)
            assert (await _aibot(b, body))["content"] == "Your parcel is on its way."
            assert (await _aibot(a, body))["content"] == "Your parcel is on its way."
    logs = _logs(tmp_path)
    assert not [secret for secret in (WECOM_TOKEN, AES_KEY, "response_code", "parcel") if secret in logs]


async def test_customers_get_one_reply_despite_kills(shared_url: str, tmp_path: Path, wecom: FakeWeCom) -> None:
    """Notices arrive at both services, of which one is killed repeatedly.

    Each message is stored once and in order.
    """
    with providing() as provider:
        provider.answer = lambda newest: [f"re: {newest}"]
        environment = _environment(shared_url, tmp_path, wecom, "wecom_cs") | provider.environment
        async with running(tmp_path / "stays", environment) as (stays, _):
            written = asyncio.Event()
            killing = asyncio.create_task(_kill_again_and_again(tmp_path, environment, written))
            for number in range(MESSAGES):
                for place, customer in enumerate(CUSTOMERS):
                    wecom.write(_item(f"{number} of {customer}", number * 2 + place, customer), page=3)
                await _notify(stays)
                await asyncio.sleep(0.1)
            written.set()
            assert await killing >= 1
            await _notify(stays)
            async with open_memory(shared_url, options=MemoryOptions(background=False)) as memory:

                async def all_answered() -> bool:
                    counts = await memory.channels.outbox.counts()
                    told = [await memory.session(_session(customer)).tail(1000) for customer in CUSTOMERS]
                    heard = [sum(message.role == "user" for message in messages) for messages in told]
                    is_answered = all(messages and messages[-1].role == "assistant" for messages in told)
                    waits = any(at in ("waiting", "ready") for _, at in counts)
                    return min(heard) >= MESSAGES and is_answered and not waits

                await until(all_answered)
                for customer in CUSTOMERS:
                    messages = await memory.session(_session(customer)).tail(1000)
                    said = [message.content for message in messages if message.role == "user"]
                    assert said == [f"{number} of {customer}" for number in range(MESSAGES)]
                    answers = [message.content for message in messages if message.role == "assistant"]
                    sent = [FakeWeCom.text_of(call) for call in wecom.sent() if call["touser"] == customer]
                    assert Counter(sent) == Counter(answers)
                    assert len(set(sent)) == len(sent)
                assert {entry.status for entry in await memory.channels.outbox.entries(limit=1000)} <= {
                    "delivered",
                    "nothing",
                }
    assert SECRET not in _logs(tmp_path)


async def _kill_again_and_again(folder: Path, environment: dict[str, str], written: asyncio.Event) -> int:
    kills = 0
    while not written.is_set():
        async with running(folder / f"dies-{kills}", environment) as (client, _):
            for _ in range(5):
                await _notify(client)
                await asyncio.sleep(0.1)
        kills += 1
    return kills


def _session(customer: str) -> str:
    return f"wecom_cs:wkAJ2GCAAASSm4_5fFh:{customer}"


def _item(text: str, number: int, customer: str) -> dict[str, object]:
    return WeComService().item(text, number, external_userid=customer, send_time=int(time.time()))


async def _notify(client: httpx2.AsyncClient) -> None:
    callback = WeComService().callback(WeComService().body(""), at=int(time.time()))
    response = await client.post(f"/channels/one?{callback.query}", content=callback.body)
    assert response.status_code == 200


async def _aibot(client: httpx2.AsyncClient, body: str) -> dict[str, Any]:
    callback = WeComAIBot().callback(body, at=int(time.time()))
    sent = (await client.post(f"/channels/one?{callback.query}", content=callback.body)).json()
    crypto = WeChatCrypto(WECOM_TOKEN, AES_KEY, "")
    text = crypto.check_signature(sent["msgsignature"], str(sent["timestamp"]), sent["nonce"], sent["encrypt"])
    return dict(json.loads(text)["stream"])


def _logs(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*/std*"))


def _environment(url: str, folder: Path, wecom: FakeWeCom, kind: str) -> dict[str, str]:
    file = folder / "channels.yaml"
    corporation = "" if kind == "wecom_aibot" else f"corp_id: {CORP}, secret: {SECRET}, "
    bot = f"{{kind: {kind}, name: one, {corporation}token: {WECOM_TOKEN}, encoding_aes_key: {AES_KEY}, "
    delivery = "{poll_seconds: 0.2, claim_seconds: 4, first_pause_seconds: 0.1}"
    file.write_text(f"channels:\n  - {bot}api: '{wecom.address}'}}\ndelivery: {delivery}\n")
    return {
        "THREADKEEP_DATABASE_URL": url,
        "THREADKEEP_CHANNELS": str(file),
        "THREADKEEP_PENDING_DIR": str(folder / "pending"),
        "THREADKEEP_RUN_DEAD_SECONDS": "2",
        "THREADKEEP_RUN_MAX_ATTEMPTS": "100",
    }
