"""`threadkeep persons`: lists, exports, merges and unmerges persons."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from threadkeep.cli.opening import opened_memory
from threadkeep.cli.options import CursorOption, Limit, read_cursor, write_cursor
from threadkeep.cli.problems import WrongUse
from threadkeep.cli.terminal import counted, relative, terminal

if TYPE_CHECKING:
    from threadkeep.records.knowledge import Person

commands = typer.Typer(
    help="List persons, export one, merge two of them, or undo a merge.", no_args_is_help=True, rich_markup_mode=None
)

_Person = Annotated[str, typer.Argument(metavar="PERSON", help="Any id of the person, such as telegram:123.")]


@commands.command("list")
async def list_persons(
    text: Annotated[str | None, typer.Option(help="Only persons with this text in an id or a name.")] = None,
    limit: Limit = 50,
    cursor: CursorOption = None,
) -> None:
    """List persons, the last seen first."""
    from threadkeep.knowledge.views import PersonView
    from threadkeep.records.knowledge import PersonQuery

    query = PersonQuery(text, limit, read_cursor(cursor))

    async with opened_memory() as memory:
        persons, following = await memory.persons.page(query)
    next_cursor = write_cursor(following)
    if terminal.as_json:
        values = [PersonView.of(person) for person in persons]
        terminal.json({"persons": values, "next_cursor": next_cursor})
    elif not persons:
        terminal.note("No such person is known.")
    else:
        rows = [
            (
                person.id,
                ", ".join(person.names),
                ", ".join(person.aliases[1:]),
                relative(person.last_seen_at),
            )
            for person in persons
        ]
        terminal.table(["person", "names", "also", "last seen"], rows)
        terminal.more("threadkeep persons list --cursor", next_cursor)


@commands.command("merge")
async def merge_persons(
    person: _Person,
    into: Annotated[str, typer.Argument(metavar="INTO", help="Any id of the person that it is one with.")],
) -> None:
    """Merge two persons. No data moves, so the merge can be undone."""
    async with opened_memory() as memory:
        _show(await memory.persons.merge(person, into))


@commands.command("unmerge")
async def unmerge_person(person: _Person) -> None:
    """Undo the merge of an id into another. Facts remembered since then stay with the other."""
    async with opened_memory() as memory:
        _show(await memory.persons.unmerge(person))


@commands.command("export")
async def export_person(
    person: _Person,
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive to write, such as ann.zip.")],
) -> None:
    """Write what there is of a person into one archive: lines of JSON, and a page for people.

    Broken off, it goes on where it was when it is called again.
    """
    from threadkeep.memory.person_archive import archive, whole_lines

    partial = output.with_name(output.name + ".partial")
    if output.exists():
        raise WrongUse(f"{output} is there already; name another file.")
    partial.touch(mode=0o600)
    with partial.open("r+b") as file:
        after, count = whole_lines(file)
        async with opened_memory() as memory:
            with terminal.progress("Exporting", None) as reach:
                async for line in memory.export(user_id=person, after=after):
                    file.write(line.encode("utf-8", "surrogatepass"))
                    count += 1
                    reach(count, counted(count, "line"))
            now = memory.clock()
        file.seek(0)
        with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            async for part in archive(_read(file), now):
                target.write(part)
    partial.unlink()
    if terminal.as_json:
        terminal.json({"file": str(output), "lines": count})
    else:
        terminal.say(f"{counted(count, 'line')} are in {output}.")


async def _read(file: BinaryIO) -> AsyncIterator[str]:
    for line in file:
        yield line.decode("utf-8", "surrogatepass")


def _show(person: Person) -> None:
    from threadkeep.knowledge.views import PersonView

    if terminal.as_json:
        terminal.json(PersonView.of(person))
    else:
        terminal.say(f"{person.id} is known as {', '.join(person.aliases)}.")
