"""Tests of deep agents with memory: only the main agent's question and answer are stored."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.foreign

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-deepagents" / "bin" / "python"

ASKED = [None, "complete", "my card is 4111"]
TURNS = [ASKED, ["main", "complete", "booked"], [None, "complete", "and now?"], ["main", "complete", "fine"]]


@pytest.fixture(scope="module")
def turns() -> dict[str, Any]:
    """Return the results of the turns of `deepagents_turns.py`, by name."""
    if not PYTHON.exists():
        pytest.skip("deepagents needs a separate environment: run `make foreign`.")
    script = Path(__file__).with_name("deepagents_turns.py")
    run = subprocess.run([PYTHON, script], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("child", ["remembering", "plain"])
@pytest.mark.parametrize("saver", ["checkpointer", "none"])
@pytest.mark.parametrize("mode", ["isolated", "fork"])
def test_a_sub_agent_writes_nothing_to_the_session(turns: dict[str, Any], mode: str, saver: str, child: str) -> None:
    """A sub-agent, with or without a memory, writes nothing to the session; a repeated turn calls no model."""
    turn = turns[f"{mode} {saver} {child}"]
    assert turn["stored"] == TURNS
    assert (turn["told"], turn["calls"]) == (["booked", "booked"], 2)


@pytest.mark.parametrize("child", ["remembering", "plain"])
@pytest.mark.parametrize("saver", ["checkpointer", "none"])
def test_a_sub_agent_gets_only_its_input(turns: dict[str, Any], saver: str, child: str) -> None:
    """An isolated sub-agent gets its task; a fork also gets the messages of the run."""
    assert turns[f"isolated {saver} {child}"]["child"] == [["find flights"]]
    [[asked, given]] = turns[f"fork {saver} {child}"]["child"]
    assert asked == "my card is 4111"
    assert given.endswith("find flights")


@pytest.mark.parametrize("saver", ["checkpointer", "none"])
def test_the_next_turn_sees_the_one_before_once(turns: dict[str, Any], saver: str) -> None:
    """The next turn also gets the steps of the turn before, as with any agent with tools."""
    steps = ["my card is 4111", "one moment", "found one", "booked", "and now?"]
    assert turns[f"isolated {saver} remembering"]["next"] == steps


@pytest.mark.parametrize("mode", ["isolated", "fork"])
def test_an_interrupt_in_a_sub_agent_is_resumed(turns: dict[str, Any], mode: str) -> None:
    """After a resume in another process, the question and one answer are stored."""
    turn = turns[f"{mode} interrupted"]
    assert turn["before"] == [[None, "complete", "q"]]
    assert turn["told"] == "booked"
    assert turn["stored"] == [[None, "complete", "q"], ["main", "complete", "booked"]]
