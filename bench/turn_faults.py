"""Faults in a random order: processes that are paused or killed, databases that stall, disks that are full."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, LiteralString

import psycopg

from bench.contenders import Engine
from bench.turn_services import DatabaseProxy, Kind, Outages, Service
from threadkeep.store.address import TranscriptLocation, parse_address

type FaultName = Literal["kill", "pause", "stall", "cut", "slow", "full"]

_FULL_BYTES = 4096
_SLOW_LOCK_SECONDS = 0.3
_LOOK_SECONDS = 0.3
_IN_TRANSACTION: LiteralString = """
SELECT count(*) FROM pg_stat_activity
WHERE state LIKE 'idle in transaction%' AND state_change < now() - interval '0.2 seconds'
"""


@dataclass(frozen=True)
class TurnPlan:
    """The number of questions, and of faults of each kind. Times are in seconds.

    Pauses are longer than the lease of a run (8 s), and some are longer than all other limits (10 s). An agent of the
    library is declared dead after 15 s.
    """

    engine: Engine
    seed: int
    turns: int = 200
    faults: Counter[FaultName] = field(default_factory=Counter)
    sessions: int = 12
    turns_of_session: int = 8
    pause_seconds: tuple[float, float] = (8.2, 12.0)
    outage_seconds: tuple[float, float] = (1.0, 11.0)
    between_faults: tuple[float, float] = (0.5, 2.0)
    model_seconds: tuple[float, float] = (0.05, 0.8)
    failing_calls: float = 0.01
    one_pending_folder: bool = True
    kind: Kind = "service"
    transcripts: TranscriptLocation = "tables"


class Faults:
    """The faults of a plan against two services."""

    def __init__(
        self,
        services: Sequence[Service],
        proxies: Sequence[DatabaseProxy],
        disk: Path | None,
        url: str,
        plan: TurnPlan,
        outages: Outages,
    ) -> None:
        self.outages = outages
        self._services = services
        self._proxies = proxies
        self._disk = disk
        self._url = url
        self._path = parse_address(url).path
        self._plan = plan
        self._chance = random.Random(f"{plan.seed}/faults")

    async def run(self, tell: Callable[[str], None]) -> None:
        """Cause every fault of the plan, one after the other, each in a random service."""
        left = [name for name, times in self._plan.faults.items() for _ in range(times)]
        self._chance.shuffle(left)
        for number, name in enumerate(left, start=1):
            await asyncio.sleep(self._chance.uniform(*self._plan.between_faults))
            index = self._chance.randrange(len(self._services))
            tell(f"fault {number} of {len(left)}: {name} {self._services[index].name}")
            await self._happen(name, index)

    async def _happen(self, name: FaultName, index: int) -> None:
        service = self._services[index]
        match name:
            case "kill":
                await service.kill()
                await service.start()
            case "pause":
                await self._pause(service)
            case "stall" | "cut" | "slow":
                await self._fail_database(name, index)
            case "full":
                await self._fill_disk(service)

    async def _pause(self, service: Service) -> None:
        with ExitStack() as stack:
            service.pause()
            stack.callback(service.wake)
            await asyncio.sleep(_LOOK_SECONDS)
            if await asyncio.to_thread(lock_is_held, self._url):
                # Record an outage of all services, because they cannot write rows that the paused one has locked.
                stack.enter_context(self.outages.during("paused in a transaction", *self._services))
            await asyncio.sleep(self._chance.uniform(*self._plan.pause_seconds) - _LOOK_SECONDS)

    async def _fail_database(self, name: FaultName, index: int) -> None:
        seconds = self._chance.uniform(*self._plan.outage_seconds)
        if self._path is not None:
            with self.outages.during(name, *self._services):
                await asyncio.to_thread(_hold_lock, self._path, seconds, slow=name == "slow")
            return
        proxy = self._proxies[index]
        with self.outages.during(name, self._services[index]):
            proxy.set("stalled" if name == "stall" else "cut" if name == "cut" else "slow")
            try:
                await asyncio.sleep(seconds)
            finally:
                proxy.set("open")

    async def _fill_disk(self, service: Service) -> None:
        seconds = self._chance.uniform(*self._plan.outage_seconds)
        with self.outages.during("full disk", *self._services):
            if self._disk is None:
                service.limit_files(_FULL_BYTES)
                await asyncio.sleep(seconds)
                service.limit_files(None)
                return
            ballast = self._disk / "ballast"
            try:
                await asyncio.to_thread(_fill, ballast)
                await asyncio.sleep(seconds)
            finally:
                ballast.unlink(missing_ok=True)


def lock_is_held(url: str) -> bool:
    """Return whether the write lock of a SQLite file, or a transaction on PostgreSQL, has been held for a while."""
    address = parse_address(url)
    if address.path is None:
        assert address.dsn is not None
        with psycopg.connect(address.dsn) as server:
            found = server.execute(_IN_TRANSACTION).fetchone()
        return found is not None and found[0] > 0
    with closing(sqlite3.connect(address.path, isolation_level=None, timeout=_LOOK_SECONDS)) as file:
        try:
            file.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        file.execute("ROLLBACK")
    return False


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as ballast:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    ballast.write(b"x" * size)
            except OSError:
                continue


def _hold_lock(path: Path, seconds: float, *, slow: bool) -> None:
    """Hold the write lock of a SQLite file for a time, or repeatedly for short moments during that time."""
    until = time.monotonic() + seconds
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30.0)) as file:
        while time.monotonic() < until:
            file.execute("BEGIN IMMEDIATE")
            time.sleep(min(_SLOW_LOCK_SECONDS if slow else seconds, max(until - time.monotonic(), 0)))
            file.execute("ROLLBACK")
            time.sleep(0.02)
