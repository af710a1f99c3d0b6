"""`threadkeep runs` and `workflows run`: show, start, answer, retry and cancel runs."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threadkeep.cli.shared import (
    CursorOption,
    Limit,
    check_exists,
    command_settings,
    json_or_text,
    one_of,
    opened_memory,
    opened_runs,
    read_cursor,
    read_payload,
    write_cursor,
)
from threadkeep.cli.terminal import WrongUse, counted, repeated, terminal
from threadkeep.errors import InvalidInput, RunNotFound
from threadkeep.records.runs import DOUBLE_TEXTING, RUN_STATUSES, RunBudget, RunQuery

if TYPE_CHECKING:
    from threadkeep.history.memory import Memory
    from threadkeep.records.runs import Run
    from threadkeep.runs.service import Mode, RunService

    type Change = Callable[[RunService, Mode], Awaitable[None]]

RunIdArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
RunUser = Annotated[str | None, typer.Option("--user", metavar="ID", help="Only a run of this user.")]
Wait = Annotated[bool, typer.Option("--wait", help="Execute the run in this process, and show its output.")]


async def list_runs(
    *,
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="Only runs with this status.")] = None,
    workflow: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this workflow.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only runs in this session.")] = None,
    user: Annotated[str | None, typer.Option(metavar="ID", help="Only runs of this user.")] = None,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Only runs that failed too often and wait for a retry.")
    ] = False,
    limit: Limit = 50,
    cursor: CursorOption = None,
) -> None:
    """List runs, including child runs, newest first."""
    from threadkeep.cli.run_output import RUN_COLUMNS, run_row
    from threadkeep.runs.views import RunSummary

    query = RunQuery(
        status=one_of("--status", status, RUN_STATUSES),
        workflow=workflow,
        session_id=session,
        user_id=user,
        set_aside=True if set_aside else None,
        limit=limit,
        cursor=read_cursor(cursor),
    )
    async with opened_memory() as memory:
        found, following = await memory.runs.records.runs(query)
    chosen = status or workflow or session or user or set_aside
    terminal.listing(
        {"runs": [RunSummary.model_validate(run) for run in found], "next_cursor": write_cursor(following)},
        RUN_COLUMNS,
        [run_row(run) for run in found],
        right=["took"],
        nothing="There are no such runs." if chosen else "There are no runs yet.",
    )


async def show_run(run_id: RunIdArgument, user: RunUser = None) -> None:
    """Show a run: its status, its answer or questions, and its usage including children."""
    from threadkeep.cli import run_output
    from threadkeep.runs.session_answers import with_answer

    async with opened_memory() as memory:
        found = await with_answer(memory, await _find(memory, run_id, user))
        usages = await memory.runs.trace.usage(run_id)
    run_output.show_run(found, usages)


async def show_tree(run_id: RunIdArgument, user: RunUser = None) -> None:
    """Show the tree that a run belongs to: the root run with its descendants (500 runs at most)."""
    from threadkeep.cli import run_output

    async with opened_memory() as memory:
        await _find(memory, run_id, user)
        found = await memory.runs.records.tree(run_id)
        trace = memory.runs.trace
        usages = {one.run_id: await trace.usage(one.run_id, with_children=False) for one in found}
    run_output.show_tree(found, usages, chosen=run_id)


async def show_trace(
    run_id: RunIdArgument,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Only events after this number.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The maximum number.")] = 200,
    user: RunUser = None,
) -> None:
    """Show the events of a run, one per line. They contain the text of messages."""
    from threadkeep.cli import run_output
    from threadkeep.runs.views import RunEventBody

    async with opened_memory() as memory:
        found = await _find(memory, run_id, user)
        events = await memory.runs.trace.events(run_id, after=after, limit=limit)
    following = events[-1].number if len(events) == limit else None
    if terminal.as_json:
        values = [RunEventBody.model_validate(event) for event in events]
        terminal.json({"run_id": run_id, "events": values, "next_after": following})
        return
    run_output.show_trace(found, events)
    if not events:
        terminal.note(f"There are no{' later' if after else ''} events; the run is {found.status}.")
    if following is not None:
        terminal.note(f"More: {repeated('--after', following)}")


async def cancel_run(run_id: RunIdArgument, user: RunUser = None) -> None:
    """Cancel a run and all its descendants, whichever processes execute them."""
    stopped, found = await _cancel(run_id, user)
    if terminal.as_json:
        terminal.json({"run_ids": stopped})
    elif not stopped:
        terminal.note(f"There is nothing to cancel: run {run_id} is {found.status}.")
    else:
        below = f", with {counted(len(stopped) - 1, 'descendant')}" if len(stopped) > 1 else ""
        soon = "its process stops it within two seconds, or another worker later if that process has died"
        later = soon if found.status == "running" else "it ends after the turns before it"
        state = "cancelled" if found.over else "being cancelled"
        terminal.say(f"{run_id} is {state}{below}{'' if found.over else f'; {later}'}.")


async def run_workflow(
    name: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow's name.")],
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message of the user.")] = "",
    *,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="The session; by default the user's last one, or a new one.")
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="ID", help="The user.")] = None,
    message_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The id of the message; a repeated id returns the same run.")
    ] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="FILE", help="The payload that starts the run, a JSON object; - is stdin.")
    ] = None,
    double_texting: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="If a turn is running: enqueue, interrupt, reject, coalesce or rollback."),
    ] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Let a service or a worker execute the run, and do not wait.")
    ] = False,
) -> None:
    """Run a workflow and show its output as it arrives. Ctrl-C cancels the run.

    Exits with 1 if the run failed or was cancelled.
    """
    given = {} if payload is None else _parts(read_payload(payload))
    policy = one_of("--double-texting", double_texting, DOUBLE_TEXTING)
    async with opened_runs(in_background=background) as service:
        from threadkeep.cli.run_output import follow, show_queued
        from threadkeep.runs.requests import RunRequest
        from threadkeep.store.codec import clean_text

        request = RunRequest(
            workflow=name,
            text=clean_text(message),
            session_id=session,
            user_id=user,
            message_id=message_id,
            trigger="cli",
            stream=not (background or terminal.as_json),
            double_texting=policy,
            **given,
        )
        submitted = await service.submit(request, mode="background" if background else "wait")
        if background:
            await show_queued(service, submitted.run_id, user)
            return
        origins = {"new": "", "known": ", which was requested before", "joined": ", which another message started"}
        origin = origins[submitted.outcome]
        terminal.note(f"Run {submitted.run_id}{origin}, in session {submitted.session_id}.")
        if not await follow(service, submitted.run_id, user):
            raise typer.Exit(1)


async def resume_run(
    run_id: RunIdArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The answer: JSON, or else plain text.")],
    *,
    message_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The id of the answer; a repeated id changes nothing.")
    ] = None,
    user: RunUser = None,
    wait: Wait = False,
) -> None:
    """Answer the question of a waiting run. For several questions, pass a JSON object with their ids as keys."""

    async def answer(service: RunService, mode: Mode) -> None:
        await service.resume_once(run_id, json_or_text(value), user_id=user, mode=mode, message_id=message_id)

    await _change(run_id, user, answer, wait=wait)


async def retry_run(
    run_id: RunIdArgument,
    *,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, max=2**53 - 1, metavar="N", help="The maximum of tokens in total.")
    ] = None,
    max_cost: Annotated[float | None, typer.Option(metavar="COST", help="The maximum cost in total.")] = None,
    user: RunUser = None,
    wait: Wait = False,
) -> None:
    """Retry a failed, cancelled or interrupted run from its last checkpoint.

    A run that used up its budget needs a larger one: --max-tokens or --max-cost.
    """
    budget = RunBudget(max_tokens, max_cost)

    async def retry(service: RunService, mode: Mode) -> None:
        await service.retry(run_id, user_id=user, mode=mode, budget=budget)

    await _change(run_id, user, retry, wait=wait)


async def _change(run_id: str, user: str | None, change: Change, *, wait: bool) -> None:
    """Resume or retry a run (`change`). If `wait`, show its output; otherwise another process executes it."""
    check_exists(command_settings().database)
    works = False
    if wait:  # the run may wait for other queued or running turns, of its session or its agents' conversations
        async with opened_memory() as memory:
            found = await memory.runs.run(run_id)
            works = found is not None and await memory.runs.order.has_concurrent_runs(found.root_run_id)
    async with opened_runs(in_background=not wait, works=works) as service:
        from threadkeep.cli.run_output import follow, show_queued

        await change(service, "wait" if wait else "background")
        if not wait:
            await show_queued(service, run_id, user)
            return
        root = (await service.run(run_id, user_id=user)).root_run_id
        if root != run_id:
            await service.result(root)  # wait: until the root passes the answer on, the child shows its old question
        if not await follow(service, run_id, user):
            raise typer.Exit(1)


async def _cancel(run_id: str, user: str | None) -> tuple[list[str], Run]:
    """Cancel a run with its descendants. Return the ids of the cancelled runs, and the run's state."""
    async with opened_memory() as memory:
        if not (await _find(memory, run_id, user)).unbegun:
            stopped = await memory.runs.request_cancel(run_id)
            await _enqueue_following(memory, stopped)
            return stopped, await _find(memory, run_id, user)
    # The run has not started. Cancel it with the service, which stores its message: later turns need the message.
    async with opened_runs(in_background=True) as service:
        stopped = await service.cancel(run_id, user_id=user)
        return stopped, await service.run(run_id, user_id=user)


async def _enqueue_following(memory: Memory, stopped: Sequence[str]) -> None:
    """Enqueue the turns that waited for the cancelled runs `stopped`. Otherwise workers would start them later."""
    following: dict[str, None] = {}
    for run_id in stopped:
        run = await memory.runs.run(run_id)
        if run is not None and run.over:
            following |= dict.fromkeys(await memory.runs.order.following(run_id))
    if waiting := list(following):
        from threadkeep.runs.engine.opening import enqueue_runs

        with contextlib.suppress(InvalidInput):  # without an engine, workers start them within half a minute
            await enqueue_runs(command_settings().database, waiting)


async def _find(memory: Memory, run_id: str, user: str | None) -> Run:
    found = await memory.runs.run(run_id)
    if found is None or (user is not None and found.user_id != user):
        raise RunNotFound(run_id)
    return found


def _parts(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return `inputs`, `results` and `user_context` of a payload. If it has none of them, all of it is `inputs`."""
    given = {name: payload[name] for name in ("inputs", "results", "user_context") if name in payload}
    for name, part in given.items():
        if not isinstance(part, Mapping):
            raise WrongUse(f"`{name}` of the payload must be a JSON object; put its value into one.")
    return given or {"inputs": payload}
