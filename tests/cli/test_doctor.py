"""Tests of `threadkeep doctor`: each problem has a finding, and each finding a cure."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections import namedtuple
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.cli.forked import ForkedCommand
from tests.cli.running import CommandLine, Outcome
from tests.cli.test_pending import spool_turn
from tests.databases import execute, query
from threadkeep.agent.demo import DemoModel
from threadkeep.cli import main
from threadkeep.history.memory import Memory
from threadkeep.records.runs import NewRun
from threadkeep.runs.engine.lease import SCHEMA
from threadkeep.testing import FakeGraphiti

if TYPE_CHECKING:
    from tests.servers import Postgres

_Usage = namedtuple("_Usage", "total used free")


def _finding(outcome: Outcome, check: str) -> Any:
    """Return the finding of a check: the first whose level is not `ok`, or else its first."""
    findings = [finding for finding in outcome.json["findings"] if finding["check"] == check]
    return next((finding for finding in findings if finding["level"] != "ok"), findings[0])


def _failed(cli: CommandLine) -> list[str]:
    """Return the names of the checks that fail."""
    return [finding["check"] for finding in cli("doctor", "--json").json["findings"] if finding["level"] == "fail"]


def test_a_sound_installation_passes_every_check(any_cli: CommandLine) -> None:
    any_cli.store("a", "hi", "hello")
    outcome = any_cli("doctor", "--json")
    assert (outcome.exit_code, outcome.json["ok"]) == (0, True)
    checks = [finding["check"] for finding in outcome.json["findings"]]
    for check in ("settings", "database", "schema", "durability", "writing", "locks", "search", "disk", "model"):
        assert check in checks
    assert "2 messages of 1 session" in _finding(outcome, "database")["detail"]
    assert "pending writes" in checks
    shown = any_cli("doctor").out
    assert "✓ database" in shown


def test_every_finding_that_is_not_ok_has_a_cure(cli: CommandLine) -> None:
    cli("migrate")
    cli.set(THREADKEEP_HISTORY_ENABLED="false", THREADKEEP_SQLITE_SYNCHRONOUS="normal", THREADKEEP_MODEL="nobody:x")
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 1
    for check, level in (("settings", "warn"), ("durability", "warn"), ("model", "fail")):
        finding = _finding(outcome, check)
        assert finding["level"] == level
        assert finding["cure"]
    assert "→ Unless this is intended, set THREADKEEP_HISTORY_ENABLED=true" in cli("doctor").out


def test_a_variable_that_is_no_setting_is_found(cli: CommandLine) -> None:
    """`doctor` names an unknown variable and suggests a setting, even if another setting is invalid."""
    cli.set(THREADKEEP_MODLE="demo")
    for port, exit_code in (("8700", 0), ("high", 1)):
        cli.set(THREADKEEP_PORT=port)
        outcome = cli("doctor", "--json")
        assert outcome.exit_code == exit_code
        told = [finding["detail"] for finding in outcome.json["findings"] if finding["level"] == "warn"]
        assert told == ["THREADKEEP_MODLE is not a setting and has no effect; did you mean THREADKEEP_MODEL?"]


def test_a_system_prompt_larger_than_the_budget_is_found(cli: CommandLine) -> None:
    cli.set(THREADKEEP_SYSTEM_PROMPT="Be kind. " * 99, THREADKEEP_HISTORY_MAX_TOKENS="50")
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 1
    finding = _finding(outcome, "settings")
    assert (finding["level"], "THREADKEEP_SYSTEM_PROMPT" in finding["detail"]) == ("fail", True)
    assert "THREADKEEP_HISTORY_MAX_TOKENS" in finding["cure"]


def test_queued_and_dead_lettered_runs_are_found(any_cli: CommandLine) -> None:
    """A run that waits too long for a worker and a run that is set aside are warnings with a cure."""
    any_cli("migrate")
    finding = _finding(any_cli("doctor", "--json"), "runs")
    assert (finding["level"], finding["detail"]) == ("ok", "0 queued, 0 running, 0 waiting for a person.")

    async def queue(memory: Memory) -> None:
        await memory.runs.order.add(NewRun(run_id="r1", workflow="desk", input={}))

    any_cli.with_memory(queue)
    assert _finding(any_cli("doctor", "--json"), "runs")["level"] == "ok"
    execute(any_cli.url, "UPDATE chat_runs SET created_at = '2026-01-01T00:00:00.000000+00:00'")
    finding = _finding(any_cli("doctor", "--json"), "runs")
    assert (finding["level"], "threadkeep worker" in finding["cure"]) == ("warn", True)

    async def lack(memory: Memory) -> None:
        await memory.runs.note_workflow_gone("r1")

    any_cli.with_memory(lack)
    finding = _finding(any_cli("doctor", "--json"), "runs")
    assert (finding["level"], "r1 (desk)" in finding["detail"]) == ("fail", True)
    assert finding["cure"].endswith("or end the run: threadkeep runs cancel r1")

    async def give_up(memory: Memory) -> None:
        await memory.runs.set_aside("r1", "GaveUp")

    any_cli.with_memory(give_up)
    finding = _finding(any_cli("doctor", "--json"), "runs")
    assert (finding["level"], "1 set aside" in finding["detail"]) == ("warn", True)


def test_a_missing_database_file_passes(cli: CommandLine, tmp_path: Path) -> None:
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 0
    assert "first start creates it" in _finding(outcome, "database")["detail"]
    assert not (tmp_path / "threadkeep.db").exists()


def test_a_database_that_cannot_be_created_is_found(cli: CommandLine, tmp_path: Path) -> None:
    """The finding names the path of a file that exists where a folder is needed."""
    (tmp_path / "taken").touch()
    cli.set(THREADKEEP_DATABASE_URL=f"sqlite:///{tmp_path}/taken/threadkeep.db")
    outcome = cli("doctor", "--json")
    finding = _finding(outcome, "database")
    assert (outcome.exit_code, finding["level"]) == (1, "fail")
    assert f"{tmp_path}/taken" in finding["detail"]
    assert "THREADKEEP_DATABASE_URL" in finding["cure"]


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
def test_an_unreachable_database_is_reported_once(any_cli: CommandLine, tmp_path: Path, transcripts: str) -> None:
    """Only one check fails if the database or the separate database of the graph store cannot be opened."""
    letter, other = tmp_path / "letter.db", tmp_path / "other.db"
    letter.write_text("A letter to a friend. " * 500)
    bad = f"{any_cli.url}-gone" if any_cli.url.startswith("postgres") else f"sqlite:///{letter}"
    any_cli("migrate")
    any_cli.set(THREADKEEP_TRANSCRIPTS=transcripts, THREADKEEP_POSTGRES_POOL_TIMEOUT="0.5")
    any_cli.set(THREADKEEP_DATABASE_URL=bad)
    assert _failed(any_cli) == ["database"]
    any_cli.set(THREADKEEP_GRAPH_STORE_BACKEND="sqlite", THREADKEEP_GRAPH_STORE_SQLITE_PATH=str(other))
    assert _failed(any_cli) == ["database"]
    any_cli.set(THREADKEEP_DATABASE_URL=any_cli.url, THREADKEEP_GRAPH_STORE_SQLITE_PATH=str(letter))
    assert _failed(any_cli) == ["graph store database"]


def test_settings_that_cannot_be_used_are_found_first(cli: CommandLine) -> None:
    cli.set(THREADKEEP_PORT="many")
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 1
    [finding] = outcome.json["findings"]
    assert "THREADKEEP_PORT" in finding["detail"]
    assert "THREADKEEP_PORT" in finding["cure"]


def test_a_broken_file_is_found(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "threadkeep.db").write_text("A letter to a friend. " * 500)
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 1
    finding = _finding(outcome, "database")
    assert "not an SQLite database" in finding["cure"]
    assert "backup" in finding["cure"]


def test_damage_in_a_file_is_found(cli: CommandLine, tmp_path: Path) -> None:
    """A damaged page of an index fails the integrity check, and no message text is quoted."""
    cli.store("a", *[f"number {n} " * 50 for n in range(200)])
    file = tmp_path / "threadkeep.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [[page]] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'idx_chat_messages_id'")
        [[size]] = connection.execute("PRAGMA page_size")
    data = bytearray(file.read_bytes())
    data[(page - 1) * size + 100 : page * size] = bytes(size - 100)
    file.write_bytes(data)
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 1
    finding = _finding(outcome, "integrity")
    assert finding["level"] == "fail"
    assert "damaged" in finding["detail"]
    assert "number" not in finding["detail"]
    assert "backup" in finding["cure"]


def test_messages_that_are_missing_are_found(any_cli: CommandLine) -> None:
    any_cli.store("a", "one", "two", "three")
    any_cli.store("b", "one")
    assert _finding(any_cli("doctor", "--json"), "integrity")["level"] == "ok"
    execute(any_cli.url, "DELETE FROM chat_messages WHERE session_id = 'a' AND seq = 2")
    outcome = any_cli("doctor", "--json")
    assert outcome.exit_code == 1
    assert "1 session" in _finding(outcome, "integrity")["detail"]
    assert "a (2 of 3)" in _finding(outcome, "integrity")["detail"]


def test_invalid_and_damaged_postgres_indexes_are_found(cli: CommandLine, postgres_url: str) -> None:
    """An invalid index is found always, a damaged index only with the extension amcheck."""
    cli.set(THREADKEEP_DATABASE_URL=postgres_url)
    assert "with the extension amcheck" in _finding(cli("doctor", "--json"), "integrity")["detail"]
    # No wheel contains the extension; a function of the same name replaces it.
    execute(
        postgres_url,
        "CREATE FUNCTION bt_index_check(i regclass) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
        " IF i::text = 'idx_chat_messages_id' THEN RAISE 'high key' USING ERRCODE = 'XX002'; END IF; END $$",
    )
    damaged = _finding(cli("doctor", "--json"), "integrity")
    assert damaged["level"] == "fail"
    assert "the index idx_chat_messages_id is damaged" in damaged["detail"]
    execute(postgres_url, "UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = 'idx_chat_messages_id'::regclass")
    assert "the index idx_chat_messages_id is not valid" in _finding(cli("doctor", "--json"), "integrity")["detail"]


def test_a_dropped_postgres_table_is_named_with_a_cure(cli: CommandLine, postgres_url: str) -> None:
    """`doctor` does not advise to run `doctor`, or to start a server that answers."""
    cli.set(THREADKEEP_DATABASE_URL=postgres_url)
    execute(postgres_url, "DROP TABLE chat_messages CASCADE")
    finding = _finding(cli("doctor", "--json"), "integrity")
    assert (finding["level"], 'relation "chat_messages" does not exist' in finding["detail"]) == ("fail", True)
    assert finding["cure"].startswith("Restore a backup")
    error = cli("sessions", "search", "anything").err
    assert 'relation "chat_messages" does not exist' in error
    assert "restore a backup" in error


def test_missing_rights_on_postgres_tables_are_found(cli: CommandLine, postgres_url: str) -> None:
    """The finding names the table and the statement that grants the rights."""
    role = "pg_read_all_settings"
    execute(postgres_url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    cli.set(THREADKEEP_DATABASE_URL=f"{postgres_url}&options=-crole%3D{role}")
    assert "rights" not in [finding["check"] for finding in cli("doctor", "--json").json["findings"]]
    execute(postgres_url, f"REVOKE INSERT, UPDATE ON chat_recall_indexes FROM {role}")
    finding = _finding(cli("doctor", "--json"), "rights")
    assert (finding["level"], "chat_recall_indexes (INSERT, UPDATE)." in finding["detail"]) == ("fail", True)
    granted = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
    assert granted in finding["cure"]
    execute(postgres_url, f"REVOKE DELETE ON chat_recall_indexes FROM {role}")
    assert _finding(cli("doctor", "--json"), "rights")["level"] == "fail"  # messages can still be stored
    execute(postgres_url, f"REVOKE SELECT ON chat_sessions FROM {role}")
    finding = _finding(cli("doctor", "--json"), "database")
    assert "permission denied for table chat_sessions" in finding["detail"]
    assert finding["cure"].startswith("After an upgrade, run `threadkeep migrate` as the role that owns the tables")


def test_missing_rights_on_the_schema_of_the_engine_are_found(cli: CommandLine, postgres_url: str) -> None:
    """The finding names the statement that grants them, before and after the schema exists."""
    role, database = "pg_read_all_settings", str(query(postgres_url, "SELECT current_database()")[0][0])
    execute(postgres_url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    cli.set(THREADKEEP_DATABASE_URL=f"{postgres_url}&options=-crole%3D{role}")
    finding = _finding(cli("doctor", "--json"), "engine")
    assert (finding["level"], f"GRANT CREATE ON DATABASE {database} TO {role}" in finding["cure"]) == ("warn", True)
    execute(postgres_url, f"CREATE SCHEMA {SCHEMA}")
    finding = _finding(cli("doctor", "--json"), "engine")
    assert f"GRANT USAGE, CREATE ON SCHEMA {SCHEMA} TO {role}" in finding["cure"]
    execute(postgres_url, finding["cure"].partition(": ")[2])
    assert "engine" not in [finding["check"] for finding in cli("doctor", "--json").json["findings"]]


def test_a_role_that_only_reads_can_list_and_search(cli: CommandLine, postgres_url: str) -> None:
    """A search says which messages are not indexed; a change names the missing right."""
    cli.url = postgres_url
    cli.store("room", "hello", "world")
    cli.set(THREADKEEP_DATABASE_URL=f"{postgres_url}&options=-crole%3Dpg_read_all_data")
    assert [row["session_id"] for row in cli("sessions", "list", "--json").json["sessions"]] == ["room"]
    found = cli("sessions", "search", "hello", "--json")
    assert (found.exit_code, found.json["unindexed"]) == (0, 2)
    assert "hello" in cli("sessions", "export", "room").out
    assert "permission denied for table chat_" in cli("sessions", "delete", "room", "--yes").err
    outcome = cli("doctor", "--json")
    finding = _finding(outcome, "rights")
    assert (outcome.exit_code, finding["level"], "may only read" in finding["detail"]) == (0, "warn", True)


def test_transactions_of_other_roles_are_reported_as_hidden(cli: CommandLine, postgres_url: str) -> None:
    """PostgreSQL shows them only to members of pg_read_all_stats."""
    cli.set(THREADKEEP_DATABASE_URL=f"{postgres_url}&options=-crole%3Dpg_read_all_data")
    with psycopg.connect(postgres_url):
        finding = _finding(cli("doctor", "--json"), "locks")
    assert "of other roles are hidden" in finding["detail"]
    assert "GRANT pg_read_all_stats TO pg_read_all_data" in finding["detail"]


def test_a_locked_postgres_table_is_named_with_its_holder(
    cli: CommandLine, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.store.condition._LONG_SECONDS", 0.0)
    cli.set(THREADKEEP_DATABASE_URL=postgres_url, THREADKEEP_LOCK_TIMEOUT="0.01")
    with psycopg.connect(postgres_url, application_name="vacuum job") as other:
        other.execute("LOCK TABLE chat_sessions")
        outcome = cli("doctor", "--json")
    assert "vacuum job" in _finding(outcome, "locks")["detail"]
    finding = _finding(outcome, "integrity")
    assert (finding["level"], finding["cure"]) == ("fail", "End that transaction (see `locks`), or wait for its end.")


def test_every_configured_database_is_checked(cli: CommandLine, tmp_path: Path, empty_postgres_url: str) -> None:
    """The database of the graph store and the file of the run engine are checked too."""
    cli.store("a", "hi")
    graph_store = tmp_path / "store.db"
    cli.set(THREADKEEP_GRAPH_STORE_BACKEND="sqlite", THREADKEEP_GRAPH_STORE_SQLITE_PATH=str(graph_store))
    assert "does not exist yet" in _finding(cli("doctor", "--json"), "graph store database")["detail"]
    graph_store.write_text("A letter to a friend. " * 500)
    (tmp_path / "threadkeep.db.runs").write_text("Another letter. " * 500)
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 1
    assert _finding(outcome, "integrity")["level"] == "ok"
    for check in ("graph store database", "runs database"):
        assert "not an SQLite database" in _finding(outcome, check)["cure"]
    cli.set(THREADKEEP_GRAPH_STORE_BACKEND="postgres", THREADKEEP_POSTGRES_DSN=empty_postgres_url)
    (tmp_path / "threadkeep.db.runs").unlink()
    outcome = cli("doctor", "--json")
    assert (outcome.exit_code, _finding(outcome, "graph store database")["level"]) == (0, "ok")


def test_the_engines_file_is_checked_without_the_key(cli: CommandLine, tmp_path: Path) -> None:
    """The key encrypts the database, not the file of the run engine beside it."""
    pytest.importorskip("sqlcipher3", reason="there is no wheel of sqlcipher3 for this machine")
    cli.set(THREADKEEP_DATABASE_KEY="ab" * 32)
    assert cli("migrate").exit_code == 0
    with closing(sqlite3.connect(tmp_path / "threadkeep.db.runs")) as connection, connection:
        connection.execute("CREATE TABLE workflow_status (id TEXT)")
    outcome = cli("doctor", "--json")
    assert (outcome.exit_code, _finding(outcome, "runs database")["level"]) == (0, "ok")


@pytest.mark.parametrize(
    ("kept", "other", "place"), [("tables", "graph_store", "its tables"), ("graph_store", "tables", "a graph store")]
)
def test_messages_in_the_other_transcript_store_are_found(
    any_cli: CommandLine, kept: str, other: str, place: str
) -> None:
    """The check fails if THREADKEEP_TRANSCRIPTS hides stored messages. The cure is the value that shows them."""
    any_cli.set(THREADKEEP_TRANSCRIPTS=kept)
    line = json.dumps({"type": "message", "session_id": "a", "role": "user", "content": "hi"})
    assert any_cli("sessions", "import", "-", given=line).exit_code == 0
    assert any_cli("doctor").exit_code == 0
    any_cli.set(THREADKEEP_TRANSCRIPTS=other)
    outcome = any_cli("doctor", "--json")
    assert (outcome.exit_code, _finding(outcome, "transcripts")["level"]) == (1, "fail")
    assert f"are in {place}: set THREADKEEP_TRANSCRIPTS={kept}" in _finding(outcome, "transcripts")["detail"]
    assert any_cli("sessions", "show", "a").exit_code != 0


def test_a_newer_schema_is_found(cli: CommandLine, tmp_path: Path) -> None:
    cli("migrate")
    with closing(sqlite3.connect(tmp_path / "threadkeep.db")) as connection, connection:
        connection.execute("INSERT INTO threadkeep_migrations VALUES (999, 'x', 'now')")
    connection.close()
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 1
    finding = _finding(outcome, "schema")
    assert (finding["level"], "999" in finding["detail"]) == ("fail", True)
    assert finding["cure"].startswith("Upgrade Threadkeep")


def test_an_older_schema_is_reported(cli: CommandLine, empty_postgres_url: str) -> None:
    """An older schema is not a failure, because every start migrates it."""
    cli.set(THREADKEEP_DATABASE_URL=empty_postgres_url)
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 0
    assert _finding(outcome, "schema")["cure"] == "Run: threadkeep migrate"


def test_a_stopped_postgres_is_found(cli: CommandLine, unsteady_postgres: Postgres) -> None:
    with unsteady_postgres.database() as url:
        cli.set(THREADKEEP_DATABASE_URL=url, THREADKEEP_POSTGRES_POOL_TIMEOUT="0.5")
        assert cli("doctor").exit_code == 0
        unsteady_postgres.stop()
        outcome = cli("doctor", "--json")
        unsteady_postgres.start()
    assert outcome.exit_code == 1
    finding = _finding(outcome, "database")
    assert finding["level"] == "fail"
    assert finding["cure"].startswith("Check the URL postgresql://")
    assert url not in outcome.out
    assert outcome.err == ""


def test_a_lasting_write_lock_is_found(cli: CommandLine, tmp_path: Path) -> None:
    cli("migrate")
    cli.set(THREADKEEP_LOCK_TIMEOUT="0.05")
    connection = sqlite3.connect(tmp_path / "threadkeep.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    outcome = cli("doctor", "--json")
    connection.close()
    assert outcome.exit_code == 1
    finding = _finding(outcome, "writing")
    assert "locked" in finding["detail"]
    assert "end that process" in finding["cure"]  # the file needs no repair


def test_pending_writes_are_found(cli: CommandLine) -> None:
    cli("migrate")
    spool_turn(cli, error="WrongUser").close()
    living = spool_turn(cli, "entry-2")
    outcome = cli("doctor", "--json")
    living.close()
    assert outcome.exit_code == 1
    finding = _finding(outcome, "pending writes")
    assert finding["detail"].startswith("2 turns to be written, the oldest for ")
    assert "1 of them by processes that have ended" in finding["detail"]
    assert "WrongUser" in finding["detail"]
    assert "threadkeep pending list" in finding["cure"]
    assert "canary" not in outcome.out


def test_writes_pending_for_a_replaced_file_need_a_restart(cli: CommandLine) -> None:
    """A process with the old file open cannot write its pending turns until it restarts."""
    cli("migrate")
    living = spool_turn(cli, error="DatabaseFileReplaced")
    finding = _finding(cli("doctor", "--json"), "pending writes")
    living.close()
    assert "restart" in finding["cure"]


def test_writes_pending_for_another_database_are_found(cli: CommandLine) -> None:
    """Pending writes of other databases are reported, but are not a failure."""
    cli("migrate")
    spool_turn(cli, url="sqlite:////elsewhere/other.db").close()
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 0
    assert "1 turn to be written to other databases" in _finding(outcome, "other databases")["detail"]


@pytest.mark.parametrize(
    ("free", "level", "code"), [(5 * 1024**3, "ok", 0), (500 * 1024**2, "warn", 0), (1, "fail", 1)]
)
def test_little_free_disk_space_is_found(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, free: int, level: str, code: int
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage(10 * 1024**3, 0, free))
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == code
    assert _finding(outcome, "disk")["level"] == level


def test_a_search_index_that_lags_is_a_warning(cli: CommandLine, tmp_path: Path) -> None:
    cli.store("a", "hi")
    with closing(sqlite3.connect(tmp_path / "threadkeep.db")) as connection, connection:
        connection.execute("UPDATE chat_sessions SET indexed_seq = -20000")
    connection.close()
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 0
    assert _finding(outcome, "search")["level"] == "warn"


def test_the_model_is_called_only_with_an_option(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` calls the model only with --call-model, and does not print the text of its error."""
    assert "can be created" in _finding(cli("doctor", "--json"), "model")["detail"]
    assert "answers in" in _finding(cli("doctor", "--call-model", "--json"), "model")["detail"]

    async def fail(self: DemoModel, text: str) -> None:
        raise ConnectionError(f"secret key in: {text}")

    monkeypatch.setattr(DemoModel, "ainvoke", fail)
    outcome = cli("doctor", "--call-model", "--json")
    assert outcome.exit_code == 1
    assert "does not answer (ConnectionError)" in _finding(outcome, "model")["detail"]
    assert "secret" not in outcome.out


def test_learned_token_factors_are_shown(any_cli: CommandLine) -> None:
    """The finding shows the factor of each model and its number of calls; a factor at its limit is a warning."""
    any_cli("migrate")
    finding = _finding(any_cli("doctor", "--json"), "token factors")
    assert (finding["level"], "None learned yet" in finding["detail"]) == ("ok", True)

    async def learning(memory: Memory) -> None:
        await memory.token_factors.save("small-1", 1.124, 34)
        await memory.token_factors.save("other-2", 0.9, 1)
        await memory.token_factors.save("claude-2.1", 3.0, 40)  # learned for an older estimate
        await memory.token_factors.save("claude-2.1 estimate_claude2", 1.2, 2)
        await memory.token_factors.save("grok-4", 1.05, 7, 3.744)

    any_cli.with_memory(learning)
    finding = _finding(any_cli("doctor", "--json"), "token factors")
    assert finding["level"] == "ok"
    assert finding["detail"] == (
        "Estimates are corrected for claude-2.1 estimate_claude2 ×1.20 (2 calls), "
        "grok-4 ×1.05, other scripts ×3.74 (7 calls), other-2 ×0.90 (1 call), small-1 ×1.12 (34 calls)."
    )

    async def overdoing(memory: Memory) -> None:
        await memory.token_factors.save("small-1", 3.0, 90)

    any_cli.with_memory(overdoing)
    outcome = any_cli("doctor", "--json")
    assert (outcome.exit_code, _finding(outcome, "token factors")["level"]) == (0, "warn")


def test_a_context_window_smaller_than_the_reply_is_found(cli: CommandLine) -> None:
    cli.set(THREADKEEP_CONTEXT_WINDOW="4000", THREADKEEP_MAX_OUTPUT_TOKENS="4000")
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 1
    assert "A context window of 4000 tokens, less 4000 for the reply" in _finding(outcome, "settings")["detail"]


def test_the_summary_model_is_checked(cli: CommandLine) -> None:
    cli.set(THREADKEEP_SUMMARY_MODEL="demo")
    assert _finding(cli("doctor", "--json"), "summary model")["level"] == "warn"
    cli.set(THREADKEEP_SUMMARY_TRIGGER="messages:40")
    assert _finding(cli("doctor", "--json"), "summary model")["level"] == "ok"
    cli.set(THREADKEEP_SUMMARY_MODEL="nobody:x")
    outcome = cli("doctor", "--json")
    assert (outcome.exit_code, _finding(outcome, "summary model")["level"]) == (1, "fail")
    assert "THREADKEEP_SUMMARY_MODEL" in _finding(outcome, "summary model")["detail"]


@pytest.mark.parametrize("variable", ["THREADKEEP_WORKFLOWS", "THREADKEEP_CHANNELS"])
def test_a_damaged_file_of_workflows_or_bots_is_found(cli: CommandLine, tmp_path: Path, variable: str) -> None:
    """The service does not start with such a file."""
    assert _finding(cli("doctor", "--json"), "files")["level"] == "ok"
    file = tmp_path / "damaged.yaml"
    file.write_text("channels: [}{", encoding="utf-8")
    cli.set(**{variable: str(file)})
    assert _failed(cli) == ["files"]
    assert f"{file}:1" in _finding(cli("doctor", "--json"), "files")["detail"]


def test_a_missing_package_of_bots_is_found_beside_the_other_checks(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("threadkeep.channels.opening", raising=False)
    monkeypatch.setitem(sys.modules, "threadkeep.channels.opening", None)
    cli.set(THREADKEEP_CHANNELS=str(tmp_path / "channels.yaml"))
    assert _failed(cli) == ["files"]
    assert "pip install 'threadkeep[channels]'" in _finding(cli("doctor", "--json"), "files")["detail"]


def test_a_read_only_mount_is_found(cli: CommandLine) -> None:
    """`doctor` and `erase` both say that the database cannot be written; a dry run of `erase` needs no write."""
    cli("migrate")
    folder = cli.folder
    mount = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    with ForkedCommand(_on_a_read_only_mount, [mount], os.environ) as process:
        out, err = process.communicate()
    assert "its mount is read-only" in out
    assert "No data was found; check the id." in out
    assert "database is down, locked, full or read-only" in err


def _on_a_read_only_mount(commands: Sequence[str]) -> int:
    """Mount with these shell commands in a mount namespace of this process, then run `doctor` and `erase`."""
    os.unshare(os.CLONE_NEWNS)
    for command in ("mount --make-rprivate /", *commands):
        subprocess.run(["sh", "-c", command], check=True)
    # The folder that this process is in is below the mount.
    os.chdir(Path.cwd())
    dry_run = main(["erase", "user", "ann", "--dry-run"])
    return dry_run + main(["doctor", "--json"]) + main(["erase", "user", "ann", "--yes"])


async def test_a_graphiti_server_that_does_not_answer_is_found(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text is sent to the server, and the key is not shown."""

    async def asked() -> Any:
        outcome = await asyncio.to_thread(cli, "doctor", "--json")
        assert "canary" not in outcome.out + outcome.err
        return _finding(outcome, "graphiti")

    cli.set(THREADKEEP_GRAPHITI_ENABLED="true", THREADKEEP_GRAPHITI_API_KEY="canary-key")
    for transport in ("rest", "mcp"):
        cli.set(THREADKEEP_GRAPHITI_TRANSPORT=transport, THREADKEEP_GRAPHITI_ENDPOINT="http://127.0.0.1:9")
        found = await asked()
        assert (found["level"], found["detail"]) == ("fail", "The Graphiti server cannot be reached.")
        assert found["cure"] == "Start it, or correct THREADKEEP_GRAPHITI_ENDPOINT."
    async with FakeGraphiti() as server:
        cli.set(THREADKEEP_GRAPHITI_TRANSPORT="rest", THREADKEEP_GRAPHITI_ENDPOINT=server.url)
        found = await asked()
        assert (found["level"], found["detail"]) == ("ok", f"The server at {server.url} answers (rest).")
        server.fail("hang", "/healthcheck")
        monkeypatch.setattr("threadkeep.cli.doctor._GRAPHITI_SECONDS", 0.2)
        assert (await asked())["detail"] == "The Graphiti server did not answer in time."
        assert {request.method for request in server.requests} == {"GET"}
