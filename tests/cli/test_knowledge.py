"""Tests of `threadkeep knowledge`: consent, trust, deliveries and the test of the server."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.cli.running import CommandLine
from threadkeep import Memory, Message, Scope
from threadkeep.knowledge.graphiti.turns import group_id_of
from threadkeep.records.knowledge import ScopeKind
from threadkeep.testing import FakeGraphiti

ENDPOINT = "http://127.0.0.1:9"


@pytest.fixture
def cli(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return the command line with settings for a server that is not running."""
    monkeypatch.setenv("THREADKEEP_GRAPHITI_ENABLED", "true")
    monkeypatch.setenv("THREADKEEP_GRAPHITI_ENDPOINT", ENDPOINT)
    monkeypatch.setenv("THREADKEEP_WORKSPACE", "shop")
    return cli


def test_disabled_graphiti_is_reported(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADKEEP_GRAPHITI_ENABLED", "false")
    assert "THREADKEEP_GRAPHITI_ENABLED=true" in cli("knowledge", "status").out
    refused = cli("knowledge", "consent", "--grant", "--yes")
    assert refused.exit_code == 1
    assert "Graphiti is off" in refused.err


def test_consent_is_granted_shown_and_withdrawn(cli: CommandLine) -> None:
    assert "There is no decision yet" in cli("knowledge", "consent").err
    assert "--yes" in cli("knowledge", "consent", "--grant").err
    granted = cli("knowledge", "consent", "--grant", "--yes", "--by", "ops", "--json").json["consents"]
    assert [(one["endpoint"], one["data_classes"], one["decided_by"]) for one in granted] == [
        (ENDPOINT, ["chat_text"], "ops")
    ]
    assert cli("knowledge", "consent", "--grant", "--data", "everything", "--yes").exit_code == 2
    assert cli("knowledge", "consent", "--grant", "--decline").exit_code == 2
    assert cli("knowledge", "consent", "--data", "chat_text").exit_code == 2
    assert cli("knowledge", "trust", "--json").json == {"trusted": ["shop"]}
    status = cli("knowledge", "status").out
    assert "allowed   chat_text" in status
    assert "trusted   shop" in status
    cli("knowledge", "consent", "--decline", "--by", "ann")
    assert [one["decision"] for one in cli("knowledge", "consent", "--json").json["consents"]] == [
        "withdrawn",
        "granted",
    ]
    assert "Trusted: no workspace." in cli("knowledge", "trust", "--withdraw").out


def test_consent_covers_all_data_classes_of_the_settings(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data class that is enabled later needs a new consent."""
    cli("knowledge", "consent", "--grant", "--yes")
    monkeypatch.setenv("THREADKEEP_DIRECTIVES", "true")
    assert "not allowed: promoted_facts" in cli("knowledge", "status").out
    [granted] = cli("knowledge", "consent", "--grant", "--yes", "--json").json["consents"]
    assert granted["data_classes"] == ["chat_text", "promoted_facts"]
    assert "not allowed" not in cli("knowledge", "status").out


def test_deliveries_are_listed_dropped_and_retried(cli: CommandLine) -> None:
    cli("knowledge", "consent", "--grant", "--data", "chat_text", "--data", "promoted_facts", "--yes")
    cli("knowledge", "trust", "shop")
    told = cli("knowledge", "promote", "decision", "Use PostgreSQL.", "--workspace", "shop")
    assert "it is sent to the graph" in told.out
    assert cli("knowledge", "promote", "wish", "x", "--workspace", "shop").exit_code == 2
    assert "queued" in cli("knowledge", "deliveries").out
    cli("knowledge", "consent", "--decline")
    [dead] = cli("knowledge", "deliveries", "--status", "dead", "--json").json["deliveries"]
    assert dead["reason"] == "consent_withdrawn"
    assert cli("knowledge", "deliveries", "retry").exit_code == 2
    assert cli("knowledge", "deliveries", "shake").exit_code == 2
    assert "1 message dropped" in cli("knowledge", "deliveries", "drop", str(dead["number"])).out
    refused = cli("knowledge", "deliveries", "retry", "--all")
    assert (refused.exit_code, "consent --grant" in refused.err) == (1, True)
    cli("knowledge", "consent", "--grant", "--data", "chat_text", "--yes")
    assert cli("knowledge", "deliveries", "retry", "--all", "--json").json == {"changed": 0}
    assert cli("knowledge", "deliveries", "retry", "999").exit_code == 1


def test_an_unreachable_server_is_reported_with_the_cure(cli: CommandLine) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
    tested = cli("knowledge", "test")
    assert tested.exit_code == 1
    assert "THREADKEEP_GRAPHITI_ENDPOINT" in tested.out
    assert not cli("knowledge", "test", "--json").json["ok"]


def test_earlier_turns_are_queued_by_the_command(cli: CommandLine) -> None:
    """Only allowed turns are queued: the consent must include the data class `backfill`."""

    async def talking(memory: Memory) -> None:
        turn = [Message(role="user", content="q"), Message(role="assistant", content="a")]
        await memory.session("room:1").append(turn)

    cli.with_memory(talking)
    assert "consent --grant --data chat_text --data backfill" in cli("knowledge", "backfill").err
    cli("knowledge", "consent", "--grant", "--data", "chat_text", "--data", "backfill", "--yes")
    cli("knowledge", "trust")
    assert "1 earlier turn queued." in cli("knowledge", "backfill", "--all").out
    assert cli("knowledge", "backfill", "--session", "room:1", "--json").json == {"queued": 0, "left": 0}
    assert cli("knowledge", "purge", "--session", "room:1").exit_code == 2


@pytest.mark.parametrize(
    ("option", "kind"), [("--session", "session"), ("--workspace", "workspace"), ("--user", "user")]
)
async def test_the_group_of_the_named_scope_is_purged(cli: CommandLine, option: str, kind: ScopeKind) -> None:
    async with FakeGraphiti() as server:
        cli.set(THREADKEEP_GRAPHITI_ENDPOINT=server.url)
        purged = await asyncio.to_thread(cli, "knowledge", "purge", option, "x", "--yes", "--json")
    assert (purged.exit_code, purged.json["group_id"]) == (0, group_id_of(Scope(kind, "x")))


def test_an_erase_names_what_remains_in_graphiti(cli: CommandLine) -> None:
    """Without the cause, people would repeat an erase that a server never completes."""
    cli.store("room:1", "q", "a", user_id="ann")
    cli("knowledge", "consent", "--grant", "--data", "chat_text", "--data", "backfill", "--yes")
    cli("knowledge", "trust")
    assert "1 earlier turn queued." in cli("knowledge", "backfill", "--all").out
    erased = cli("erase", "user", "ann", "--yes")
    assert erased.exit_code == 1
    assert "Some data remains: groups in Graphiti." in erased.err
    assert "threadkeep knowledge test --smoke" in erased.err
    plan = cli("erase", "user", "ann", "--dry-run")
    assert "No data was found" not in plan.out
    assert "Not reached: data that an incomplete erase left: erase again" in plan.err
