"""Tests of `threadkeep context show`: the window of the next model call, and the reasons for exclusions."""

from __future__ import annotations

import pytest

from tests.cli.running import CommandLine
from threadkeep.agent.provider_messages import OPENING
from threadkeep.context.tokens import estimate


@pytest.fixture
def long_session(cli: CommandLine) -> CommandLine:
    """Store a session of 25 messages."""
    cli.store("a", *[f"Message number {number}." for number in range(1, 26)])
    return cli


def test_the_window_has_the_limits_of_the_settings(long_session: CommandLine) -> None:
    view = long_session("context", "show", "--session", "a", "--json").json
    assert [message["seq"] for message in view["messages"]] == [None, *range(6, 26)]
    assert view["messages"][0]["content"] == OPENING
    assert view["excluded"] == [{"first_seq": 1, "last_seq": 5, "reason": "over_limit"}]
    assert view["messages"][-1]["content"] == "Message number 25."
    assert view["tokens"] == sum(message["tokens"] for message in view["messages"])

    shown = long_session("context", "show", "--session", "a").out
    assert "out: 1–5, over the limit of 20 messages" in shown
    assert "Message number 25." in shown
    assert "Message number 5." not in shown


def test_the_system_prompt_counts_against_the_budget(long_session: CommandLine) -> None:
    prompt = "You are a patient librarian. " * 5
    long_session.set(THREADKEEP_SYSTEM_PROMPT=prompt)
    budget = estimate(prompt) + 15
    view = long_session("context", "show", "--session", "a", "--max-tokens", str(budget), "--json").json
    system, window = view["sections"]
    assert (system["name"], system["tokens"]) == ("system", estimate(prompt))
    assert 0 < window["tokens"] <= 15
    assert view["excluded"][0]["reason"] == "over_budget"

    shown = long_session("context", "show", "--session", "a", "--max-tokens", str(budget)).out
    bars = {line.split()[0]: line.count("█") for line in shown.splitlines() if "█" in line}
    assert bars["system"] > bars["window"] > 0
    assert "You are a patient librarian." in shown


def test_a_system_prompt_over_the_budget_is_a_failure(long_session: CommandLine) -> None:
    long_session.set(THREADKEEP_SYSTEM_PROMPT="You are a patient librarian. " * 50)
    outcome = long_session("context", "show", "--session", "a", "--max-tokens", "20")
    assert outcome.exit_code == 1
    assert "THREADKEEP_SYSTEM_PROMPT" in outcome.err


def test_a_cut_message_is_marked(cli: CommandLine) -> None:
    question = "A very long question. " * 100
    cli.store("a", question)
    shown = cli("context", "show", "--session", "a", "--max-tokens", "30").out
    assert f"(cut from {estimate(question)})" in shown
    view = cli("context", "show", "--session", "a", "--max-tokens", "30", "--json").json
    assert [cut["seq"] for cut in view["cuts"]] == [1]
    assert view["messages"][0]["content"].endswith("… [cut]")


def test_messages_before_a_reset_are_excluded(long_session: CommandLine) -> None:
    long_session("sessions", "reset", "a")
    outcome = long_session("context", "show", "--session", "a")
    assert "out: 1–25, before the reset" in outcome.out
    assert "No message of the session is included." in outcome.out


@pytest.mark.parametrize("variables", [{"THREADKEEP_HISTORY_ENABLED": "false"}, {"THREADKEEP_HISTORY_MAX_TOKENS": "0"}])
def test_without_history_no_message_is_included(long_session: CommandLine, variables: dict[str, str]) -> None:
    long_session.set(**variables)
    assert long_session("context", "show", "--session", "a", "--json").json["messages"] == []


def test_an_unknown_session_is_a_failure(cli: CommandLine) -> None:
    """The error names the database. A session of another user is unknown, too."""
    cli.store("a", "hi", user_id="u1")
    outcome = cli("context", "show", "--session", "b")
    assert outcome.exit_code == 1
    sentence = "There is no session 'b' here; list what there is with `threadkeep sessions list`. "
    assert f"{sentence}The database is {cli.url};" in outcome.err
    assert "THREADKEEP_DATABASE_URL" in outcome.err
    assert cli("context", "show", "--session", "a", "--user", "u2").exit_code == 1
    assert cli("context", "show", "--session", "a", "--user", "u1").exit_code == 0
