"""`threadkeep context`: what the model sees of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import opened_memory, run
from threadkeep.cli.options import AsJson, UserId
from threadkeep.cli.terminal import Terminal

if TYPE_CHECKING:
    from threadkeep.cli.context_view import ContextLimits, ContextView
    from threadkeep.settings import Settings

commands = typer.Typer(
    help="What the model sees of a session, and what not.", no_args_is_help=True, rich_markup_mode=None
)


@commands.command("show")
def show_context(
    session: Annotated[str, typer.Option("--session", metavar="ID", help="The session's id.")],
    user: UserId = None,
    max_messages: Annotated[int | None, typer.Option(min=0, help="In place of the setting; 0 means none.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=0, help="In place of the setting; 0 means none.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model call would see now: the system prompt and the window, what is out, and why."""
    from threadkeep.settings import load_settings

    given = {"history_max_messages": max_messages, "history_max_tokens": max_tokens}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    view = run(_look(session, user, limits_of(settings)))
    terminal = Terminal(as_json=as_json)
    if as_json:
        terminal.json(view.to_dict())
        return
    from threadkeep.cli.context_view import show_view

    show_view(terminal, view)


def limits_of(settings: Settings) -> ContextLimits:
    """The limits that the chat has with some settings."""
    from threadkeep.cli.context_view import ContextLimits

    max_messages = settings.history_max_messages if settings.history_enabled else 0
    return ContextLimits(settings.system_prompt, max_messages, settings.history_max_tokens)


async def _look(session_id: str, user_id: str | None, limits: ContextLimits) -> ContextView:
    from threadkeep.cli.context_view import look

    async with opened_memory() as memory:
        return await look(memory.session(session_id, user_id=user_id), limits)
