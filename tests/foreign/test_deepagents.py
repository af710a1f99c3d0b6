"""Deep agents with memory, in the environment of `make foreign`: the main agent's answer is stored, nothing else."""

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
    """Return what came of the turns of `deepagents_turns.py`, by their names."""
    if not PYTHON.exists():
        pytest.skip("deepagents has an environment of its own, which is not there: run `make foreign`.")
    script = Path(__file__).with_name("deepagents_turns.py")
    run = subprocess.run([PYTHON, script], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("child", ["remembering", "plain"])
@pytest.mark.parametrize("saver", ["checkpointer", "none"])
@pytest.mark.parametrize("mode", ["isolated", "fork"])
def test_a_sub_agent_takes_no_part_in_the_turn(turns: dict[str, Any], mode: str, saver: str, child: str) -> None:
    """It writes nothing into the session, whether it has a memory or not; a repeat asks no model."""
    turn = turns[f"{mode} {saver} {child}"]
    assert turn["stored"] == TURNS
    assert (turn["told"], turn["calls"]) == (["booked", "booked"], 2)


@pytest.mark.parametrize("child", ["remembering", "plain"])
@pytest.mark.parametrize("saver", ["checkpointer", "none"])
def test_what_a_sub_agent_sees_is_what_it_was_given(turns: dict[str, Any], saver: str, child: str) -> None:
    """An isolated one sees its task; a fork the messages of the run as well."""
    assert turns[f"isolated {saver} {child}"]["child"] == [["find flights"]]
    [[asked, given]] = turns[f"fork {saver} {child}"]["child"]
    assert asked == "my card is 4111"
    assert given.endswith("find flights")


@pytest.mark.parametrize("saver", ["checkpointer", "none"])
def test_the_next_turn_sees_the_one_before_once(turns: dict[str, Any], saver: str) -> None:
    """With the steps of the turn before it, as of any agent with tools."""
    steps = ["my card is 4111", "one moment", "found one", "booked", "and now?"]
    assert turns[f"isolated {saver} remembering"]["next"] == steps


@pytest.mark.parametrize("mode", ["isolated", "fork"])
def test_an_interrupt_in_a_sub_agent_is_resumed(turns: dict[str, Any], mode: str) -> None:
    """Resumed with other models, as in another process: the question once, one answer."""
    turn = turns[f"{mode} interrupted"]
    assert turn["before"] == [[None, "complete", "q"]]
    assert turn["told"] == "booked"
    assert turn["stored"] == [[None, "complete", "q"], ["main", "complete", "booked"]]
