"""What the commands that prune share: they ask before they delete, and say how far they came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from threadkeep.cli.problems import WrongUse
from threadkeep.cli.progress import Reach, progress
from threadkeep.cli.terminal import Terminal
from threadkeep.errors import StoreError

MOST_SHOWN = 50
"""How much of a plan is listed."""


def ask_before_deleting(terminal: Terminal, what: str) -> None:
    """Have a person agree; where there is none, the command line has to.

    Raises:
        WrongUse: nobody can be asked.
        typer.Abort: they did not agree.
    """
    if not terminal.interactive:
        raise WrongUse("Deleting is for good: say --yes to do it without being asked, or --dry-run to see what goes.")
    typer.confirm(f"Delete {what}, for good?", abort=True, err=True)


@contextmanager
def round_of_pruning(terminal: Terminal, total: int, nothing: str) -> Iterator[Reach]:
    """Show how far the round in the block has come, also where it breaks off; `nothing` are the words for no step."""
    so_far = nothing
    try:
        with progress(terminal, "Pruning", total or None) as reach:

            def told(done: int, words: str) -> None:
                nonlocal so_far
                so_far = words
                reach(done, words)

            yield told
    except (StoreError, asyncio.CancelledError):
        terminal.note(f"Broken off: {so_far}. Prune again to go on; nothing is half done.")
        raise
