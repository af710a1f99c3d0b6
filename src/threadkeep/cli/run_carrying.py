"""`threadkeep workflows run`, `runs resume` and `runs retry`: runs that are carried out, here or by others."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from threadkeep.cli.opening import opened_memory, opened_runs, run
from threadkeep.cli.options import AsJson, RunIdArgument, RunUser
from threadkeep.cli.payload import read_payload
from threadkeep.cli.problems import WrongUse
from threadkeep.cli.terminal import Terminal

if TYPE_CHECKING:
    from threadkeep.records import Json
    from threadkeep.runs.requests import RunRequest
    from threadkeep.runs.service import Mode, RunService

    type Change = Callable[[RunService, Mode], Awaitable[None]]

Wait = Annotated[bool, typer.Option("--wait", help="Carry it out here, and show what it says.")]


class _Payload(NamedTuple):
    """What starts a run, as expressions of its workflow name it."""

    inputs: Mapping[str, Json] = {}
    results: Mapping[str, Json] = {}
    user_context: Mapping[str, Json] = {}


def run_workflow(
    name: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow's name.")],
    message: Annotated[str, typer.Argument(metavar="[MESSAGE]", help="What the user says.")] = "",
    *,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="The session; the user's last, or a new one.")
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="ID", help="Who speaks.")] = None,
    message_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The message's own id: the same again is the same run.")
    ] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="FILE", help="What starts the run, a JSON object; - is stdin.")
    ] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Leave it to a service or a worker, and do not wait.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a workflow, and show what it says as it comes. Ctrl-C stops the run.

    Exits with 1 if it failed or was stopped.
    """
    terminal = Terminal(as_json=as_json)
    given = _Payload() if payload is None else _parts(read_payload(payload))

    async def running() -> bool:
        async with opened_runs(terminal, in_background=background) as service:
            from threadkeep.runs.requests import RunRequest
            from threadkeep.store.codec import clean_text

            request = RunRequest(
                workflow=name,
                text=clean_text(message),
                session_id=session,
                user_id=user,
                message_id=message_id,
                inputs=given.inputs,
                results=given.results,
                user_context=given.user_context,
                trigger="cli",
                stream=not (background or as_json),
            )
            return await _submit(terminal, service, request, background=background)

    if not run(running()):
        raise typer.Exit(1)


def resume_run(
    run_id: RunIdArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The answer: JSON, or else text as it is.")],
    user: RunUser = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Answer what a run asks that waits. To several questions the answer is a JSON object from their ids."""

    async def answer(service: RunService, mode: Mode) -> None:
        await service.resume(run_id, _value(value), user_id=user, mode=mode)

    _change(Terminal(as_json=as_json), run_id, user, answer, wait=wait)


def retry_run(
    run_id: RunIdArgument,
    *,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, max=2**53 - 1, metavar="N", help="Tokens that it may take in all.")
    ] = None,
    max_cost: Annotated[float | None, typer.Option(metavar="COST", help="What it may cost in all.")] = None,
    user: RunUser = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Try a run again that failed, was cancelled or interrupted, from where it stopped.

    One that used up its budget needs a larger one: --max-tokens or --max-cost.
    """
    from threadkeep.records.runs import RunBudget

    budget = RunBudget(max_tokens, max_cost)

    async def retry(service: RunService, mode: Mode) -> None:
        await service.retry(run_id, user_id=user, mode=mode, budget=budget)

    _change(Terminal(as_json=as_json), run_id, user, retry, wait=wait)


async def _submit(terminal: Terminal, service: RunService, request: RunRequest, *, background: bool) -> bool:
    from threadkeep.cli.run_following import follow_to_its_end, leave_to_others

    submitted = await service.submit(request, mode="background" if background else "wait")
    if background:
        await leave_to_others(terminal, service, submitted.run_id, request.user_id)
        return True
    was = {"new": "", "known": ", which was asked for before", "joined": ", which another message began"}
    terminal.note(f"Run {submitted.run_id}{was[submitted.outcome]}, in session {submitted.session_id}.")
    return await follow_to_its_end(terminal, service, submitted.run_id, request.user_id)


def _change(terminal: Terminal, run_id: str, user: str | None, change: Change, *, wait: bool) -> None:
    """Change a run that stands still, and have it go on: here, or by whoever works on this database."""

    async def changing() -> bool:
        from threadkeep.cli.run_following import follow_to_its_end, leave_to_others

        works = wait and await _others_are_before(run_id)
        async with opened_runs(terminal, in_background=not wait, works=works) as service:
            await change(service, "wait" if wait else "background")
            if wait:
                return await follow_to_its_end(terminal, service, run_id, user)
            await leave_to_others(terminal, service, run_id, user)
            return True

    if not run(changing()):
        raise typer.Exit(1)


async def _others_are_before(run_id: str) -> bool:
    """Whether a run would have to wait for another turn of its session, which perhaps nobody else carries out."""
    async with opened_memory() as memory:
        found = await memory.runs.run(run_id)
        top = None if found is None else await memory.runs.run(found.root_run_id)
        if top is None or top.session_id is None:
            return False
        return bool(await memory.runs.order.open_of(top.session_id))


def _parts(payload: Mapping[str, Json]) -> _Payload:
    """What a payload gives to a run: its `inputs`, `results` and `user_context`, or all of it as the inputs.

    Raises:
        WrongUse: one of them is no object.
    """
    if not any(name in payload for name in _Payload._fields):
        return _Payload(payload)
    given: dict[str, Mapping[str, Json]] = {}
    for name in _Payload._fields:
        part = payload.get(name, {})
        if not isinstance(part, Mapping):
            raise WrongUse(f"{name} of the payload is a JSON object; put what it holds into one.")
        given[name] = part
    return _Payload(**given)


def _value(text: str) -> Json:
    """The JSON that a text is, or the text."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value
