"""`python -m bench.graph_store`: CPU of transcripts in a LangGraph store, in tables, and of the bare store."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from random import Random
from statistics import quantiles
from string import Template
from typing import Any, Protocol

import psycopg
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from bench.contenders import ENGINES, Engine, Place, TurnTexts
from bench.machine import machine_line
from bench.plan import TAIL_MESSAGES
from bench.postgres_server import PostgresServer, postgres_server
from bench.sections import PAGE, put_section
from bench.tables import Sheet, markdown
from bench.texts import turns
from threadkeep import MemoryOptions, Message, Session, open_memory

_HISTORY = ("agent_chat_history",)
_STORED = 100


class Room(Protocol):
    """A conversation of a contender."""

    async def append(self, turn: TurnTexts) -> None:
        """Store a turn of two messages."""

    async def tail(self) -> Sequence[object]:
        """Return the newest messages."""


class SessionRoom:
    """A session of a memory."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def append(self, turn: TurnTexts) -> None:
        """Store a turn of two messages."""
        await self._session.append([Message("user", turn.user), Message("assistant", turn.assistant)])

    async def tail(self) -> Sequence[object]:
        """Return the newest messages."""
        return await self._session.tail(TAIL_MESSAGES)


class StoreRoom:
    """The items of one conversation, read and put by LangGraph's store with nothing around it."""

    def __init__(self, store: BaseStore, name: str) -> None:
        self._store = store
        self._name = name

    async def append(self, turn: TurnTexts) -> None:
        """Read the metadata and the chunk, and put both again with an item for each of two message ids."""
        metadata, chunk = await self._items()
        last = metadata.get("last_seq", 0)
        said = [
            {"seq": last + 1 + place, "role": role, "content": text, "id": f"{last + 1 + place:032x}", "tokens": 100}
            for place, (role, text) in enumerate(zip(("user", "assistant"), turn, strict=True))
        ]
        notes = [PutOp((f"{_HISTORY[0]}_ids", self._name), one["id"], {"seq": one["seq"]}) for one in said]
        messages = [*chunk.get("messages", ()), *said][-2 * _STORED :]
        await self._store.abatch(
            [
                PutOp(_HISTORY, f"{self._name}__meta__", {**metadata, "last_seq": last + 2}),
                PutOp(_HISTORY, f"{self._name}:chunk", {**chunk, "end_seq": last + 2, "messages": messages}),
                *notes,
            ]
        )

    async def tail(self) -> Sequence[object]:
        """Read metadata and chunk, and take the newest messages."""
        _, chunk = await self._items()
        return list(chunk["messages"][-TAIL_MESSAGES:])

    async def _items(self) -> list[dict[str, Any]]:
        keys = (f"{self._name}__meta__", f"{self._name}:chunk")
        found = await self._store.abatch([GetOp(_HISTORY, key) for key in keys])
        return [getattr(item, "value", {}) for item in found]


@asynccontextmanager
async def _memory(place: Place, location: str, names: Sequence[str]) -> AsyncIterator[list[Room]]:
    options = MemoryOptions(transcripts=location, background=False)  # type: ignore[arg-type]
    async with open_memory(place.url, options=options) as memory:
        yield [SessionRoom(memory.session(name)) for name in names]


@asynccontextmanager
async def _bare(place: Place, _: str, names: Sequence[str]) -> AsyncIterator[list[Room]]:
    opened = (
        AsyncSqliteStore.from_conn_string(str(place.file))
        if place.dsn is None
        else AsyncPostgresStore.from_conn_string(place.dsn, pool_config={"min_size": 1, "max_size": 5})
    )
    async with opened as store:
        await store.setup()
        yield [StoreRoom(store, name) for name in names]


_CONTENDERS = {"tables": _memory, "graph_store": _memory, "bare": _bare}
_TITLES = {
    "tables": "transcripts in the tables",
    "graph_store": "transcripts in a graph store",
    "bare": "LangGraph's store, the same items and nothing around it",
}
_VERBS = ("append", "tail")


class Meter:
    """The CPU of this process, and of the server's processes for one database, in milliseconds."""

    def __init__(self, dsn: str | None) -> None:
        self._dsn = dsn

    async def servers(self) -> list[Path]:
        """Return the files in which Linux counts the CPU time of the server's processes; none for SQLite."""
        if self._dsn is None:
            return []
        async with await psycopg.AsyncConnection.connect(self._dsn) as connection:
            cursor = await connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return [Path(f"/proc/{pid}/schedstat") for (pid,) in await cursor.fetchall()]

    @staticmethod
    def read(servers: Sequence[Path]) -> tuple[float, float]:
        """Return the milliseconds of CPU so far: of this process, and of the server's processes."""
        there = [path for path in servers if path.exists()]
        return time.process_time() * 1000, sum(int(path.read_text().split()[0]) for path in there) / 1e6


async def measure(engine: Engine, place: Path, server: PostgresServer | None, rounds: int) -> dict[str, Any]:
    """Return the CPU of each contender's append and tail (lower quartiles); all take turns in each round."""
    names = [f"room:{number}" for number in range(8)]
    async with AsyncExitStack() as stack:
        rooms: dict[str, list[Room]] = {}
        meters: dict[str, Meter] = {}
        for contender, opened in _CONTENDERS.items():
            (place / engine / contender).mkdir(parents=True)
            dsn = None if server is None else await server.database(contender)
            here = Place(place / engine / contender, dsn)
            meters[contender] = Meter(dsn)
            rooms[contender] = await stack.enter_async_context(opened(here, contender, names))
            for room in rooms[contender]:
                for turn in islice(turns(), _STORED // 2):
                    await room.append(turn)
        costs: dict[tuple[str, str], list[tuple[float, float]]] = {}
        texts, order = turns(), Random(engine)
        for _ in range(rounds):
            for contender in order.sample(list(_CONTENDERS), len(_CONTENDERS)):
                for verb in _VERBS:
                    servers = await meters[contender].servers()
                    before = Meter.read(servers)
                    for room in rooms[contender]:
                        await (room.append(next(texts)) if verb == "append" else room.tail())
                    after = Meter.read(servers)
                    spent = [(late - early) / len(names) for early, late in zip(before, after, strict=True)]
                    costs.setdefault((contender, verb), []).append((spent[0], spent[1]))
    return {
        f"{contender} {verb}": [quantiles(each, n=4)[0] for each in zip(*spent, strict=True)]
        for (contender, verb), spent in costs.items()
    }


async def _measured(engines: Sequence[Engine], rounds: int) -> dict[Engine, dict[str, Any]]:
    found: dict[Engine, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="threadkeep-bench-") as folder:
        for engine in engines:
            async with AsyncExitStack() as stack:
                server = await stack.enter_async_context(postgres_server()) if engine == "postgres" else None
                found[engine] = await measure(engine, Path(folder), server, rounds)
    return found


def sheet(found: Mapping[Engine, Mapping[str, Sequence[float]]]) -> Sheet:
    """Return the table of a run."""
    rows = []
    for contender, title in _TITLES.items():
        cells = []
        for costs in found.values():
            for verb in _VERBS:
                spent, own = sum(costs[f"{contender} {verb}"]), sum(costs[f"tables {verb}"])
                cells.append(f"{spent:.2f} ({spent / own:.2f} ×)")
        rows.append((title, *cells))
    header = ("milliseconds of CPU, and × tables", *(f"{engine}: {verb}" for engine in found for verb in _VERBS))
    return Sheet("Transcripts in a graph store", header, tuple(rows))


def main(arguments: Sequence[str], docs: Path) -> int:
    """Measure, print the table, and write it into the page; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.graph_store", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, help="on this engine only; the page stays")
    parser.add_argument("--rounds", type=int, default=60, help="at least 2, for quartiles")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON; the page stays")
    given = parser.parse_args(arguments)
    if given.rounds < 2:
        parser.error("--rounds must be at least 2, because quartiles are printed; raise it.")
    found = asyncio.run(_measured(ENGINES if given.engine is None else (given.engine,), given.rounds))
    table = markdown(sheet(found))
    print(json.dumps(found) if given.json else table)
    if given.engine is None and not given.json:
        page = Template((Path(__file__).parent / "graph_store.md").read_text(encoding="utf-8"))
        put_section(docs / PAGE, "graphstore", page.substitute(table=table, machine=machine_line(None)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).parent.parent / "docs"))
