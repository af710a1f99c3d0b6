"""`threadkeep chat`: a chat with the agent in the terminal, with the memory of a session."""

from __future__ import annotations

import shlex
from typing import Annotated
from uuid import uuid4

import typer

from threadkeep.cli.opening import command_settings, opened_app
from threadkeep.cli.options import session_ids
from threadkeep.cli.terminal import terminal


async def chat(
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="ID", help="The session; a new one else.", autocompletion=session_ids),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="Whose session it is.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="The model, in place of THREADKEEP_MODEL.")
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system", "-s", metavar="TEXT", help="The system message, in place of THREADKEEP_SYSTEM_PROMPT."
        ),
    ] = None,
) -> None:
    """Talk to the agent, in the terminal or by a pipe.

    A line is a turn. Ctrl-C stops an answer; what was said of it is kept. With --json each turn gets one JSON object.
    """
    settings = command_settings(model=model, system_prompt=system)
    session_id = str(uuid4()) if session is None else session
    with terminal.waiting("Opening"):
        # This imports LangChain and LangGraph, which takes some seconds on a slow machine.
        from threadkeep.cli.answers import PipedLines, PromptedLines
        from threadkeep.cli.context import CallChoice, look_of
        from threadkeep.cli.conversation import COMMANDS, Conversation, Notices

    notices = Notices()
    async with opened_app(settings, works=False, observers=[notices]) as app:
        app.runs.open_soon()
        choice, look = CallChoice(session_id, user_id=user), look_of(settings)
        conversation = Conversation(app.chat, app.memory, choice, look=look, notices=notices)
        if terminal.interactive:
            terminal.note(f"Session {session_id}, model {settings.model}. /help lists what can be typed here.")
        lines = PromptedLines(list(COMMANDS)) if terminal.interactive else PipedLines()
        succeeded = await conversation.run(lines, keep_on=terminal.interactive)
        if terminal.interactive:
            terminal.note(f"Go on with: threadkeep chat --session {shlex.quote(session_id)}")
    if not succeeded:
        raise typer.Exit(1)
