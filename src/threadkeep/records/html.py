"""HTML tables of sessions and windows for notebooks; all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from threadkeep.records.messages import Message

_CELL = 'style="text-align: left; vertical-align: top; white-space: pre-wrap"'
_MOST_CHARACTERS = 2_000


def session_html(session_id: str, user_id: str | None, messages: Iterable[Message] = (), *, note: str = "") -> str:
    """Return a session as HTML: its owner, some messages, and a note below them."""
    owner = "" if user_id is None else f", user <code>{escape(user_id)}</code>"
    return messages_html(f"Session <code>{escape(session_id)}</code>{owner}", messages, note=note)


def messages_html(title: str, messages: Iterable[Message], *, note: str = "") -> str:
    """Return messages as an HTML table below `title`, which is HTML, and above `note`, which is plain text."""
    rows = "".join(_row(message) for message in messages)
    table = f"<table><thead><tr><th>seq</th><th>role</th><th>content</th></tr></thead><tbody>{rows}</tbody></table>"
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<div><p>{title}</p>{table if rows else ''}{below}</div>"


def _row(message: Message) -> str:
    content = message.content
    shown = content if len(content) <= _MOST_CHARACTERS else f"{content[:_MOST_CHARACTERS]}…"
    speaker = message.role if message.author is None else f"{message.role} {message.author}"
    status = "" if message.status == "complete" else f" ({message.status})"
    cells = ("" if message.seq is None else str(message.seq), speaker + status, shown)
    return "<tr>" + "".join(f'<td dir="auto" {_CELL}>{escape(cell)}</td>' for cell in cells) + "</tr>"
