"""Fixtures of all tests: a database of each engine, a memory over it, a settable clock, and Hypothesis profiles."""

from __future__ import annotations

import dis
import gc
import gzip
import logging
import multiprocessing
import os
import shutil
import signal
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpcore2
import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

import tests.encryption  # noqa: F401 - it encrypts the files of the tests
from tests.limits import HANG_SECONDS
from tests.memory_folder import memory_folder
from tests.memory_schema import open_prepared, schema_templates
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, open_memory, open_memory_sync
from threadkeep.history.pending import PendingOptions
from threadkeep.testing import SettableClock

if TYPE_CHECKING:
    from tests.servers import Postgres

STORED_DATABASES = Path(__file__).parent / "store" / "databases"

# Turn the collector off until the first test: there is no garbage before, and it would search many objects.
gc.disable()

# Put the folders of tests in memory, because a commit mostly waits for the disk. Folders of passed tests are removed.
if "TMPDIR" not in os.environ and (_MEMORY := memory_folder()) is not None:
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)

# Files without a configured folder, such as pending writes, go here and not to the user's own folders.
# The PostgreSQL package warns at its import if the machine has no runtime folder.
_FOLDER = Path(tempfile.mkdtemp(prefix="threadkeep-tests-"))
os.environ |= {"XDG_DATA_HOME": str(_FOLDER / "data"), "XDG_STATE_HOME": str(_FOLDER / "state")}
os.environ.setdefault("XDG_RUNTIME_DIR", str(_FOLDER))
# Use the same setting as the command line.
os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"

# Timeouts of optional work. A busy machine takes longer, and most tests check the result of that work.
# Tests of the timeouts themselves set their own.
_TIMEOUTS = (
    "threadkeep.history.older_turns._TIMEOUT_SECONDS",
    "threadkeep.history.memory_parts._TIMEOUT_SECONDS",
    "threadkeep.history.stored_indexes._QUERY_SECONDS",
    "threadkeep.history.manifests._READER_SECONDS",
    "threadkeep.history.manifests._CLOSING_SECONDS",
)

# Tests that pass on a file and on PostgreSQL should also pass in memory; only the slow tests check that.
DATABASES = ("sqlite-file", pytest.param("sqlite-memory", marks=pytest.mark.slow), "postgres")
# For packages that use the database through a memory: on PostgreSQL only with the slow tests.
MOSTLY_SQLITE = ("sqlite-file", pytest.param("postgres", marks=pytest.mark.slow))

# Use the same few examples each time, so that an unrelated change does not fail because of a random example.
# Examples of a test share its fixtures: databases are created once, and sessions are new each time.
settings.register_profile(
    "ci",
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile(
    "fuzz",
    settings.get_profile("ci"),
    max_examples=1000,
    derandomize=False,
    database=DirectoryBasedExampleDatabase(Path(__file__).parents[1] / ".hypothesis" / "examples"),
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure() -> None:
    """Handle SIGTERM like Ctrl-C, so that fixtures stop what they started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Shells start background processes with Ctrl-C ignored, but some tests need it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from garbage collection: they are many and stay to the end."""
    gc.enable()
    gc.freeze()
    # A collection finds little garbage and takes as long as several tests, so collect rarely.
    gc.set_threshold(20_000, 10, 10)
    # The server imports for several seconds; the first test that starts a child would wait for it.
    if "PYTEST_XDIST_WORKER" in os.environ and "tests.children" in sys.modules:
        forkserver.ensure_running()


def pytest_unconfigure() -> None:
    """End processes that an interrupted test has left, and remove the folder of all tests."""
    # At exit, multiprocessing sends SIGTERM to children and joins them; a paused child would not end.
    for child in multiprocessing.active_children():
        child.kill()
    # Do not unfreeze, because pytest runs the garbage collector five times after this.
    shutil.rmtree(_FOLDER, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def long_timeouts() -> Iterator[None]:
    """Set long timeouts for optional work, so that a slow machine skips none."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _TIMEOUTS:
            patch.setattr(name, HANG_SECONDS)
        yield


@pytest.fixture(scope="session", autouse=True)
def schema_created_once(sqlite_template: Path) -> Iterator[None]:
    """Create the schema of SQLite databases with the migrations once, and copy it in every test."""
    with pytest.MonkeyPatch.context() as patch, schema_templates(sqlite_template):
        patch.setattr("threadkeep.history.opening.open_database", open_prepared)
        yield


@pytest.fixture(scope="session", autouse=True)
def lookups_cached() -> Iterator[None]:
    """Cache lookups that are repeated for each client, graph and service.

    TLS authorities take 50 ms, type hints 5 to 7 ms, and the instructions of the functions of a graph 2 ms.
    """
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(graphs := sys.modules.get("langgraph.pregel._utils"), "dis"):
            instructions = cache(lambda code: tuple(dis.get_instructions(code)))
            patch.setattr(graphs, "dis", SimpleNamespace(get_instructions=instructions))
        for module, name in (
            (httpcore2, "default_ssl_context"),
            (ssl, "create_default_context"),
            (sys.modules.get("langgraph._internal._serde"), "_safe_get_type_hints"),
            (sys.modules.get("threadkeep.observe.prometheus"), "get_type_hints"),
        ):
            # Other versions of LangGraph may not have this module or function.
            if look_up := getattr(module, name, None):
                patch.setattr(module, name, cache(look_up))
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """Run a PostgreSQL server for this test process; no test stops it."""
    from tests.servers import running_postgres

    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def unsteady_postgres() -> Iterator[Postgres]:
    """Run another PostgreSQL server, for tests that stop and start it."""
    from tests.servers import running_postgres

    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """Return a new PostgreSQL database with Threadkeep's schema and no rows."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def partitioned_url(postgres_server: Postgres) -> Iterator[str]:
    """Return a new PostgreSQL database with four partitions of messages."""
    with postgres_server.database(partitions=4) as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """Return a new PostgreSQL database without tables."""
    with postgres_server.database(empty=True) as url:
        yield url


@pytest.fixture
def old_postgres_url(empty_postgres_url: str) -> str:
    """Return a PostgreSQL database that the code of schema 20 created and filled."""
    from tests.databases import execute

    execute(
        empty_postgres_url, gzip.decompress((STORED_DATABASES / "schema_0020.postgres.sql.gz").read_bytes()).decode()
    )
    return empty_postgres_url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Return the URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/threadkeep.db"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a SQLite file with Threadkeep's schema and no rows; migrating takes longer than a copy."""
    path = tmp_path_factory.mktemp("template") / "threadkeep.db"
    with open_memory_sync(f"sqlite:///{path}", options=MemoryOptions(background=False)):
        return path


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database of each kind."""
    return url_of(request, str(request.param))


@pytest.fixture(params=["sqlite-file", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> str:
    """Return an empty database of each kind that several processes can open."""
    return url_of(request, str(request.param))


def url_of(request: pytest.FixtureRequest, kind: str) -> str:
    """Return the URL of an empty database of a kind; only the needed server is started."""
    if kind == "sqlite-memory":
        return "sqlite://"
    if kind == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    url = str(request.getfixturevalue("sqlite_url"))
    shutil.copy(request.getfixturevalue("sqlite_template"), url.removeprefix("sqlite:///"))
    return url


@pytest.fixture
def clock() -> SettableClock:
    """Return the clock of `memory`."""
    return SettableClock()


@pytest.fixture
def events() -> RecordedEvents:
    """Return the events that `memory` reported to its observers."""
    return RecordedEvents()


@pytest.fixture
def memory_options(tmp_path: Path, clock: SettableClock) -> MemoryOptions:
    """Return the options of `memory`: the test's clock, and pending writes in the test's folder."""
    pending = PendingOptions(folder=tmp_path / "pending", first_pause_seconds=0.01, longest_pause_seconds=0.05)
    return MemoryOptions(clock=clock, pending=pending)


@pytest.fixture
async def memory(database_url: str, memory_options: MemoryOptions, events: RecordedEvents) -> AsyncIterator[Memory]:
    """Open a memory over an empty database of each kind."""
    async with open_memory(database_url, observers=[events], options=memory_options) as opened:
        yield opened


@pytest.fixture
async def sqlite_memory(memory_options: MemoryOptions, events: RecordedEvents) -> AsyncIterator[Memory]:
    """Open a memory over SQLite in memory, for tests that do not depend on the database."""
    async with open_memory("sqlite://", observers=[events], options=memory_options) as opened:
        yield opened


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Restore the logging of the process after a test; a remaining handler would write to a closed stream."""
    root = logging.getLogger()
    names = ("", "uvicorn", "threadkeep")
    handlers, levels = root.handlers[:], {name: logging.getLogger(name).level for name in names}
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        # Each call clears the cached levels of all loggers.
        if (logger := logging.getLogger(name)).level != level:
            logger.setLevel(level)
    if structlog.is_configured():
        structlog.reset_defaults()
