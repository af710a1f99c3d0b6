"""`python -m bench turn-cost`: CPU of a chat turn of the service, beside LangChain's agent alone, in one process."""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import aiosqlite
from httpx2 import ASGITransport, AsyncClient
from langchain.agents import create_agent
from pydantic import SecretStr

from threadkeep.agent.models import make_model
from threadkeep.app import open_app
from threadkeep.settings import Settings
from threadkeep.store.sqlite_connection import ThreadConnection
from threadkeep.web.service import create_service

_ROUNDS = 5
_WARM_UP_TURNS = 3
_IDLE_SECONDS = 3.0
_COUNTED_TURNS = 20


def main(arguments: Sequence[str]) -> int:
    """Measure, and print one line of JSON; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench turn-cost", description=__doc__)
    parser.add_argument("--turns", type=int, default=400, help="turns of each round")
    parser.add_argument("--connections", type=int, default=16, help="sessions that talk at the same time")
    parser.add_argument("--database-url", default="", help="a PostgreSQL; without it a new SQLite file")
    given = parser.parse_args(arguments)
    print(json.dumps(asyncio.run(_measured(given.turns, given.connections, given.database_url))))
    return 0


async def _measured(turns: int, connections: int, database_url: str) -> dict[str, float]:
    agent = create_agent(make_model("demo"), [])

    async def ask_agent(_: int, number: int) -> None:
        await agent.ainvoke({"messages": [("user", f"hello number {number}")]})

    with tempfile.TemporaryDirectory() as folder:
        url = database_url or f"sqlite:///{folder}/bench.db"
        settings = Settings(database_url=SecretStr(url), pending_dir=Path(folder) / "pending", log_level="WARNING")
        async with (
            open_app(settings) as app,
            AsyncClient(transport=ASGITransport(app=create_service(app)), base_url="http://127.0.0.1:1") as client,
        ):

            async def ask_service(lane: int, number: int) -> None:
                body = {"message": f"hello number {number}", "session_id": f"room:{lane}"}
                (await client.post("/api/v1/chat", json=body, timeout=60)).raise_for_status()

            await _cost(ask_service, connections * _WARM_UP_TURNS, connections)
            rounds = [
                (await _cost(ask_agent, turns, 1), await _cost(ask_service, turns, connections)) for _ in range(_ROUNDS)
            ]
            began = _cpu_seconds()
            await asyncio.sleep(_IDLE_SECONDS)
            idle = (_cpu_seconds() - began) / _IDLE_SECONDS
            threads = threading.active_count()
            with _counted() as counted:
                await _cost(ask_service, _COUNTED_TURNS, 1)
    agent_ms, service_ms = (median(each[place][0] for each in rounds) for place in (0, 1))
    return {
        "agent_cpu_ms": round(agent_ms, 3),
        "turn_cpu_ms": round(service_ms, 3),
        "ratio": round(service_ms / agent_ms, 2),
        "turns_per_second": round(median(each[1][1] for each in rounds), 1),
        "idle_percent_of_a_core": round(idle * 100, 2),
        "threads": threads,
        **{name: round(count / _COUNTED_TURNS, 1) for name, count in counted.items()},
    }


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Count the work of SQLite inside the block: calls of the connections' threads, statements and commits."""
    seen: Counter[str] = Counter()

    def visit(_: object, *__: object) -> None:
        seen["sqlite_visits"] += 1

    def statement(sql: str, *_: object) -> None:
        seen["sqlite_statements"] += bool(sql)
        seen["sqlite_commits"] += sql == "COMMIT"

    with (
        patch.object(aiosqlite.Connection, "_execute", _noting(aiosqlite.Connection._execute, visit)),  # noqa: SLF001
        patch.object(ThreadConnection, "execute", _noting(ThreadConnection.execute, statement)),
        patch.object(ThreadConnection, "executemany", _noting(ThreadConnection.executemany, statement)),
    ):
        yield seen


def _noting(verb: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    """Return a method that notes its arguments and calls another."""

    def called(self: object, *given: Any, **named: Any) -> Any:
        note(*given)
        return verb(self, *given, **named)

    return called


async def _cost(ask: Callable[[int, int], Awaitable[None]], turns: int, connections: int) -> tuple[float, float]:
    """Return the CPU of a turn in milliseconds, and turns a second."""

    async def lane(number: int) -> None:
        for turn in range(turns // connections):
            await ask(number, turn)

    cpu, wall = _cpu_seconds(), time.perf_counter()
    await asyncio.gather(*map(lane, range(connections)))
    done = turns // connections * connections
    return (_cpu_seconds() - cpu) / done * 1000, done / (time.perf_counter() - wall)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
