"""Tests of how `threadkeep context show` fits a terminal, and how it shows quotes, summaries and facts."""

from __future__ import annotations

import io
import sys

import pytest
from rich.cells import cell_len

from tests.agent.talking import config_of, input_of, make_agent
from tests.cli.running import CommandLine
from threadkeep import Evidence, KnownFacts, Memory, Message, RecalledTurns, Scope, SessionMemory
from threadkeep.cli.context import show_excluded
from threadkeep.cli.terminal import terminal
from threadkeep.context.manifest import ContextManifest, LeftOut
from threadkeep.records import Summary
from threadkeep.testing import ScriptedModel

SHOW = ("context", "show", "--session", "a")
BEES = "我妹妹在图书馆的屋顶上养蜜蜂 (bees), 星期六在河边的市场上卖蜂蜜。" * 5


@pytest.fixture
def asked(cli: CommandLine) -> CommandLine:
    """Store a session with a summary of its first four messages, and two calls that each quote older turns."""

    async def talking(memory: Memory) -> None:
        await memory.session("b", user_id="ann").append([Message(role="user", content="Bees sleep in winter.")])
        said = [BEES, "Noted.", "I like soup.", "Noted.", "Day 1 was grey.", "Noted."]
        roles = ("user", "assistant") * 3
        room = memory.session("a", user_id="ann")
        await room.append(
            [Message(role=role, content=text) for role, text in zip(roles, said, strict=True)]  # type: ignore[arg-type]
        )
        await memory.summaries.add(Summary("a", 1, 4, "They spoke of 蜜蜂.", model="m", prompt_version="1", tokens=9))
        sources = [RecalledTurns(memory, scope="user")]
        agent = make_agent(ScriptedModel([BEES, "ok"]), [SessionMemory(memory, max_messages=2, sources=sources)])
        for question in ("Where are the bees?", "And the soup?"):
            await agent.ainvoke(input_of(question), config_of("a", user_id="ann"))

    cli.with_memory(talking)
    return cli


class Screen(io.StringIO):
    """A stdout that is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def rows(shown: str, section: str) -> list[str]:
    """Return the rows of a section."""
    return [line for line in shown.splitlines() if f" {section} " in line[:16]]


def test_the_source_of_facts_is_shown(cli: CommandLine) -> None:
    async def talking(memory: Memory) -> None:
        ann, shop = Scope("user", "ann"), Scope("workspace", "shop")
        for number in (1, 2, 4):
            await memory.knowledge.remember(ann, f"key {number}", "x", evidence=Evidence("room:9", number))
        await memory.knowledge.remember(shop, "days", 30)
        agent = make_agent(ScriptedModel(["ok"]), [SessionMemory(memory, sources=[KnownFacts(memory)])])
        await agent.ainvoke(input_of("Hi"), config_of("a", user_id="ann", workspace="shop"))

    cli.with_memory(talking)
    [facts] = rows(cli(*SHOW).out, "facts")
    assert "4 facts (1 of the workspace; 3 of the user from 1–2, 4 of room:9):" in facts
    [entry] = [one for one in cli(*SHOW, "--json").json["messages"] if one["section"] == "facts"]
    assert [fact["scope"] for fact in entry["facts"]] == ["workspace", "user", "user", "user"]
    assert entry["facts"][1]["evidence"] == [{"session_id": "room:9", "seq": 1}]


def test_excluded_facts_are_shown_with_their_reason(cli: CommandLine) -> None:
    """The output has the ids of the facts, because the record has no text."""
    ids: list[str] = []

    async def talking(memory: Memory) -> None:
        ann, shop = Scope("user", "ann"), Scope("workspace", "shop")
        for scope, key, value in ((ann, "days", "30"), (shop, "days", "30"), (shop, "long", "x " * 4_900)):
            fact = await memory.knowledge.remember(scope, key, value)
            ids.append(fact.id)
        agent = make_agent(ScriptedModel(["ok"]), [SessionMemory(memory, sources=[KnownFacts(memory)])])
        await agent.ainvoke(input_of("Hi"), config_of("a", user_id="ann", workspace="shop"))

    cli.with_memory(talking)
    shown = cli(*SHOW).out
    assert f"user: 1 are hidden by another fact with the same key ({ids[0]})" in shown
    assert f"workspace: 1 did not fit ({ids[2]})" in shown


def test_quoted_and_summarized_messages_are_shown(asked: CommandLine) -> None:
    shown = asked(*SHOW, "--call", "2").out
    (summary,), (selected,) = rows(shown, "summary"), rows(shown, "selected")
    assert "summary of 1–4: They spoke of 蜜蜂." in summary
    quotes = asked(*SHOW, "--call", "2", "--json").json["messages"][-2]["turns"]
    assert {(quote["session_id"], quote["seq"]) for quote in quotes} >= {("a", 1), ("b", 1)}
    assert "quotes 1–" in selected
    assert "; 1 of b: [" in selected


def test_added_and_removed_rows_differ(asked: CommandLine) -> None:
    lines = asked(*SHOW, "--diff").out.splitlines()
    came, went = (next(line for line in lines if line.startswith(mark) and "selected" in line) for mark in "+-")
    assert came[1:] != went[1:]
    assert lines[lines.index(went) - 1] == "- searched again for each input:"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_message_is_one_line(asked: CommandLine, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """A line is cut to the width of the terminal, in which a Chinese character takes two columns."""
    monkeypatch.setattr("threadkeep.cli.terminal._PIPE_WIDTH", width)
    for arguments in (("--call", "1"), ("--call", "2"), ("--diff",)):
        shown = asked(*SHOW, *arguments).out
        _, _, table = shown.partition("seq  section")
        lines = table.partition("out: ")[0].splitlines()[1:]
        assert len(lines) > 3
        assert max(map(cell_len, lines)) in (width, width - 1)
        assert "\x1b" not in shown


def test_an_id_in_a_table_stays_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """If not even the words fit, the lines are longer than the terminal; otherwise cells are wrapped between words."""
    run = "01a221a4-b3fe-7486-a6a9-c3646869a68b"
    for width, lines in (("80", 2), ("48", 3), ("30", 2)):
        screen = Screen()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("COLUMNS", width)
        monkeypatch.setenv("TERM", "xterm")
        terminal.table(["run", "asked for"], [[run, "2 minutes ago"]])
        assert len(screen.getvalue().splitlines()) == lines
        assert run in screen.getvalue()


def test_long_values_are_wrapped_beside_their_label(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    terminal.labelled("window   ", "anchored, at most 20 earlier messages, begins at message 19")
    assert screen.getvalue().splitlines() == [
        "window   anchored, at most 20 earlier",
        "         messages, begins at message 19",
    ]


def test_excluded_messages_of_a_run_are_shown_as_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = (LeftOut("m1", "over_budget", "m900", 900), LeftOut(None, "empty"), LeftOut("m907", "duplicate"))
    manifest = ContextManifest(session_id="a", run_id="r", counter="estimate", budget=4000, left_out=left_out)
    show_excluded(manifest)
    assert capsys.readouterr().out.splitlines() == [
        "out: 900 messages of the run, m1 to m900, over the budget of 4,000 tokens",
        "out: 1 message of the run, without content that can be sent",
        "out: the run's message m907, already in the call",
    ]
