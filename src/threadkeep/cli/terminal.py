"""Output of commands: text and tables for people, JSON for programs, notes on stderr."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Literal, TextIO

import typer

from threadkeep.errors import StoreError

# Import rich on demand: it takes a tenth of a second, and pipes and JSON do not need it.
if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

json_chosen: ContextVar[bool] = ContextVar("json_chosen", default=False)
"""True if the command was called with `--json`."""

command_line: ContextVar[Sequence[str]] = ContextVar("command_line", default=())
"""The arguments of the command, without the name of the program."""

LINE_SECONDS = 2.0
"""Seconds between two lines of progress outside a terminal."""

_PIPE_WIDTH = 160
_LEAST_COLUMN = 20
_WIDEST = 10_000
# Control characters except tab and newline must not reach the terminal, and lone surrogates cannot be written.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_PASSWORD = re.compile(r"(://[^/?#@:]*):[^/?#]*(?=@)|([?&](?:ssl)?password=)[^&]*")

type Styled = str | tuple[str, str]
"""A text, or a text and its rich style."""
type Reach = Callable[[int, str], None]
"""A function that reports progress: the amount that is done, and a description."""
type SoFar = str | Callable[[], str]
"""A description of the work that is done so far, or a function that returns it."""
type Level = Literal["ok", "warn", "fail"]


class WrongUse(Exception):
    """A command was called incorrectly. The message describes the correct usage."""


class NotDone(Exception):
    """A command could not do its work. The message says what to do next."""


@dataclass(frozen=True)
class Finding:
    """The result of one check of `threadkeep doctor`. Unless the level is `ok`, `cure` says how to fix the problem."""

    check: str
    level: Level
    detail: str
    cure: str = ""


class Terminal:
    """The stdout and stderr of a command. With `--json`, stdout gets only JSON and notes are suppressed."""

    @property
    def as_json(self) -> bool:
        """True if the command was called with `--json`."""
        return json_chosen.get()

    @property
    def interactive(self) -> bool:
        """True if stdin and stdout are terminals and the command was called without `--json`."""
        return sys.stdin.isatty() and sys.stdout.isatty() and not self.as_json

    @property
    def out(self) -> Console:
        """The rich console on stdout."""
        return _console(sys.stdout)

    @property
    def width(self) -> int:
        """The width of stdout in characters; 160 if stdout is not a terminal."""
        return self.out.width if sys.stdout.isatty() else _PIPE_WIDTH

    def json(self, value: object) -> None:
        """Print a JSON document on one line."""
        print(dump(value, sys.stdout), flush=True)  # noqa: T201 - rich would wrap it

    def result(self, value: object, text: str | Callable[[], object], *, style: str = "", failed: bool = False) -> None:
        """Print the value with `--json`, otherwise the text. If `text` is a function, call it to print the text.

        If `failed` is true, print a string as an error, and exit with 1.
        """
        if self.as_json:
            self.json(value)
        elif not isinstance(text, str):
            text()
        elif failed:
            self.error(text)
        else:
            self.say(text, style=style)
        if failed:
            raise typer.Exit(1)

    def listing(
        self,
        value: Mapping[str, object],
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        nothing: str,
        right: Sequence[str] = (),
        more: str = "--cursor",
    ) -> None:
        """Print a page of a list: with `--json` the `value`, otherwise a table.

        Without rows, print `nothing`. If another page follows, print the command that shows it; `more` is the command's
        option for the cursor.
        """
        following = value.get("next_cursor", value.get("next_after"))
        if self.as_json:
            self.json(value)
        elif not rows:
            self.note(nothing)
        else:
            self.table(columns, rows, right=right)
            if following is not None:
                self.note(f"More: {repeated(more, following)}")

    def say(self, *parts: Styled, style: str = "", end: str = "\n") -> None:
        """Print a line on stdout without wrapping it."""
        self._print(parts, style, sys.stdout, end)

    def note(self, text: str) -> None:
        """Print a note on stderr, except with `--json`."""
        if not self.as_json:
            self._print([text], "dim", sys.stderr)

    def error(self, sentence: str) -> None:
        """Print an error sentence on stderr."""
        self._print([sentence], "red", sys.stderr)

    def labelled(self, label: str, text: str, *, style: str = "") -> None:
        """Print a line with a label. On a terminal, a long text is wrapped, and its lines are indented."""
        if not sys.stdout.isatty():
            self.say(label + text, style=style)
            return
        for line in styled(text).wrap(self.out, max(self.out.width - len(label), _LEAST_COLUMN)):
            self.say(label + line.plain.rstrip(), style=style)
            label = " " * len(label)

    def facts(self, facts: Iterable[tuple[str, str]], *, width: int = 0) -> None:
        """Print a line for each label and text. The labels are padded to `width` characters."""
        for label, text in facts:
            self.labelled(f"{label:<{width}}", text)

    def table(self, columns: Sequence[str], values: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
        """Print a table without frames. No cell is truncated; a time is shown as its age, and None as an empty cell."""
        rows = [[_cell(value) for value in row] for row in values]
        if not sys.stdout.isatty():
            _print_aligned([columns, *rows], [name in right for name in columns])
            return
        from rich.measure import Measurement
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for name, *cells in zip(columns, *rows, strict=True):
            # Do not wrap single words, because an id that is split into lines cannot be copied.
            one_word = all(len(plain(cell).split()) < 2 for cell in cells)
            justify: Literal["left", "right"] = "right" if name in right else "left"
            table.add_column(name, justify=justify, overflow="fold", no_wrap=one_word)
        for row in rows:
            table.add_row(*(styled(cell) for cell in row))
        # If the longest words do not fit, let the terminal wrap whole lines.
        size = Measurement.get(self.out, self.out.options.update(width=_WIDEST), table)
        if size.minimum > self.out.width:
            table.width = size.maximum
        self.out.print(table, soft_wrap=table.width is not None)

    def confirm(self, question: str, refusal: str, *, confirmed: bool) -> None:
        """Ask for confirmation unless `confirmed`. Without a terminal, raise `WrongUse(refusal)`."""
        if confirmed:
            return
        if not self.interactive:
            raise WrongUse(refusal)
        with stopped_by_ctrl_c():
            typer.confirm(escape(question), abort=True, err=True)

    def waiting(self, words: str) -> AbstractContextManager[object]:
        """Show a spinner on a terminal while the block runs."""
        return nullcontext() if self.as_json or not sys.stderr.isatty() else _console(sys.stderr).status(words)

    @contextmanager
    def progress(
        self, title: str, total: int | None, *, every: bool = False, so_far: SoFar = "", again: str = ""
    ) -> Iterator[Reach]:
        """Show the progress of the work in the block, as a bar or as lines; with `--json`, show nothing.

        Lines are at least two seconds apart unless `every` is true. If the block is interrupted, or the database or the
        disk fails, a note shows the last report (or the result of `so_far()`) and `again`, if neither is empty.
        """

        def reach(done: int, words: str) -> None:
            nonlocal so_far
            so_far = so_far if callable(so_far) else words
            show(done, words)

        try:
            with self._progress(title, total, every=every) as show:
                yield reach
        except (StoreError, OSError, asyncio.CancelledError, KeyboardInterrupt):
            if again and so_far:
                self.note(f"Interrupted: {so_far() if callable(so_far) else so_far}{again}")
            raise

    @contextmanager
    def _progress(self, title: str, total: int | None, *, every: bool) -> Iterator[Reach]:
        if self.as_json:
            yield lambda done, words: None
        elif not sys.stderr.isatty():
            seconds = 0 if every else LINE_SECONDS
            next_line = time.monotonic() + seconds

            def reach(done: int, words: str) -> None:
                nonlocal next_line
                if time.monotonic() >= next_line or done == total:
                    next_line = time.monotonic() + seconds
                    share = f" {100 * done // total} %" if total else ""
                    self.note(f"{title}:{share} {words}".rstrip())

            yield reach
        else:
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            words = TextColumn("{task.fields[words]}", style="dim")
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                words,
                TimeRemainingColumn(),
            )
            with Progress(*columns, console=_console(sys.stderr), transient=True) as bar:
                task = bar.add_task(title, total=total, words="")
                yield lambda done, words: bar.update(task, completed=done, words=words)

    def _print(self, parts: Sequence[Styled], style: str, stream: TextIO, end: str = "\n") -> None:
        if stream.isatty():
            _console(stream).print(styled(*parts), style=style, markup=False, highlight=False, soft_wrap=True, end=end)
        else:
            # Write the last line end with the text: after a second write, `head -1` may have closed the pipe.
            print("".join(map(plain, parts)) + end, file=stream, end="", flush=True)


terminal = Terminal()


@contextmanager
def signal_handler(number: signal.Signals, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Set the handler of a signal during the block, unless the signal is ignored or this is not the main thread."""
    before = signal.getsignal(number)
    if before in (signal.SIG_IGN, None) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def stopped_by_ctrl_c() -> AbstractContextManager[None]:
    """Let the first Ctrl-C interrupt the block, which waits for input or imports slow modules.

    The event loop's own handler only cancels the task, and the task would not notice this before the block ends.
    """
    return signal_handler(signal.SIGINT, signal.default_int_handler)


def ended_by_sigterm() -> AbstractContextManager[None]:
    """Handle SIGTERM like Ctrl-C during the block, so that the block can remove its temporary files."""

    def end(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(number, frame)

    return signal_handler(signal.SIGTERM, end)


@lru_cache(maxsize=2)
def _console(stream: TextIO) -> Console:
    """Return the console of a stream; cached, because a spinner and other output must share one console."""
    from rich.console import Console

    return Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, emoji=False)


def dump(value: object, stream: TextIO) -> str:
    """Return JSON on one line; escape non-ASCII characters unless the stream is UTF-8."""
    utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(value, ensure_ascii=not utf8, default=_json)


def escape(text: str) -> str:
    """Replace control characters that a terminal could interpret, and lone surrogates, with U+FFFD."""
    return _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


def plain(part: Styled) -> str:
    """Return the text of a styled part, escaped and without its style."""
    return escape(part if isinstance(part, str) else part[0])


def first_words(text: str, characters: int) -> str:
    """Return a text on one line, cut to `characters` with an ellipsis."""
    line = " ".join(escape(text[: 4 * characters]).split())
    return line if len(line) <= characters and len(text) <= 4 * characters else line[:characters] + "…"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, such as "1 run" or "2 runs"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def repeated(option: str, value: object) -> str:
    """Return the running command with another `value` for `option`, without passwords."""
    words: list[str] = []
    after: list[str] = []
    given = iter(command_line.get())
    for word in given:
        if word == "--":
            after = [word, *given]
        elif word == option:
            next(given, None)
        elif not word.startswith(f"{option}="):
            words.append(without_password(word))
    return shlex.join(["threadkeep", *words, option, str(value), *after])


def without_password(url: str) -> str:
    """Return the URL of a database without its password."""
    return _PASSWORD.sub(r"\1\2", url)


def _cell(value: object) -> Styled:
    match value:
        case None:
            return ""
        case datetime():
            return relative(value)
        case (str(text), str(style)):
            return text, style
    return str(value)


def relative(moment: datetime | None) -> str:
    """Return a time in words, such as "2 days ago", or its date if it is more than a week ago or in the future."""
    if moment is None:
        return ""
    seconds = (datetime.now(moment.tzinfo) - moment).total_seconds()
    if seconds < -60:
        return moment.astimezone().strftime("%Y-%m-%d %H:%M")
    if seconds >= 604_800:
        return moment.astimezone().strftime("%Y-%m-%d")
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            return f"{counted(int(seconds // size), unit)} ago"
    return "now"


def duration(seconds: float) -> str:
    """Return a time span in its two largest units."""
    whole = int(seconds)
    for size, unit, smaller, smaller_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{whole} s"


def file_size(count: int) -> str:
    """Return a number of bytes in its largest unit."""
    value = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"


def _json(value: object) -> object:
    """Convert a value that JSON does not know, such as a record or a time, to a value that it knows."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    # Avoid `to_jsonable_python` where possible: it ends times with Z, but all other output ends them with +00:00.
    if (dumped := getattr(value, "model_dump", None)) is not None:
        return dumped()
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


def styled(*parts: Styled) -> Text:
    """Return the escaped parts as one rich text."""
    from rich.text import Text

    return Text.assemble(*(escape(part) if isinstance(part, str) else (escape(part[0]), part[1]) for part in parts))


def _print_aligned(rows: Sequence[Sequence[Styled]], right: Sequence[bool]) -> None:
    """Print rows in aligned columns. A wide East Asian character counts twice."""
    from rich.cells import cell_len

    cells = [[" ".join(plain(cell).split("\n")) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        parts = (gap + cell if flush else cell + gap for cell, gap, flush in zip(row, gaps, right, strict=True))
        lines.append("  ".join(parts).rstrip())
    print("\n".join([*lines, ""]), end="", flush=True)  # noqa: T201 - no style is needed
