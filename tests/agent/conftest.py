"""Fixtures for tests of agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.conftest import MOSTLY_SQLITE, url_of
from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, open_memory


@pytest.fixture(scope="session", autouse=True)
def unhurried_turns() -> Iterator[None]:
    """Raise the time limit for recalling turns, for slow machines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threadkeep.agent.recalled_turns._PATIENCE_SECONDS", HANG_SECONDS)
        yield


@pytest.fixture(params=MOSTLY_SQLITE)
def database_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database, for each database engine; `small_memory` covers SQLite in memory."""
    return url_of(request, str(request.param))


@pytest.fixture
async def small_memory(memory_options: MemoryOptions, events: RecordedEvents) -> AsyncIterator[Memory]:
    """Open a memory over an empty SQLite database in memory."""
    async with open_memory("sqlite://", observers=[events], options=memory_options) as opened:
        yield opened
