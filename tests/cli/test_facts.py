"""Tests of `threadkeep facts` and `threadkeep persons`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.running import CommandLine
from threadkeep import Evidence, Memory, Message, Scope
from threadkeep.knowledge.facts import Knowledge
from threadkeep.knowledge.proposals import Proposed, Reading
from threadkeep.records.knowledge import SCOPE_KINDS, FactQuery, ScopeKind

ANN = ("--user", "ann")


def test_a_fact_is_added_listed_shown_and_forgotten(any_cli: CommandLine) -> None:
    """The same value confirms a fact, another replaces it, and `forget` deletes it with its history."""
    cli = any_cli
    assert cli("facts", "list").err == "There are no such facts.\n"
    assert "diet of user ann is remembered" in cli("facts", "add", "diet", "vegetarian", *ANN).out
    assert "(2 times)" in cli("facts", "add", "diet", "vegetarian", *ANN, "--kind", "preference").out
    added = cli("facts", "add", "diet", '["vegan", 1]', *ANN, "--confidence", "0.5", "--json").json
    assert (added["value"], added["kind"], added["confidence"], added["confirmed"]) == (
        ["vegan", 1],
        "preference",
        0.5,
        1,
    )
    assert added["valid_from"].endswith("+00:00")  # as the times of sessions and runs
    listed = cli("facts", "list", *ANN).out
    assert "user ann" in listed
    assert "vegetarian" not in listed
    shown = cli("facts", "show", "diet", *ANN).out
    assert "diet: vegetarian" in shown
    assert "confirmed 2 times, contradicted 1 time" in shown
    assert [fact["value"] for fact in cli("facts", "show", "diet", *ANN, "--json").json["facts"]] == [
        ["vegan", 1],
        "vegetarian",
    ]
    forgotten = cli("facts", "forget", "diet", "nothing", *ANN, "--yes", "--json")
    assert (forgotten.exit_code, forgotten.json) == (1, {"forgotten": 2, "not_found": ["nothing"]})
    assert cli("facts", "show", "diet", *ANN).exit_code == 1


def test_a_key_is_one_fact_in_every_spelling(cli: CommandLine) -> None:
    assert "home_city of user ann is remembered" in cli("facts", "add", "Home City", "Lisbon", *ANN).out
    assert "home_city was known" in cli("facts", "add", "home-city", "Lisbon", *ANN).out
    assert "home_city: Lisbon" in cli("facts", "show", "Home City", *ANN).out
    assert cli("facts", "forget", "HOME CITY", *ANN, "--yes", "--json").json == {"forgotten": 1, "not_found": []}


def test_facts_are_listed_by_scope_kind_and_text(cli: CommandLine) -> None:
    async def remembering(memory: Memory) -> None:
        for scope, key in ((Scope("user", "ann"), "a"), (Scope("workspace", "shop"), "b"), (Scope("user", "bob"), "c")):
            await memory.knowledge.remember(scope, key, f"value of {key}", evidence=Evidence("room:1", 7, "run-1"))

    cli.with_memory(remembering)
    assert [fact["key"] for fact in cli("facts", "list", "--json").json["facts"]] == ["c", "b", "a"]
    assert [fact["key"] for fact in cli("facts", "list", "--workspace", "shop", "--json").json["facts"]] == ["b"]
    assert [fact["key"] for fact in cli("facts", "list", "--text", "OF A", "--json").json["facts"]] == ["a"]
    page = cli("facts", "list", "--limit", "2", "--json").json
    rest = cli("facts", "list", "--cursor", page["next_cursor"], "--json").json
    assert ([fact["key"] for fact in rest["facts"]], rest["next_cursor"]) == (["a"], None)
    assert f"--cursor '{page['next_cursor']}'" in cli("facts", "list", "--limit", "2").err
    assert "from message 7 of room:1, run run-1" in cli("facts", "show", "a", *ANN).out
    assert "value of b" in cli("facts", "show", "b", "--workspace", "shop").out
    forgotten = cli("facts", "forget", "b", "--workspace", "shop", "--yes", "--json").json
    assert forgotten == {"forgotten": 1, "not_found": []}


@pytest.mark.parametrize(
    ("option", "kind"), [("--session", "session"), ("--workspace", "workspace"), ("--user", "user")]
)
def test_each_command_uses_the_named_scope(cli: CommandLine, option: str, kind: ScopeKind) -> None:
    """The same owner and key in the other scopes are not changed."""

    async def remembering(memory: Memory) -> None:
        await memory.session("x").append([Message(role="user", content="hi")])
        for other in SCOPE_KINDS:
            await memory.knowledge.remember(Scope(other, "x"), "diet", "vegan")

    def left() -> list[tuple[str, str]]:
        return sorted((fact["scope"], fact["value"]) for fact in cli("facts", "list", "--json").json["facts"])

    cli.with_memory(remembering)
    assert [fact["scope"] for fact in cli("facts", "list", option, "x", "--json").json["facts"]] == [kind]
    cli("facts", "add", "diet", "kosher", option, "x")
    assert left() == sorted((other, "kosher" if other == kind else "vegan") for other in SCOPE_KINDS)
    cli("facts", "forget", "diet", option, "x", "--yes")
    assert left() == sorted((other, "vegan") for other in SCOPE_KINDS if other != kind)


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "diet", "vegan"),
        ("add", "diet", "vegan", "--user", "ann", "--workspace", "shop"),
        ("add", "diet", "null", "--user", "ann"),
        ("add", " ", "vegan", "--user", "ann"),
        ("add", "diet", "vegan", "--user", "ann", "--kind", "gossip"),
        ("forget", "--user", "ann", "--yes"),
        ("forget", "diet", "--all", "--user", "ann", "--yes"),
        ("forget", "diet", "--user", "ann"),
        ("forget", "diet", "--yes"),
        ("show", "diet"),
        ("list", "--cursor", "x"),
    ],
)
def test_a_usage_error_changes_no_fact(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    cli("facts", "add", "diet", "vegetarian", *ANN)
    outcome = cli("facts", *arguments)
    assert outcome.exit_code == 2
    assert outcome.err.endswith(".\n")
    [fact] = cli("facts", "list", "--past", "--json").json["facts"]
    assert fact["value"] == "vegetarian"


def test_a_value_may_be_the_name_of_an_option(cli: CommandLine) -> None:
    cli("facts", "add", *ANN, "--", "flag", "--diff")
    assert [fact["value"] for fact in cli("facts", "show", "flag", *ANN, "--json").json["facts"]] == ["--diff"]


def test_a_fact_of_an_unknown_session_is_refused(cli: CommandLine) -> None:
    outcome = cli("facts", "add", "topic", "bees", "--session", "room:1")
    assert outcome.exit_code == 1
    assert "no session" in outcome.err


def test_facts_move_to_another_database(any_cli: CommandLine, sqlite_url: str) -> None:
    """The history of facts moves too. A second import stores nothing, and both exports have the same bytes."""
    cli = any_cli
    for value in ("vegetarian", "vegan", "vegan"):
        cli("facts", "add", "diet", value, *ANN)
    cli("facts", "add", "days", "30", "--workspace", "shop")
    assert cli("facts", "export", "--output", "facts.jsonl", "--json").json == {"facts": 3, "file": "facts.jsonl"}
    exported = (cli.folder / "facts.jsonl").read_bytes()
    assert len(cli("facts", "export", "--workspace", "shop").out.splitlines()) == 1
    other = f"sqlite:///{cli.folder}/other.db"
    assert cli("facts", "import", "facts.jsonl", "--database", other, "--json").json == {"read": 3, "stored": 3}
    with_mark = b"\xef\xbb\xbf" + exported  # as editors on Windows write UTF-8
    assert cli("facts", "import", "-", "--database", other, "--json", given=with_mark).json == {"read": 3, "stored": 0}
    assert cli("facts", "export", "--database", other).out.encode() == exported


@pytest.mark.parametrize("late", [False, True])
def test_a_fact_that_changes_during_an_export_is_in_it(
    any_cli: CommandLine, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """The export has the old and the new value once, and an import closes the old one."""
    cli = any_cli
    for key in "abc":
        cli("facts", "add", key, "old", *ANN)
    read = Knowledge.facts_page
    changed: list[str] = []

    async def changing(self: Knowledge, query: FactQuery) -> Any:
        page = await read(self, query)
        if not changed and (page[1] is None or not late):
            changed.append((await self.remember(Scope("user", "ann"), "a", "new")).id)
        return page

    monkeypatch.setattr("threadkeep.cli.facts._PAGE", 1)
    monkeypatch.setattr(Knowledge, "facts_page", changing)
    exported = cli("facts", "export").out
    lines = [json.loads(line) for line in exported.splitlines()]
    found = sorted((one["key"], one["value"]) for one in lines)
    assert found == [("a", "new"), ("a", "old"), ("b", "old"), ("c", "old")]
    other = f"sqlite:///{cli.folder}/other.db"
    cli("facts", "import", "-", "--database", other, given=exported.encode())
    listed = cli("facts", "list", "--database", other, "--json").json["facts"]
    assert sorted((one["key"], one["value"]) for one in listed) == [("a", "new"), ("b", "old"), ("c", "old")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "not an exported fact; export it again"),
        ({"scope": "global"}, "not an exported fact (scope)"),
        ({"confirmed": -1}, "not an exported fact (confirmed)"),
        ({"valid_from": "2026-01-01T00:00:00"}, "not an exported fact (valid_from)"),
        ({"valid_from": "0001-01-01T00:00:00+14:00"}, "not an exported fact (valid_from)"),
        ({"valid_to": "2020-01-01T00:00:00Z"}, "valid_to must not be before valid_from"),
        ({"value": None}, "cannot be None"),
        ({"key": "a\nb"}, "not only spaces"),
        ({"scope": "session", "owner": "room:9"}, "no session"),
        ({"more": 1}, "not an exported fact"),
    ],
)
def test_a_damaged_line_is_named_but_not_quoted(cli: CommandLine, change: dict[str, object] | None, words: str) -> None:
    cli("facts", "add", "diet", "canary", *ANN)
    line = json.loads(cli("facts", "export").out)
    cli("facts", "forget", "diet", *ANN, "--yes")
    damaged = "canary" if change is None else json.dumps({**line, **change})
    outcome = cli("facts", "import", "-", given=f"\n{damaged}\n")
    assert (outcome.exit_code, "canary" in outcome.err) == (1, False)
    assert outcome.err.startswith(("Line 2 ", "Lines 2 to 2: "))
    assert words in outcome.err
    assert cli("facts", "list", "--json").json["facts"] == []


def test_persons_are_listed_merged_and_unmerged(any_cli: CommandLine) -> None:
    cli = any_cli

    async def meeting(memory: Memory) -> None:
        await memory.persons.resolve("telegram:123", name="Ann")
        await memory.persons.resolve("ann")

    cli.with_memory(meeting)
    cli("facts", "add", "diet", "vegan", "--user", "telegram:123")
    assert cli("persons", "merge", "telegram:123", "ann").out == "ann is known as ann, telegram:123.\n"
    [person] = cli("persons", "list", "--json").json["persons"]
    assert (person["id"], person["aliases"], person["names"]) == ("ann", ["ann", "telegram:123"], ["Ann"])
    assert "Ann" in cli("persons", "list").out
    assert len(cli("facts", "list", *ANN, "--json").json["facts"]) == 1
    assert cli("persons", "unmerge", "telegram:123", "--json").json["aliases"] == ["telegram:123"]
    assert cli("facts", "list", *ANN, "--json").json["facts"] == []
    assert len(cli("persons", "list", "--text", "TELEGRAM", "--json").json["persons"]) == 1
    assert cli("persons", "merge", "telegram:123", "nobody").exit_code == 1
    assert cli("persons", "unmerge", "ann").exit_code == 2


def test_a_proposed_fact_is_listed_accepted_and_undone(cli: CommandLine) -> None:
    async def proposing(memory: Memory) -> None:
        await memory.session("room:1", user_id="ann").append([Message(role="user", content="I live in Lisbon")])
        reading = Reading("room:1", "model", "small-model", 0, 1)
        await memory.proposals.add(reading, [Proposed(Scope("user", "ann"), "home_city", "Lisbon", 1)])

    assert cli("facts", "proposals").err.startswith("No fact is proposed")
    cli.with_memory(proposing)
    assert "from message 1 of room:1" in cli("facts", "proposals", *ANN).out
    [proposal] = cli("facts", "proposals", "--status", "open", "--json").json["proposals"]
    assert "is accepted" in cli("facts", "accept", proposal["id"], "--by", "ops").out
    assert "Lisbon" in cli("facts", "list", *ANN).out
    assert cli("facts", "reject", proposal["id"]).exit_code == 2
    assert cli("facts", "undo", proposal["id"], "--json").json["status"] == "undone"
    assert cli("facts", "list", *ANN).err == "There are no such facts.\n"
    assert cli("facts", "proposals", "--status", "lost").exit_code == 2
