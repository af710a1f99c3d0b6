"""Tests of `threadkeep sessions`: list, show, search, reset and delete."""

from __future__ import annotations

import shlex

import pytest

from tests.cli.running import CommandLine
from threadkeep.cli.terminal import command_line, repeated
from threadkeep.history.memory import Memory
from threadkeep.records import Message


def test_sessions_are_listed_newest_activity_first(any_cli: CommandLine) -> None:
    any_cli.store("telegram:1", "How do I brew tea?", "With water.", user_id="u1")
    any_cli.store("telegram:2", "Another question")

    listed = any_cli("sessions", "list", "--json").json
    assert [session["session_id"] for session in listed["sessions"]] == ["telegram:2", "telegram:1"]
    assert listed["next_cursor"] is None
    tea = listed["sessions"][1]
    assert (tea["title"], tea["last_message"], tea["message_count"]) == ("How do I brew tea?", "With water.", 2)
    assert tea["user_id"] == "u1"

    shown = any_cli("sessions", "list").out
    assert "telegram:1" in shown
    assert "How do I brew tea?" in shown
    assert "ago" in shown or "now" in shown


def test_a_cursor_continues_the_list(cli: CommandLine) -> None:
    for number in range(5):
        cli.store(f"telegram:{number}", "hi")

    seen: list[str] = []
    more: list[str] = []
    while True:
        page = cli("sessions", "list", "--limit", "2", *more, "--json").json
        seen += [session["session_id"] for session in page["sessions"]]
        if page["next_cursor"] is None:
            break
        more = ["--cursor", page["next_cursor"]]
    assert seen == [f"telegram:{number}" for number in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    "cursor", ["x", "2026-01-01T00:00:00~a", "2026-01-01T00:00:00+00:00", "0001-01-01T00:00:00+14:00~a"]
)
def test_a_text_that_is_not_a_cursor_is_refused(cli: CommandLine, cursor: str) -> None:
    """A cursor names a time with its zone, which can be converted to UTC."""
    refused = cli("sessions", "list", "--cursor", cursor)
    assert (refused.exit_code, "This is not a cursor" in refused.err) == (2, True)


def test_the_hint_continues_the_same_list(cli: CommandLine) -> None:
    """The hint keeps the filters and the database of the command, and omits the old cursor and the password."""
    for number in range(5):
        cli.store(f"telegram:{number}", "hi", user_id="u1")
    cli.store("other", "hi")
    cli.set(THREADKEEP_DATABASE_URL="sqlite://")

    words = ["sessions", "list", "--user", "u1", "--limit=2", "--database", cli.url]
    seen: list[str] = []
    while words:
        page = cli(*words)
        seen += [line.split()[0] for line in page.out.splitlines()[1:]]
        words = shlex.split(page.err)[2:]
    assert seen == [f"telegram:{number}" for number in (4, 3, 2, 1, 0)]

    older = cli("sessions", "show", "telegram:1", "--before", "9", "--limit", "1", f"--database={cli.url}")
    assert older.err == ""
    command_line.set(
        ["sessions", "list", "--database", "postgresql://u:secret@host/db?sslmode=require&password=secret"]
    )
    assert "secret" not in repeated("--cursor", "x")
    assert "postgresql://u@host/db?sslmode=require&password=' --cursor x" in repeated("--cursor", "x")


def test_lists_can_be_narrowed(cli: CommandLine) -> None:
    cli.store("a", "About tea", user_id="u1")
    cli.store("b", "About coffee", user_id="u2")
    assert cli("sessions", "list", "--inactive").err == "There are no such sessions.\n"

    async def retire(memory: Memory) -> None:
        await memory.session("b").update(active=False)

    cli.with_memory(retire)

    def ids(*options: str) -> list[str]:
        return [session["session_id"] for session in cli("sessions", "list", *options, "--json").json["sessions"]]

    assert ids("--user", "u1") == ["a"]
    assert ids("--query", "COFFEE") == ["b"]
    assert ids("--active") == ["a"]
    assert ids("--inactive") == ["b"]
    assert cli("sessions", "list", "--user", "nobody").err == "There are no such sessions.\n"


def test_an_empty_memory_is_reported(cli: CommandLine) -> None:
    outcome = cli("sessions", "list")
    assert (outcome.exit_code, outcome.out, outcome.err) == (0, "", "There are no sessions yet.\n")


def test_ids_are_complete_in_every_output(cli: CommandLine) -> None:
    long_id = "wecom_cs:" + "x" * 240
    cli.store(long_id, "hi")
    assert cli("sessions", "list", "--json").json["sessions"][0]["session_id"] == long_id
    table = cli("sessions", "list").out
    assert sum(line.split("  ")[0].count("x") for line in table.splitlines()) == 240


def test_a_session_is_shown_page_by_page(cli: CommandLine) -> None:
    cli.store("a", *[f"Message {number}." for number in range(1, 8)])

    page = cli("sessions", "show", "a", "--limit", "3", "--json").json
    assert [message["seq"] for message in page["messages"]] == [5, 6, 7]
    assert page["next_before"] == 5
    page = cli("sessions", "show", "a", "--limit", "10", "--before", "5", "--json").json
    assert [message["content"] for message in page["messages"]] == [f"Message {number}." for number in (1, 2, 3, 4)]
    assert page["next_before"] is None

    outcome = cli("sessions", "show", "a", "--limit", "3")
    assert "Message 7." in outcome.out
    assert "Message 4." not in outcome.out
    assert "sessions show a --limit 3 --before 5" in outcome.err

    first = cli("sessions", "show", "a", "--before", "1")
    assert (first.exit_code, first.out, first.err) == (0, "", "There are no such messages.\n")
    cli("sessions", "take-back", "a", "-n", "7")
    assert cli("sessions", "show", "a").err == "a has no messages in this view.\n"


def test_messages_cannot_control_the_terminal(cli: CommandLine) -> None:
    """Escape sequences, carriage returns and bidirectional overrides are shown as replacement characters."""
    cli.store("a", "red \x1b[31m alert \r hidden \u202e backwards")
    for outcome in (cli("sessions", "show", "a"), cli("sessions", "list"), cli("sessions", "search", "alert")):
        assert "alert" in outcome.out
        assert not {"\x1b", "\r", "\u202e"} & set(outcome.out)


def test_archived_messages_are_shown_in_the_session(cli: CommandLine) -> None:
    cli.store("a", *[f"Message {number}." for number in range(1, 8)])
    cli("sessions", "prune", "--delete", "--max-messages", "6", "--yes")
    cli("sessions", "prune", "--archive", "--max-messages", "3")
    shown = cli("sessions", "show", "a", "--json").json
    assert (shown["deleted_seq"], shown["archived_seq"], shown["message_count"], shown["last_seq"]) == (1, 4, 6, 7)
    assert [message["seq"] for message in shown["messages"]] == [2, 3, 4, 5, 6, 7]
    assert "archived until here" in cli("sessions", "show", "a").err


def test_a_reset_is_shown_in_the_session(cli: CommandLine) -> None:
    cli.store("a", "Before.", "Yes.")
    outcome = cli("sessions", "reset", "a")
    assert (outcome.exit_code, outcome.out) == (0, "a starts afresh after message 2; its transcript stays.\n")
    cli.store("a", "After.")
    shown = cli("sessions", "show", "a", "--json").json
    assert (shown["reset_seq"], shown["count"]) == (2, 3)
    assert "reset" in cli("sessions", "show", "a").err
    assert cli("sessions", "reset", "a", "--json").json["reset_seq"] == 3


def test_a_missing_session_cannot_be_shown_or_reset(cli: CommandLine) -> None:
    for verb in ("reset", "show"):
        outcome = cli("sessions", verb, "a")
        assert (outcome.exit_code, outcome.out) == (1, "")
        assert "threadkeep sessions list" in outcome.err


def test_deleting_needs_a_confirmation(cli: CommandLine) -> None:
    cli.store("a", "hi")
    outcome = cli("sessions", "delete", "a", given="y\n")
    assert outcome.exit_code == 2
    assert "--yes" in outcome.err
    assert cli.info("a").message_count == 1


def test_sessions_are_deleted(cli: CommandLine) -> None:
    cli.store("a", "hi")
    cli.store("b", "hi")
    outcome = cli("sessions", "delete", "a", "b", "a", "c", "--yes", "--json")
    assert outcome.exit_code == 1
    assert outcome.json == {"deleted": ["a", "b"], "not_found": ["c"]}
    assert cli("sessions", "list", "--json").json["sessions"] == []
    assert "no session c" in cli("sessions", "delete", "c", "--yes").err


def test_the_user_option_hides_sessions_of_others(cli: CommandLine) -> None:
    cli.store("a", "My secret.", user_id="u1")
    other = ("--user", "u2")
    for verb in ("show", "reset"):
        assert cli("sessions", verb, "a", *other).exit_code == 1
    assert cli("sessions", "delete", "a", "--yes", *other).exit_code == 1
    assert cli("sessions", "search", "secret", *other, "--json").json == {"hits": [], "unindexed": 0}
    assert cli("sessions", "search", "secret", "--user", "u1", "--json").json["hits"][0]["session_id"] == "a"


def test_search_finds_messages(any_cli: CommandLine) -> None:
    any_cli.store("a", "Where is my refund for order 4711?", "It is on its way.")
    any_cli.store("b", "我的退款在哪里")
    assert [hit["session_id"] for hit in any_cli("sessions", "search", "refund", "--json").json["hits"]] == ["a"]
    [hit] = any_cli("sessions", "search", "退款", "--json").json["hits"]
    assert hit["message"]["content"] == "我的退款在哪里"
    assert "refund" in any_cli("sessions", "search", "refund").out
    assert any_cli("sessions", "search", "nowhere").err == "No message contains all these words.\n"


def test_an_incomplete_search_is_reported(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.store("a", "Where is my refund?", "On its way.", user_id="u1")
    cli.store("b", "Hello.", user_id="u2")

    async def nothing_done(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr("threadkeep.store.search.SearchIndex.catch_up", nothing_done)
    assert cli("sessions", "search", "refund", "--json").json == {"hits": [], "unindexed": 3}
    told = cli("sessions", "search", "refund", "--user", "u1").err
    assert told.splitlines()[1].startswith(
        "Not all messages were searched: 2 messages not indexed yet. `threadkeep migrate`"
    )


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_an_incomplete_message_is_marked(cli: CommandLine, status: str) -> None:
    async def storing(memory: Memory) -> None:
        message = Message.from_dict(
            {"role": "assistant", "content": "Half", "status": status, "confidence": 0.25, "escalated": True}
        )
        await memory.session("a").append([message])

    cli.with_memory(storing)
    shown = cli("sessions", "show", "a").out
    assert f"{status} · confidence 0.25 · escalated" in shown


def test_output_to_a_pipe_has_no_colors(cli: CommandLine) -> None:
    cli.store("a", "hi")
    assert "\x1b" not in cli("sessions", "list").out + cli("sessions", "show", "a").out


def test_hints_of_other_commands_name_the_database(cli: CommandLine) -> None:
    """Without the option, the suggested command would open another database."""
    cli.store("a", "hi", "hello")
    cli.set(THREADKEEP_DATABASE_URL="sqlite://")
    branched = cli("sessions", "branch", "a", "--as", "b c", "--database", cli.url)
    assert branched.err == f"Continue with: threadkeep chat --session 'b c' --database {cli.url}\n"
