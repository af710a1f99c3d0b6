"""`threadkeep sessions export` and `import`: transcripts as JSONL, out and in again, exactly."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from threadkeep.cli.opening import opened_memory, run
from threadkeep.cli.options import AsJson, UserId
from threadkeep.cli.problems import WrongUse
from threadkeep.cli.progress import progress
from threadkeep.cli.terminal import Terminal
from threadkeep.cli.wording import counted
from threadkeep.errors import StoreError

if TYPE_CHECKING:
    from threadkeep.cli.exporting import Exported
    from threadkeep.cli.importing import Imported

_MOST_TOLD = 1_000
_LINES_BETWEEN = 500


def export_sessions(
    sessions: Annotated[list[str] | None, typer.Argument(metavar="[SESSION…]", help="The ids of the sessions.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All sessions.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file to write; stdout by default.")] = None,
    user: UserId = None,
    as_json: AsJson = False,
) -> None:
    """Write sessions as JSONL, to stdout or a file.

    A line for each session is followed by one for each of its messages, and of its summaries. A file is there only when
    it is complete.
    """
    if bool(sessions) == everything:
        raise WrongUse("Name the sessions to export, or say --all for all of them.")
    terminal = Terminal(as_json=as_json)
    to_file = output is not None and str(output) != "-"
    with _output(output if to_file else None) as stream:
        done = run(_export(terminal, sessions or [], user, stream))
    if as_json and to_file:
        terminal.json({**asdict(done), "file": str(output)})
    else:
        terminal.note(f"Exported {done}" + (f" to {output}." if to_file else "."))


def import_sessions(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to read; - for stdin.")],
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad line.")] = False,
    as_json: AsJson = False,
) -> None:
    """Store sessions from JSONL, as they were.

    What is there already is not stored again, so a second import changes nothing and an import that was broken off can
    be begun anew. Bad lines are named and left out; exits with 1 if there were any.
    """
    terminal = Terminal(as_json=as_json)
    errors: list[dict[str, int | str]] = []

    def told(number: int, sentence: str) -> None:
        if len(errors) < _MOST_TOLD:
            errors.append({"line": number, "detail": sentence})
        if not as_json:
            terminal.error(f"Line {number}: {sentence}")

    with _input(file) as stream:
        done = run(_import(terminal, stream, told, strict=strict))
    if as_json:
        terminal.json({**asdict(done), "errors": errors})
    else:
        _tell_import(terminal, done)
    if done.bad_lines:
        raise typer.Exit(1)


async def _export(terminal: Terminal, sessions: list[str], user: str | None, stream: BinaryIO) -> Exported:
    from threadkeep.cli.exporting import count_messages, every_session, export, named_sessions

    async with opened_memory() as memory:
        chosen = named_sessions(memory, sessions, user) if sessions else every_session(memory, user)
        total = await count_messages(memory, sessions, user)
        with progress(terminal, "Exporting", total) as reach:
            return await export(chosen, stream, lambda done: reach(done.messages, str(done)))


async def _import(terminal: Terminal, stream: BinaryIO, told: Callable[[int, str], None], *, strict: bool) -> Imported:
    import asyncio

    from threadkeep.cli.importing import Importer

    size = os.fstat(stream.fileno()).st_size if stream is not sys.stdin.buffer else 0
    read = 0
    async with opened_memory() as memory:
        importer = Importer(memory, told, strict=strict)
        try:
            with progress(terminal, "Importing", size or None) as reach:
                for number, line in enumerate(stream, start=1):
                    read += len(line)
                    if not await importer.take(number, line):
                        break
                    if number % _LINES_BETWEEN == 0:
                        reach(read, str(importer.done))
                await importer.store()
                reach(read, str(importer.done))
        except (StoreError, asyncio.CancelledError):
            terminal.note(f"Broken off: {importer.done}. Import the same again to go on; nothing is doubled.")
            raise
    return importer.done


def _tell_import(terminal: Terminal, done: Imported) -> None:
    terminal.say(f"Stored {counted(done.stored, 'message')}; there already: {done.known:,}.")
    if done.moved:
        terminal.say(f"At other places than they had, since their sessions had messages before: {done.moved:,}.")
    if done.cleaned:
        terminal.say(f"With U+FFFD for characters that no database keeps: {done.cleaned:,}.")
    if done.summaries:
        terminal.say(f"With {counted(done.summaries, 'summary', 'summaries')} of them.")
    if done.summaries_left_out:
        terminal.say(
            f"Summaries left out, since their messages are not here as they were: {done.summaries_left_out:,}."
        )
    if done.skipped:
        terminal.say(f"Left out because of their session: {done.skipped:,}.")
    if done.bad_lines:
        terminal.say(f"Bad lines: {done.bad_lines:,}. Mend them and import the file again: nothing is doubled.")


@contextmanager
def _output(path: Path | None) -> Iterator[BinaryIO]:
    """Stdout, or a file that is there only when it is complete, readable by its owner only."""
    if path is None:
        yield sys.stdout.buffer
        return
    part = path.with_name(path.name + ".part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def _input(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with Path(file).open("rb") as stream:
        yield stream
