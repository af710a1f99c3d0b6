"""Fixtures: a Graphiti server per test, and a memory that may send to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, open_memory
from threadkeep.records.graphiti import GraphitiOptions
from threadkeep.testing import FakeGraphiti, SettableClock

type Opening = Callable[..., AbstractAsyncContextManager[Memory]]


@pytest.fixture(autouse=True)
def single_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check deleted groups once instead of for 5 s: the fake server deletes at once."""
    monkeypatch.setattr("threadkeep.knowledge.graphiti.maintenance._GONE_SECONDS", 0)


@pytest.fixture
async def graphiti() -> AsyncIterator[FakeGraphiti]:
    """Return a fake server that stores messages at once."""
    async with FakeGraphiti() as server:
        yield server


@pytest.fixture
def opening(
    graphiti: FakeGraphiti, database_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> Opening:
    """Return a function that opens a memory without background delivery on the test's database."""

    @asynccontextmanager
    async def opened(*, background: bool = False, **changes: Any) -> AsyncIterator[Memory]:
        options = GraphitiOptions(
            **{"endpoint": graphiti.url, "workspace": "shop", "timeout_seconds": HANG_SECONDS, **changes}
        )
        memory_with = replace(memory_options, graphiti=options, background=background)
        async with open_memory(database_url, observers=[events], options=memory_with) as memory:
            yield memory

    return opened


@pytest.fixture
async def allowed(opening: Opening) -> AsyncIterator[Memory]:
    """Open a memory whose turns may be sent to the server."""
    async with opening() as memory:
        await allow(memory)
        yield memory


async def allow(memory: Memory, *more: Any) -> None:
    """Grant consent to chat text and other data classes, and trust the workspace."""
    await memory.graphiti.grant(["chat_text", *more], by="ops")
    await memory.graphiti.consents.trust("shop", by="ops")


async def deliver(memory: Memory, clock: SettableClock, *, looks: int = 10) -> None:
    """Run the delivery `looks` times, with seconds between."""
    for _ in range(looks):
        clock.advance(1)
        await memory.graphiti.deliver()
        clock.advance(19)
