"""A memory on SQLite alone, for tests of what does not depend on the database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, open_memory


@pytest.fixture
async def small_memory(memory_options: MemoryOptions, events: RecordedEvents) -> AsyncIterator[Memory]:
    """An open memory over an empty SQLite database in memory."""
    async with open_memory("sqlite://", observers=[events], options=memory_options) as opened:
        yield opened
