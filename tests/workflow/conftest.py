"""A memory on SQLite alone, for tests of what does not depend on the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, open_memory


@pytest.fixture(scope="session", autouse=True)
def unhurried_turns() -> Iterator[None]:
    """Older turns are not left out because the machine is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threadkeep.workflow.recalled_turns._PATIENCE_SECONDS", 60.0)
        yield


@pytest.fixture
async def small_memory(memory_options: MemoryOptions, events: RecordedEvents) -> AsyncIterator[Memory]:
    """An open memory over an empty SQLite database in memory."""
    async with open_memory("sqlite://", observers=[events], options=memory_options) as opened:
        yield opened
