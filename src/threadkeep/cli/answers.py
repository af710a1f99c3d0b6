"""The output of answers as they arrive, and the input of a chat: a prompt with a history, or a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING, Protocol

from threadkeep.cli.problems import Problem
from threadkeep.cli.terminal import terminal
from threadkeep.store.private_files import tighten

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from rich.status import Status

    from threadkeep.runs.chat_turns import ChatAnswer, ChatTurn


class Answer:
    """The output of answers as they arrive: text with a spinner before it, or one JSON object for each answer."""

    def __init__(self) -> None:
        self._shown = ""
        self._message_id: str | None = None
        self._spinner: Status | None = None

    async def show(self, turn: ChatTurn) -> ChatAnswer | None:
        """Show the answer of a turn as it arrives, and return it. Errors of the turn are raised."""
        from threadkeep.runs.chat_turns import ChatAnswer, ChatToken

        async for event in turn.follow():
            if isinstance(event, ChatToken) and event.text:
                self.piece(event.text)
            elif isinstance(event, ChatAnswer):
                if terminal.as_json:
                    terminal.json(event.to_dict())
                else:
                    self.end("" if self._shown else event.response)
                return event
        return None

    def begin(self) -> None:
        """Start an answer. On a terminal a spinner is shown until the first piece arrives."""
        self._shown = ""
        if terminal.interactive:
            self._spinner = terminal.out.status("thinking", spinner="dots")
            self._spinner.start()

    def piece(self, text: str, message_id: str | None = None) -> None:
        """Show a piece at once. A piece of another message starts a new paragraph."""
        if terminal.as_json:
            return
        if self._spinner is not None:
            self._stop_spinner()
            terminal.say(("assistant ", "bold green"), "› ", end="")
        if self._shown and message_id != self._message_id:
            terminal.say()
            self._shown = ""
        self._message_id = message_id
        self._shown += text
        terminal.say(text, end="")

    def end(self, text: str) -> None:
        """Show the rest of the text that was not streamed, and end the paragraph."""
        if text and text.strip() != self._shown.strip():
            if self._shown:
                terminal.say()
            self.piece(text, self._message_id)
        self._stop_spinner()
        if self._shown:
            terminal.say()
        if terminal.interactive:
            terminal.say()

    def fail(self, problem: Problem) -> None:
        """Show the problem of a failed answer; with `--json`, as an object in place of the answer."""
        self._stop_spinner()
        if terminal.as_json:
            terminal.json(problem.to_dict())
            return
        if self._shown:
            terminal.say()
        terminal.error(problem.sentence)

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


class LineInput(Protocol):
    """A source of the lines of a chat."""

    async def next_line(self) -> str | None:
        """Return the next line without its end; None at the end of the input."""


class PromptedLines:
    """A prompt at a terminal. Its history is stored in the user's state folder, readable by this user only."""

    def __init__(self, commands: list[str]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter

        self._prompt: PromptSession[str] = PromptSession(
            history=_history(),
            completer=WordCompleter(commands, sentence=True),
            complete_while_typing=False,
            enable_history_search=True,
        )

    async def next_line(self) -> str | None:
        """Return the next line of the user; None for Ctrl-C or Ctrl-D."""
        from prompt_toolkit.formatted_text import FormattedText

        try:
            # Ctrl-C arrives as a key press. Signals from other processes are handled by the chat.
            return await self._prompt.prompt_async(
                FormattedText([("bold ansicyan", "you "), ("", "› ")]), handle_sigint=False
            )
        except (EOFError, KeyboardInterrupt):
            return None


class PipedLines:
    """The lines of a pipe or a file, read by a daemon thread, because a pipe may stay open and silent."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(sys.stdin.fileno(),), daemon=True).start()

    async def next_line(self) -> str | None:
        """Return the next line; None at the end of the input."""
        return await self._lines.get()

    def _read(self, descriptor: int) -> None:
        # `sys.stdin` holds a lock while it waits, which would block the exit of the process.
        with open(descriptor, encoding="utf-8", errors="replace", newline="\n", closefd=False) as stream:
            try:
                for line in stream:
                    self._loop.call_soon_threadsafe(self._lines.put_nowait, line.rstrip("\r\n"))
                self._loop.call_soon_threadsafe(self._lines.put_nowait, None)
            except RuntimeError:
                return  # the chat has ended and its loop is closed


def _history() -> History:
    """Return the history of earlier chats, or an in-memory history if the file cannot be written."""
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
