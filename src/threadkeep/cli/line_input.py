"""Where the lines of a chat come from: a person at a prompt with a history of lines, or a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from platformdirs import user_state_path
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

_PROMPT = FormattedText([("bold ansicyan", "you "), ("", "› ")])
_CHUNK_BYTES = 65_536


class LineInput(Protocol):
    """Gives the lines of a chat one by one."""

    async def next_line(self) -> str | None:
        """The next line without its end; None when no more will come."""
        ...


class PromptedLines:
    """A prompt at a terminal. Lines are remembered in the user's state folder, readable by this user only."""

    def __init__(self, commands: list[str]) -> None:
        self._prompt: PromptSession[str] = PromptSession(
            history=_history(user_state_path("threadkeep") / "chat_history"),
            completer=WordCompleter(commands, sentence=True),
            complete_while_typing=False,
            enable_history_search=True,
        )

    async def next_line(self) -> str | None:
        """What the person types; None for Ctrl-C or Ctrl-D."""
        try:
            # Ctrl-C is a key here; a signal from elsewhere is for the chat.
            return await self._prompt.prompt_async(_PROMPT, handle_sigint=False)
        except (EOFError, KeyboardInterrupt):
            return None


class PipedLines:
    """The lines of a pipe or a file, read by a thread that nobody waits for: a pipe may stay open and silent."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def give(line: str | None) -> None:
            loop.call_soon_threadsafe(self._lines.put_nowait, line)

        threading.Thread(target=_read_lines, args=(sys.stdin.fileno(), give), daemon=True).start()

    async def next_line(self) -> str | None:
        """The next line; None at the end of the input."""
        return await self._lines.get()


def _read_lines(descriptor: int, give: Callable[[str | None], None]) -> None:
    """Read by the descriptor: Python's own stdin has a lock that a waiting reader would hold at the exit."""
    rest = b""
    try:
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                give(line.decode("utf-8", "replace").rstrip("\r"))
        if rest:
            give(rest.decode("utf-8", "replace").rstrip("\r"))
        give(None)
    except RuntimeError:
        return  # the chat is over, its loop is closed


def _history(path: Path) -> History:
    """The history in a file; in memory only where no file can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)
