"""Tests of two services on one database that are killed repeatedly, while a fake Telegram repeats refused updates."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import httpx2
import pytest

from tests.channels.desk import update
from tests.channels.fake_telegram import FakeTelegram
from tests.channels.platforms import TELEGRAM_SECRET, TELEGRAM_TOKEN
from tests.web.processes import running
from tests.web.provider import providing
from tests.web.services import until
from threadkeep import Memory, MemoryOptions, open_memory
from threadkeep.records.runs import RunQuery

CHATS = (7, 8)
MESSAGES = int(os.environ.get("CHANNEL_MESSAGES", "40"))
"""Number of messages in a chat; `python -m bench channels` sends more."""
FIGURES = os.environ.get("CHANNEL_FIGURES")
"""Path of a file that gets one line of figures for each database."""

pytestmark = [pytest.mark.process, pytest.mark.slow]


@dataclass
class Fleet:
    """Two slots for services; the address of a slot is None between a kill and the next start."""

    addresses: dict[int, str | None]
    kills: int = 0

    async def deliver(self, number: int, chat: int, text: str) -> None:
        """Send an update until one of the services accepts it, as Telegram does."""
        sender = {"id": chat, "is_bot": False, "first_name": "Anna"}
        body = update(text, number, chat={"id": chat, "type": "private"}, **{"from": sender})
        headers = {"X-Telegram-Bot-Api-Secret-Token": TELEGRAM_SECRET}
        async with httpx2.AsyncClient(timeout=30, trust_env=False) as client:
            for place in count(number):
                address = self.addresses[place % 2]
                if address is None:
                    await asyncio.sleep(0.05)
                    continue
                try:
                    response = await client.post(f"{address}/channels/one", json=body, headers=headers)
                except httpx2.HTTPError:
                    continue
                if response.status_code == 200:
                    return


async def test_an_update_sent_to_two_processes_is_one_turn(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """Each process gets the update three times, and the person gets one reply."""
    with providing() as provider:
        provider.answer = lambda newest: [f"re: {newest}"]
        environment = _environment(shared_url, tmp_path, telegram) | provider.environment
        async with running(tmp_path / "a", environment) as (a, _), running(tmp_path / "b", environment) as (b, _):
            addresses = [f"{str(each.base_url).rstrip('/')}/channels/one" for each in (a, b)]
            deliveries = [
                asyncio.to_thread(telegram.deliver, address, TELEGRAM_SECRET, update("hi"), times=3)
                for address in addresses
            ]
            statuses = [status for each in await asyncio.gather(*deliveries) for status in each]
            assert 200 in statuses
            assert set(statuses) <= {200, 503}
            async with _opened(shared_url) as memory:
                await until(lambda: len(telegram.texts()) >= 1)
                await until(lambda: _outbox_is_idle(memory))
                said = [(one.role, one.content) for one in await memory.session("telegram:4242:7").tail(9)]
                runs, _ = await memory.runs.records.runs(RunQuery(limit=9))
    assert said == [("user", "hi"), ("assistant", "re: hi")]
    assert len(runs) == 1
    assert telegram.texts() == ["re: hi"]


async def test_a_deletion_survives_the_process_that_requested_it(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """Another process deletes the session and confirms it. A repeat of the update deletes no later messages."""
    held = threading.Event()
    with providing() as provider:
        provider.answer = lambda newest: [held, "late"] if newest == "slow" else [f"re: {newest}"]
        environment = _environment(shared_url, tmp_path, telegram) | provider.environment
        addresses: dict[int, str | None] = {}
        fleet = Fleet(addresses)
        async with running(tmp_path / "a", environment) as (a, service):
            addresses |= dict.fromkeys((0, 1), str(a.base_url).rstrip("/"))
            await fleet.deliver(1, 7, "slow")
            await until(lambda: len(provider.requests) == 1)
            await fleet.deliver(2, 7, "/forget yes")
            await fleet.deliver(2, 7, "/forget yes")
            await service.stop(signal.SIGKILL)
        held.set()
        async with running(tmp_path / "b", environment) as (b, _), _opened(shared_url) as memory:
            addresses |= dict.fromkeys((0, 1), str(b.base_url).rstrip("/"))
            await until(lambda: "Our conversation is deleted." in telegram.texts())
            await fleet.deliver(3, 7, "hi")
            await until(lambda: "re: hi" in telegram.texts())
            await fleet.deliver(2, 7, "/forget yes")
            await fleet.deliver(4, 7, "bye")
            await until(lambda: "re: bye" in telegram.texts())
            said = [message.content for message in await memory.session("telegram:4242:7").tail(9)]
    assert said == ["hi", "re: hi", "bye", "re: bye"]
    assert Counter(telegram.texts())["Our conversation is deleted."] == 1


async def test_every_message_gets_one_reply_despite_kills(
    shared_url: str, tmp_path: Path, telegram: FakeTelegram
) -> None:
    """Messages are stored once and in order. A reply arrives twice only if its entry is marked uncertain."""
    fleet, began = Fleet({0: None, 1: None}), time.monotonic()
    with providing() as provider:
        provider.answer = lambda newest: [f"re: {newest}"]
        environment = _environment(shared_url, tmp_path, telegram) | provider.environment
        delivered = asyncio.Event()
        serving = [
            asyncio.create_task(_run_and_kill(fleet, place, tmp_path, environment, delivered)) for place in (0, 1)
        ]
        await asyncio.gather(*(_talk(fleet, chat) for chat in CHATS))
        delivered.set()
        await asyncio.gather(*serving)
        assert fleet.kills >= 2
        async with _last_service(tmp_path, environment), _opened(shared_url) as memory:
            await until(lambda: _outbox_is_idle(memory))
            repeats = await _check(memory, telegram)
    _note_figures(shared_url, kills=fleet.kills, repeats=repeats, seconds=time.monotonic() - began)
    logs = _logs(tmp_path)
    assert "answer_sent" in logs
    assert not [secret for secret in (TELEGRAM_TOKEN, TELEGRAM_SECRET, " of 7") if secret in logs]


async def _talk(fleet: Fleet, chat: int) -> None:
    for number in range(MESSAGES):
        if number == MESSAGES // 2:
            await until(lambda: fleet.kills >= len(fleet.addresses))
        await fleet.deliver(1 + number * len(CHATS) + CHATS.index(chat), chat, f"message {number} of {chat}")


async def _run_and_kill(
    fleet: Fleet, place: int, folder: Path, environment: Mapping[str, str], delivered: asyncio.Event
) -> None:
    """Run a service and kill it after a while, repeatedly."""
    pause = 1.0 + 0.7 * place
    for generation in count():
        async with AsyncExitStack() as stack:
            own = folder / f"service-{place}-{generation}"
            client, _ = await stack.enter_async_context(running(own, environment))
            fleet.addresses[place] = str(client.base_url).rstrip("/")
            try:
                async with asyncio.timeout(pause):
                    await delivered.wait()
                return
            except TimeoutError:
                fleet.kills += 1
            finally:
                fleet.addresses[place] = None
        pause = 1.0 + (pause * 1.7) % 2.0


@asynccontextmanager
async def _last_service(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[None]:
    """Run a service that is not killed and completes the remaining work."""
    async with running(folder / "last", environment):
        yield


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Memory]:
    async with open_memory(url, options=MemoryOptions(background=False)) as memory:
        yield memory


async def _outbox_is_idle(memory: Memory) -> bool:
    counts = await memory.channels.outbox.counts()
    return not any(status in ("waiting", "ready") for _, status in counts)


async def _check(memory: Memory, telegram: FakeTelegram) -> int:
    """Check the transcripts and the replies; return how many replies were sent twice."""
    runs, _ = await memory.runs.records.runs(RunQuery(limit=2 * MESSAGES))
    assert Counter((run.status, run.error) for run in runs) == {("done", None): MESSAGES * len(CHATS)}
    entries = await memory.channels.outbox.entries(limit=2 * MESSAGES)
    assert Counter(entry.status for entry in entries) == {"delivered": MESSAGES * len(CHATS)}
    uncertain = {entry.session_id for entry in entries if entry.uncertain}
    repeats = sum(entry.uncertain for entry in entries)
    for chat in CHATS:
        session_id = f"telegram:4242:{chat}"
        messages = await memory.session(session_id).tail(3 * MESSAGES)
        assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
        asked = [f"message {number} of {chat}" for number in range(MESSAGES)]
        assert [message.content for message in messages if message.role == "user"] == asked
        answers = [message.content for message in messages if message.role == "assistant"]
        assert answers == [f"re: {words}" for words in asked]
        sent = Counter(call["text"] for call in telegram.calls() if call["chat_id"] == chat)
        assert set(sent) == set(answers)
        assert session_id in uncertain or set(sent.values()) == {1}
    doubled = len(telegram.calls()) - MESSAGES * len(CHATS)
    assert doubled <= repeats
    return doubled


def _note_figures(url: str, **figures: float) -> None:
    if FIGURES is not None:
        with Path(FIGURES).open("a") as file:
            file.write(json.dumps({"database": url.partition(":")[0], **figures}) + "\n")


def _logs(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*/std*"))


def _environment(url: str, folder: Path, telegram: FakeTelegram) -> dict[str, str]:
    file = folder / "channels.yaml"
    bot = f"{{kind: telegram, name: one, token: '{TELEGRAM_TOKEN}', receive: webhook, secret: {TELEGRAM_SECRET}, "
    delivery = "{poll_seconds: 0.2, claim_seconds: 4, first_pause_seconds: 0.1, take_again_seconds: 1}"
    file.write_text(f"channels:\n  - {bot}api: '{telegram.address}'}}\ndelivery: {delivery}\n")
    return {
        "THREADKEEP_DATABASE_URL": url,
        "THREADKEEP_CHANNELS": str(file),
        "THREADKEEP_PENDING_DIR": str(folder / "pending"),
        "THREADKEEP_RUN_DEAD_SECONDS": "2",
        # Processes die more often than the default number of attempts.
        "THREADKEEP_RUN_MAX_ATTEMPTS": "100",
    }
