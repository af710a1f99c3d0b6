"""`sessions export`, `facts export` and `facts import`: transcripts and facts as JSONL."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from threadkeep.cli.facts import OfSession, OfUser, OfWorkspace, scope_named
from threadkeep.cli.opening import opened_memory
from threadkeep.cli.options import UserId, ViewOption, session_ids
from threadkeep.cli.problems import NotDone, WrongUse
from threadkeep.cli.terminal import counted, terminal
from threadkeep.errors import InvalidInput, SessionNotFound
from threadkeep.records.knowledge import Fact, FactQuery, Scope

if TYPE_CHECKING:
    from threadkeep.history.exporting import Exported
    from threadkeep.memory import Memory

_PAGE = 500

Output = Annotated[Path | None, typer.Option("--output", "-o", help="The file to write; by default stdout.")]


async def export_sessions(
    sessions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SESSION…]", help="The ids of the sessions.", autocompletion=session_ids),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All sessions.")] = False,
    output: Output = None,
    user: UserId = None,
    view: ViewOption = "active",
) -> None:
    """Write sessions as JSONL, to stdout or a file.

    The line of a session is followed by the lines of its messages and summaries. Superseded messages are exported only
    in the view `history`. A file appears only when it is complete. Damaged sessions in a graph store are skipped and
    listed; the command then exits with 1.
    """
    if bool(sessions) == everything:
        raise WrongUse("Name the sessions to export, or add --all for all of them.")
    from threadkeep.history.all_sessions import AllSessions
    from threadkeep.history.exporting import count_messages, every_session, export, named_sessions

    named = sessions or []
    with _opened(output) as stream:
        async with opened_memory() as memory:
            chosen = named_sessions(memory, named, user) if named else every_session(memory, user)
            total = await count_messages(memory, named, user, view=view)
            with terminal.progress("Exporting", total) as reach:
                done = await export(chosen, stream, lambda done: reach(done.messages, _words(done)), view=view)
            for error in await AllSessions(memory).damaged(user) if not named else ():
                done.note_damage(error)
    _show_exported(done.to_dict(), _words(done), output)
    for error in done.damaged.values():
        terminal.error(f"Left out: {error}")
    if done.damaged:
        raise typer.Exit(1)


async def export_facts(
    output: Output = None, session: OfSession = None, workspace: OfWorkspace = None, user: OfUser = None
) -> None:
    """Write all facts, or the facts of one scope, as JSONL. Each line is a value; past values are included.

    A file appears only when it is complete.
    """
    from threadkeep.knowledge.views import FactView

    scope, done = scope_named(session, workspace, user), 0
    with _opened(output) as stream:
        async with opened_memory() as memory:
            with terminal.progress("Exporting", None) as reach:
                async for facts in _pages_of(memory, scope):
                    stream.writelines(f"{FactView.of(fact).model_dump_json()}\n".encode() for fact in facts)
                    done += len(facts)
                    reach(done, counted(done, "value"))
    _show_exported({"facts": done}, counted(done, "value"), output)


async def _pages_of(memory: Memory, scope: Scope | None) -> AsyncIterator[list[Fact]]:
    """Yield each value once. A changed value moves to the first page, so pages are read until none has new values."""
    seen: set[str] = set()
    since = None
    while True:
        count, cursor, newest = len(seen), None, None
        while True:
            facts, cursor = await memory.knowledge.facts_page(FactQuery(scope, past=True, limit=_PAGE, cursor=cursor))
            newest = newest or (facts[0].updated_at if facts else None)
            yield [fact for fact in facts if fact.id not in seen]
            seen.update(fact.id for fact in facts)
            if cursor is None or (since is not None and facts[-1].updated_at < since):
                break
        if len(seen) == count:
            return
        since = newest


async def import_facts(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="The file to read; - is stdin.")],
) -> None:
    """Store exported facts, with their ids, times and counts. Existing facts are skipped.

    If two values of a key are valid, the newer one stays valid. The lines are stored in groups of 500; the import stops
    at a group with a line that cannot be stored.
    """
    read, stored = 0, 0
    async with opened_memory() as memory:
        with terminal.progress("Importing", None) as reach:
            for batch in batched(_facts(source), _PAGE):
                try:
                    stored += await memory.knowledge.restore([fact for _, fact in batch])
                except (SessionNotFound, InvalidInput) as error:
                    lines = f"Lines {batch[0][0]} to {batch[-1][0]}"
                    raise NotDone(f"{lines}: {error} None of these lines is stored.") from None
                read += len(batch)
                reach(read, counted(read, "value"))
    terminal.result({"read": read, "stored": stored}, f"{counted(stored, 'value')} stored of {read:,}.")


def _words(done: Exported) -> str:
    summaries = f" and {counted(done.summaries, 'summary', 'summaries')}" if done.summaries else ""
    return f"{counted(done.messages, 'message')}{summaries} of {counted(done.sessions, 'session')}"


def _show_exported(counts: Mapping[str, object], words: str, output: Path | None) -> None:
    """Show the result of an export, on stderr if stdout may have the lines."""
    if _is_file(output) and terminal.as_json:
        terminal.json({**counts, "file": str(output)})
    else:
        terminal.note(f"Exported {words}" + (f" to {output}." if _is_file(output) else "."))


def _is_file(path: Path | None) -> bool:
    return path is not None and str(path) != "-"


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears only when it is complete, and that only its owner can read."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    """Open stdout, or a file that appears only when it is complete and that only its owner can read."""
    if path is None or not _is_file(path):
        yield sys.stdout.buffer
        return
    with new_file(path) as stream:
        yield stream


def _facts(source: Path) -> Iterator[tuple[int, Fact]]:
    """Yield the facts of a file with their line numbers.

    Raises:
        NotDone: a line is not an exported fact; the message has its number and does not quote it.
    """
    from pydantic import ValidationError

    from threadkeep.knowledge.views import FactView

    with sys.stdin.buffer if str(source) == "-" else source.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                yield number, FactView.model_validate_json(line).record()
            except ValidationError as error:
                first = error.errors(include_input=False, include_url=False)[0]
                where = ".".join(str(part) for part in first["loc"][:1]) or "the line"
                raise NotDone(f"Line {number} is not an exported fact ({where}); export it again.") from None
            except InvalidInput as error:
                raise NotDone(f"Line {number} cannot be stored: {error}") from None
