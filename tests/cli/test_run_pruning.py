"""Tests of `threadkeep runs prune`, and of its dry run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.running import CommandLine
from tests.databases import execute, query
from threadkeep.history.memory import Memory
from threadkeep.records.runs import NewRun, TraceEvent


@pytest.fixture
def filled(any_cli: CommandLine) -> CommandLine:
    """Store a run with a child and a run set aside, all 40 days old, and a run of today."""

    async def fill(memory: Memory) -> None:
        for run_id, parent in (("old", None), ("child", "old"), ("aside", None), ("young", None)):
            new = NewRun(run_id=run_id, workflow="desk", input={"text": "canary"}, parent_run_id=parent)
            await memory.runs.order.add(new, owner="me")
            await memory.runs.records.checkpoints_expected(run_id)
            await memory.runs.trace.append(run_id, [TraceEvent("message", data={"text": "canary"})])
        for run_id in ("child", "old"):
            await memory.runs.finish(run_id, "me", "done")
        # It may be retried, and needs its checkpoints for that.
        await memory.runs.finish("young", "me", "cancelled")
        await memory.runs.finish("aside", "me", "failed", set_aside=True)

    any_cli.with_memory(fill)
    before = (datetime.now(UTC) - timedelta(days=40)).isoformat(timespec="microseconds")
    execute(any_cli.url, f"UPDATE chat_runs SET created_at = '{before}', ended_at = '{before}' WHERE run_id <> 'young'")
    return any_cli


def left(cli: CommandLine) -> list[object]:
    """Return the ids of the remaining runs."""
    return sorted(one["run_id"] for one in cli("runs", "list", "--json").json["runs"])


def test_prune_deletes_old_trees_of_runs(filled: CommandLine) -> None:
    """A dry run changes nothing.

    Whole trees are deleted with their checkpoints; runs set aside have a limit of their own.
    """
    said = filled("runs", "prune", "--dry-run", "--json").json
    assert said == {"dry_run": True, "trees": 1, "runs": 2, "events": 4, "root_run_ids": ["old"]}
    shown = filled("runs", "prune", "--dry-run")
    assert "Would be deleted: 2 runs (4 events) of 1 tree. Nothing was changed." in shown.out
    assert filled("runs", "prune", "--older-than", "41", "--dry-run").out == "There are no runs that old.\n"
    assert left(filled) == ["aside", "child", "old", "young"]
    refused = filled("runs", "prune")
    assert refused.exit_code == 2
    assert "--yes" in refused.err
    assert left(filled) == ["aside", "child", "old", "young"]
    done = filled("runs", "prune", "--yes", "--json").json
    assert done == {"dry_run": False, "trees": 1, "runs": 2, "events": 4, "versions": 0, "busy": 0}
    assert left(filled) == ["aside", "young"]
    assert query(filled.url, "SELECT run_id FROM chat_run_checkpoints ORDER BY run_id") == [("young",)]
    assert filled("runs", "prune").out == "There are no runs that old.\n"


def test_limits_can_be_given_as_options(filled: CommandLine) -> None:
    assert filled("runs", "prune", "--set-aside-older-than", "20").exit_code == 2
    assert "from 0 to 365000" in filled("runs", "prune", "--older-than", "1e9", "--dry-run").err
    done = filled("runs", "prune", "--older-than", "0", "--set-aside-older-than", "39", "--yes")
    assert done.out == "Deleted 4 runs (8 events) of 3 trees.\n"
    assert left(filled) == []
    filled.set(THREADKEEP_RUN_RETENTION_DAYS="30", THREADKEEP_RUN_RETENTION_SET_ASIDE_DAYS="20")
    assert "THREADKEEP_RUN_RETENTION_SET_ASIDE_DAYS" in filled("runs", "prune").err
