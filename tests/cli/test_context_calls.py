"""Tests of `threadkeep context show`: the context of recorded model calls, and the difference between two calls."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from tests.agent.talking import config_of, input_of, make_agent
from tests.cli.running import CommandLine, Outcome
from threadkeep import Memory, SessionMemory
from threadkeep.agent.explanations import in_words
from threadkeep.context.manifest import ContextManifest
from threadkeep.context.window import ExclusionReason
from threadkeep.records import Summary
from threadkeep.testing import ScriptedModel

SHOW = ("context", "show", "--session", "a")


class NamedModel(ScriptedModel):
    """A model with a name that its provider reports."""

    def __init__(self, replies: Sequence[AIMessage]) -> None:
        super().__init__(replies)

    @property
    def model_name(self) -> str:
        """Return the name."""
        return "small-1"


@tool
def look_up(term: str) -> str:
    """Look something up."""
    return f"{term}: " + "many words " * 600


def asking(term: str) -> AIMessage:
    """Return a reply that calls the tool."""
    return AIMessage("", tool_calls=[{"name": "look_up", "args": {"term": term}, "id": f"call-{term}"}])


def reporting(text: str, input_tokens: int, cached: int) -> AIMessage:
    """Return a reply with the token count of the provider."""
    return AIMessage(
        text,
        usage_metadata={
            "input_tokens": input_tokens,
            "output_tokens": 7,
            "total_tokens": input_tokens + 7,
            "input_token_details": {"cache_read": cached},
        },
    )


def talk(
    cli: CommandLine,
    model: ScriptedModel,
    texts: Sequence[str],
    *,
    max_messages: int = 20,
    max_tokens: int = 4000,
    tool_memory: int = 1,
) -> None:
    """Run one turn of an agent for each text, in the session `a` of the user `ann`."""

    async def talking(memory: Memory) -> None:
        middleware = SessionMemory(memory, max_messages=max_messages, max_tokens=max_tokens, tool_memory=tool_memory)
        agent = make_agent(model, [middleware], [look_up], system_prompt="Be brief.")
        for text in texts:
            await agent.ainvoke(input_of(text), config_of("a", user_id="ann"))

    cli.with_memory(talking)


def seqs(view: dict[str, list[dict[str, int]]]) -> list[int]:
    """Return the sequence numbers of the messages of a view that are in the transcript."""
    return [message["seq"] for message in view["messages"] if message["seq"] is not None]


def test_each_call_is_shown_with_its_texts(any_cli: CommandLine) -> None:
    talk(any_cli, ScriptedModel(["one", "two", "three"]), ["first", "second", "third"])
    for number, words in ((1, "third"), (2, "second"), (3, "first")):
        view = any_cli(*SHOW, "--call", str(number), "--json").json
        assert (view["call"], view["session_id"], view["messages"][-1]["content"]) == (1, "a", words)
        assert view["messages"][0] == {**view["messages"][0], "role": "system", "content": "Be brief."}
        assert seqs(view) == list(range(1, 8 - 2 * number))
        assert view["tokens"] == sum(section["tokens"] for section in view["sections"])
        assert view["tokens"] + view["free"] == view["max_tokens"] == 4000
    shown = any_cli(*SHOW, "--call", "2").out
    assert shown.startswith("Call 1 of run ")
    bars = {line.split()[0]: line.count("█") for line in shown.splitlines() if "█" in line}
    assert set(bars) == {"system", "window", "input", "free"}
    assert "second" in shown
    assert "third" not in shown


def test_an_old_call_is_found_on_later_pages(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep.cli.context._PAGE", 2)
    talk(cli, ScriptedModel(["ok"] * 5), [f"question {number}" for number in range(5)])
    found = [cli(*SHOW, "--call", str(number), "--json").json["messages"][-1]["content"] for number in range(1, 6)]
    assert found == [f"question {number}" for number in reversed(range(5))]
    assert "--call takes 1 (the newest) to 5" in cli(*SHOW, "--call", "7").err


def test_calls_of_a_run_are_numbered_from_the_first(cli: CommandLine) -> None:
    """The view shows tool calls and shortened results as steps. Without a number, the view is of the last call."""
    talk(cli, ScriptedModel([asking("atlas"), "done"]), ["look it up"], max_tokens=300)
    run_id = cli(*SHOW, "--call", "1", "--json").json["run_id"]
    first = cli("context", "show", "--run", run_id, "--call", "1", "--json").json
    last = cli("context", "show", "--run", run_id, "--json").json
    assert (first["call"], last["call"]) == (1, 2)
    assert [section["name"] for section in last["sections"]] == ["system", "window", "input", "steps"]
    call, result = last["messages"][-2:]
    assert (call["role"], call["tool_calls"]) == ("assistant", ['look_up({"term": "atlas"})'])
    assert result["role"] == "tool"
    assert result["tokens_before"] > 300 > result["tokens"]
    assert last["cuts"] == [{"seq": None, "tokens_before": result["tokens_before"], "tokens_after": result["tokens"]}]
    shown = cli("context", "show", "--run", run_id, "--session", "a").out
    assert '→ look_up({"term": "atlas"})' in shown
    assert f"(cut from {result['tokens_before']:,})" in shown
    assert cli("context", "show", "--run", run_id, "--session", "b").exit_code == 1


def test_the_token_count_of_the_provider_is_shown(cli: CommandLine) -> None:
    long = "Tell me of the sea. " * 60
    talk(cli, NamedModel([reporting("Wet.", 500, 0), reporting("Blue.", 1000, 400)]), [long, long])
    view = cli(*SHOW, "--call", "1", "--json").json
    assert view["model"] == "small-1"
    assert view["reported"] == {"input_tokens": 1000, "output_tokens": 7, "cached_tokens": 400}
    assert view["counter"].startswith("estimate×1.")
    shown = cli(*SHOW, "--call", "1").out
    assert f"model    small-1, counted by {view['counter']}; correction today: ×1." in shown
    assert "from 2 calls" in shown
    assert "the provider counted 1,000, 400 of them from its cache (40 %); the reply had 7" in shown


def test_the_last_and_the_next_call_are_the_default(cli: CommandLine) -> None:
    """Without `--call`, the last recorded call and a preview of the next are shown; with `--next`, only the preview."""
    talk(cli, ScriptedModel(["one", "two"]), ["first", "second"])
    view = cli(*SHOW, "--json").json
    assert (view["call"], view["next_call"]["call"]) == (1, None)
    assert seqs(view["next_call"]) == [1, 2, 3, 4]
    assert view["next_call"]["tools"] == 0 < view["tools"]
    assert view["messages"][-1]["content"] == "second"
    shown = cli(*SHOW).out
    assert shown.startswith("Call 1 of run ")
    assert f"tools    {view['tools']} tokens on top" in shown
    assert "The built-in chat's next call would see messages 1 to 4 and its input" in shown
    following = cli(*SHOW, "--next").out
    assert "two" in following
    assert following.startswith("The built-in chat's next call, without its input\nin a\n")
    assert "Call 1" not in following
    following_view = cli(*SHOW, "--next", "--json").json
    assert (following_view["call"], following_view["next_call"]) == (None, None)
    assert seqs(following_view) == [1, 2, 3, 4]


def test_the_next_call_begins_where_the_window_does(cli: CommandLine) -> None:
    """The preview uses the window of the settings, starts at its anchor, and omits summarized messages."""
    talk(cli, ScriptedModel(["ok"] * 6), [f"question {n}" for n in range(6)], max_messages=6)
    cli.set(THREADKEEP_HISTORY_MAX_MESSAGES="6")
    assert seqs(cli(*SHOW, "--next", "--json").json) == [9, 10, 11, 12]
    cli.set(THREADKEEP_HISTORY_WINDOW="sliding")
    assert seqs(cli(*SHOW, "--next", "--json").json) == [7, 8, 9, 10, 11, 12]

    async def summarising(memory: Memory) -> None:
        summary = Summary("a", 1, 8, "They spoke of eight things.", model="m", prompt_version="1", tokens=9)
        assert await memory.summaries.add(summary)

    cli.with_memory(summarising)
    view = cli(*SHOW, "--next", "--json").json
    assert [section["name"] for section in view["sections"]] == ["system", "summary", "window"]
    assert "They spoke of eight things." in view["messages"][0]["content"]
    assert view["excluded"] == [{"first_seq": 1, "last_seq": 8, "reason": "summarised"}]
    shown = cli(*SHOW, "--next").out
    assert "out: 1–8, a summary stands for it" in shown
    assert "summary of 1–8: They spoke of eight things." in shown


def test_two_calls_are_compared(cli: CommandLine) -> None:
    """The difference lists new messages and the length of the common prefix, which a prompt cache can reuse."""
    talk(cli, ScriptedModel(["one", "two", "three"]), ["first", "second", "third"])
    difference = cli(*SHOW, "--diff", "--json").json
    assert [message["content"] for message in difference["came"]] == ["two", "third"]
    assert difference["went"] == []
    assert difference["shared"]["messages"] == 4  # the system message, and all of the call before
    assert difference["shared"]["stable_prefix"]
    for arguments in (["--diff", "3"], ["--call", "3", "--diff", "1"], ["--diff=3", "--call", "1"]):
        difference = cli(*SHOW, *arguments, "--json").json
        assert [message["content"] for message in difference["came"]] == ["one", "second", "two", "third"]
    shown = cli(*SHOW, "--diff").out
    assert "Both begin with the same 4 messages" in shown
    assert "All parts that do not depend on the input" in shown


def test_steps_of_the_previous_turn_have_their_own_section(cli: CommandLine) -> None:
    """The steps are listed between the messages of their turn, with the tokens before shortening."""
    talk(cli, ScriptedModel([asking("atlas"), "one", "ok"]), ["question 0", "question 1"])
    view = cli(*SHOW, "--json").json
    assert [section["name"] for section in view["sections"]] == ["system", "window", "earlier_steps", "input"]
    assert [(m["section"], m["role"]) for m in view["messages"]][1:4] == [
        ("window", "user"), ("earlier_steps", "assistant"), ("earlier_steps", "tool"),
    ]  # fmt: skip
    shown = cli(*SHOW).out
    assert re.search(r"^earlier_steps █+ +1,400 tokens +35 %$", shown, re.MULTILINE)
    result = view["messages"][3]
    assert result["tokens_before"] > result["tokens"]
    assert f"(cut from {result['tokens_before']:,})" in shown
    went = cli(*SHOW, "--diff", "--json").json["went"]
    assert [message["reason"] for message in went] == ["changed"]


def test_removed_messages_are_listed_with_their_reason(cli: CommandLine) -> None:
    """Reasons are the limit of the window (`over_limit`) and steps of a finished turn (`turn_over`)."""
    talk(
        cli,
        ScriptedModel([asking("atlas"), "one", "ok", "ok", "ok", "ok"]),
        [f"question {n}" for n in range(5)],
        max_messages=6,
        tool_memory=0,
    )
    went = cli(*SHOW, "--call", "4", "--diff", "--json").json["went"]
    assert {message["reason"] for message in went} == {"turn_over"}
    difference = cli(*SHOW, "--call", "1", "--diff", "2", "--json").json
    assert not difference["shared"]["stable_prefix"]
    assert {message["reason"] for message in difference["went"]} == {"over_limit"}
    shown = cli(*SHOW, "--diff").out
    assert "The window was shortened" in shown
    assert "over the limit of 6 messages" in shown


def test_calls_within_a_run_are_compared(cli: CommandLine) -> None:
    talk(cli, ScriptedModel([asking("atlas"), "done"]), ["look it up"])
    run_id = cli(*SHOW, "--call", "1", "--json").json["run_id"]
    difference = cli("context", "show", "--run", run_id, "--diff", "--json").json
    assert [message["role"] for message in difference["came"]] == ["assistant", "tool"]
    assert (difference["before"]["call"], difference["after"]["call"]) == (1, 2)
    assert cli("context", "show", "--run", run_id, "--call", "1", "--diff", "1").out.endswith("Nothing changed.\n")


def test_a_deleted_text_is_marked_in_the_view(cli: CommandLine, tmp_path: Path) -> None:
    talk(cli, ScriptedModel(["one"]), ["first"])
    with closing(sqlite3.connect(tmp_path / "threadkeep.db")) as connection, connection:
        connection.execute("DELETE FROM chat_context_texts")
    shown = cli(*SHOW, "--call", "1").out
    assert "(no longer stored)" in shown
    assert "first" in shown
    assert cli(*SHOW, "--call", "1", "--json").json["messages"][0]["content"] is None


def test_context_show_works_while_a_memory_is_open(any_cli: CommandLine) -> None:
    """Another process can read the database while a memory with background tasks has it open."""
    talk(any_cli, ScriptedModel(["one"]), ["first"])

    async def looking(_: Memory) -> Outcome:
        return await asyncio.to_thread(any_cli.process, *SHOW, "--call", "1")

    outcome = any_cli.with_memory(looking)
    assert outcome.exit_code == 0, outcome.err
    assert "first" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "exit_code", "cure"),
    [
        ((*SHOW, "--call", "4"), 1, "--call takes 1 (the newest) to 3"),
        (("context", "show", "--run", "r0"), 1, "No model call of run r0 is recorded"),
        (("context", "show", "--session", "b", "--call", "1"), 1, "There is no session 'b'"),
        ((*SHOW, "--user", "bob", "--call", "1"), 1, "There is no session 'a'"),
        ((*SHOW, "--call", "3", "--diff"), 1, "name another one with --diff N"),
        ((*SHOW, "--diff", "0"), 2, "the number of a call"),
        (("context", "show", "--call", "1"), 2, "--session ID, or --run RUN"),
        ((*SHOW, "--call", "0"), 2, "--call"),
        ((*SHOW, "--next", "--diff"), 2, "Use only one of the two groups"),
        ((*SHOW, "--max-tokens", "500", "--call", "1"), 2, "Use only one of the two groups"),
    ],
)
def test_an_unknown_call_is_reported_with_the_cure(
    cli: CommandLine, arguments: tuple[str, ...], exit_code: int, cure: str
) -> None:
    talk(cli, ScriptedModel(["one", "two", "three"]), ["first", "second", "third"])
    outcome = cli(*arguments)
    assert outcome.exit_code == exit_code
    assert cure in outcome.err


def test_an_unknown_call_of_a_run_is_reported(cli: CommandLine) -> None:
    talk(cli, ScriptedModel([asking("atlas"), "done"]), ["look it up"])
    run_id = cli(*SHOW, "--call", "1", "--json").json["run_id"]
    outcome = cli("context", "show", "--run", run_id, "--call", "3", "--json")
    assert outcome.exit_code == 1
    assert outcome.problem["type"] == "urn:threadkeep:call-not-found"
    assert "calls 1 to 2" in outcome.problem["detail"]
    assert cli("context", "show", "--run", run_id, "--user", "bob").exit_code == 1
    assert cli("context", "show", "--run", run_id, "--user", "ann").exit_code == 0


def test_disabled_manifests_are_reported_with_their_setting(cli: CommandLine) -> None:
    cli.store("a", "hi", "hello")
    assert "there was none yet" in cli(*SHOW, "--call", "1").err
    cli.set(THREADKEEP_MANIFEST_RETENTION_DAYS="0")
    assert "THREADKEEP_MANIFEST_RETENTION_DAYS is 0" in cli(*SHOW, "--call", "1").err


def test_every_reason_has_its_own_text() -> None:
    manifest = ContextManifest(session_id="a", run_id="r", counter="estimate", budget=4000, max_messages=20)
    words = [in_words(reason, manifest) for reason in get_args(ExclusionReason.__value__)]
    assert len(set(words)) == len(words) > 8
