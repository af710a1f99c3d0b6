"""`threadkeep pending`: the turns that no database has taken yet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.options import AsJson, Confirmed
from threadkeep.cli.problems import NotDone, WrongUse
from threadkeep.cli.terminal import Terminal, harmless
from threadkeep.cli.wording import relative

if TYPE_CHECKING:
    from pathlib import Path

    from threadkeep.history.waiting import WaitingFile

commands = typer.Typer(help="The turns that no database has taken yet.", no_args_is_help=True, rich_markup_mode=None)


@commands.command("list")
def list_pending(as_json: AsJson = False) -> None:
    """List what waits, oldest first, also of processes that are gone."""
    from threadkeep.history.waiting import waiting_files

    files = waiting_files(_folder())
    terminal = Terminal(as_json=as_json)
    if as_json:
        terminal.json({"entries": _values(files)})
    elif not files:
        terminal.note("Nothing waits to be written.")
    else:
        now = datetime.now(UTC)
        rows = [
            (
                entry.entry_id,
                harmless(entry.turn.session_id),
                str(len(entry.turn.messages)),
                relative(entry.kept_at, now),
                "running" if file.live else "gone",
                entry.error or "",
            )
            for file in files
            for entry in file.entries
        ]
        terminal.table(["entry", "session", "messages", "since", "process", "last error"], rows, right=["messages"])
        terminal.note("The next start delivers what processes that are gone have left.")


@commands.command("drop")
def drop_pending(
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help="The entry, as the list names it.")],
    confirmed: Confirmed = False,
    as_json: AsJson = False,
) -> None:
    """Give a turn up for good. What its process still holds cannot be dropped from outside."""
    from threadkeep.history.waiting import drop_waiting

    terminal = Terminal(as_json=as_json)
    if not confirmed:
        if not terminal.interactive:
            raise WrongUse("Dropping loses the turn for good: say --yes to do it without being asked.")
        typer.confirm(f"Drop {entry}, for good?", abort=True, err=True)
    dropped = drop_waiting(_folder(), entry)
    if dropped is None:
        raise NotDone("No such entry waits; see what does with: threadkeep pending list")
    if as_json:
        terminal.json({"dropped": entry, "session_id": dropped.turn.session_id})
    else:
        terminal.say(f"{entry} of session {dropped.turn.session_id} is dropped.")


def _folder() -> Path:
    from threadkeep.history.pending import folder_of
    from threadkeep.settings import load_settings

    settings = load_settings()
    return folder_of(settings.database, settings.pending_dir)


def _values(files: Sequence[WaitingFile]) -> list[dict[str, object]]:
    return [
        {
            "entry": entry.entry_id,
            "session_id": entry.turn.session_id,
            "user_id": entry.turn.user_id,
            "messages": len(entry.turn.messages),
            "kept_at": entry.kept_at.isoformat(),
            "process": "running" if file.live else "gone",
            "error": entry.error,
            "file": str(file.path),
        }
        for file in files
        for entry in file.entries
    ]
