"""`threadkeep sessions prune` and `runs prune`: archive or delete old data, or show a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.shared import Confirmed, DryRun, UserId, command_settings, opened_memory, session_ids
from threadkeep.cli.terminal import WrongUse, counted, terminal
from threadkeep.records import Retention, RetentionLimits

if TYPE_CHECKING:
    from threadkeep.history.memory import Memory
    from threadkeep.history.retention import Amount, Pruned
    from threadkeep.history.retention_rounds import RunRetention
    from threadkeep.store.retention import PrunedRuns

_NO_MESSAGES = "Nothing is beyond the limits."
_NO_RUNS = "There are no runs that old."
_REFUSAL = "The data is deleted permanently; add --yes to do it without confirmation, or --dry-run to see it first."
_AGAIN = ". Prune again to continue; no step was left half done."
_NUMBERS = ("messages", "tokens", "runs", "events")
_MOST_SHOWN = 50
_CHECKPOINTS_AT_ONCE = 50


async def prune_sessions(
    sessions: Annotated[
        list[str] | None, typer.Argument(metavar="SESSION", help="Only these sessions.", autocompletion=session_ids)
    ] = None,
    *,
    delete: Annotated[
        bool | None, typer.Option("--delete/--archive", help="Delete or archive messages beyond the limits below.")
    ] = None,
    max_age_days: Annotated[float | None, typer.Option(help="Remove messages stored longer ago.")] = None,
    max_messages: Annotated[int | None, typer.Option(help="Keep only this number of newest messages.")] = None,
    max_idle_days: Annotated[float | None, typer.Option(help="Remove sessions idle for longer.")] = None,
    dry_run: DryRun = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Return freed space to the file system (SQLite).")] = False,
    user: UserId = None,
    confirmed: Confirmed = False,
) -> None:
    """Archive or delete messages beyond the limits of the options, or by default of the settings.

    If a session has its own limits, these apply. Repeat an interrupted command to continue it.
    """
    from threadkeep.history.all_sessions import AllRetention
    from threadkeep.history.retention import Amount, Pruned

    rules = _rules(delete, RetentionLimits(max_age_days, max_messages, max_idle_days))
    async with opened_memory() as memory:
        retention, chosen = AllRetention(memory), tuple(sessions or ())
        with terminal.waiting("Looking for messages beyond the limits"):
            plan = [removal async for removal in retention.plan(rules, session_ids=chosen, user_id=user)]
        amounts = [(one, Amount(1, one.messages, one.tokens)) for one in plan]
        total = sum(
            (Pruned.by(one.action, amount, whole_sessions=one.whole_session) for one, amount in amounts), Pruned()
        )
        if dry_run:
            values = {**total.to_dict(), "sessions": [asdict(removal) for removal in plan]}
            rows = [
                (
                    one.session_id,
                    "delete the session" if one.whole_session else one.action,
                    f"{one.first_seq}–{one.last_seq}" if one.messages else "",
                    f"{one.messages:,}",
                    f"{one.tokens:,}",
                )
                for one in plan
            ]
            columns = ("session", "what", "seq", "messages", "tokens")
            _show_plan(values, columns, rows, nothing=_NO_MESSAGES, words=f"Would be {_words(total)}.")
            return
        what = f"{_amount(total.deleted)}{_whole(total)}"
        terminal.confirm(f"Delete {what} permanently?", _REFUSAL, confirmed=confirmed or not total.deleted.sessions)
        with terminal.progress("Pruning", total.messages or None, so_far=_words(Pruned()), again=_AGAIN) as reach:
            done = await retention.prune(
                rules, session_ids=chosen, user_id=user, report=lambda done: reach(done.messages, _words(done))
            )
        vacuumed = False
        if vacuum:
            with terminal.waiting("Returning the freed space to the file system"):
                vacuumed = await memory.retention.reclaim_space()
    values = {"dry_run": False, **done.to_dict(), "vacuumed": vacuumed}
    terminal.result(values, lambda: _show_result(done, vacuum=vacuum, vacuumed=vacuumed), failed=bool(done.busy))


async def prune_runs(
    *,
    older_than: Annotated[
        float | None,
        typer.Option(min=0, metavar="DAYS", help="Runs that ended longer ago; by default as in the settings."),
    ] = None,
    set_aside_older_than: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Also runs that were set aside and ended longer ago.")
    ] = None,
    dry_run: DryRun = False,
    confirmed: Confirmed = False,
) -> None:
    """Delete old finished runs with their traces. Messages stay in the sessions.

    A run is deleted together with its child runs, or not at all. Repeat an interrupted command to continue it.
    """
    from threadkeep.store.retention import PrunedRuns

    async with opened_memory() as memory:
        rules = _run_rules(memory.run_retention.rules, older_than, set_aside_older_than)
        with terminal.waiting("Looking for old runs"):
            plan = [tree async for tree in memory.run_retention.plan(rules)]
        total = PrunedRuns(len(plan), sum(tree.runs for tree in plan), sum(tree.events for tree in plan))
        if dry_run:
            counts = {"trees": total.trees, "runs": total.runs, "events": total.events}
            values = {**counts, "root_run_ids": [tree.root_run_id for tree in plan]}
            columns = ("run", "workflow", "status", "ended", "runs", "events")
            rows = [
                (tree.root_run_id, tree.workflow, tree.status, tree.ended_at, f"{tree.runs:,}", f"{tree.events:,}")
                for tree in plan
            ]
            _show_plan(values, columns, rows, nothing=_NO_RUNS, words=f"Would be deleted: {_run_words(total)}.")
            return
        terminal.confirm(f"Delete {_run_words(total)} permanently?", _REFUSAL, confirmed=confirmed or not plan)
        with terminal.progress("Pruning", total.runs or None, so_far=_run_words(PrunedRuns()), again=_AGAIN) as reach:
            done = await memory.run_retention.prune(rules, report=lambda done: reach(done.runs, _run_words(done)))
        with terminal.waiting("Removing their checkpoints"):
            await _remove_checkpoints(memory, rules)

    def show() -> None:
        terminal.say(f"Deleted {_run_words(done)}." if done.runs or done.versions else _NO_RUNS)
        if done.busy:
            terminal.error(f"Skipped, because they are in use: {counted(done.busy, 'tree')}. Prune again later.")

    terminal.result({"dry_run": False, **done.to_dict()}, show, failed=bool(done.busy))


def _rules(delete: bool | None, limits: RetentionLimits) -> Retention | None:
    """Return the retention rules in the options, or None. A limit needs --archive or --delete, and vice versa."""
    if limits.nothing and delete is None:
        return None
    if delete is None:
        raise WrongUse("Add --archive or --delete for messages beyond these limits.")
    if limits.nothing:
        raise WrongUse("Add a limit: --max-age-days, --max-messages or --max-idle-days.")
    return Retention(delete=limits) if delete else Retention(archive=limits)


def _run_rules(rules: RunRetention, older_than: float | None, set_aside_older_than: float | None) -> RunRetention:
    if older_than is not None:
        # Keep set-aside runs, which failed too often, at least as long as other finished runs.
        aside = rules.keep_set_aside_days
        rules = replace(rules, keep_days=older_than, keep_set_aside_days=aside and max(aside, older_than))
    if set_aside_older_than is not None:
        rules = replace(rules, keep_set_aside_days=set_aside_older_than)
    return rules


async def _remove_checkpoints(memory: Memory, rules: RunRetention) -> None:
    """Delete the checkpoints of old runs. The maintenance in services and workers does the same."""
    cutoffs, records = rules.cutoffs(memory.clock()), memory.runs.records
    if cutoffs is None or not await records.with_checkpoints(cutoffs.before, limit=1):
        return
    from threadkeep.runs.progress import remove_old_checkpoints
    from threadkeep.stores import create_checkpointer

    async with create_checkpointer(command_settings()) as saver:
        while await remove_old_checkpoints(saver, records, cutoffs.before, limit=_CHECKPOINTS_AT_ONCE):
            pass


def _show_plan(
    values: Mapping[str, object], columns: Sequence[str], rows: Sequence[Sequence[object]], *, nothing: str, words: str
) -> None:
    """Show a plan of removals: `values` with `--json`, else up to 50 rows and `words`, or `nothing` without rows."""
    if terminal.as_json:
        terminal.json({"dry_run": True, **values})
        return
    if not rows:
        terminal.say(nothing)
        return
    terminal.table(columns, rows[:_MOST_SHOWN], right=_NUMBERS)
    if len(rows) > _MOST_SHOWN:
        terminal.note(f"And {len(rows) - _MOST_SHOWN:,} more; --json shows all.")
    terminal.say(f"{words} Nothing was changed.")


def _show_result(done: Pruned, *, vacuum: bool, vacuumed: bool) -> None:
    words = _words(done)
    changed = done.archived.sessions or done.deleted.sessions
    terminal.say(f"{words[:1].upper()}{words[1:]}." if changed else _NO_MESSAGES)
    if vacuumed:
        terminal.say("The free space of the file was returned to the disk.")
    elif vacuum:
        terminal.note("PostgreSQL frees space by itself (autovacuum).")
    if done.busy:
        skipped = counted(done.busy, "session")
        terminal.error(f"Skipped, because they are in use or damaged: {skipped}. Prune again later or after a repair.")


def _words(done: Pruned) -> str:
    """Return the archived and the deleted amounts of a plan or a result in words, or `nothing yet`."""
    parts = []
    if done.archived.sessions:
        parts.append(f"archived {_amount(done.archived)}")
    if done.deleted.sessions:
        parts.append(f"deleted {_amount(done.deleted)}{_whole(done)}")
    return "; ".join(parts) or "nothing yet"


def _run_words(done: PrunedRuns) -> str:
    runs, events = counted(done.runs, "run"), counted(done.events, "event")
    versions = f", {counted(done.versions, 'unused version')} of workflows" if done.versions else ""
    return f"{runs} ({events}) of {counted(done.trees, 'tree')}{versions}"


def _amount(amount: Amount) -> str:
    messages, tokens = counted(amount.messages, "message"), counted(amount.tokens, "token")
    return f"{messages} ({tokens}) of {counted(amount.sessions, 'session')}"


def _whole(done: Pruned) -> str:
    return f", {done.whole_sessions:,} of them as a whole" if done.whole_sessions else ""
