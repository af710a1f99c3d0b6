"""What a command shows: tables and lines for people, JSON for programs, and what is only said by the way on stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_PIPE_WIDTH = 160
_LEAST_COLUMN = 20
# All control characters but tab and newline: people's words must not steer the terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """The text without what would steer a terminal."""
    return _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


def first_words(text: str, characters: int) -> str:
    """The beginning of a text on one line."""
    line = " ".join(harmless(text[: 4 * characters]).split())
    return line if len(line) <= characters and len(text) <= 4 * characters else line[:characters] + "…"


class Terminal:
    """Stdout and stderr of a command. With `as_json`, stdout gets JSON only and nothing is said by the way."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    @cached_property
    def out(self) -> Console:
        """Stdout as rich draws on it."""
        return _console(stderr=False)

    @cached_property
    def err(self) -> Console:
        """Stderr as rich draws on it."""
        return _console(stderr=True)

    @property
    def interactive(self) -> bool:
        """Whether a person sits at both ends."""
        return sys.stdin.isatty() and sys.stdout.isatty() and not self.as_json

    def json(self, value: Mapping[str, Any] | Sequence[Any]) -> None:
        """One JSON document on one line."""
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        print(json.dumps(value, ensure_ascii=not utf8), flush=True)  # noqa: T201 - rich would wrap it

    def say(self, text: str | Text = "", *, style: str = "") -> None:
        """A line on stdout, as it is: wrapped by the terminal and by nobody else."""
        self.out.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def labelled(self, label: str, text: str, *, style: str = "") -> None:
        """A line with a label; on a terminal it is wrapped between words, in a column of its own beside the label."""
        from rich.text import Text

        if not self.out.is_terminal:
            self.say(label + text, style=style)
            return
        room = max(self.out.width - len(label), _LEAST_COLUMN)
        for line in Text(text).wrap(self.out, room):
            self.say(label + line.plain.rstrip(), style=style)
            label = " " * len(label)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, right: Sequence[str] = ()) -> None:
        """A table without frames; what is too long for its column is folded, never cut off."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for name in columns:
            table.add_column(name, justify="right" if name in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
        self.out.print(table)

    @contextmanager
    def waiting(self, words: str) -> Iterator[None]:
        """A spinner on stderr while the block runs; nothing where stderr is no terminal."""
        if self.as_json or not self.err.is_terminal:
            yield
            return
        with self.err.status(words):
            yield

    def note(self, text: str) -> None:
        """Something said by the way, on stderr."""
        if not self.as_json:
            self.err.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def error(self, sentence: str) -> None:
        """One sentence of what went wrong, on stderr."""
        self.err.print(harmless(sentence), style="red", markup=False, highlight=False, soft_wrap=True)


def _console(*, stderr: bool) -> Console:
    # rich takes a tenth of a second, which `--version` and JSON do without.
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, emoji=False)
