"""Tests of erasing over HTTP in a running service: no byte of the person remains in any of its files."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx2
import pytest

from tests.web.processes import running
from tests.web.provider import Provider, providing
from tests.web.services import say, streamed, until

CANARY = "zanzibarquokka"
ANN = f"telegram:{CANARY}-ann"

pytestmark = pytest.mark.process


async def live(client: httpx2.AsyncClient) -> None:
    """Create data of the person in every store that requests reach, with ids that contain the name."""
    for number in range(3):
        body = {
            "message": f"{CANARY} {number}",
            "session_id": f"s-{CANARY}",
            "user_id": ANN,
            "message_id": f"m-{number}",
        }
        await streamed(client, body)
    await client.patch(f"/api/v1/sessions/s-{CANARY}", json={"title": CANARY, "metadata": {"a": CANARY}})
    await client.put("/api/v1/facts", json={"scope": "user", "owner": ANN, "key": "likes", "value": CANARY})
    await client.put("/api/v1/persons", json={"id": ANN, "name": CANARY})
    assert (await client.get(f"/api/v1/search?q={CANARY}")).json()["count"] > 0
    run = {"message": f"{CANARY} run", "session_id": f"w-{CANARY}", "user_id": ANN}
    assert (await client.post("/api/v1/workflows/chat/runs", json=run)).status_code == 200
    await say(client, "bob", session_id="bobs", user_id="bob")


def files_with_canary(folder: Path) -> list[str]:
    """Return the files of the service with a byte of the person: database, WAL, engine, pending turns."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path.relative_to(folder)) for path in files if CANARY.encode() in path.read_bytes().lower()]


def started(provider: Provider, gate: threading.Event) -> None:
    """Let the model wait during its answers to messages that contain `wait`."""
    provider.answer = lambda text: [f"{CANARY} ", gate, "end"] if "wait" in text else ["ok"]


async def test_a_service_keeps_no_byte_of_an_erased_person(tmp_path: Path) -> None:
    """Erasing also removes turns that run meanwhile: their callers get an answer, which is not stored."""
    data, gate = tmp_path / "data", threading.Event()
    with providing() as provider:
        started(provider, gate)
        environment = {
            **provider.environment,
            "THREADKEEP_DATABASE_URL": f"sqlite:///{data}/threadkeep.db",
            "THREADKEEP_PENDING_DIR": f"{data}/pending",
        }
        async with running(tmp_path / "service", environment) as (client, service):
            await live(client)
            assert files_with_canary(data)
            asked = {"message": f"{CANARY} wait", "session_id": f"s-{CANARY}", "user_id": ANN}
            before = len(provider.requests)
            going_on = asyncio.create_task(streamed(client, asked))
            await until(lambda: len(provider.requests) > before)
            receipt = (await client.delete(f"/api/v1/users/{ANN}")).json()
            gate.set()
            assert [event.name for event in await going_on][-1] in ("end", "error")
            if not receipt["complete"]:
                receipt = (await client.delete(f"/api/v1/users/{ANN}")).json()
            assert receipt["complete"]
            assert CANARY not in str(receipt)
            await until(lambda: files_with_canary(data) == [])
            listed = (await client.get("/api/v1/sessions")).json()["sessions"]
            assert [session["session_id"] for session in listed] == ["bobs"]
            await service.stop()
        assert files_with_canary(data) == []
