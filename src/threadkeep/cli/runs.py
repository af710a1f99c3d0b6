"""`threadkeep runs`: list, show, tree, trace, cancel; what needs nobody to carry a run out."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.cursors import Cursor, read_cursor, write_cursor
from threadkeep.cli.opening import opened_memory, run
from threadkeep.cli.options import AsJson, RunIdArgument, RunUser
from threadkeep.cli.problems import WrongUse
from threadkeep.cli.terminal import Terminal

if TYPE_CHECKING:
    from threadkeep.history.memory import Memory
    from threadkeep.records.runs import Run, RunEvent, RunStatus, TokenUsage

commands = typer.Typer(
    help="The runs of workflows: list, show, stop, answer or retry them.", no_args_is_help=True, rich_markup_mode=None
)


@commands.command("list")
def list_runs(
    *,
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="Only those that stand so.")] = None,
    workflow: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this workflow.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only those in this session.")] = None,
    user: Annotated[str | None, typer.Option(metavar="ID", help="Only those that this user asked for.")] = None,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Only those that failed too often and wait to be tried again.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on where the last list ended.")] = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first, children among them."""
    from threadkeep.records.runs import RunQuery

    query = RunQuery(
        status=None if status is None else _status_named(status),
        workflow=workflow,
        session_id=session,
        user_id=user,
        set_aside=True if set_aside else None,
        limit=limit,
        cursor=None if cursor is None else read_cursor(cursor),
    )

    async def listing() -> tuple[Sequence[Run], Cursor | None]:
        async with opened_memory() as memory:
            return await memory.runs.records.runs(query)

    found, following = run(listing())
    text = None if following is None else write_cursor(following)
    chosen = bool(status or workflow or session or user or set_aside)
    _show_list(Terminal(as_json=as_json), found, text, nothing="such runs" if chosen else "runs yet")


def _show_list(terminal: Terminal, found: Sequence[Run], following: str | None, *, nothing: str) -> None:
    """Show a page of runs; without one, that there are `nothing`."""
    from threadkeep.cli.run_drawing import show_runs
    from threadkeep.cli.run_values import summary_values

    if terminal.as_json:
        terminal.json({"runs": [summary_values(one) for one in found], "next_cursor": following})
        return
    if not found:
        terminal.note(f"There are no {nothing}.")
        return
    show_runs(terminal, found, datetime.now(UTC))
    if following is not None:
        terminal.note(f"More: threadkeep runs list --cursor {following}")


@commands.command("show")
def show_run(run_id: RunIdArgument, user: RunUser = None, as_json: AsJson = False) -> None:
    """Show a run: how it stands, what it said or asks, what it took with its children."""
    from threadkeep.cli.run_values import run_values

    async def showing() -> tuple[Run, Sequence[TokenUsage]]:
        from threadkeep.runs.kept_answers import with_answer

        async with opened_memory() as memory:
            found = await with_answer(memory, await _seen(memory, run_id, user))
            return found, await memory.runs.trace.usage(run_id)

    found, usages = run(showing())
    terminal = Terminal(as_json=as_json)
    if as_json:
        terminal.json(run_values(found, usages))
        return
    from threadkeep.cli import run_drawing

    run_drawing.show_run(terminal, found, usages, datetime.now(UTC))


@commands.command("tree")
def show_tree(run_id: RunIdArgument, user: RunUser = None, as_json: AsJson = False) -> None:
    """Show the whole tree that a run is in: its parents, its children, and theirs."""
    from threadkeep.cli.run_values import summary_values

    async def showing() -> tuple[Sequence[Run], dict[str, Sequence[TokenUsage]]]:
        async with opened_memory() as memory:
            await _seen(memory, run_id, user)
            found = await memory.runs.records.tree(run_id)
            usage = memory.runs.trace.usage
            return found, {one.run_id: await usage(one.run_id, with_children=False) for one in found}

    found, usages = run(showing())
    taken = {key: sum(one.tokens for one in each) for key, each in usages.items()}
    terminal = Terminal(as_json=as_json)
    if as_json:
        rows = [{**summary_values(one), "tokens": taken[one.run_id]} for one in found]
        terminal.json({"root_run_id": found[0].root_run_id, "runs": rows})
        return
    from threadkeep.cli import run_drawing

    run_drawing.show_tree(terminal, found, taken, datetime.now(UTC), chosen=run_id)


@commands.command("trace")
def show_trace(
    run_id: RunIdArgument,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Only events after this number.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 200,
    user: RunUser = None,
    as_json: AsJson = False,
) -> None:
    """Show what happened in a run, a line for each event. It holds what was said."""
    from threadkeep.cli.run_values import event_values

    async def showing() -> tuple[Run, Sequence[RunEvent]]:
        async with opened_memory() as memory:
            found = await _seen(memory, run_id, user)
            return found, await memory.runs.trace.events(run_id, after=after, limit=limit)

    found, events = run(showing())
    following = events[-1].number if len(events) == limit else None
    terminal = Terminal(as_json=as_json)
    if as_json:
        values = [event_values(event) for event in events]
        terminal.json({"run_id": run_id, "events": values, "next_after": following})
        return
    from threadkeep.cli import run_drawing

    run_drawing.show_trace(terminal, found, events)
    if not events:
        terminal.note(f"Nothing happened in it{' after that' if after else ' yet'}: it is {found.status}.")
    if following is not None:
        terminal.note(f"More: threadkeep runs trace {run_id} --after {following}")


@commands.command("cancel")
def cancel_run(run_id: RunIdArgument, user: RunUser = None, as_json: AsJson = False) -> None:
    """Stop a run and all below it, in whatever process they are."""

    async def cancelling() -> tuple[list[str], Run]:
        async with opened_memory() as memory:
            await _seen(memory, run_id, user)
            stopped = await memory.runs.request_cancel(run_id)
            await _begin_what_waited(memory, stopped)
            return stopped, await _seen(memory, run_id, user)

    stopped, found = run(cancelling())
    terminal = Terminal(as_json=as_json)
    if as_json:
        terminal.json({"run_ids": stopped})
    elif not stopped:
        terminal.note(f"Nothing is left to stop: run {run_id} is {found.status}.")
    else:
        below = f", with {len(stopped) - 1} below it" if len(stopped) > 1 else ""
        later = "" if found.over else "; the process that carries it out ends it within two seconds"
        terminal.say(f"{run_id} is {'cancelled' if found.over else 'being stopped'}{below}{later}.")


async def _begin_what_waited(memory: Memory, stopped: Sequence[str]) -> None:
    """Have the turns begin that were behind runs which were still in the queue: nobody carries those to an end."""
    sessions: dict[str, None] = {}
    for run_id in stopped:
        run = await memory.runs.run(run_id)
        if run is not None and run.over and run.arrival is not None and run.session_id is not None:
            sessions[run.session_id] = None
    following = [await memory.runs.order.next_of(session_id) for session_id in sessions]
    if waiting := [run_id for run_id in following if run_id is not None]:
        from threadkeep.errors import InvalidInput
        from threadkeep.runs.engine.waking import wake
        from threadkeep.settings import load_settings

        with contextlib.suppress(InvalidInput):  # without an engine here, others see to them in half a minute
            await wake(load_settings().database, waiting)


async def _seen(memory: Memory, run_id: str, user: str | None) -> Run:
    from threadkeep.errors import RunNotFound

    found = await memory.runs.run(run_id)
    if found is None or (user is not None and found.user_id != user):
        raise RunNotFound(run_id)
    return found


def _status_named(text: str) -> RunStatus:
    from threadkeep.records.runs import RUN_STATUSES

    for status in RUN_STATUSES:
        if status == text:
            return status
    raise WrongUse(f"--status is one of {', '.join(RUN_STATUSES)}.")
