"""`threadkeep persons` and `erase`: list, export, merge and erase persons, and erase sessions."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from threadkeep.cli.shared import (
    Confirmed,
    CursorOption,
    DryRun,
    Limit,
    check_not_database,
    new_file,
    opened_memory,
    read_cursor,
    write_cursor,
)
from threadkeep.cli.terminal import NotDone, WrongUse, counted, ended_by_sigterm, terminal
from threadkeep.errors import InvalidInput, InvalidSettings
from threadkeep.records.erasure import EraseReceipt
from threadkeep.records.knowledge import Person, PersonQuery
from threadkeep.store.private_files import locked_part

_Person = Annotated[str, typer.Argument(metavar="PERSON", help="Any id of the person, such as telegram:123.")]

_REFUSAL = "Erasing cannot be undone; add --yes to do it without confirmation, or --dry-run."
Vacuum = Annotated[
    bool, typer.Option("--vacuum", help="Rewrite the tables, to remove earlier deletions too. Writes wait meanwhile.")
]
ReceiptFile = Annotated[Path | None, typer.Option("--receipt", help="Write the receipt to this file.")]


async def list_persons(
    text: Annotated[str | None, typer.Option(help="Only persons with this text in an id or a name.")] = None,
    limit: Limit = 50,
    cursor: CursorOption = None,
) -> None:
    """List persons, most recently seen first."""
    query = PersonQuery(text, limit, read_cursor(cursor))

    async with opened_memory() as memory:
        persons, following = await memory.persons.page(query)
    terminal.listing(
        {"persons": persons, "next_cursor": write_cursor(following)},
        ("person", "names", "also", "last seen"),
        [(one.id, ", ".join(one.names), ", ".join(one.aliases[1:]), one.last_seen_at) for one in persons],
        nothing="There are no such persons." if text or cursor else "There are no persons yet.",
    )


async def merge_persons(
    person: _Person,
    into: Annotated[str, typer.Argument(metavar="INTO", help="Any id of the other person.")],
) -> None:
    """Merge two persons. No data moves, so the merge can be undone."""
    async with opened_memory() as memory:
        _show(await memory.persons.merge(person, into))


async def unmerge_person(person: _Person) -> None:
    """Undo the merge of a person into another. Facts remembered after the merge stay with the other person."""
    async with opened_memory() as memory:
        _show(await memory.persons.unmerge(person))


async def export_person(
    person: _Person,
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive to write, such as ann.zip.")],
) -> None:
    """Write all data of a person into one archive: lines of JSON, and a page to read.

    Repeat an interrupted export to continue it.
    """
    from threadkeep.memory.person_archive import archive, whole_lines

    if output.exists():
        raise WrongUse(f"{output} exists already; name another file.")
    partial = output.with_name(output.name + ".partial")
    with ended_by_sigterm(), locked_part(partial) as descriptor, os.fdopen(descriptor, "r+b", closefd=False) as file:
        after, count = whole_lines(file)
        again = f" are in {partial}. Repeat the command to continue, or delete that file."
        with terminal.progress("Exporting", None, so_far=counted(count, "line") if count else "", again=again) as reach:
            try:
                async with opened_memory() as memory:
                    async for line in memory.export(user_id=person, after=after):
                        file.write(line.encode("utf-8", "surrogatepass"))
                        count += 1
                        reach(count, counted(count, "line"))
                    now = memory.clock()
            except InvalidInput as error:
                if after is None or isinstance(error, InvalidSettings):
                    raise
                sentence = f"{partial} cannot be continued; delete it, or name another file. {error}"
                raise WrongUse(sentence) from None
            finally:
                if not count:
                    partial.unlink()
            file.seek(0)
            first = [json.loads(line) for line in islice(file, 4)]  # the export of an unknown person has three lines
            if [line["type"] for line in first] == ["person", "position", "end"] and "id" not in first[0]:
                partial.unlink()
                raise NotDone(f"There are no data of {person!r}; check the id with: threadkeep persons list")
            file.seek(0)
            with new_file(output) as target:
                async for part in archive(_read(file), now):
                    target.write(part)
        partial.unlink()
    terminal.result({"file": str(output), "lines": count}, f"{counted(count, 'line')} are in {output}.")


async def _read(file: BinaryIO) -> AsyncIterator[str]:
    for line in file:
        yield line.decode("utf-8", "surrogatepass")


def _show(person: Person) -> None:
    terminal.result(person, f"{person.id} is known as {', '.join(person.aliases)}.")


async def erase_user(
    user_id: Annotated[str, typer.Argument(metavar="USER", help="The person, by any id.")],
    *,
    dry_run: DryRun = False,
    vacuum: Vacuum = False,
    receipt: ReceiptFile = None,
    confirmed: Confirmed = False,
) -> None:
    """Erase all data of a person, under every id. Repeat an interrupted command to continue it."""
    _confirm("person", receipt, confirmed=confirmed or dry_run)
    async with opened_memory() as memory:
        _show_receipt(await memory.erase(user_id=user_id, dry_run=dry_run, vacuum=vacuum), receipt)


async def erase_session(
    session_id: Annotated[str, typer.Argument(metavar="SESSION", help="The session.")],
    *,
    dry_run: DryRun = False,
    vacuum: Vacuum = False,
    receipt: ReceiptFile = None,
    confirmed: Confirmed = False,
) -> None:
    """Erase a session. Repeat an interrupted command to continue it."""
    _confirm("session", receipt, confirmed=confirmed or dry_run)
    async with opened_memory() as memory:
        _show_receipt(await memory.erase(session_id=session_id, dry_run=dry_run, vacuum=vacuum), receipt)


async def verify_receipt(
    receipt: Annotated[Path, typer.Argument(metavar="RECEIPT", help="The file of a receipt.")],
) -> None:
    """Check that this database signed a receipt, and that the database has no data of the person or session."""
    known = _read_receipt(receipt)
    async with opened_memory() as memory:
        found = await memory.verify_erased(known)
    if terminal.as_json:
        terminal.json({"result": found})
    if found == "unsigned":
        raise NotDone("The receipt was not signed by this database, or it was changed; check --database.")
    if found == "there":
        raise NotDone("The receipt is genuine, but there is data of the person or session (again); erase it.")
    if not terminal.as_json:
        terminal.say("The receipt is genuine, and there is no data of the person or session.")


def _read_receipt(file: Path) -> EraseReceipt:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        values.pop("complete", None)
        return EraseReceipt.from_dict(values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise WrongUse(f"{file} is not a receipt of `threadkeep erase`; name another file.") from None


def _confirm(what: str, receipt: Path | None, *, confirmed: bool) -> None:
    """Ask for confirmation. First check that `receipt` can be written, and is not the receipt of a complete erase."""
    if receipt is not None:
        check_not_database(receipt)
        is_new = not receipt.exists()
        try:
            receipt.open("a").close()
        except OSError as error:
            sentence = f"{receipt} cannot be written ({error.strerror}), so nothing was erased; name another file."
            raise WrongUse(sentence) from None
        if is_new:
            receipt.unlink()
        elif receipt.is_file() and receipt.stat().st_size and _read_receipt(receipt).complete:
            raise WrongUse(f"{receipt} is the receipt of a complete erase, so nothing was erased; name another file.")
    terminal.confirm(f"Erase this {what} permanently?", _REFUSAL, confirmed=confirmed)


def _show_receipt(receipt: EraseReceipt, file: Path | None) -> None:
    values = {**receipt.to_dict(), "complete": receipt.complete}
    problem = None
    if file is not None:
        try:
            file.touch(mode=0o600)
            file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            problem = f"The receipt could not be written to {file} ({error.strerror}); save the one printed here."
    if terminal.as_json or problem is not None:
        terminal.json(values)
    else:
        after = "now" if receipt.dry_run else "after"
        rows = [(store.name, store.before, store.after) for store in receipt.stores]
        if rows:
            terminal.table(["store", "before", after], rows, right=["before", after])
        else:
            terminal.say("No data was found; check the id.")
        terminal.note(f"Not reached: {'; '.join(receipt.not_reached)}.")
        if receipt.dry_run:
            terminal.note("Nothing was written.")
        elif receipt.complete and rows:
            terminal.say("Erased.")
    if problem is not None:
        raise NotDone(problem)
    if not receipt.dry_run and not receipt.complete:
        names = [store.name for store in receipt.stores if store.after]
        cause = "A process still writes, or has pending turns. Repeat the command."
        if "groups in Graphiti" in names:
            cause = "Find out with `threadkeep knowledge test --smoke` why Graphiti deletes nothing; then repeat this."
        raise NotDone(f"Some data remains: {', '.join(names)}. {cause}")
