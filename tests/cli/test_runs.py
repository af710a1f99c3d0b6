"""Tests of `threadkeep runs` on a database without a worker."""

from __future__ import annotations

import re

import pytest

from tests.cli.running import CommandLine
from tests.databases import execute
from threadkeep.history.memory import Memory
from threadkeep.records import Json
from threadkeep.records.runs import NewRun, TokenUsage, TraceEvent
from threadkeep.runs.views import RunBody, RunEventBody, RunSummary

OWNER = "somebody"


async def fill(memory: Memory) -> None:
    """Store a run that is done, its child, a run that waits, a run of another process, and a queued run."""
    runs = memory.runs
    parent = NewRun(run_id="r-parent", workflow="desk", input={"text": "Hi"}, session_id="room:1", user_id="ann")
    await runs.order.add(parent, owner=OWNER)
    child = NewRun(run_id="r-child", workflow="shelf", input={}, parent_run_id="r-parent", node_id="ask")
    await runs.order.add(child, owner=OWNER)
    used = [TokenUsage("scripted", input_tokens=5, output_tokens=3)]
    await runs.trace.append("r-child", [], usage=used, owner=OWNER)
    await runs.finish("r-child", OWNER, "done")
    happened = [
        TraceEvent("status", data={"status": "running", "try": 1}),
        TraceEvent("tool_called", "answer", {"tool": "look_up", "call": "c1", "args": {"shelf": 2}}),
        TraceEvent("message", data={"message_id": "m1", "text": "On shelf two.\n" * 30 + "\x1b[2J"}),
    ]
    await runs.trace.append("r-parent", happened, usage=used, owner=OWNER)
    await runs.finish("r-parent", OWNER, "done", result={"output": {"shelf": 2}, "text": "On shelf two."})
    await runs.order.add(NewRun(run_id="r-asks", workflow="desk", input={}), owner=OWNER)
    await runs.wait("r-asks", OWNER, {"number": 1, "interrupts": [{"id": "q1", "value": {"ask": "Which shelf?"}}]})
    await runs.order.add(NewRun(run_id="r-works", workflow="desk", input={}), owner=OWNER)
    await runs.order.add(NewRun(run_id="r-queued", workflow="desk", input={}))


@pytest.fixture
def filled(any_cli: CommandLine) -> CommandLine:
    """Return a command line over a database with some runs."""
    any_cli.with_memory(fill)
    return any_cli


@pytest.mark.parametrize("content", ["01ff", "7b22", "7b7d", "5b7b7d5d"])
def test_a_damaged_run_is_listed_with_a_mark(filled: CommandLine, content: str) -> None:
    """The other runs are listed as before, and a reader of the damaged run learns its id.

    The last two contents are JSON of a wrong shape.
    """
    before = filled("runs", "list", "--json").json["runs"]
    blob = f"X'{content}'" if filled.url.startswith("sqlite") else f"decode('{content}', 'hex')"
    execute(filled.url, f"UPDATE chat_runs SET input = {blob} WHERE run_id = 'r-parent'")
    after = filled("runs", "list", "--json").json["runs"]
    assert after == [{**one, "error": "RecordUnreadable"} if one["run_id"] == "r-parent" else one for one in before]
    assert "done (RecordUnreadable)" in filled("runs", "list").out
    shown = filled("runs", "show", "r-parent")
    assert (shown.exit_code, "The run r-parent cannot be read." in shown.err) == (1, True)


def test_runs_are_listed_and_filtered(filled: CommandLine) -> None:
    assert [one["run_id"] for one in filled("runs", "list", "--json").json["runs"]][-1] == "r-parent"
    for options, found in (
        (["--status", "waiting"], ["r-asks"]),
        (["--workflow", "shelf"], ["r-child"]),
        (["--session", "room:1"], ["r-parent"]),
        (["--user", "ann", "--status", "done"], ["r-parent"]),
    ):
        listed = filled("runs", "list", *options, "--json").json["runs"]
        assert [one["run_id"] for one in listed] == found
        assert set(listed[0]) == set(RunSummary.model_fields)
    assert filled("runs", "list", "--set-aside").err == "There are no such runs.\n"

    async def give_up(memory: Memory) -> None:
        await memory.runs.set_aside("r-queued", "GaveUp")

    filled.with_memory(give_up)
    assert "see their logs, then retry it" in filled("runs", "show", "r-queued").out
    assert [one["run_id"] for one in filled("runs", "list", "--set-aside", "--json").json["runs"]] == ["r-queued"]
    assert "failed (GaveUp)" in filled("runs", "list", "--set-aside").out
    page = filled("runs", "list", "--limit", "2", "--json").json
    rest = filled("runs", "list", "--cursor", page["next_cursor"], "--json").json
    assert len(page["runs"] + rest["runs"]) == 5
    shown = filled("runs", "list", "--limit", "4")
    assert re.search(r"r-works +desk +running", shown.out)
    assert "threadkeep runs list --limit 4 --cursor " in shown.err
    assert filled("runs", "list", "--workflow", "none").err == "There are no such runs.\n"
    for wrong in (["--status", "lost"], ["--cursor", "nonsense"]):
        assert filled("runs", "list", *wrong).exit_code == 2


def test_a_run_is_shown(filled: CommandLine) -> None:
    whole = filled("runs", "show", "r-parent", "--json").json
    assert set(whole) == set(RunBody.model_fields)
    assert "estimated" not in whole["usage"]
    assert (whole["text"], whole["output"], whole["usage"]["input_tokens"]) == ("On shelf two.", {"shelf": 2}, 10)
    shown = filled("runs", "show", "r-parent").out
    assert "On shelf two." in shown
    assert "scripted: 2 calls, 10 tokens in, 6 out" in shown
    asking = filled("runs", "show", "r-asks")
    assert "Which shelf?" in asking.out
    assert "threadkeep runs resume r-asks VALUE" in asking.err
    assert "status     waiting\n" in asking.out
    assert filled("runs", "show", "r-asks", "--json").json["questions"] == [
        {"id": "q1", "value": {"ask": "Which shelf?"}}
    ]


def test_the_duration_of_a_run_includes_its_wait(filled: CommandLine) -> None:
    """Only a run that waited for a person mentions the wait. A queued run has no duration."""

    async def answer(memory: Memory) -> None:
        await memory.runs.resume("r-asks", "two")

    async def end(memory: Memory) -> None:
        await memory.runs.order.begin("r-asks", OWNER)
        await memory.runs.finish("r-asks", OWNER, "done", result={"text": "On it."})

    filled.with_memory(answer)
    assert "status     queued\n" in filled("runs", "show", "r-asks").out
    filled.with_memory(end)
    assert re.search(r"status     done, took .* s including the wait\n", filled("runs", "show", "r-asks").out)
    assert "waiting" not in filled("runs", "show", "r-parent").out


def test_the_tree_of_a_run_is_shown(filled: CommandLine) -> None:
    tree = filled("runs", "tree", "r-child", "--json").json
    assert tree["root_run_id"] == "r-parent"
    assert [(one["run_id"], one["tokens"]) for one in tree["runs"]] == [("r-parent", 8), ("r-child", 8)]
    first, second, last = filled("runs", "tree", "r-child").out.splitlines()
    assert re.match(r"done desk  .*8 tokens, r-parent", first)
    assert re.match(r"\W+ done shelf at ask  .*8 tokens, r-child", second)
    assert last == "2 runs, 16 tokens"


def test_estimated_tokens_are_marked(filled: CommandLine) -> None:
    async def guess(memory: Memory) -> None:
        used = [TokenUsage("silent", input_tokens=7, output_tokens=2, estimated_calls=1)]
        await memory.runs.order.add(NewRun(run_id="r-guessed", workflow="desk", input={}), owner=OWNER)
        await memory.runs.trace.append("r-guessed", [], usage=used, owner=OWNER)

    filled.with_memory(guess)
    assert "silent: 1 call, 7 tokens in, 2 out (estimated)" in filled("runs", "show", "r-guessed").out
    assert filled("runs", "show", "r-guessed", "--json").json["usage"]["estimated"] is True
    assert "9 tokens (estimated)" in filled("runs", "tree", "r-guessed").out
    assert filled("runs", "tree", "r-guessed", "--json").json["runs"][0]["estimated"] is True


def test_a_trace_is_a_line_for_each_event(filled: CommandLine) -> None:
    trace = filled("runs", "trace", "r-parent", "--json").json
    assert [event["number"] for event in trace["events"]] == [1, 2, 3, 4]
    assert set(trace["events"][0]) == set(RunEventBody.model_fields)
    shown = filled("runs", "trace", "r-parent").out
    assert "\x1b" not in shown
    lines = shown.splitlines()
    assert len(lines) == 4
    assert all(len(line) <= 160 for line in lines)
    assert re.match(r'2 +\d\.\d+ s  tool_called +answer  tool=look_up args={"shelf": 2}$', lines[1])
    assert lines[2].endswith("…")
    page = filled("runs", "trace", "r-parent", "--after", "1", "--limit", "1")
    assert page.out.startswith("2 ")
    assert "--after 2" in page.err
    assert "There are no events" in filled("runs", "trace", "r-queued").err


def test_the_loop_of_an_agent_is_a_line_for_each_message(cli: CommandLine) -> None:
    calls: Json = [{"name": "look_up", "args": {"shelf": 2}, "id": "c1"}, {"name": "count", "args": {}, "id": "c2"}]
    parts: Json = [
        {"type": "text", "text": "See here:"},
        {"type": "image_url"},
        {"type": "tool_use", "name": "look_up"},
    ]
    messages: list[Json] = [
        {"type": "human", "data": {"content": parts}},
        {"type": "ai", "data": {"content": "", "tool_calls": calls}},
        {"type": "tool", "data": {"content": "atlases\x1b[2J", "name": "look_up"}},
        {"type": "ai", "data": {"content": "On shelf two. " * 30, "tool_calls": []}},
        {"type": "strange"},
        "nonsense",
    ]

    async def saying(memory: Memory) -> None:
        await memory.runs.order.add(NewRun(run_id="r1", workflow="desk", input={}))
        said = [TraceEvent("agent_messages", "answer", {"messages": messages}), TraceEvent("agent_messages", "answer")]
        await memory.runs.trace.append("r1", said)

    cli.with_memory(saying)
    shown = cli("runs", "trace", "r1").out
    assert "\x1b" not in shown
    assert all(len(line) <= 160 for line in shown.splitlines())
    first, *loop, last = [line.split("answer", 1)[-1].strip() for line in shown.splitlines()]
    assert (first, last) == ("6 lines of its loop", "")
    assert [" ".join(line.split()) for line in loop[:4]] == [
        "user See here: [image_url]",
        'assistant calls look_up {"shelf": 2}',
        "assistant calls count {}",
        "tool look_up: atlases\ufffd[2J",
    ]
    assert loop[4].startswith("assistant  On shelf two. On shelf two.")
    assert loop[4].endswith("…")
    assert loop[5] == "strange"
    assert len(cli("runs", "trace", "r1", "--json").json["events"]) == 2


def test_runs_are_cancelled_without_a_worker(filled: CommandLine) -> None:
    """A queued run is cancelled at once, and a running one by its process. A finished run does not change."""
    assert filled("runs", "cancel", "r-queued").out == "r-queued is cancelled.\n"
    stopping = filled("runs", "cancel", "r-works").out
    assert "within two seconds, or another worker later if that process has died" in stopping
    assert filled("runs", "show", "r-works", "--json").json["cancel_requested_at"] is not None
    assert filled("runs", "cancel", "r-asks", "--json").json == {"run_ids": ["r-asks"]}
    assert "There is nothing to cancel" in filled("runs", "cancel", "r-parent").err


@pytest.mark.parametrize("verb", ["show", "tree", "trace", "cancel"])
def test_an_unknown_run_is_one_sentence(cli: CommandLine, verb: str) -> None:
    """The error names the setting of the database. A run of another user is unknown, too."""
    missing = cli("runs", verb, "nope", "--json")
    assert (missing.exit_code, missing.problem["type"]) == (1, "urn:threadkeep:run-not-found")
    assert "THREADKEEP_DATABASE_URL" in missing.problem["detail"]
    cli.with_memory(fill)
    assert cli("runs", verb, "r-parent", "--user", "bob").exit_code == 1
