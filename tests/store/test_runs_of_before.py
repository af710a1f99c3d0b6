"""Runs that an earlier version stored are whole after the schema has grown."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

import pytest

from tests.databases import driver_of, execute, migrated_driver, query
from threadkeep.records.runs import RunInput, TokenUsage, ToolCall
from threadkeep.store import migrations
from threadkeep.store.manifests import ManifestRows
from threadkeep.store.runs import Runs
from threadkeep.testing import SettableClock

_VERSION = 9
_MOMENT = "2026-01-01T00:00:00.000007+00:00"
_CALLED_AT = "2026-01-01T00:00:00.999600+00:00"
_INPUT, _RESULT = '[{"values":{"text":"茶?"}}]', '{"a":1}'
_RUN = (
    "run_id, workflow, status, owner, root_run_id, trigger, input, result, attempts, created_at, ended_at",
    f"'r1', 'chat', 'failed', 'me', 'r1', 'cli', '{_INPUT}', '{_RESULT}', 2, '{_MOMENT}', '{_MOMENT}'",
)
_USAGE = (
    "run_id, model, calls, estimated_calls, input_tokens, output_tokens, cache_read_tokens, cost",
    "'r1', 'gpt', 1, 0, 7, 3, 2, 0.5",
)
_CALL = ("run_id, call_id, tool, status, result, begun_at", f"'r1', 'c1', 'pay', 'finished', '3', '{_MOMENT}'")
_EVENT = "run_id, number, kind, data, node, created_at"
_ROWS = (
    ("chat_runs", *_RUN),
    ("chat_run_messages", "session_id, message_id, run_id", "'room', 'm2', 'r1'"),
    ("chat_run_traces", "run_id, last_number, characters", "'r1', 2, 9"),
    ("chat_run_events", _EVENT, f"'r1', 1, 'status', '{{\"try\":1}}', NULL, '{_MOMENT}'"),
    ("chat_run_events", _EVENT, f"'r1', 2, 'said', '{{}}', 'n', '{_MOMENT}'"),
    ("chat_run_usage", *_USAGE),
    ("chat_run_tool_calls", *_CALL),
    ("chat_run_manifests", "run_id, call, created_at, manifest", f"'r1', 1, '{_CALLED_AT}', '{{\"budget\":1}}'"),
    ("chat_run_texts", "run_id, digest, body, used_at", f"'r1', 'd1', '', '{_MOMENT}'"),
)
_TABLES = tuple(dict.fromkeys(table for table, _, _ in _ROWS))


@pytest.fixture(params=["sqlite", "postgres"])
async def url_of_before(request: pytest.FixtureRequest, clock: SettableClock, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database of an earlier version with a run, and all that hangs on it."""
    url = str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "empty_postgres_url"))
    known = migrations.known_migrations
    with monkeypatch.context() as before:
        before.setattr(migrations, "known_migrations", lambda backend: known(backend)[:_VERSION])
        async with driver_of(url) as driver:
            await migrations.migrate(driver, clock())
    for table, columns, values in _ROWS:
        execute(url, f"INSERT INTO {table} ({columns}) VALUES ({values})")
    return url


async def test_a_run_of_before_is_whole(url_of_before: str, clock: SettableClock) -> None:
    """With its trace, its usage, its tools and the records of its model calls; and all of it goes with the run."""
    async with migrated_driver(url_of_before) as driver:
        runs, manifests = Runs(driver, clock=clock), ManifestRows(driver, clock=clock)
        run = await runs.run("r1")
        assert run is not None
        assert (run.status, run.result, run.inputs, run.attempts) == (
            "failed",
            {"a": 1},
            (RunInput({"text": "茶?"}),),
            2,
        )
        assert run.created_at == run.ended_at == datetime(2026, 1, 1, microsecond=7, tzinfo=UTC)
        events = await runs.trace.events("r1")
        assert [(event.number, event.kind, event.node, event.data) for event in events] == [
            (1, "status", None, {"try": 1}),
            (2, "said", "n", {}),
        ]
        assert {event.created_at for event in events} == {run.created_at}
        assert await runs.trace.usage("r1") == [
            TokenUsage("gpt", input_tokens=7, output_tokens=3, cache_read_tokens=2, cost=0.5)
        ]
        assert await runs.trace.begin_tool("r1", "c1", "pay") == ToolCall("finished", 3)
        [manifest] = await manifests.of_run("r1")
        # Close to the next second, which older versions of SQLite round it up to.
        assert (manifest.manifest, manifest.created_at.isoformat()) == ({"budget": 1}, _CALLED_AT)
        tables = ("chat_run_messages", "chat_run_texts")
        assert [len(query(url_of_before, f"SELECT run_id FROM {table}")) for table in tables] == [1, 1]
        assert await runs.records.forget_runs(["r1"]) == 1
    assert [query(url_of_before, f"SELECT * FROM {table}") for table in _TABLES] == [[]] * len(_TABLES)


@pytest.mark.parametrize("url_of_before", ["sqlite"], indirect=True)
async def test_an_older_process_that_still_runs_leaves_no_record_that_nobody_reads(url_of_before: str) -> None:
    """It notes times as texts, which SQLite would keep among the numbers: never read nor deleted by their time."""
    async with migrated_driver(url_of_before):
        pass
    columns, values = "run_id, call, created_at, manifest", f"'r1', 2, '{_MOMENT}', '{{}}'"
    for statement in (
        f"INSERT INTO chat_run_manifests ({columns}) VALUES ({values})",
        f"INSERT INTO chat_manifests ({columns}, session_id) VALUES ({values}, 'room')",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="typeof"):
            execute(url_of_before, statement)
