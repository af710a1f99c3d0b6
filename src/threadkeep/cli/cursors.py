"""Where a list goes on, as a person copies it from one command into the next."""

from __future__ import annotations

from datetime import datetime

from threadkeep.cli.problems import WrongUse

type Cursor = tuple[datetime, str]


def write_cursor(cursor: Cursor) -> str:
    """The cursor as an argument of a command."""
    moment, key = cursor
    return f"{moment.isoformat()}~{key}"


def read_cursor(text: str) -> Cursor:
    """The cursor that `write_cursor` wrote.

    Raises:
        WrongUse: it did not.
    """
    moment, separator, key = text.partition("~")
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        found = None
    if not separator or found is None or found.tzinfo is None:
        raise WrongUse("This is no cursor; take the one that the last list gave.")
    return found, key
