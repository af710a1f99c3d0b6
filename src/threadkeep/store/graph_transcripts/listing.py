"""Filtering and sorting of sessions without a database. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from threadkeep.records import SessionInfo
from threadkeep.store.codec import clean_text
from threadkeep.store.transcripts import SessionQuery


def selected(infos: Iterable[SessionInfo], query: SessionQuery) -> list[SessionInfo]:
    """Return the sessions that match a query, newest activity first."""
    text = None if query.query is None else clean_text(query.query).lower()
    wanted = [
        info
        for info in infos
        if (query.user_id is None or info.user_id == query.user_id)
        and (query.active is None or info.active == query.active)
        and (query.cursor is None or (info.updated_at, info.session_id) < query.cursor)
        and (text is None or text in f"{info.title or ''} {info.last_message or ''} {info.session_id}".lower())
    ]
    wanted.sort(key=lambda info: (info.updated_at, info.session_id), reverse=True)
    return wanted[: query.limit]
