"""`threadkeep erase`: erases a person or a session from every store, and verifies receipts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import opened_memory, run
from threadkeep.cli.options import Confirmed
from threadkeep.cli.problems import NotDone, WrongUse
from threadkeep.cli.terminal import terminal

if TYPE_CHECKING:
    from threadkeep.history.erase import Verification
    from threadkeep.records.erasure import EraseReceipt

commands = typer.Typer(help="Erase a person or a session for good.", no_args_is_help=True, rich_markup_mode=None)

_REFUSAL = "Erasing cannot be undone: say --yes to do it without being asked, or --dry-run."

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would go, and write nothing.")]
Vacuum = Annotated[
    bool, typer.Option("--vacuum", help="Rewrite the tables: also what went long ago. Nobody can write meanwhile.")
]
ReceiptFile = Annotated[Path | None, typer.Option("--receipt", help="Write the receipt to this file.")]


@commands.command("user")
def erase_user(
    user_id: Annotated[str, typer.Argument(metavar="USER", help="The person, by any id.")],
    *,
    dry_run: DryRun = False,
    vacuum: Vacuum = False,
    receipt: ReceiptFile = None,
    confirmed: Confirmed = False,
) -> None:
    """Erase a person with all ids. Broken off, it can simply be begun again."""
    terminal.confirm("Erase this person, for good?", _REFUSAL, confirmed=confirmed or dry_run)
    _tell(run(_erase(user_id=user_id, dry_run=dry_run, vacuum=vacuum)), receipt)


@commands.command("session")
def erase_session(
    session_id: Annotated[str, typer.Argument(metavar="SESSION", help="The session.")],
    *,
    dry_run: DryRun = False,
    vacuum: Vacuum = False,
    receipt: ReceiptFile = None,
    confirmed: Confirmed = False,
) -> None:
    """Erase a session. Broken off, it can simply be begun again."""
    terminal.confirm("Erase this session, for good?", _REFUSAL, confirmed=confirmed or dry_run)
    _tell(run(_erase(session_id=session_id, dry_run=dry_run, vacuum=vacuum)), receipt)


@commands.command("verify")
def verify_receipt(receipt: Annotated[Path, typer.Argument(metavar="RECEIPT", help="The file of a receipt.")]) -> None:
    """Check that a receipt is of this database, and that the person or session is still gone."""
    from threadkeep.records.erasure import EraseReceipt

    try:
        values = json.loads(receipt.read_text(encoding="utf-8"))
        values.pop("complete", None)
        known = EraseReceipt.from_dict(values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise WrongUse(f"{receipt} is no receipt; name a file that `threadkeep erase … --receipt` wrote.") from None
    found = run(_verify(known))
    if terminal.as_json:
        terminal.json({"result": found})
    if found == "unsigned":
        raise NotDone("The receipt was not signed by this database, or it was changed; check --database.")
    if found == "there":
        raise NotDone("The receipt is genuine, and there is something of the person or session (again): erase it.")
    if not terminal.as_json:
        terminal.say("The receipt is genuine, and nothing of the person or session is there.")


async def _erase(
    *, session_id: str | None = None, user_id: str | None = None, dry_run: bool, vacuum: bool
) -> EraseReceipt:
    async with opened_memory() as memory:
        return await memory.erase(session_id=session_id, user_id=user_id, dry_run=dry_run, vacuum=vacuum)


async def _verify(receipt: EraseReceipt) -> Verification:
    async with opened_memory() as memory:
        return await memory.verify_erased(receipt)


def _tell(receipt: EraseReceipt, file: Path | None) -> None:
    values = {**receipt.to_dict(), "complete": receipt.complete}
    if file is not None:
        file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    if terminal.as_json:
        terminal.json(values)
    else:
        after = "now" if receipt.dry_run else "after"
        rows = [(store.name, str(store.before), str(store.after)) for store in receipt.stores]
        terminal.table(["store", "before", after], rows, right=["before", after])
        terminal.note(f"Not reached: {', '.join(receipt.not_reached)}.")
        if receipt.dry_run:
            terminal.note("Nothing was written.")
        elif receipt.complete:
            terminal.say("Erased.")
    if not receipt.dry_run and not receipt.complete:
        raise NotDone("Something was read back: a process still writes, or keeps pending turns. Repeat it.")
