"""`threadkeep chat`: talk to the agent in the terminal, with the memory of a session."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from threadkeep.cli.opening import run
from threadkeep.cli.options import AsJson
from threadkeep.cli.terminal import Terminal

if TYPE_CHECKING:
    from threadkeep.cli.answers import Answers
    from threadkeep.settings import Settings


def chat(
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="The session; a new one else.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="Whose session it is.")] = None,
    as_json: AsJson = False,
) -> None:
    """Talk to the agent, in the terminal or by a pipe.

    A line is a turn. Ctrl-C stops an answer; what was said of it is kept. With --json each turn gets one JSON object.
    """
    from threadkeep.settings import load_settings

    settings = load_settings()
    terminal = Terminal(as_json=as_json)
    if not run(_chat(settings, terminal, session or str(uuid4()), user)):
        raise typer.Exit(1)


async def _chat(settings: Settings, terminal: Terminal, session_id: str, user_id: str | None) -> bool:
    async with AsyncExitStack() as stack:
        with terminal.waiting("Opening"):
            # With LangChain and LangGraph behind them, some seconds on a slow machine.
            from threadkeep.app import open_app
            from threadkeep.cli.call_choice import CallChoice
            from threadkeep.cli.context_view import ContextLook
            from threadkeep.cli.conversation import COMMANDS, Conversation, Notices
            from threadkeep.cli.line_input import PipedLines, PromptedLines

            notices = Notices()
            app = await stack.enter_async_context(open_app(settings, observers=[notices], works=False, channel="other"))
            app.runs.open_soon()
        conversation = Conversation(
            app.chat,
            app.memory,
            CallChoice(session_id, user_id=user_id),
            look=ContextLook.by(settings),
            terminal=terminal,
            answers=_answers(terminal),
            notices=notices,
        )
        if terminal.interactive:
            terminal.note(f"Session {session_id}, model {settings.model}. /help lists what can be typed here.")
        lines = PromptedLines(list(COMMANDS)) if terminal.interactive else PipedLines()
        well = await conversation.run(lines, keep_on=terminal.interactive)
        if terminal.interactive:
            terminal.note(f"Go on with: threadkeep chat --session {session_id}")
        return well


def _answers(terminal: Terminal) -> Answers:
    from threadkeep.cli.answers import JsonAnswers, LiveAnswers, PlainAnswers

    if terminal.as_json:
        return JsonAnswers(terminal)
    return LiveAnswers(terminal) if terminal.interactive else PlainAnswers(terminal)
