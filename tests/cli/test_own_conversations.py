"""Tests of commands over conversations that agents keep in the graph store by themselves."""

from __future__ import annotations

import json

import pytest

from tests.cli.running import CommandLine
from tests.recorded_events import RecordedEvents
from tests.runs.desk import RunDesk, carried_out
from tests.workflows.test_agent_history import BOT
from tests.workflows.test_own_conversations import asked
from threadkeep import Memory
from threadkeep.testing import ScriptedModel

KEY = "telegram:b:7"
OTHER_PLACE = ", history_namespace: [bots, old], history_meta_key_suffix: ':meta', history_value_field: words"


def talk(cli: CommandLine, *texts: str, more: str = "", chat_id: int = 7) -> list[str]:
    """Ask a bot as the user `ann`, with the replies `one`, `two` and so on; return the ids of the runs."""

    async def talking(memory: Memory) -> list[str]:
        model = ScriptedModel(["one", "two", "three", "four"])
        desk = RunDesk(memory, model, RecordedEvents(), store=await memory.graph_store())
        async with desk.open(BOT % more) as service:
            requests = [asked(text, user_id="ann", chat_id=chat_id) for text in texts]
            return [(await carried_out(service, request)).run.run_id for request in requests]

    return cli.with_memory(talking)


def test_context_show_shows_calls_of_a_conversation(cli: CommandLine) -> None:
    """Calls and differences are shown as for a session. The preview of a next call is refused with a reason."""
    runs = talk(cli, "first", "second", "third")
    show = ("context", "show", "--session", KEY)
    last = cli(*show, "--json").json
    assert (last["run_id"], last["conversation"]["key"]) == (runs[2], KEY)
    assert cli(*show, "--call", "3", "--json").json["run_id"] == runs[0]
    assert "--call takes 1 (the newest) to 3" in cli(*show, "--call", "4").err
    difference = cli(*show, "--diff").out
    assert "third" in difference
    assert "first" not in difference
    assert "agent stores" in cli(*show, "--next").err
    assert cli(*show, "--user", "bob").exit_code == 1


@pytest.mark.slow
def test_conversations_are_exported_and_imported_with_sessions(
    any_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation and a session with the same key stay separate, and the agent continues its conversation."""
    elsewhere = f"sqlite:///{any_cli.folder}/other.db"
    with monkeypatch.context() as patch:
        patch.setattr(any_cli, "url", elsewhere)
        patch.setenv("THREADKEEP_DATABASE_URL", elsewhere)
        talk(any_cli, "first", "CANARY")
        talk(any_cli, "in another place", more=OTHER_PLACE, chat_id=8)
        any_cli.store(KEY, "Hello", "Hi", user_id="ann")
        any_cli("sessions", "reset", KEY)
        exported = any_cli("sessions", "export", "--all").out
        named = any_cli("sessions", "export", KEY, "telegram:b:8", "--user", "ann").out
        assert any_cli("sessions", "export", "telegram:b:8", "--user", "bob").exit_code == 1
    assert sorted(named.splitlines()) == sorted(exported.splitlines())
    lines = [json.loads(line) for line in exported.splitlines()]
    places = [line.get("namespace") for line in lines if line["type"] == "session"]
    assert sorted(map(str, places)) == ["None", "['agent_chat_history']", "['bots', 'old']"]
    done = [any_cli("sessions", "import", "-", "--json", given=exported).json for _ in range(2)]
    assert [(one["sessions"], one["stored"], one["known"]) for one in done] == [(3, 8, 0), (3, 0, 8)]
    assert sorted(any_cli("sessions", "export", "--all").out.splitlines()) == sorted(exported.splitlines())
    assert [hit["session_id"] for hit in any_cli("sessions", "search", "CANARY", "--json").json["hits"]] == [KEY]
    talk(any_cli, "third")
    talk(any_cli, "fourth", more=OTHER_PLACE, chat_id=8)
    assert any_cli("sessions", "show", "telegram:b:8", "--json").json["message_count"] == 4
    assert "third" in any_cli("sessions", "export", KEY).out


def test_an_import_into_the_graph_store_creates_sessions(cli: CommandLine) -> None:
    """Conversations of the default namespace become sessions; others keep their namespace."""
    talk(cli, "first")
    talk(cli, "in another place", more=OTHER_PLACE, chat_id=8)
    exported = cli("sessions", "export", "--all").out
    cli.set(THREADKEEP_TRANSCRIPTS="graph_store", THREADKEEP_DATABASE_URL=f"sqlite:///{cli.folder}/other.db")
    assert cli("sessions", "import", "-", "--json", given=exported).json["stored"] == 4
    listed = cli("sessions", "list", "--json").json["sessions"]
    assert {one["session_id"]: one.get("namespace") for one in listed} == {KEY: None, "telegram:b:8": ["bots", "old"]}


def test_a_conversation_of_another_user_is_skipped_and_named(cli: CommandLine) -> None:
    """A session with the same id is stored. An invalid namespace is a bad line."""
    talk(cli, "first")
    place = {"type": "session", "session_id": KEY, "namespace": ["agent_chat_history"]}
    message = {"type": "message", "session_id": KEY, "role": "user", "content": "theirs"}
    lines = [{**place, "user_id": "bob"}, message, {"type": "session", "session_id": KEY}, message]
    lines += [{**place, "namespace": ["a.b"]}, message, {**place, "meta_key_suffix": "__9"}, message]
    outcome = cli("sessions", "import", "-", "--json", given="".join(json.dumps(line) + "\n" for line in lines))
    assert outcome.exit_code == 1
    assert (outcome.json["stored"], outcome.json["skipped"]) == (1, 3)
    assert [error["line"] for error in outcome.json["errors"]] == [5, 7, 1]


def test_conversations_are_pruned_with_sessions_or_by_id(cli: CommandLine) -> None:
    """An id selects the session and the conversation with that key. Conversations are never archived."""
    talk(cli, "first", "second", "third")
    cli.store(KEY, *["Hello", "Hi"] * 2, user_id="ann")
    prune = ("sessions", "prune", "--max-messages", "2")
    would = cli(*prune, "--delete", "--dry-run", "--json").json
    assert [(one["session_id"], one["messages"]) for one in would["sessions"]] == [(KEY, 2), (KEY, 4)]
    assert would["deleted"]["sessions"] == 2
    assert cli(*prune, "--archive", "--json").json["archived"]["messages"] == 2
    assert cli(*prune, KEY, "--delete", "--yes", "--user", "bob").exit_code == 1
    done = cli(*prune, KEY, "--delete", "--yes", "--json").json
    assert {**would, **done, "dry_run": True} == {**would, "vacuumed": False}
    [listed] = [one for one in cli("sessions", "list", "--json").json["sessions"] if "namespace" in one]
    assert (listed["title"], listed["message_count"]) == ("third", 2)
    assert [one["content"] for one in cli("sessions", "show", KEY, "--json").json["messages"]] == ["Hello", "Hi"]
