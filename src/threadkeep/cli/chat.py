"""`threadkeep chat`: a chat with the agent in the terminal, with the memory of a session."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from threadkeep.cli.commands import Problem, problem_of
from threadkeep.cli.context import CallChoice, preview_options, show_now
from threadkeep.cli.run_output import Answer
from threadkeep.cli.shared import command_settings, handled_signals, on_this_database, opened_app, session_ids
from threadkeep.cli.terminal import counted, terminal
from threadkeep.errors import Interrupted, SessionNotFound, ThreadkeepError
from threadkeep.observe import Event, ReadFailed, WriteDeferred, WriteRecovered
from threadkeep.store.private_files import tighten

if TYPE_CHECKING:
    from prompt_toolkit.history import History

    from threadkeep.agent.context_view import PreviewOptions
    from threadkeep.history.memory import Memory
    from threadkeep.runs.chat import Chat
    from threadkeep.runs.chat_turns import ChatContext, ChatTurn, ChatUsage

COMMANDS = {
    "/help": "list these commands",
    "/context": "show the context of the last call and of the next one",
    "/stats": "show counts of this chat and of the session",
    "/reset": "start afresh; the transcript stays",
    "/quit": "leave (so do Ctrl-C and Ctrl-D)",
}
_STOPPED = Problem("interrupted", "Stopped; the part so far is stored as interrupted.")


async def chat(
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="ID", help="The session; by default a new one.", autocompletion=session_ids),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="The owner of the session.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="The model, instead of THREADKEEP_MODEL.")
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("--system", "-s", metavar="TEXT", help="The system message, instead of THREADKEEP_SYSTEM_PROMPT."),
    ] = None,
) -> None:
    """Talk to the agent, in the terminal or through a pipe.

    Each line is a turn. Ctrl-C stops an answer and stores the part shown. With --json, each turn prints a JSON object.
    """
    settings = command_settings(model=model, system_prompt=system)
    session_id = str(uuid4()) if session is None else session
    notices = Notices()
    async with opened_app(settings, works=False, observers=[notices]) as app:
        app.runs.open_soon()
        choice, preview = CallChoice(session_id, user_id=user), preview_options(settings)
        conversation = Conversation(app.chat, app.memory, choice, preview=preview, notices=notices)
        if terminal.interactive:
            terminal.note(f"Session {session_id}, model {settings.model}. /help lists the commands.")
        lines = prompted_lines() if terminal.interactive else piped_lines()
        succeeded = await conversation.run(lines, prompted=terminal.interactive)
        if terminal.interactive:
            command = f"threadkeep chat --session {shlex.quote(session_id)}"
            terminal.note(f"Continue with: {on_this_database(command)}")
    if not succeeded:
        raise typer.Exit(1)


class Notices:
    """An observer that collects notices about the memory; the chat shows them at the end of the turn."""

    def __init__(self) -> None:
        self._sentences: list[str] = []

    def notify(self, event: Event, /) -> None:
        """Record a notice that a read failed, that a turn waits on disk, or that the waiting turns are stored."""
        if isinstance(event, ReadFailed) and event.outcome == "fallback":
            self._sentences.append("The memory could not be read: the answer does not use earlier messages.")
        elif isinstance(event, WriteDeferred):
            self._sentences.append("The database is not available: this turn is kept on disk, and written later.")
        elif isinstance(event, WriteRecovered):
            self._sentences.append("The turns that were kept on disk are now in the database.")

    def take(self) -> list[str]:
        """Return the notices since the last call, without duplicates."""
        sentences, self._sentences = list(dict.fromkeys(self._sentences)), []
        return sentences


class Conversation:
    """The loop of a chat in the terminal: it reads lines, runs commands and shows answers."""

    def __init__(
        self, chat: Chat, memory: Memory, choice: CallChoice, *, preview: PreviewOptions, notices: Notices
    ) -> None:
        self._chat, self._memory, self._choice = chat, memory, choice
        self._session = memory.session(choice.session_id or "", user_id=choice.user_id)
        self._preview, self._notices = preview, notices
        self._answer = Answer()
        self._answered: list[tuple[ChatUsage, ChatContext, float]] = []
        self._failed, self._stopped = 0, False
        self._turn: ChatTurn | None = None

    async def run(self, lines: AsyncIterator[str], *, prompted: bool) -> bool:
        """Answer the lines one after another. `prompted` is true if a person enters them at a prompt, not in a pipe.

        Ctrl-C stops the current answer and stores the part shown. It ends the chat if no answer is running, or if the
        lines come from a pipe. Return False if the lines come from a pipe and a turn failed or was stopped.
        """
        with handled_signals(self._signal_handlers()):
            async for line in lines:
                if line.startswith("/"):
                    if not await self._command(line):
                        break
                elif line.strip():
                    await self._show_answer(line)
                    for sentence in self._notices.take():
                        terminal.note(sentence)
                if self._stopped and not prompted:
                    break
        return prompted or not (self._failed or self._stopped)

    async def _show_answer(self, text: str) -> None:
        from threadkeep.runs.requests import RunRequest
        from threadkeep.workflows.built_in import CHAT

        started, self._stopped = time.perf_counter(), False
        self._answer.begin()
        try:
            session_id, user_id = self._session.session_id, self._session.user_id
            request = RunRequest(workflow=CHAT, text=text, session_id=session_id, user_id=user_id, trigger="cli")
            self._turn = self._chat.begin(request)
            if (answer := await self._answer.show(self._turn)) is not None:
                self._answered.append((answer.usage, answer.context, time.perf_counter() - started))
        except ThreadkeepError as error:
            stopped = self._stopped and isinstance(error, Interrupted)
            self._failed += not stopped
            self._answer.fail(_STOPPED if stopped else problem_of(error))
        except asyncio.CancelledError:
            if self._turn is not None:
                self._chat.stop(self._turn)
            raise
        finally:
            self._turn = None

    def _signal_handlers(self) -> dict[signal.Signals, Callable[[], object]]:
        """Return the chat's signal handlers. They stay active between two turns, because a signal may arrive then."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker

        def interrupt() -> None:
            self._stopped = True
            if self._turn is not None:
                self._chat.stop(self._turn)
            else:
                task.cancel()

        return {signal.SIGINT: interrupt, signal.SIGTERM: task.cancel, signal.SIGHUP: task.cancel}

    async def _command(self, text: str) -> bool:
        """Execute a slash command; return False if the command ends the chat."""
        name = text.split(maxsplit=1)[0].lower()
        try:
            match name:
                case "/quit" | "/exit":
                    return False
                case "/reset":
                    await self._reset()
                case "/stats":
                    await self._show_statistics()
                case "/context":
                    await show_now(self._memory, self._choice, self._preview)
                case "/help" if terminal.as_json:
                    terminal.json({"commands": COMMANDS})
                case "/help":
                    terminal.table(["command", ""], list(COMMANDS.items()))
                case _:
                    terminal.error(f"There is no command {name}; /help lists the commands.")
        except SessionNotFound:
            values = {"session_id": self._session.session_id}
            terminal.result(values, "This session has no messages yet.", style="dim")
        except ThreadkeepError as error:
            self._answer.fail(problem_of(error))
        return True

    async def _reset(self) -> None:
        await self._session.info()
        await self._chat.reset(self._session.session_id)
        info = await self._session.info()
        terminal.result(
            {"session_id": info.session_id, "reset_seq": info.reset_seq},
            f"From now on the model does not see messages 1 to {info.reset_seq}; the transcript stays.",
            style="dim",
        )

    async def _show_statistics(self) -> None:
        info, turns = await self._session.info(), len(self._answered)
        tokens_in = sum(usage.input_tokens for usage, _, _ in self._answered)
        tokens_out = sum(usage.output_tokens for usage, _, _ in self._answered)
        estimated = any(usage.estimated for usage, _, _ in self._answered)
        median = statistics.median(seconds for _, _, seconds in self._answered) if turns else 0.0
        last = self._answered[-1][1] if turns else None
        values = {
            "session_id": info.session_id,
            "messages": info.message_count,
            "reset_seq": info.reset_seq,
            "turns": turns,
            "failed": self._failed,
            "input_tokens": tokens_in,
            "output_tokens": tokens_out,
            **({"estimated": True} if estimated else {}),
            "median_seconds": median,
            "last_context": last and asdict(last),
        }
        tokens = f"{counted(tokens_in, 'token')} in, {tokens_out:,} out{' (estimated)' if estimated else ''}"
        sentence = f"{info.session_id}: {counted(info.message_count, 'message')} in all. "
        sentence += f"Here: {counted(turns, 'turn')}, {tokens}, {median:.1f} s a turn."
        if last is not None:
            seen = f"{counted(last.messages, 'message')} of {counted(last.tokens, 'token')}"
            sentence += f" The last call saw {seen}; left out: {last.dropped:,}."
        terminal.result(values, sentence, style="dim")


async def prompted_lines() -> AsyncIterator[str]:
    """Yield the lines that a user enters at a prompt, until Ctrl-C or Ctrl-D.

    The prompt's history is stored in a file that only the user can read.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.formatted_text import FormattedText

    prompt: PromptSession[str] = PromptSession(
        FormattedText([("bold ansicyan", "you "), ("", "› ")]),
        history=_history(),
        completer=WordCompleter(list(COMMANDS), sentence=True),
        complete_while_typing=False,
        enable_history_search=True,
    )
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            # Do not handle SIGINT here: Ctrl-C arrives as a key press, and the chat handles the signals.
            yield await prompt.prompt_async(handle_sigint=False)


async def piped_lines() -> AsyncIterator[str]:
    """Yield the lines of a pipe. A daemon thread reads them, because reading a pipe may block without end."""
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read(descriptor: int) -> None:
        # Do not read `sys.stdin`: it holds a lock while it waits, which would block the exit of the process.
        with open(descriptor, encoding="utf-8", errors="replace", newline="\n", closefd=False) as stream:
            try:
                for line in stream:
                    loop.call_soon_threadsafe(lines.put_nowait, line.rstrip("\r\n"))
                loop.call_soon_threadsafe(lines.put_nowait, None)
            except RuntimeError:
                return  # the chat has ended and its loop is closed

    threading.Thread(target=read, args=(sys.stdin.fileno(),), daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line


def _history() -> History:
    """Return the history of the prompt from its file, or an empty history in memory if the file cannot be written."""
    from platformdirs import user_state_path
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = user_state_path("threadkeep") / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    tighten(path)
    return FileHistory(path)
