"""`python -m bench capacity`: the cost of a turn, and the predicted capacity beside the measured one."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
from httpx2 import AsyncClient, Limits

from bench.capacity_model import Deployment, UnitCosts, disk_bytes, predict, shared_rate, simulate
from bench.chaos_processes import PROCESSES
from bench.contenders import TurnTexts
from bench.postgres_server import postgres_server
from bench.texts import turns
from bench.threadkeep_memory import open_memory_url
from bench.turn_services import PRELOADED, Service

_CONNECTIONS = 32
_WARM_UP = 64
_SAMPLE_SESSIONS = 500
_SESSION_TURNS = 10
_SAMPLE_MESSAGES = 2 * _SAMPLE_SESSIONS * _SESSION_TURNS
_TRANSCRIPTS = ("chat_messages", "chat_sessions")
_SEARCH = ("chat_search",)
_SYNC_COMMITS = 20
_BEYOND = (Deployment(8, 8.0), Deployment(32, 16.0), Deployment(64, 32.0))


@dataclass(frozen=True)
class Load:
    """A measured load: turns, wall time, seconds of CPU, and commits of the database."""

    turns: int
    seconds: float
    services: float
    database: float
    client: float
    commits: float

    @property
    def busy_cores(self) -> float:
        """Return the average number of cores that services, database and client used."""
        return (self.services + self.database + self.client) / self.seconds


def main(arguments: Sequence[str]) -> int:
    """Measure, and print predictions beside measurements; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench capacity", description=__doc__)
    parser.add_argument("--turns", type=int, default=1_500, help="turns of each measurement")
    parser.add_argument("--messages", default="100000,2000000", help="stored messages, one measurement for each")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    given = parser.parse_args(arguments)
    PROCESSES.set_forkserver_preload(list(PRELOADED))
    found = asyncio.run(_measure(given.turns, [int(text) for text in given.messages.split(",")]))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2))
    return 0


async def _measure(turns_each: int, sizes: Sequence[int]) -> dict[str, object]:
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        async with postgres_server() as server:
            url = await server.database("capacity")
            await _fill_sample(url)
            costs, client = await _unit_costs(url, Path(folder), turns_each)
            print("unit costs:", json.dumps(asdict(costs)), flush=True)
            stored = _SAMPLE_MESSAGES
            for size in sizes:
                before = await _sizes(url)
                copies = max(0, (size - stored) // _SAMPLE_MESSAGES)
                await _copy_sample(url, copies, first=stored)
                added = copies * _SAMPLE_MESSAGES
                stored += added
                await server.tidy(url)
                grown = sum((await _sizes(url))[:2]) - sum(before[:2])
                rows.append(_row("disk", size, 0, disk_bytes(costs, added, with_runs=False), grown))
                for services in (1, 2):
                    load = await _load(url, Path(folder) / f"{size}-{services}", services, turns_each)
                    predicted = shared_rate(costs, load.busy_cores, client)
                    rows.append(_row("turns/s", size, services, predicted, load.turns / load.seconds))
    for deployment in _BEYOND:
        limit = predict(costs, deployment)
        result = simulate(costs, deployment, rate=0.8 * limit.turns_per_second)
        print(
            f"{deployment.services} services, {deployment.database_cores:g} cores of database: "
            f"{limit.turns_per_second:,.0f} turns/s ({limit.saturated} first); at 80 %: "
            f"p95 {result.p95_seconds * 1000:.0f} ms beside the model",
            flush=True,
        )
    print(f"10^9 messages: {disk_bytes(costs, 10**9) / 1e12:.2f} TB", flush=True)
    return {"costs": asdict(costs), "rows": rows}


def _row(what: str, messages: int, services: int, predicted: float, measured: float) -> dict[str, object]:
    off = predicted / measured - 1
    where = f"{messages:,} messages" + (f", {services} services" if services else "")
    print(f"{what}, {where}: predicted {predicted:,.1f}, measured {measured:,.1f} ({off:+.0%})", flush=True)
    return {"what": what, "messages": messages, "services": services, "predicted": predicted, "measured": measured}


async def _fill_sample(url: str) -> None:
    """Store 500 sessions with ten turns each, and index them."""
    texts = turns()
    async with open_memory_url(url) as memory:
        for number in range(_SAMPLE_SESSIONS):
            said = [TurnTexts(*next(texts)) for _ in range(_SESSION_TURNS)]
            await memory.fill(f"room:{number}", said)
        await memory.settle()


async def _copy_sample(url: str, copies: int, *, first: int) -> None:
    """Copy the sample `copies` times under other session ids, with its rows of the search index."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        for number in range(copies):
            prefix = f"copy:{first}:{number}:"
            for statement in _COPY:
                await connection.execute(statement, {"prefix": prefix})


_COPY = (
    """INSERT INTO chat_sessions (session_id, title, last_message, message_count, last_seq, last_user_seq, indexed_seq,
        created_at, updated_at)
    SELECT %(prefix)s || session_id, title, last_message, message_count, last_seq, last_user_seq, indexed_seq,
        created_at, updated_at
    FROM chat_sessions WHERE session_id LIKE 'room:%%'""",
    """INSERT INTO chat_messages (session_id, seq, id, role, content, tokens, created_at)
    SELECT %(prefix)s || session_id, seq, id, role, content, tokens, created_at
    FROM chat_messages WHERE session_id LIKE 'room:%%'""",
    """INSERT INTO chat_search (document, terms)
    SELECT m.document, f.terms
    FROM chat_messages o JOIN chat_search f ON f.document = o.document
    JOIN chat_messages m ON m.session_id = %(prefix)s || o.session_id AND m.seq = o.seq
    WHERE o.session_id LIKE 'room:%%'""",
)


async def _unit_costs(url: str, folder: Path, turns_each: int) -> tuple[UnitCosts, float]:
    """Return the costs of a turn with one service, and the CPU time of the bench's client for it."""
    transcripts, search, rest = await _sizes(url)
    load = await _load(url, folder / "unit", 1, turns_each)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("VACUUM")
    runs = (await _sizes(url))[2] - rest
    costs = UnitCosts(
        service_seconds=load.services / load.turns,
        database_seconds=load.database / load.turns,
        commits=load.commits / load.turns,
        sync_seconds=await _sync_seconds(url),
        message_bytes=transcripts / _SAMPLE_MESSAGES,
        search_bytes=search / _SAMPLE_MESSAGES,
        run_bytes=max(0, runs) / load.turns,
    )
    return costs, load.client / load.turns


async def _load(url: str, folder: Path, services: int, turns_each: int) -> Load:
    """Send concurrent turns to services; return the load that they caused, without that of the warm-up turns."""
    environment = {"THREADKEEP_DATABASE_URL": url, "THREADKEEP_MODEL": "demo"}
    running = [Service(f"service-{n}", "service", folder / str(n), environment) for n in range(services)]
    numbers = count(1)
    try:
        for service in running:
            await service.start()
        async with AsyncClient(timeout=120, limits=Limits(max_connections=_CONNECTIONS)) as client:

            async def lane(place: int, until: int) -> None:
                while (number := next(numbers)) <= until:
                    body = {"session_id": f"load:{folder.name}:{place}", "message": f"hello number {number}"}
                    address = running[place % services].address
                    (await client.post(f"{address}/api/v1/chat", json=body)).raise_for_status()

            async def send(until: int) -> None:
                await asyncio.gather(*(lane(place, until) for place in range(_CONNECTIONS)))

            await send(_WARM_UP)
            numbers = count(1)
            before, started = await _counters(url, running), time.perf_counter()
            await send(turns_each)
            seconds, after = time.perf_counter() - started, await _counters(url, running)
    finally:
        for service in running:
            await service.kill()
    spent = [end - begin for begin, end in zip(before, after, strict=True)]
    return Load(turns_each, seconds, *spent)


async def _counters(url: str, services: Sequence[Service]) -> tuple[float, float, float, float]:
    """Return seconds of CPU of the services, of the database and of this process, and the database's commits."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "SELECT pg_stat_force_next_flush(), xact_commit, pg_backend_pid() FROM pg_stat_database"
            " WHERE datname = current_database()"
        )
        [(_, commits, backend)] = await cursor.fetchall()
        server = psutil.Process(backend).parent()
    served = sum(sum(psutil.Process(service.pid).cpu_times()[:2]) for service in services)
    database = 0.0 if server is None else sum(server.cpu_times()[:4])
    if server is not None:
        database += sum(sum(child.cpu_times()[:2]) for child in server.children())
    own = psutil.Process().cpu_times()
    return served, database, own.user + own.system, float(commits)


async def _sizes(url: str) -> tuple[int, int, int]:
    """Return the bytes of the transcripts, of the search index, and of all other tables."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class"
            " WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
        )
        found: dict[str, int] = dict(await cursor.fetchall())
    transcripts, search = (sum(found[name] for name in names) for names in (_TRANSCRIPTS, _SEARCH))
    return transcripts, search, sum(found.values()) - transcripts - search


async def _sync_seconds(url: str) -> float:
    """Return the mean seconds of a durable commit of one row."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS capacity_syncs (number INTEGER)")
        started = time.perf_counter()
        for number in range(_SYNC_COMMITS):
            await connection.execute("INSERT INTO capacity_syncs VALUES (%s)", [number])
        return (time.perf_counter() - started) / _SYNC_COMMITS
