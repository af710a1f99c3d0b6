"""The rows that the turns of the bench leave in the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any, LiteralString

import httpx2
import psycopg
from psycopg.rows import dict_row

from bench.turn_history import RunRow, Stored
from threadkeep import MemoryOptions, Message, open_memory
from threadkeep.store.address import TranscriptLocation, parse_address

_RUNS: LiteralString = "SELECT run_id FROM chat_runs ORDER BY created_at"
_PAGE = 500
_OPEN: LiteralString = "SELECT run_id FROM chat_runs WHERE status IN ('queued', 'running', 'waiting')"


async def stored_rows(url: str, transcripts: TranscriptLocation) -> list[Stored]:
    """Return all messages of all sessions, superseded ones too."""
    found = []
    async with open_memory(url, options=MemoryOptions(background=False, transcripts=transcripts)) as memory:
        async for info in memory.sessions():
            before: int | None = None
            while True:
                page = await memory.session(info.session_id).page(before, limit=_PAGE, view="history")
                found += [_stored(info.session_id, message) for message in page.messages]
                before = page.next_before
                if before is None:
                    break
    return found


def _stored(session_id: str, message: Message) -> Stored:
    return Stored(
        session_id,
        message.seq or 0,
        message.id or "",
        message.role,
        message.content,
        message.status,
        message.author,
        message.answers,
        message.ordinal,
        message.superseded_at is not None,
    )


def open_runs(url: str) -> list[str]:
    """Return the runs that are not over."""
    return [row["run_id"] for row in _rows(url, _OPEN)]


async def run_rows(client: httpx2.AsyncClient, address: str, url: str) -> list[RunRow]:
    """Return all runs as a service shows them."""
    found = []
    for row in _rows(url, _RUNS):
        response = await client.get(f"{address}/api/v1/runs/{row['run_id']}")
        body = response.raise_for_status().json()
        values = [body[name] for name in ("run_id", "session_id", "message_id", "status", "text", "error")]
        found.append(RunRow(*values))
    return found


def _rows(url: str, statement: LiteralString) -> Sequence[dict[str, Any]]:
    address = parse_address(url)
    if address.path is not None:
        with closing(sqlite3.connect(address.path, timeout=30.0)) as file:
            file.row_factory = sqlite3.Row
            return [dict(row) for row in file.execute(statement)]
    assert address.dsn is not None
    with psycopg.connect(address.dsn, row_factory=dict_row) as server:
        return server.execute(statement).fetchall()
