"""How far long work has come: a bar on a terminal, plain lines now and then elsewhere; both on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from threadkeep.cli.terminal import Terminal

LINE_SECONDS = 2.0

type Reach = Callable[[int, str], None]
"""Says how far the work is (in the units of its total), and the same in words."""


@contextmanager
def progress(terminal: Terminal, title: str, total: int | None) -> Iterator[Reach]:
    """Show how far the work in the block has come. Without a total it says only what is done."""
    if terminal.as_json:
        yield lambda done, words: None
    elif terminal.err.is_terminal:
        with _bar(terminal, title, total) as reach:
            yield reach
    else:
        yield _Lines(terminal, title, total).reach


@contextmanager
def _bar(terminal: Terminal, title: str, total: int | None) -> Iterator[Reach]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[words]}", style="dim"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=terminal.err, transient=True) as bar:
        task = bar.add_task(title, total=total, words="")
        yield lambda done, words: bar.update(task, completed=done, words=words)


class _Lines:
    """A line every few seconds, so that a log shows that the work goes on and does not fill."""

    def __init__(self, terminal: Terminal, title: str, total: int | None) -> None:
        self._terminal = terminal
        self._title = title
        self._total = total
        self._next = time.monotonic() + LINE_SECONDS

    def reach(self, done: int, words: str) -> None:
        if time.monotonic() < self._next and done != self._total:
            return
        self._next = time.monotonic() + LINE_SECONDS
        share = f" {100 * done // self._total} %" if self._total else ""
        self._terminal.note(f"{self._title}:{share} {words}".rstrip())
