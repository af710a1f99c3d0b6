"""`threadkeep context`: what the model saw of a session, and what it would see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import opened_memory, run
from threadkeep.cli.options import AsJson, UserId
from threadkeep.cli.problems import WrongUse
from threadkeep.cli.terminal import Terminal

if TYPE_CHECKING:
    from threadkeep.cli.call_choice import CallChoice
    from threadkeep.settings import Settings

commands = typer.Typer(
    help="What the model saw of a session, and what not.", no_args_is_help=True, rich_markup_mode=None
)

_PREVIOUS = "previous"


@commands.command("show")
def show_context(
    *,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="The session's id.")] = None,
    call: Annotated[
        int | None,
        typer.Option("--call", min=1, metavar="N", help="A call: 1 is the newest; with --run the run's N-th."),
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Look at the calls of this run.")] = None,
    diff: Annotated[
        str | None,
        typer.Option("--diff", metavar="[N]", help="What changed since another call, by default the one before."),
    ] = None,
    following: Annotated[bool, typer.Option("--next", help="Only what the chat's next call would see.")] = False,
    user: UserId = None,
    max_messages: Annotated[int | None, typer.Option(min=0, help="For the next call, in place of the setting.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=0, help="For the next call, in place of the setting.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model call saw: its budget, what was in, what was out, and why.

    Without --call it is the last call, and what the next one of the built-in chat would see beside its input.
    """
    if session is None and run_id is None:
        raise WrongUse("Say which: --session ID, or --run RUN.")
    next_only = following or max_messages is not None or max_tokens is not None
    if next_only and not (call is None and run_id is None and diff is None):
        raise WrongUse(
            "--next, --max-messages and --max-tokens are for a call that was not made yet; "
            "--call, --run and --diff for calls that were. Leave out the ones or the others."
        )
    from threadkeep.cli.call_choice import CallChoice
    from threadkeep.settings import load_settings

    given = {"history_max_messages": max_messages, "history_max_tokens": max_tokens}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    choice = CallChoice(session, run_id, user, settings.manifest_retention_days)
    terminal = Terminal(as_json=as_json)
    if diff is not None:
        run(_compare(terminal, choice, call, None if diff == _PREVIOUS else _number(diff)))
    elif call is not None or run_id is not None:
        run(_show_call(terminal, choice, call))
    else:
        run(_show_now(terminal, choice, settings, only_next=next_only))


def with_whole_options(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command line, with what a bare `--diff` stands for; typer knows no optional values."""
    whole: list[str] = []
    for place, word in enumerate(arguments):
        whole.append(word)
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        if word == "--diff" and not following.isdigit():
            whole.append(_PREVIOUS)
    return whole


def _number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise WrongUse("--diff takes the number of a call, from 1; without one it is the call before.")
    return int(text)


async def _compare(terminal: Terminal, choice: CallChoice, number: int | None, other: int | None) -> None:
    from threadkeep.cli.context_difference import Difference, show_difference
    from threadkeep.cli.context_view import look_back

    async with opened_memory() as memory:
        later = await choice.find(memory, number)
        earlier = await (choice.before(memory, later) if other is None else choice.find(memory, other))
        difference = Difference.between(await look_back(memory, earlier), await look_back(memory, later))
    if terminal.as_json:
        terminal.json(difference.to_dict())
    else:
        show_difference(terminal, difference)


async def _show_call(terminal: Terminal, choice: CallChoice, number: int | None) -> None:
    from threadkeep.cli.context_now import show_call

    async with opened_memory() as memory:
        await show_call(terminal, memory, await choice.find(memory, number))


async def _show_now(terminal: Terminal, choice: CallChoice, settings: Settings, *, only_next: bool) -> None:
    from threadkeep.cli.context_now import show_now
    from threadkeep.cli.context_view import ContextLook

    with terminal.waiting("Looking"):
        look = ContextLook.by(settings)
    async with opened_memory() as memory:
        await show_now(terminal, memory, choice, look, only_next=only_next)
