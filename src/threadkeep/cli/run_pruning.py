"""`threadkeep runs prune`: delete runs that are over for long, or say which would go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import opened_memory, run
from threadkeep.cli.options import AsJson, Confirmed
from threadkeep.cli.pruning import MOST_SHOWN, ask_before_deleting, round_of_pruning
from threadkeep.cli.terminal import Terminal, harmless
from threadkeep.cli.wording import counted, relative

if TYPE_CHECKING:
    from threadkeep.history.memory import Memory
    from threadkeep.history.run_retention import PrunedRuns, RunRetention
    from threadkeep.store.runs.retention import FinishedTree

_CHECKPOINTS_AT_ONCE = 50


def prune_runs(
    *,
    older_than: Annotated[
        float | None,
        typer.Option(min=0, metavar="DAYS", help="Runs that ended longer ago; else as the settings say."),
    ] = None,
    set_aside_older_than: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Also those that are set aside and ended longer ago.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and write nothing.")] = False,
    confirmed: Confirmed = False,
    as_json: AsJson = False,
) -> None:
    """Delete runs that are over for long, with their traces; what was said stays in the sessions.

    A run goes with all below it, or stays. Broken off, it can simply be begun again.
    """
    terminal = Terminal(as_json=as_json)
    rules, plan = run(_plan(terminal, older_than, set_aside_older_than))
    if dry_run:
        _tell_plan(terminal, plan)
        return
    if plan and not confirmed:
        ask_before_deleting(terminal, _words(_total(plan)))
    done = run(_prune(terminal, rules, _total(plan)))
    if as_json:
        terminal.json({"dry_run": False, **done.to_dict()})
    else:
        terminal.say(f"Deleted {_words(done)}." if done.runs or done.versions else "No run is over for so long.")
        if done.busy:
            terminal.error(f"{counted(done.busy, 'tree')} were busy and stay as they are; prune again to go on.")
    if done.busy:
        raise typer.Exit(1)


async def _plan(
    terminal: Terminal, older_than: float | None, set_aside_older_than: float | None
) -> tuple[RunRetention, list[FinishedTree]]:
    async with opened_memory() as memory:
        rules = memory.run_retention.rules
        if older_than is not None:
            # Those that are set aside are kept at least as long.
            aside = rules.keep_set_aside_days
            rules = replace(rules, keep_days=older_than, keep_set_aside_days=aside and max(aside, older_than))
        if set_aside_older_than is not None:
            rules = replace(rules, keep_set_aside_days=set_aside_older_than)
        with terminal.waiting("Looking for runs that are over for long"):
            return rules, [tree async for tree in memory.run_retention.plan(rules)]


async def _prune(terminal: Terminal, rules: RunRetention, total: PrunedRuns) -> PrunedRuns:
    """Do it, with progress; checkpoints of the runs go last."""
    from threadkeep.history.run_retention import PrunedRuns

    async with opened_memory() as memory:
        with round_of_pruning(terminal, total.runs, _words(PrunedRuns())) as reach:
            done = await memory.run_retention.prune(rules, told=lambda done: reach(done.runs, _words(done)))
        with terminal.waiting("Removing their checkpoints"):
            await _remove_checkpoints(memory, rules)
        return done


async def _remove_checkpoints(memory: Memory, rules: RunRetention) -> None:
    """What a service or a worker would do at its next round."""
    cutoffs, records = rules.cutoffs(memory.clock()), memory.runs.records
    if cutoffs is None or not await records.with_checkpoints(cutoffs.before, limit=1):
        return
    from threadkeep.app import create_checkpointer
    from threadkeep.runs.progress.checkpoints import RunCheckpoints
    from threadkeep.settings import load_settings

    async with create_checkpointer(load_settings()) as saver:
        checkpoints = RunCheckpoints(records, saver)
        while await checkpoints.remove_before(cutoffs.before, limit=_CHECKPOINTS_AT_ONCE):
            pass


def _total(plan: Sequence[FinishedTree]) -> PrunedRuns:
    from threadkeep.history.run_retention import PrunedRuns

    runs, events = sum(tree.runs for tree in plan), sum(tree.events for tree in plan)
    return PrunedRuns(len(plan), runs, events)


def _tell_plan(terminal: Terminal, plan: Sequence[FinishedTree]) -> None:
    total = _total(plan)
    if terminal.as_json:
        terminal.json(
            {
                "dry_run": True,
                "trees": total.trees,
                "runs": total.runs,
                "events": total.events,
                "root_run_ids": [tree.root_run_id for tree in plan],
            }
        )
        return
    if not plan:
        terminal.say("No run is over for so long.")
        return
    _draw_plan(terminal, plan)
    terminal.say(f"Would be deleted: {_words(total)}. Nothing was changed.")


def _draw_plan(terminal: Terminal, plan: Sequence[FinishedTree]) -> None:
    now = datetime.now(UTC)
    rows = [
        (
            tree.root_run_id,
            harmless(tree.workflow),
            tree.status,
            relative(tree.ended_at, now),
            f"{tree.runs:,}",
            f"{tree.events:,}",
        )
        for tree in plan[:MOST_SHOWN]
    ]
    columns = ["run", "workflow", "status", "ended", "runs", "events"]
    terminal.table(columns, rows, right=["runs", "events"])
    if len(plan) > MOST_SHOWN:
        terminal.note(f"And {len(plan) - MOST_SHOWN:,} more; --json has all.")


def _words(done: PrunedRuns) -> str:
    runs, events = counted(done.runs, "run"), counted(done.events, "event")
    versions = f", {counted(done.versions, 'unused version')} of workflows" if done.versions else ""
    return f"{runs} ({events}) of {counted(done.trees, 'tree')}{versions}"
