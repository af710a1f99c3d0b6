"""`threadkeep pending`: turns that were not written to a database yet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threadkeep.cli.opening import command_settings
from threadkeep.cli.options import Confirmed
from threadkeep.cli.problems import NotDone
from threadkeep.cli.terminal import relative, terminal

commands = typer.Typer(help="The turns that no database has taken yet.", no_args_is_help=True, rich_markup_mode=None)


@commands.command("list")
def list_pending() -> None:
    """List the waiting turns, oldest first, including those of processes that have ended."""
    from threadkeep.history.waiting import unreadable_turns, waiting_files

    folder = _folder()
    found = [(file, entry) for file in waiting_files(folder) for entry in file.entries]
    damaged = unreadable_turns(folder)
    if terminal.as_json:
        entries = [
            {
                "entry": entry.entry_id,
                "session_id": entry.turn.session_id,
                "user_id": entry.turn.user_id,
                "messages": len(entry.turn.messages),
                "kept_at": entry.kept_at,
                "process": "running" if file.live else "gone",
                "error": entry.error,
                "file": str(file.path),
            }
            for file, entry in found
        ]
        unreadable = [
            {"entry": turn.entry_id, "bytes": turn.size, "found_at": turn.found_at, "file": str(turn.path)}
            for turn in damaged
        ]
        terminal.json({"entries": entries, "unreadable": unreadable})
        return
    if found:
        rows = [
            (
                entry.entry_id,
                entry.turn.session_id,
                str(len(entry.turn.messages)),
                relative(entry.kept_at),
                "running" if file.live else "gone",
                entry.error or "",
            )
            for file, entry in found
        ]
        terminal.table(["entry", "session", "messages", "since", "process", "last error"], rows, right=["messages"])
        terminal.note("The next start delivers what processes that are gone have left.")
    if damaged:
        lines = [(turn.entry_id, str(turn.size), relative(turn.found_at), str(turn.path)) for turn in damaged]
        terminal.table(["unreadable", "bytes", "since", "file"], lines, right=["bytes"])
        terminal.note("Repair the line in its file and start again, or drop it: threadkeep pending drop ENTRY")
    if not found and not damaged:
        terminal.note("Nothing waits to be written.")


@commands.command("drop")
def drop_pending(
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help="The entry, as the list names it.")],
    confirmed: Confirmed = False,
) -> None:
    """Drop a turn permanently. A turn that its process still holds cannot be dropped from outside."""
    from threadkeep.history.waiting import drop_unreadable, drop_waiting

    refusal = "Dropping loses the turn for good: say --yes to do it without being asked."
    terminal.confirm(f"Drop {entry}, for good?", refusal, confirmed=confirmed)
    dropped = drop_waiting(_folder(), entry)
    if dropped is None and not drop_unreadable(_folder(), entry):
        raise NotDone("No such entry waits; see what does with: threadkeep pending list")
    session_id = None if dropped is None else dropped.turn.session_id
    if terminal.as_json:
        terminal.json({"dropped": entry, "session_id": session_id})
    elif session_id is None:
        terminal.say(f"{entry} is dropped; it could not be read.")
    else:
        terminal.say(f"{entry} of session {session_id} is dropped.")


def _folder() -> Path:
    from threadkeep.history.pending import folder_of

    settings = command_settings()
    return folder_of(settings.database, settings.pending_dir)
