"""Tests of the engine in one process: it executes runs, reports errors, and leaves unfinished runs to others."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.databases import execute, query
from tests.limits import HANG_SECONDS
from tests.servers import Postgres
from threadkeep import InvalidInput, StoreClosed, StoreUnavailable
from threadkeep.runs.engine.engine import Engine, EngineOptions, LocalEngine, Stop
from threadkeep.runs.engine.lease import _LOCK_NUMBER, Connections
from threadkeep.runs.engine.opening import open_engine
from threadkeep.store.address import parse_address

QUICK = EngineOptions(poll_seconds=0.05, close_seconds=1.0)

type Work = Callable[["Runs", str], Awaitable[None]]


class Runs:
    """The runs of a test: `work` is executed for each, and their begins and ends are counted."""

    def __init__(self, work: Work | None = None) -> None:
        self.work = work
        self.engine: Engine
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.troubles: list[str] = []
        self.changed = asyncio.Condition()

    async def execute(self, run_id: str) -> None:
        """Count a run, and execute the work of the test."""
        self.begun[run_id] += 1
        await self._tell()
        if self.work is not None:
            await self.work(self, run_id)
        self.ended[run_id] += 1
        await self._tell()

    def troubled(self, error: str) -> None:
        """Record the name of an error."""
        self.troubles.append(error)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the runs is true."""
        async with asyncio.timeout(HANG_SECONDS), self.changed:
            await self.changed.wait_for(condition)

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()


@asynccontextmanager
async def engine_of(url: str, runs: Runs, options: EngineOptions = QUICK) -> AsyncIterator[Engine]:
    """Open an engine that executes the runs of a test, and close it after the block."""
    async with open_engine(parse_address(url), runs.execute, options, troubled=runs.troubled) as engine:
        runs.engine = engine
        yield engine
    assert runs.troubles == []


async def eventually(condition: Callable[[], bool]) -> None:
    """Poll until a condition is true that no run signals."""
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come true")


async def test_a_run_is_executed(database_url: str) -> None:
    runs = Runs()
    async with engine_of(database_url, runs) as engine:
        await engine.start("started")
        await engine.enqueue("enqueued")
        await runs.until(lambda: runs.ended.keys() == {"started", "enqueued"})
    assert runs.begun == {"started": 1, "enqueued": 1}


async def test_a_run_that_is_started_again_is_executed_once_more(database_url: str) -> None:
    """A run that is started during its execution is executed again afterwards, never twice at a time."""
    at_work, most, gate = 0, 0, asyncio.Event()

    async def alone(runs: Runs, _run_id: str) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await gate.wait()
        at_work -= 1

    runs = Runs(alone)
    async with engine_of(database_url, runs) as engine:
        await engine.start("run/with:odd%chars")
        await engine.start("run/with:odd%chars")
        await engine.enqueue("run/with:odd%chars")
        gate.set()
        await runs.until(lambda: runs.ended.total() == 3)
        await engine.start("run/with:odd%chars")
        await runs.until(lambda: runs.ended.total() == 4)
    assert most == 1


async def test_a_run_that_raises_is_reported(database_url: str) -> None:
    """The engine reports the name of the error and continues. It does not retry the run itself."""

    async def failing(_runs: Runs, run_id: str) -> None:
        if run_id == "fails":
            raise ValueError("what people said")

    runs = Runs(failing)
    async with engine_of(database_url, runs) as engine:
        await engine.start("fails")
        await engine.enqueue("fails")
        await eventually(lambda: runs.troubles == ["ValueError", "ValueError"])
        await engine.enqueue("succeeds")
        await runs.until(lambda: runs.ended["succeeds"] == 1)
        runs.troubles.clear()
    assert runs.begun == {"fails": 2, "succeeds": 1}


async def test_a_closing_engine_leaves_the_rest(shared_url: str) -> None:
    """A closing engine lets runs end within its limit, and stops the others as `closing`.

    The next engine executes them.
    """
    seen: list[Stop | None] = []
    gate = asyncio.Event()

    async def working(runs: Runs, run_id: str) -> None:
        if run_id == "quick":
            await gate.wait()
            return
        assert (runs.engine.holds(run_id), runs.engine.stopping(run_id)) == (True, None)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(runs.engine.stopping(run_id))

    runs = Runs(working)
    async with engine_of(shared_url, runs) as engine:
        for run_id in ("quick", "slow"):
            await engine.start(run_id)
        await runs.until(lambda: runs.begun.total() == 2)
        closing = asyncio.create_task(engine.close(0.3))
        await asyncio.sleep(0)
        gate.set()
        await closing
        with pytest.raises(StoreClosed):
            await engine.start("late")
    assert (runs.ended["quick"], seen, engine.holds("slow")) == (1, ["closing"], False)
    again = Runs()
    async with engine_of(shared_url, again):
        await again.until(lambda: again.ended["slow"] == 1)
    assert again.begun == {"slow": 1}


async def test_a_process_that_was_taken_for_dead_stops_its_run(postgres_url: str) -> None:
    """A process whose row was deleted stops its run as `lost`.

    The run is executed again, here by the same process under another name.
    """
    seen: list[Stop | None] = []

    async def first_held(runs: Runs, run_id: str) -> None:
        if runs.begun[run_id] == 1:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append(runs.engine.stopping(run_id))

    runs = Runs(first_held)
    options = EngineOptions(poll_seconds=0.05, dead_seconds=2.0)
    async with engine_of(postgres_url, runs, options) as engine:
        await engine.enqueue("run")
        await runs.until(lambda: runs.begun["run"] == 1)
        execute(postgres_url, "DELETE FROM threadkeep_engine.processes")
        await eventually(lambda: seen == ["lost"])
        await engine.ready()
        async with asyncio.timeout(HANG_SECONDS):
            while not (left := await engine.take_from_dead()):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.05)
        assert left == {"run"}
        await engine.enqueue("run")
        await runs.until(lambda: runs.ended["run"] == 1)
    assert query(postgres_url, "SELECT count(*) FROM threadkeep_engine.processes") == [(0,)]


async def test_processes_that_start_at_once_on_a_new_database_all_register(postgres_url: str) -> None:
    """One of them creates the table of processes."""
    address, options, count = parse_address(postgres_url), EngineOptions(works=False), 4
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with AsyncExitStack() as stack:
        opening = [open_engine(address, Runs().execute, options, troubled=print) for _ in range(count)]
        engines = [await stack.enter_async_context(one) for one in opening]
        with psycopg.connect(postgres_url, autocommit=True) as blocking:
            blocking.execute("SELECT pg_advisory_lock(%s)", [_LOCK_NUMBER])
            ready = asyncio.gather(*(engine.ready() for engine in engines))
            await eventually(lambda: len(query(postgres_url, waiting)) == count)
        await ready
        assert query(postgres_url, "SELECT count(*) FROM threadkeep_engine.processes") == [(count,)]


async def test_a_process_that_was_taken_for_dead_registers_again(postgres_server: Postgres, postgres_url: str) -> None:
    administrating, name = postgres_server.url("postgres"), str(query(postgres_url, "SELECT current_database()")[0][0])
    runs = Runs()
    options = EngineOptions(poll_seconds=0.05, dead_seconds=2.0)
    async with open_engine(parse_address(postgres_url), runs.execute, options, troubled=runs.troubled) as engine:
        await engine.start("before")
        await runs.until(lambda: runs.ended["before"] == 1)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            execute(administrating, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            try:
                connection.execute("DELETE FROM threadkeep_engine.processes")
                await eventually(lambda: "StoreUnavailable" in runs.troubles)
            finally:
                execute(administrating, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
            await eventually(lambda: bool(connection.execute("SELECT 1 FROM threadkeep_engine.processes").fetchall()))


async def test_records_of_finished_runs_are_deleted(sqlite_url: str, tmp_path: Path) -> None:
    runs = Runs()

    def forgotten() -> bool:
        return query(f"sqlite:///{tmp_path}/threadkeep.db.runs", "SELECT count(*) FROM workflow_status") == [(0,)]

    options = EngineOptions(poll_seconds=0.05, keep_finished_seconds=0.2)
    async with engine_of(sqlite_url, runs, options) as engine:
        for number in range(5):
            await engine.enqueue(f"run{number}")
        await runs.until(lambda: runs.ended.total() == 5)
        await eventually(forgotten)


async def test_old_records_of_finished_runs_are_deleted_at_the_start(sqlite_url: str, tmp_path: Path) -> None:
    runs, file = Runs(), f"sqlite:///{tmp_path}/threadkeep.db.runs"
    async with engine_of(sqlite_url, runs) as engine:
        await engine.enqueue("run")
        await runs.until(lambda: runs.ended.total() == 1)
    execute(file, "UPDATE workflow_status SET completed_at = 1")
    async with engine_of(sqlite_url, runs):
        await eventually(lambda: query(file, "SELECT count(*) FROM workflow_status") == [(0,)])


async def test_the_queue_is_stopped_when_nothing_is_recorded_in_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle process stops DBOS, and launches it again for the next run."""
    monkeypatch.setattr("threadkeep.runs.engine.dbos_engine._POLL_SECONDS", 0.05)
    runs, options = Runs(), EngineOptions(poll_seconds=0.05, keep_finished_seconds=0.2)

    def is_stopped() -> bool:
        return "threadkeep-runs" not in {thread.name for thread in threading.enumerate()}

    async with engine_of(database_url, runs, options) as engine:
        for times in (1, 2):
            await engine.enqueue("run")
            assert not is_stopped()
            await runs.until(lambda times=times: runs.ended["run"] == times)  # type: ignore[misc]
            await eventually(is_stopped)
        await engine.start("started")
        await runs.until(lambda: runs.ended["started"] == 1)
        await asyncio.gather(*(engine.enqueue(f"run{number}") for number in range(20)))
        await runs.until(lambda: runs.ended.total() == 23)
    assert runs.begun.total() == 23


async def test_files_of_dead_processes_are_removed(sqlite_url: str, tmp_path: Path) -> None:
    stray = tmp_path / "threadkeep.db.runs.0123456789abcdef.lock"
    stray.touch()
    async with engine_of(sqlite_url, Runs()):
        await eventually(lambda: stray.name not in _names(tmp_path))


async def test_one_engine_at_a_time_takes_from_a_queue_in_a_process(sqlite_url: str, tmp_path: Path) -> None:
    """A second engine in a process refuses to enqueue a run, but executes the runs that it starts itself."""
    other = f"sqlite:///{tmp_path}/other.db"
    runs = Runs()
    async with engine_of(sqlite_url, Runs()) as first:
        await first.enqueue("run")
        async with engine_of(other, runs) as second:
            with pytest.raises(InvalidInput, match="another process"):
                await second.enqueue("run")
            await second.start("run")
            await runs.until(lambda: runs.ended["run"] == 1)
    assert "other.db.runs" not in _names(tmp_path)
    async with engine_of(other, runs) as second:
        await second.enqueue("run")
        await runs.until(lambda: runs.ended["run"] == 2)
    assert [name for name in _names(tmp_path) if name.endswith(".lock")] == []


@pytest.mark.slow
async def test_a_worker_executes_a_run_that_another_process_enqueued(shared_url: str) -> None:
    """A worker without DBOS finds a run that another process enqueued, and launches DBOS for it."""
    runs = Runs()
    async with engine_of(shared_url, runs) as engine:
        threads = {thread.name for thread in threading.enumerate()}
        assert "threadkeep-runs" not in threads
        await asyncio.to_thread(_enqueue_elsewhere, shared_url)
        await runs.until(lambda: runs.ended["run"] == 1)
        await eventually(lambda: not engine.holds("run"))


async def test_an_engine_leaves_no_threads(sqlite_url: str) -> None:
    """A closed engine leaves no thread, and does not replace the executor of the event loop."""
    before = set(threading.enumerate())
    runs = Runs()
    async with engine_of(sqlite_url, runs) as engine:
        await engine.start("run")
        await runs.until(lambda: runs.ended["run"] == 1)
        name = await asyncio.to_thread(lambda: threading.current_thread().name)
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert name.startswith("asyncio_")
    assert {each for each in left if not each.startswith("asyncio_")} == set()


async def test_a_role_that_may_not_create_schemas_uses_an_existing_one(postgres_url: str) -> None:
    """An engine created the schema while its role had the right."""
    role, database = "pg_read_all_settings", query(postgres_url, "SELECT current_database()")[0][0]
    url = f"{postgres_url}&options=-crole%3D{role}"
    with pytest.raises(StoreUnavailable, match="`threadkeep doctor` names the rights"):
        await _open_and_close(engine_of(url, Runs()))
    execute(postgres_url, f"GRANT CREATE ON DATABASE {database} TO {role}")
    await _open_and_close(engine_of(url, Runs()))
    execute(postgres_url, f"REVOKE CREATE ON DATABASE {database} FROM {role}")
    runs = Runs()
    async with engine_of(url, runs) as engine:
        await engine.enqueue("run")
        await runs.until(lambda: runs.ended["run"] == 1)


async def test_nothing_is_printed(
    postgres_url: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The engine logs and prints no address, no password and no error text, even at debug level."""

    async def failing(_runs: Runs, _run_id: str) -> None:
        raise ValueError("what people said")

    caplog.set_level(logging.DEBUG)
    address = postgres_url.replace("postgres:@", "postgres:secret@")
    assert "secret" in address
    runs = Runs(failing)
    async with engine_of(address, runs) as engine:
        await engine.enqueue("run")
        await eventually(lambda: runs.troubles == ["ValueError"])
        runs.troubles.clear()
    written = caplog.text + "".join(capfd.readouterr())
    words = ("secret", "people", "dbos", "DBOS", "postgresql://")
    assert [line for line in written.splitlines() if any(word in line for word in words)] == []


async def test_an_unreachable_database_is_reported_without_its_password(tmp_path: Path) -> None:
    """Another engine can open after the error."""
    with pytest.raises(StoreUnavailable) as raised:
        await _open_and_close(engine_of("postgresql://u:secret@127.0.0.1:1/nowhere", Runs()))
    assert "secret" not in str(raised.value)
    await _open_and_close(engine_of(f"sqlite:///{tmp_path}/there.db", Runs()))


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def _open_and_close(opening: AbstractAsyncContextManager[Engine]) -> None:
    async with opening:
        pass


def _enqueue_elsewhere(url: str) -> None:
    """Enqueue a run in another process."""
    lines = [
        "import asyncio",
        "from threadkeep.runs.engine.opening import enqueue_runs",
        "from threadkeep.store.address import parse_address",
        f"asyncio.run(enqueue_runs(parse_address({url!r}), ['run']))",
    ]
    code = "\n".join(lines)
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_an_engine_that_cannot_open_waits_for_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An execution may itself wait for the end of the opening."""

    async def blocked(_runs: Runs, _run_id: str) -> None:
        await asyncio.Event().wait()

    async def work(engine: LocalEngine) -> None:
        await engine.start("run")
        await runs.until(lambda: runs.begun["run"] == 1)
        raise StoreUnavailable("The database went away.")

    monkeypatch.setattr(LocalEngine, "work", work)
    runs = Runs(blocked)
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(StoreUnavailable):
            async with engine_of("sqlite://", runs, EngineOptions(close_seconds=2 * HANG_SECONDS)):
                raise AssertionError("it opened")
    assert runs.ended.total() == 0


async def test_an_engine_that_closes_during_its_launch_leaves_no_other_in_the_process(shared_url: str) -> None:
    """Closing waits for a launch and undoes it, so that the next engine of the process executes runs."""
    runs = Runs()
    async with engine_of(shared_url, runs) as engine:
        launching = asyncio.create_task(engine.enqueue("first"))
        await asyncio.sleep(0.01)
        launching.cancel()
    again = Runs()
    async with engine_of(shared_url, again) as engine:
        await engine.enqueue("second")
        await again.until(lambda: again.ended["second"] == 1)


async def test_a_connection_that_is_returned_after_its_pool_is_closed(shared_url: str) -> None:
    """A thread of dbos may return its connection late; it is closed then, and is not left to the garbage collector."""
    connections = Connections(parse_address(shared_url))
    pool = connections.pool(1)
    with pool.connect() as late:
        raw: Any = late.connection.dbapi_connection
        connections.close()
        pool.dispose()
    with pytest.raises((sqlite3.Error, psycopg.Error), match="closed"):
        raw.execute("SELECT 1")
