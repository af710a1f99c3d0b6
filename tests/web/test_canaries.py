"""Tests that no log, metric or problem contains people's text or keys, even at debug level."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from tests.web.processes import running
from tests.web.provider import Provider, providing
from tests.web.services import streamed, until

CANARY = "canary"
KEYS = {"authorization": f"Bearer {CANARY}-key"}
JSON = {"content-type": "application/json"}

pytestmark = pytest.mark.process


@pytest.fixture
def provider() -> Iterator[Provider]:
    """Return a provider that answers with a canary, and quotes the request when it fails."""
    with providing() as started:
        started.answer = lambda text: 400 if "fail" in text else [f"{CANARY} ", "answer"]
        yield started


def say_everything(index: int) -> dict[str, object]:
    """Return a chat request with a canary in each text."""
    return {
        "message": f"{CANARY} message {index}",
        "session_id": "s1",
        "message_id": f"m{index}",
        "metadata": {f"{CANARY}-name": [f"{CANARY} value"]},
    }


async def use_all_of_it(client: httpx2.AsyncClient) -> list[httpx2.Response]:
    """Call every endpoint, with valid and invalid requests."""
    await streamed(client, say_everything(0))
    chat, session = "/api/v1/chat", "/api/v1/sessions/s1"
    requests = [
        client.build_request("POST", chat, json=say_everything(1)),
        client.build_request("POST", chat, json=say_everything(1)),
        client.build_request("POST", chat, json=say_everything(2) | {"message": f"fail {CANARY}"}),
        client.build_request("POST", f"{chat}/stream", json=say_everything(3) | {"message": f"fail {CANARY}"}),
        client.build_request("POST", chat, json=say_everything(4) | {"message": CANARY * 100_000}),
        client.build_request("POST", chat, json=say_everything(4) | {"message": [CANARY]}),
        client.build_request("POST", chat, json=say_everything(4) | {f"{CANARY}-field": 1}),
        client.build_request("POST", chat, json=say_everything(4) | {"workflow": CANARY}),
        client.build_request("POST", chat, json=say_everything(4) | {"session_id": f"{CANARY}\n"}),
        client.build_request("POST", chat, json=say_everything(4) | {"user_id": f"{CANARY}\n"}),
        client.build_request("POST", chat, content=b'{"message": "%s' % CANARY.encode(), headers=JSON),
        client.build_request("POST", chat, content=CANARY.encode() * 200_000, headers=JSON),
        client.build_request("POST", chat, content=CANARY.encode() + b"\xff", headers=JSON),
        client.build_request("GET", f"/api/v1/chat/history/s1?limit={CANARY}"),
        client.build_request("GET", "/api/v1/chat/history/s1"),
        client.build_request("GET", f"/api/v1/search?q={CANARY}"),
        client.build_request("GET", f"/api/v1/sessions?query={CANARY}"),
        client.build_request("GET", f"/api/v1/sessions?cursor={CANARY}"),
        client.build_request("GET", f"/api/v1/sessions?user_id={CANARY}%0A"),
        client.build_request("PATCH", session, json={"title": CANARY, "tags": [CANARY], "metadata": {"a": CANARY}}),
        client.build_request("PATCH", session, json={"title": {CANARY: CANARY}}),
        client.build_request("GET", "/api/v1/sessions", headers={"authorization": f"Bearer wrong-{CANARY}"}),
        client.build_request("GET", "/nope", params={"text": CANARY}),
        client.build_request("POST", f"{session}/reset"),
        client.build_request("GET", "/readyz"),
        client.build_request("GET", "/metrics"),
    ]
    return [await client.send(request) for request in requests]


@pytest.mark.parametrize("log_json", ["true", pytest.param("false", marks=pytest.mark.slow)])
async def test_no_text_of_people_is_in_logs_metrics_or_problems(
    tmp_path: Path, sqlite_url: str, provider: Provider, log_json: str
) -> None:
    """The log, the metrics and the problems contain no canary, also if the model fails or the database is locked."""
    environment = {
        **provider.environment,
        "OPENAI_API_KEY": f"sk-{CANARY}",
        "THREADKEEP_API_KEYS": f"web:{CANARY}-key",
        "THREADKEEP_BODY_LIMIT": "1000000",
        "THREADKEEP_DATABASE_URL": sqlite_url,
        "THREADKEEP_LOCK_TIMEOUT": "1",
        "THREADKEEP_LOG_JSON": log_json,
        "THREADKEEP_LOG_LEVEL": "DEBUG",
        "THREADKEEP_SYSTEM_PROMPT": f"{CANARY} prompt",
    }
    async with running(tmp_path / "service", environment) as (client, service):
        client.headers.update(KEYS)
        responses = await use_all_of_it(client)
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            responses.append(await client.post("/api/v1/chat", json=say_everything(9)))
            assert (await client.get("/readyz")).json()["pending_writes"] > 0
            other.execute("ROLLBACK")
        await until(lambda: nothing_is_pending(client))
        responses.append(await client.delete("/api/v1/sessions/s1"))
        metrics = (await client.get("/metrics")).text
        await service.stop()
        written = service.written
    statuses = {response.status_code for response in responses}
    assert statuses == {200, 204, 400, 401, 404, 413, 422, 502}
    problems = "".join(response.text for response in responses if response.status_code >= 400)
    errors = [response.text for response in responses if "event: error" in response.text]
    assert len(errors) == 1
    for event in ("store_write", "context_built", "model_failed", "turn_finished", "write_deferred", "http_request"):
        assert event in written, "the log does not record events"
    for output in (written, problems, errors[0], metrics):
        assert CANARY not in output
    assert provider.keys[0] == f"Bearer sk-{CANARY}"
    assert CANARY in str(provider.requests)


async def nothing_is_pending(client: httpx2.AsyncClient) -> bool:
    """Return whether no turn is pending."""
    return bool((await client.get("/readyz")).json().get("pending_writes") == 0)
