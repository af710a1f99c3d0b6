"""The space of finished turns, compared with their text and with checkpointed conversations of the same turns."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from uuid import uuid4

import psycopg

from bench.chat_texts import chats
from bench.contenders import Place, TurnTexts
from bench.lanes import Tell
from bench.langgraph_saver import GraphContender, open_postgres_saver, open_sqlite_saver
from bench.run_desk import RunDesk, open_desk
from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.runs.engine.lease import SCHEMA, engine_path
from threadkeep.runs.options import RunServiceOptions

TURNS_A_SESSION = 10
# On PostgreSQL the second part reuses the dead rows of the first; only the growth in the third part is lasting.
_PARTS_SAID = 3
_SESSIONS_AT_ONCE = 8
_POLL_SECONDS = 0.2

_LEFT = """
    SELECT (SELECT count(*) FROM checkpoints) + (SELECT count(*) FROM chat_sessions WHERE indexed_seq < last_seq)
"""

# The default is ten minutes. Rows that the engine deletes later must not be counted as growth.
_SOON_FORGOTTEN = EngineOptions(keep_finished_seconds=0.1)
_OFTEN = RunServiceOptions(upkeep_seconds=0.2)

_SEARCH = "search index"
_PARTS = {
    "transcripts": ("chat_messages", "chat_sessions"),
    _SEARCH: ("chat_search",),
    "records of model calls": ("chat_manifests", "chat_context_texts", "chat_run_manifests", "chat_run_texts"),
    "traces and usage": ("chat_run_events", "chat_run_traces", "chat_run_usage", "chat_run_tool_calls"),
    "runs": ("chat_run", "chat_workflows", "chat_active_sessions"),
    "checkpoints": ("checkpoint", "writes"),
    "engine": (SCHEMA,),
}
REST = "the rest"
PARTS = (*_PARTS, REST)


@dataclass(frozen=True)
class Growth:
    """The bytes by which databases grew with the turns, and the bytes of the turns' text."""

    turns: int
    text: int
    parts: Mapping[str, int]
    saver: int

    @property
    def ours(self) -> int:
        """The growth of Threadkeep's database in bytes."""
        return sum(self.parts.values())

    @property
    def times_text(self) -> float:
        """The growth of Threadkeep's database, as a multiple of the text."""
        return self.ours / self.text

    def text_for(self, times: float) -> float | None:
        """Return the bytes of text a turn at which the growth is `times` the text; None if no text is long enough.

        The text and its search index grow with the text; all other rows of a turn have the same size for any text.
        """
        growing = self.text + self.parts[_SEARCH]
        room = times - growing / self.text
        return (self.ours - growing) / self.turns / room if room > 0 else None


async def measure_growth(place: Place, saver_place: Place, turns: int, tell: Tell) -> Growth:
    """Return the growth of a database that already has turns and has reused the space of its dead rows."""
    asked = chats(seed=6)
    said: list[TurnTexts] = []
    sizes: list[Mapping[str, int]] = []
    for number in range(_PARTS_SAID):
        tell(f"growth, {turns:,} turns, part {number + 1} of {_PARTS_SAID}")
        async with open_desk(place.url, engine=_SOON_FORGOTTEN, options=_OFTEN) as desk:
            said = await _say(desk, [next(asked).user for _ in range(turns)])
            await _settle(desk, place)
        sizes.append(await asyncio.to_thread(_sizes, place))
    *_, before, after = sizes
    parts = {name: after.get(name, 0) - before.get(name, 0) for name in PARTS}
    text = sum(len(one.encode()) for turn in said for one in turn)
    return Growth(turns, text, parts, await _saver_growth(saver_place, said, tell))


async def _say(desk: RunDesk, questions: list[str]) -> list[TurnTexts]:
    """Execute sessions of several turns, a few sessions at a time, each turn after the previous one."""
    said: list[TurnTexts] = []
    sessions = [list(one) for one in batched(questions, TURNS_A_SESSION)]

    async def talk() -> None:
        while sessions:
            session_id = f"talk:{uuid4()}"
            said.extend(
                [TurnTexts(text, await desk.wait_for(session_id, text, str(uuid4()))) for text in sessions.pop()]
            )

    async with asyncio.TaskGroup() as group:
        for _ in range(_SESSIONS_AT_ONCE):
            group.create_task(talk())
    return said


async def _settle(desk: RunDesk, place: Place) -> None:
    """Wait for background work: the search index, records of model calls, checkpoints, the engine's records."""
    await desk.memory.manifests.flush()
    while await asyncio.to_thread(_left, place) > 0:
        await desk.memory.search("parcel", limit=1)
        await asyncio.sleep(_POLL_SECONDS)


def _left(place: Place) -> int:
    """Return the number of rows that background work must still index or remove."""
    if place.dsn is not None:
        with psycopg.connect(place.dsn) as connection:
            [(left,)] = connection.execute(_LEFT).fetchall()
            [(records,)] = connection.execute("SELECT to_regclass(%s)", [f"{SCHEMA}.workflow_status"]).fetchall()
            # The engine creates its tables with the first run that it executes; a run with a waiting caller needs none.
            statement = f"SELECT count(*) FROM {SCHEMA}.workflow_status" if records else "SELECT 0"
            [(attempts,)] = connection.execute(statement.encode()).fetchall()
            return int(left) + int(attempts)
    with closing(sqlite3.connect(place.file)) as file:
        [(left,)] = file.execute(_LEFT).fetchall()
    if not engine_path(place.file).exists():
        return int(left)
    with closing(sqlite3.connect(engine_path(place.file))) as engine:
        [(records,)] = engine.execute("SELECT count(*) FROM sqlite_master WHERE name = 'workflow_status'").fetchall()
        [(attempts,)] = engine.execute("SELECT count(*) FROM workflow_status" if records else "SELECT 0").fetchall()
        return int(left) + int(attempts)


async def _saver_growth(place: Place, said: list[TurnTexts], tell: Tell) -> int:
    """Return the growth of a database with checkpointed conversations of the same turns."""
    opening = open_postgres_saver(place) if place.dsn else open_sqlite_saver(place)
    tell("growth, the checkpointed conversations")
    async with opening as saver:
        await _converse(saver, said[:TURNS_A_SESSION])
        before = await asyncio.to_thread(_sizes, place)
        for some in batched(said, TURNS_A_SESSION):
            await _converse(saver, list(some))
    after = await asyncio.to_thread(_sizes, place)
    return sum(after.values()) - sum(before.values())


async def _converse(saver: GraphContender, turns: list[TurnTexts]) -> None:
    async with saver.conversation(str(uuid4())) as conversation:
        for turn in turns:
            await conversation.append(turn)


def _sizes(place: Place) -> Mapping[str, int]:
    """Return the bytes of each part of a database."""
    found: Counter[str] = Counter()
    for name, size in _tables_of_server(place.dsn) if place.dsn is not None else _tables_of_files(place.file):
        found[_part_of(name)] += size
    return found


def _tables_of_server(dsn: str) -> list[tuple[str, int]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM")
        return connection.execute(
            "SELECT CASE n.nspname WHEN 'public' THEN c.relname ELSE n.nspname END, pg_total_relation_size(c.oid)"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()


def _tables_of_files(file: Path) -> list[tuple[str, int]]:
    """Return the bytes of the pages in use: free pages are reused before the file grows."""
    engine = engine_path(file)
    found = _pages_of(file)
    return [*found, (SCHEMA, sum(size for _, size in _pages_of(engine)))] if engine.exists() else found


def _pages_of(file: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(
            "SELECT m.tbl_name, sum(d.pgsize) FROM dbstat d JOIN sqlite_master m ON m.name = d.name GROUP BY m.tbl_name"
        ).fetchall()


def _part_of(table: str) -> str:
    named = (name for name, prefixes in _PARTS.items() if table.startswith(prefixes))
    return next(named, REST)
