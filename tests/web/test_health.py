"""Tests of /healthz, /readyz and /metrics."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import httpx2
import pytest

from tests.recorded_events import RecordedEvents
from tests.web.services import check_problem, client_of, history, opened_app, say, settings_for
from threadkeep import Message, open_memory
from threadkeep.app import App, open_app
from threadkeep.errors import StoreUnavailable
from threadkeep.observe import WriteFailed
from threadkeep.records.runs import NewRun
from threadkeep.runs.requests import RunRequest
from threadkeep.store.migrations import known_migrations
from threadkeep.testing import ScriptedModel
from threadkeep.web import service

PARENT = """\
schema: 1
name: parent
nodes:
  help: {kind: subworkflow, workflow: chat, session: true, next: end}
"""
_SCHEMA = known_migrations("sqlite")[-1][0]


async def test_the_process_is_alive(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/healthz")).json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_load_balancers_may_ask_for_the_head_alone(client: httpx2.AsyncClient, path: str) -> None:
    """Many load balancers send HEAD by default. The response is that to GET without its body."""
    head, whole = await client.head(path), await client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]


async def test_the_service_is_ready_when_its_database_answers(client: httpx2.AsyncClient) -> None:
    """The response has the backend, the schema version and the number of pending writes."""
    ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()) == (
        200,
        {"ready": True, "backend": "sqlite", "schema_version": _SCHEMA, "pending_writes": 0, "unreadable_writes": 0},
    )


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "hangs"])
async def test_the_service_is_not_ready_without_its_database(
    app: App, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    async def broken(*_: object) -> None:
        if fails:
            raise StoreUnavailable("inside")
        await asyncio.Event().wait()

    monkeypatch.setattr(service, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(app.memory.runs, "run", broken)
    response = await client.get("/readyz")
    problem = check_problem(response, 503, "database-unavailable")
    assert (problem["ready"], problem["backend"], problem["pending_writes"]) == (False, "sqlite", 0)
    assert problem["schema_version"] == _SCHEMA
    assert (await client.get("/healthz")).status_code == 200


async def test_a_replaced_database_file_is_named_with_the_cure(tmp_path: Path) -> None:
    """Readiness, the 503 of a write and the event of a deferred write name the replaced file; reads succeed."""
    settings = settings_for(tmp_path, database_url=f"sqlite:///{tmp_path}/threadkeep.db")
    async with opened_app(ScriptedModel(["hello"]), settings) as app, client_of(app) as client:
        await say(client, "hi", session_id="s1")
        path, events = tmp_path / "threadkeep.db", RecordedEvents()
        shutil.copy(path, tmp_path / "copy.db")
        (tmp_path / "copy.db").rename(path)
        ready = check_problem(await client.get("/readyz"), 503, "database-unavailable")
        assert ready["ready"] is False
        body = {"scope": "workspace", "owner": "shop", "key": "a", "value": "b"}
        refused = check_problem(await client.put("/api/v1/facts", json=body), 503, "database-unavailable")
        for detail in (ready["detail"], refused["detail"]):
            assert "removed or replaced" in detail
            assert "restart this process" in detail
            assert str(tmp_path) not in detail
        read = [message["content"] for message in await history(client, "s1")]
        assert read == ["hi", "hello"]
    async with open_memory(f"sqlite:///{path}", observers=[events], options=settings.memory_options()) as memory:
        shutil.copy(path, tmp_path / "copy.db")
        (tmp_path / "copy.db").rename(path)
        assert await memory.session("s2").record([Message(role="user", content="waits")]) is None
        failed = events.of(WriteFailed)
        assert {(event.error, "restart this process" in str(event.reason)) for event in failed} == {
            ("DatabaseFileReplaced", True)
        }


async def test_metrics_count_turns(client: httpx2.AsyncClient) -> None:
    """Metrics are in the Prometheus text format, with the channel as a label and without session ids."""
    await say(client, "hi", session_id="telegram:1")
    await say(client, "hi", session_id="s1")
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    lines = response.text.splitlines()
    assert 'threadkeep_turns_total{channel="telegram",status="complete"} 1.0' in lines
    assert 'threadkeep_turns_total{channel="http",status="complete"} 1.0' in lines
    assert 'threadkeep_agent_history_pending_writes{backend="sqlite"} 0.0' in lines
    assert "telegram:1" not in response.text


async def test_runs_are_counted_when_the_metrics_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open runs are counted in the database at each scrape, and omitted while it does not answer."""
    async with open_app(settings_for(tmp_path), works=False) as app, client_of(app) as client:
        assert (await client.post("/api/v1/workflows/chat/runs", json={"message": "hi"})).json()["status"] == "done"
        await app.memory.runs.order.add(NewRun(run_id="r1", workflow="chat", input={}))
        lines = (await client.get("/metrics")).text.splitlines()
        assert 'threadkeep_runs_total{status="done",workflow="chat"} 1.0' in lines
        assert 'threadkeep_open_runs{state="queued"} 1.0' in lines
        assert 'threadkeep_open_runs{state="running"} 0.0' in lines

        async def down() -> None:
            raise StoreUnavailable("It is down.")

        monkeypatch.setattr(app.memory.runs.records, "counts", down)
        assert "threadkeep_open_runs{" not in (await client.get("/metrics")).text


async def test_operations_of_the_service_count_as_http(tmp_path: Path) -> None:
    """Operations of a session whose id names no channel count as `http`, and others as their channel."""
    async with open_app(settings_for(tmp_path)) as app, client_of(app) as client:
        await say(client, "hi", session_id="s1")
        await say(client, "hi", session_id="telegram:1")
        lines = (await client.get("/metrics")).text.splitlines()
    counted = [line for line in lines if "channel=" in line and not line.endswith(" 0.0")]
    assert any("_write_latency_ms_count" in line and 'channel="http"' in line for line in counted)
    assert any("_read_latency_ms_count" in line and 'channel="telegram"' in line for line in counted)
    assert not any('channel="other"' in line for line in counted if "_created" not in line)


@pytest.mark.parametrize("workflow", ["chat", "parent"])
async def test_runs_of_the_command_line_count_as_other(tmp_path: Path, workflow: str) -> None:
    """Child runs count as the run that started them."""
    (tmp_path / "parent.yaml").write_text(PARENT)
    settings = settings_for(tmp_path, workflows=str(tmp_path / "parent.yaml"))
    async with open_app(settings) as app, client_of(app) as client:
        service = await app.runs.service()
        submitted = await service.submit(RunRequest(workflow=workflow, text="hi", session_id="s1", trigger="cli"))
        assert (await service.result(submitted.run_id)).status == "done"
        lines = (await client.get("/metrics")).text.splitlines()
    counted = [
        line for line in lines if "_latency_ms_count" in line and "channel=" in line and not line.endswith(" 0.0")
    ]
    assert any('channel="other"' in line for line in counted)
    assert not any('channel="http"' in line for line in counted), counted
