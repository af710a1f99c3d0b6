"""Tests of the window's anchor during a database outage."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.agent.shared_beginnings import told, up_to_input
from tests.agent.talking import ROOM, ask, make_agent
from tests.limits import HANG_SECONDS
from threadkeep import ContextManifest, Memory, MemoryOptions, SessionMemory, StoreOptions, open_memory
from threadkeep.testing import ScriptedModel

if TYPE_CHECKING:
    from tests.servers import Postgres

pytestmark = pytest.mark.xdist_group("unsteady_postgres")


@pytest.fixture
def unsteady_url(unsteady_postgres: Postgres) -> Iterator[str]:
    """Create a database on a PostgreSQL server that the test may stop."""
    with unsteady_postgres.database() as url:
        yield url


@pytest.fixture
async def failing(unsteady_url: str, memory_options: MemoryOptions) -> AsyncIterator[Memory]:
    """Open a memory on that server that detects an outage within a second."""
    store = StoreOptions(lock_timeout_seconds=1.0, pool_timeout_seconds=1.0)
    pending = dataclasses.replace(memory_options.pending, write_timeout_seconds=1.0)
    options = dataclasses.replace(memory_options, store=store, pending=pending)
    async with open_memory(unsteady_url, options=options) as memory:
        yield memory


@pytest.mark.slow
async def test_after_an_outage_calls_begin_at_the_same_anchor(failing: Memory, unsteady_postgres: Postgres) -> None:
    model = ScriptedModel(f"answer {number}" for number in range(40))
    agent = make_agent(model, [SessionMemory(failing, max_messages=20)], system_prompt="Be brief.")
    for number in range(14):
        await ask(agent, f"question {number}")
    unsteady_postgres.stop()
    async with asyncio.timeout(HANG_SECONDS):
        assert await ask(agent, "question 14") == "answer 14"
    unsteady_postgres.start()
    async with asyncio.timeout(HANG_SECONDS):
        while failing.pending.entries:
            await failing.pending.deliver()
    await ask(agent, "question 15")
    before, without, after = model.calls[-3:]
    assert len(without) < len(before)
    assert told(after)[: len(up_to_input(before))] == up_to_input(before)
    assert [message.text for message in after[-3:]] == ["question 14", "answer 14", "question 15"]
    stored = await failing.manifests.of_session(ROOM, limit=2)
    newest, in_the_outage = (ContextManifest.from_dict(one.manifest) for one in stored)
    assert in_the_outage.notes == ("history_unavailable",)
    assert newest.notes == ()
    assert newest.anchor_seq > 1
