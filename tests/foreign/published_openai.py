"""A plugin for the session tests of the OpenAI Agents SDK, which replaces its sessions by `AgentsSession`.

`test_published.py` runs it in the SDK's source, whose `tests` package it imports instead of this repository's.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import uuid
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import agents
import agents.memory
import pytest

from threadkeep import SyncMemory, open_memory_sync
from threadkeep.adapters.openai_agents import AgentsSession

_opened = ExitStack()
_memories: list[SyncMemory] = []

# Name prefixes of skipped tests, by reason. These tests cannot pass with any other database.
SKIPPED = {
    "reaches into the connections, tables and locks of SQLiteSession": (
        "test_sqlite_session_close_closes_worker_thread_connections",
        "test_sqlite_session_reaps_connections_from_exited_worker_threads",
        "test_sqlite_session_closes_retired_connections_before_the_next_allocation",
        "test_sqlite_session_keeps_connections_of_live_worker_threads",
        "test_sqlite_session_pop_item_skips_corrupt_most_recent",
        "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows",
        "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows",
        "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows",
        "test_sqlite_session_file_lock_is_shared_across_instances",
        "test_sqlite_session_failed_add_items_releases_write_lock",
        "test_sqlite_session_failed_clear_session_rolls_back",
        "test_sqlite_session_failed_pop_item_releases_write_lock",
        "test_sqlite_session_rollback_failure_evicts_connection",
        "test_sqlite_session_close_retries_quarantined_connection",
        "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome",
        "test_settled_pop_failure_invalidates_response_chain",
        "test_settled_clear_failure_invalidates_response_chain",
    ),
    "needs the private `_get_compaction_snapshot`, which is no part of the `Session` protocol": (
        "test_automatic_compaction_rollback_budget[True]",
        "test_backend_read_limit_cannot_hide_retained_history_from_compaction",
        "test_automatic_compaction_does_not_reload_unbounded_hidden_history",
        "test_expired_read_overhead_does_not_authorize_hidden_history",
    ),
    "closes the session itself; a session of Threadkeep closes with its memory": (
        "test_sqlite_session_closed_rejects_empty_add_items",
    ),
}


class SqliteInstead(AgentsSession):
    """A session with the arguments of `SQLiteSession`."""

    def __init__(self, session_id: str, db_path: str | Path = ":memory:", *, session_settings: Any = None) -> None:
        database = uuid.uuid4() if str(db_path) == ":memory:" else db_path
        super().__init__(_memories[0], f"{database}:{session_id}", session_settings=session_settings)
        self.session_id = session_id

    def close(self) -> None:
        """Close nothing: the memory stays open for other sessions."""


class ListInstead(AgentsSession):
    """A session with the arguments and attributes of the tests' `SimpleListSession`."""

    def __init__(self, session_id: str = "test", history: list[Any] | None = None) -> None:
        super().__init__(_memories[0], f"{uuid.uuid4()}:{session_id}")
        self.session_id = session_id
        self._ignore_ids_for_matching = False
        if history:
            _wait(AgentsSession.add_items(self, history))

    @property
    def saved_items(self) -> list[Any]:
        """Return the stored items."""
        return _wait(AgentsSession.get_items(self))

    _items = saved_items


class CountingInstead(ListInstead):
    """A session that counts the calls of `pop_item`."""

    pop_calls = 0

    async def pop_item(self) -> Any:
        """Take back the newest item, and count that."""
        self.pop_calls += 1
        return await super().pop_item()


class IdStrippingInstead(CountingInstead):
    """A session that stores items without their ids, like hosted sessions that assign their own."""

    def __init__(self, session_id: str = "test", history: list[Any] | None = None) -> None:
        super().__init__(session_id, history)
        self._ignore_ids_for_matching = True

    async def add_items(self, items: list[Any]) -> None:
        """Store the items without their ids."""
        stripped: list[Any] = [{name: value for name, value in item.items() if name != "id"} for item in items]
        await super().add_items(stripped)


def _wait[T](call: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, call).result()


def pytest_configure() -> None:
    """Replace the sessions before the tests import those of the SDK."""
    _memories.append(_opened.enter_context(open_memory_sync(os.environ["THREADKEEP_TEST_DATABASE"])))
    agents.SQLiteSession = agents.memory.SQLiteSession = SqliteInstead  # type: ignore[misc, assignment]
    simple = importlib.import_module("tests.utils.simple_session")
    simple.SimpleListSession = ListInstead  # type: ignore[attr-defined]
    simple.CountingSession = CountingInstead  # type: ignore[attr-defined]
    simple.IdStrippingSession = IdStrippingInstead  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that `SKIPPED` names."""
    for item in items:
        for reason, names in SKIPPED.items():
            if item.name.startswith(names):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_unconfigure() -> None:
    """Close the memory."""
    _opened.close()
