"""Tests of two services with the long connection of one AI bot on one database; the connected one is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.channels.fake_openws import SECRET, FakeGateway, faking_gateway
from tests.channels.platforms import aibot_message
from tests.web.processes import ServiceProcess, running, serve_in
from tests.web.provider import providing
from tests.web.services import until
from threadkeep import Memory, MemoryOptions, open_memory
from threadkeep.channels import wecom_connection
from threadkeep.channels.bots import Receiver
from threadkeep.records.runs import RunQuery
from threadkeep.runs.service import RunService

pytestmark = [pytest.mark.process, pytest.mark.slow]


@dataclass
class Fleet:
    """Services of one bot, the gateway, and the messages that people wrote."""

    folder: Path
    environment: Mapping[str, str]
    gateway: FakeGateway
    memory: Memory
    stack: AsyncExitStack
    services: list[ServiceProcess] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    async def start(self, serve: Callable[..., None] | None = None) -> None:
        """Start another service."""
        folder = self.folder / f"service-{len(self.services)}"
        _, service = await self.stack.enter_async_context(running(folder, self.environment, serve or _serve_quickly))
        self.services.append(service)

    async def kill(self, place: int) -> None:
        """Kill a service that has the connection, after it has stored each message."""
        await until(self.all_stored)
        before = len(self.gateway.subscriptions())
        self.services[place].child.kill()
        await until(lambda: not self.gateway.is_connected() or len(self.gateway.subscriptions()) > before)

    def write(self, *texts: str) -> None:
        """Send messages, each from another person."""
        for text in texts:
            self.told.append(text)
            self.gateway.push(_message(text, len(self.told)))

    async def all_stored(self) -> bool:
        """Return whether each message has its run.

        WeCom does not repeat a message whose process died before that.
        """
        runs, _ = await self.memory.runs.records.runs(RunQuery(limit=100))
        return len(runs) == len(self.told)

    async def all_answered(self) -> bool:
        """Return whether each message is stored and no entry of the outbox is open."""
        counts = await self.memory.channels.outbox.counts()
        waits = any(status in ("waiting", "ready") for _, status in counts)
        return await self.all_stored() and not waits


async def test_another_process_connects_when_one_is_killed(shared_url: str, tmp_path: Path) -> None:
    """Each message is stored and answered once. A reply may be sent twice only if its entry is marked uncertain."""
    rest = threading.Event()
    async with AsyncExitStack() as stack:
        gateway = stack.enter_context(faking_gateway(tmp_path))
        provider = stack.enter_context(providing())
        provider.answer = lambda newest: ["re: ", rest, newest] if newest == "held" else [f"re: {newest}"]
        environment = _environment(shared_url, tmp_path, gateway) | provider.environment
        memory = await stack.enter_async_context(open_memory(shared_url, options=MemoryOptions(background=False)))
        fleet = Fleet(tmp_path, environment, gateway, memory, stack)
        await fleet.start()
        await until(gateway.is_connected)
        await fleet.start()
        fleet.write("quick")
        await until(lambda: gateway.texts() == ["re: quick"])
        fleet.write("held", *(f"many {number}" for number in range(4)))
        await fleet.kill(0)
        fleet.write("meanwhile", "last")
        rest.set()
        await until(fleet.all_answered)
        assert gateway.subscriptions() == [0, 0]
        await _check(fleet)
    assert SECRET not in "".join(service.written for service in fleet.services)


async def test_a_message_is_recovered_if_its_process_dies_before_the_run(shared_url: str, tmp_path: Path) -> None:
    """WeCom does not repeat the message. Another process, or one that starts later, reads it from the outbox."""
    async with AsyncExitStack() as stack:
        gateway = stack.enter_context(faking_gateway(tmp_path))
        provider = stack.enter_context(providing())
        provider.answer = lambda newest: [f"re: {newest}"]
        environment = _environment(shared_url, tmp_path, gateway) | provider.environment
        memory = await stack.enter_async_context(open_memory(shared_url, options=MemoryOptions(background=False)))
        fleet = Fleet(tmp_path, environment, gateway, memory, stack)
        await fleet.start(_serve_and_die)
        await until(gateway.is_connected)
        await fleet.start()
        fleet.write("fatal to one process")
        await until(fleet.all_answered)
        await until(gateway.is_connected)
        fleet.services[1].child.kill()
        await until(lambda: not gateway.is_connected())
        await fleet.start(_serve_and_die)
        await until(gateway.is_connected)
        fleet.write("fatal to the only process")
        await until(lambda: not gateway.is_connected())
        assert not await fleet.all_stored()
        await fleet.start()
        await until(fleet.all_answered)
        await _check(fleet)


async def _check(fleet: Fleet) -> None:
    """Check the transcripts, and how often each reply was sent."""
    runs, _ = await fleet.memory.runs.records.runs(RunQuery(limit=100))
    assert Counter((run.status, run.error) for run in runs) == {("done", None): len(fleet.told)}
    entries = {entry.session_id: entry for entry in await fleet.memory.channels.outbox.entries(limit=100)}
    sent = Counter(fleet.gateway.texts())
    assert set(sent) == {f"re: {text}" for text in fleet.told}
    for number, text in enumerate(fleet.told, 1):
        session_id = f"wecom_aibot:B1:single:U{number}"
        said = [(message.role, message.content) for message in await fleet.memory.session(session_id).tail(9)]
        assert said == [("user", text), ("assistant", f"re: {text}")]
        assert entries[session_id].status == "delivered"
        assert sent[f"re: {text}"] == 1 or (sent[f"re: {text}"] == 2 and entries[session_id].uncertain)


def _message(text: str, number: int) -> dict[str, Any]:
    body = {**aibot_message(text, number), "from": {"userid": f"U{number}"}}
    del body["response_url"]
    return body


def _serve_quickly(folder: Path, environment: Mapping[str, str]) -> None:
    """Serve with short pauses, and with a claim of the connection that expires soon after its process."""
    for name in ("_PING_SECONDS", "_GROW_SECONDS"):
        setattr(wecom_connection, name, 0.1)
    Receiver.look_seconds, Receiver.first_pause_seconds, Receiver.claim_seconds = 0.1, 0.1, 1.5
    serve_in(folder, environment)


def _serve_and_die(folder: Path, environment: Mapping[str, str]) -> None:
    """Serve until a message has a row in the outbox, and die before its run is submitted."""

    async def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    RunService.submit = die  # type: ignore[method-assign, assignment]
    _serve_quickly(folder, environment)


def _environment(url: str, folder: Path, gateway: FakeGateway) -> dict[str, str]:
    file = folder / "channels.yaml"
    bot = f"kind: wecom_aibot, name: one, receive: connection, bot_id: B1, secret: {SECRET}"
    delivery = "{poll_seconds: 0.2, claim_seconds: 2, first_pause_seconds: 0.1, take_again_seconds: 0.5}"
    file.write_text(f"channels:\n  - {{{bot}, connection: '{gateway.address}'}}\ndelivery: {delivery}\n")
    return {
        "THREADKEEP_DATABASE_URL": url,
        "THREADKEEP_CHANNELS": str(file),
        "THREADKEEP_PENDING_DIR": str(folder / "pending"),
        "THREADKEEP_RUN_DEAD_SECONDS": "1",
        "THREADKEEP_RUN_MAX_ATTEMPTS": "100",
    }
