"""Tests of commands that execute runs: `workflows run`, `runs resume`, `runs retry` and `worker`."""

from __future__ import annotations

import json
import re
import signal
import sys
import time

import pytest

from tests.cli.running import CommandLine
from tests.limits import HANG_SECONDS
from threadkeep.history.memory import Memory
from threadkeep.records.runs import NewRun
from threadkeep.runs.views import RunBody

pytestmark = pytest.mark.slow

_POLL_SECONDS = 0.05
# Long enough for a busy machine. A run that no worker is notified of waits longer.
_AT_ONCE_SECONDS = 50.0

FLOW = """\
schema: 1
name: bot
nodes:
  answer: {kind: agent, next: end}
"""
FORM = """\
import asyncio
from pathlib import Path

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from threadkeep.workflows.state import WorkflowState


async def ask(state):
    if state.get("inputs", {}).get("broken") and not Path("mended").exists():
        raise ValueError("secret words")
    if (name := interrupt("Your name?")) == "nobody":
        raise ValueError("secret words")
    return {"messages": [AIMessage(f"You are {name}.")]}


async def wait(state):
    Path("begun").touch()
    await asyncio.sleep(60)
    return {}


slow = StateGraph(WorkflowState)
slow.add_node("wait", wait)
slow.add_edge(START, "wait")
slow.add_edge("wait", END)
form = StateGraph(WorkflowState)
form.add_node("ask", ask)
form.add_edge(START, "ask")
form.add_edge("ask", END)
"""


@pytest.fixture
def desk(any_cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return a command line with the workflows `bot` (replies), `form` (asks a person) and `slow` (sleeps)."""
    return configure_workflows(any_cli, monkeypatch)


@pytest.fixture
def sqlite_desk(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return the same on SQLite, for slow tests that do not depend on the database."""
    return configure_workflows(cli, monkeypatch)


def configure_workflows(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Write the workflows and configure them for a command line."""
    (cli.folder / "bot.yaml").write_text(FLOW)
    (cli.folder / "form_of_a_test.py").write_text(FORM)
    monkeypatch.syspath_prepend(str(cli.folder))
    monkeypatch.delitem(sys.modules, "form_of_a_test", raising=False)
    cli.set(
        THREADKEEP_WORKFLOWS="bot.yaml,form=form_of_a_test:form,slow=form_of_a_test:slow",
        THREADKEEP_SHUTDOWN_TIMEOUT="5",
    )
    return cli


def test_a_workflow_is_run(desk: CommandLine) -> None:
    said = desk("workflows", "run", "bot", "Hello there", "--session", "room:1", "--message-id", "m1")
    assert (said.exit_code, said.out) == (0, "Hello. I see 1 message.\n")
    found = re.search(r"Run (\S+) is done: .*token", said.err)
    assert found, said.err
    again = desk("workflows", "run", "bot", "Hello there", "--session", "room:1", "--message-id", "m1", "--json").json
    assert (again["run_id"], again["text"], again["trigger"]) == (found[1], "Hello. I see 1 message.", "cli")
    assert set(again) == set(RunBody.model_fields)
    assert desk("runs", "prune", "--older-than", "0", "--yes", "--json").json["runs"] == 1
    repeated = desk("workflows", "run", "bot", "Hello there", "--session", "room:1", "--message-id", "m1")
    assert repeated.out == said.out
    assert f"Run {found[1]} is done.\n" in repeated.err
    assert desk("runs", "show", found[1], "--json").json["text"] == "Hello. I see 1 message."
    assert [message["content"] for message in desk("sessions", "show", "room:1", "--json").json["messages"]] == [
        "Hello there",
        "Hello. I see 1 message.",
    ]


def test_double_texting_is_an_option_of_workflows_run(sqlite_desk: CommandLine) -> None:
    """`rollback` cancels a queued run and removes its message; an unknown value is a usage error."""
    run = ("workflows", "run", "bot", "--session", "room:1")
    wrong = sqlite_desk(*run, "Hello", "--double-texting", "drop")
    assert (wrong.exit_code, "enqueue, interrupt, reject, coalesce, rollback" in wrong.err) == (2, True)
    first = sqlite_desk(*run, "Hello", "--background").out.strip()
    said = sqlite_desk(*run, "Hello there", "--double-texting", "rollback")
    assert (said.exit_code, said.out) == (0, "Hello. I see 1 message.\n")
    assert sqlite_desk("runs", "show", first, "--json").json["status"] == "cancelled"
    shown = sqlite_desk("sessions", "show", "room:1", "--json").json["messages"]
    assert [message["content"] for message in shown] == ["Hello there", "Hello. I see 1 message."]


def test_a_run_that_asks_is_answered(desk: CommandLine) -> None:
    asking = desk("workflows", "run", "form", "--user", "ann")
    assert (asking.exit_code, "Your name?" in asking.out) == (0, True)
    found = re.search(r"threadkeep runs resume (\S+) VALUE --wait", asking.err)
    assert found, asking.err
    for _ in range(2):
        answered = desk("runs", "resume", found[1], "Ann Lee", "--message-id", "m2", "--wait")
        assert (answered.exit_code, answered.out) == (0, "You are Ann Lee.\n")
    assert desk("runs", "resume", found[1], "Ann", "--wait").exit_code == 2


def test_a_child_that_asks_is_answered(desk: CommandLine) -> None:
    """The command waits until the parent has passed the answer on, and shows no answered question."""
    (desk.folder / "top.yaml").write_text(
        "{schema: 1, name: top, nodes: {ask: {kind: subworkflow, workflow: form, next: end}}}"
    )
    desk.set(THREADKEEP_WORKFLOWS="top.yaml,form=form_of_a_test:form")
    desk("workflows", "run", "top", "Hi")
    [child] = desk("runs", "list", "--workflow", "form", "--json").json["runs"]
    answered = desk("runs", "resume", child["run_id"], "Ann", "--wait")
    assert (answered.exit_code, answered.out) == (0, "You are Ann.\n")
    desk("workflows", "run", "top", "Hi")
    child = desk("runs", "list", "--workflow", "form", "--json").json["runs"][0]
    failed = desk("runs", "resume", child["run_id"], "nobody", "--wait")
    assert failed.exit_code == 1
    assert f"threadkeep runs retry {child['root_run_id']} --wait" in failed.err


def test_a_failed_run_can_be_retried(desk: CommandLine) -> None:
    """The command exits with 1 and shows the error type without its text.

    After the repair, a retry continues the run.
    """
    (desk.folder / "payload.json").write_text(json.dumps({"broken": True}))
    failed = desk("workflows", "run", "form", "--payload", "payload.json", "--json")
    assert (failed.exit_code, failed.json["status"], failed.json["error"]) == (1, "failed", "ValueError")
    run_id = failed.json["run_id"]
    assert desk("runs", "retry", run_id, "--max-cost", "0").exit_code == 2
    told = desk("runs", "retry", run_id, "--max-tokens", "900", "--wait")
    assert "budget     tokens 900" in desk("runs", "show", run_id).out
    assert (told.exit_code, told.out) == (1, "")
    assert f"threadkeep runs retry {run_id}" in told.err
    assert "secret" not in told.err
    (desk.folder / "mended").touch()
    assert desk("runs", "retry", run_id, "--wait", "--json").json["status"] == "waiting"
    assert desk("runs", "retry", "nope").exit_code == 1


def test_a_retry_executes_no_other_queued_run(desk: CommandLine) -> None:
    """Only runs before it in its session are executed with it."""
    (desk.folder / "payload.json").write_text(json.dumps({"broken": True}))
    failed = desk("workflows", "run", "form", "--session", "s1", "--payload", "payload.json", "--json").json["run_id"]
    left = desk("workflows", "run", "bot", "Hello", "--session", "s2", "--background", "--json").json["run_id"]
    (desk.folder / "mended").touch()
    assert desk("runs", "retry", failed, "--wait", "--json").json["status"] == "waiting"
    assert desk("runs", "show", left, "--json").json["status"] == "queued"
    before = desk("workflows", "run", "bot", "Hello", "--session", "s1", "--background", "--json").json["run_id"]
    assert desk("runs", "resume", failed, "Ann", "--wait", "--json").json["text"] == "You are Ann."
    assert desk("runs", "show", before, "--json").json["status"] == "done"


def test_a_run_cancelled_before_its_start_stores_its_message(desk: CommandLine) -> None:
    """The message stays in the session for later turns, even without a worker."""
    run_id = desk("workflows", "run", "bot", "I am Ann", "--session", "s1", "--background").out.strip()
    assert desk("runs", "cancel", run_id).out == f"{run_id} is cancelled.\n"
    shown = desk("sessions", "show", "s1", "--json").json["messages"]
    assert [message["content"] for message in shown] == ["I am Ann"]


@pytest.mark.process
def test_runs_of_another_process_are_cancelled(desk: CommandLine) -> None:
    """A running run is cancelled, and the runs queued behind a cancelled run start at once."""
    with desk.fork("worker") as worker:
        worker.stdout.readline()
        slow = desk("workflows", "run", "slow", "Hi", "--session", "s1", "--background", "--json").json["run_id"]
        behind, last = (
            desk("workflows", "run", "bot", text, "--session", "s1", "--background", "--json").json["run_id"]
            for text in ("one", "two")
        )
        _until(desk, slow, "running")
        assert "it ends after the turns before it" in desk("runs", "cancel", behind).out
        assert "within two seconds" in desk("runs", "cancel", slow).out
        asked = time.monotonic()
        _until(desk, slow, "cancelled")
        _until(desk, behind, "cancelled")
        _until(desk, last, "done")
        assert time.monotonic() - asked < _AT_ONCE_SECONDS

        async def queue(memory: Memory) -> None:
            for run_id in ("head", "next"):
                new = NewRun(run_id=run_id, workflow="bot", input={"text": "Hi"}, session_id="s2", trigger="cli")
                await memory.runs.order.add(new)

        desk.with_memory(queue)
        asked = time.monotonic()
        desk("runs", "cancel", "head")
        _until(desk, "next", "done")
        assert time.monotonic() - asked < _AT_ONCE_SECONDS
        worker.send_signal(signal.SIGTERM)
        worker.communicate()


def test_a_run_that_cannot_start_is_one_sentence(sqlite_desk: CommandLine) -> None:
    assert "pass it in" in sqlite_desk("workflows", "run", "chat").err
    assert "chat, bot, form, slow" in sqlite_desk("workflows", "run", "nope").err
    (sqlite_desk.folder / "payload.json").write_text(json.dumps({"inputs": [1]}))
    assert sqlite_desk("workflows", "run", "bot", "--payload", "payload.json").exit_code == 2
    sqlite_desk.set(THREADKEEP_DATABASE_URL="sqlite://")
    for command in (["workflows", "run", "bot", "--background"], ["runs", "retry", "nope"], ["worker"]):
        outcome = sqlite_desk(*command)
        assert (outcome.exit_code, "THREADKEEP_DATABASE_URL" in outcome.err) == (1, True)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_worker_executes_queued_runs(sqlite_desk: CommandLine, number: signal.Signals) -> None:
    """Runs queued before and after the start are executed. Both signals end the worker with 0."""
    sqlite_desk.set(THREADKEEP_RUN_CONCURENCY="1")
    left = sqlite_desk("workflows", "run", "bot", "Hello", "--background")
    assert "threadkeep worker" in left.err
    with sqlite_desk.fork("worker") as worker:
        assert "executes the runs" in worker.stdout.readline()
        later = sqlite_desk("workflows", "run", "form", "--background", "--json").json["run_id"]
        _until(sqlite_desk, left.out.strip(), "done")
        _until(sqlite_desk, later, "waiting")
        assert sqlite_desk("runs", "resume", later, "Bo").out == f"{later}\n"
        _until(sqlite_desk, later, "done")
        worker.send_signal(number)
        _, err = worker.communicate()
    assert (worker.returncode, "Traceback" in err, "Stopping" in err) == (0, False, True)
    assert "did you mean THREADKEEP_RUN_CONCURRENCY?" in err


def _until(cli: CommandLine, run_id: str, status: str) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while (run := cli("runs", "show", run_id, "--json").json)["status"] != status:
        assert time.monotonic() < deadline, run
        time.sleep(_POLL_SECONDS)


def test_context_show_shows_each_call_of_a_run(desk: CommandLine) -> None:
    nodes = "draft: {kind: model, input: 'Draft {{text}}', next: answer}\n  answer: {kind: agent, %snext: end}"
    flow = f"schema: 1\nname: steps\nnodes:\n  {nodes % 'use_graph_chat_history: true, '}"
    (desk.folder / "bot.yaml").write_text(flow)
    asked = ("workflows", "run", "steps", "--session", "room-1", "--json")
    desk(*asked, "tea")
    run_id = desk(*asked, "cake").json["run_id"]
    shown = desk("context", "show", "--run", run_id, "--call", "1").out
    assert f"Call 1 of run {run_id}, node draft" in shown
    assert "Draft cake" in shown
    shown = desk("context", "show", "--run", run_id).out
    assert f"Call 2 of run {run_id}, node answer\nin room-1 of agent_chat_history" in shown
    assert "tea" in shown
    told = desk("context", "show", "--run", run_id, "--diff", "1", "--json").json
    assert (told["before"]["call"], told["after"]["call"]) == (1, 2)
