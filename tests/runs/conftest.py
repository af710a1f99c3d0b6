"""A desk over an empty database, whose model numbers its replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest

from tests.conftest import url_of
from tests.recorded_events import RecordedEvents
from tests.runs.chatting import Chats
from tests.runs.checkpointing import CountingSaver
from tests.runs.desk import RunDesk
from threadkeep import Memory
from threadkeep.testing import ScriptedModel


def numbered() -> ScriptedModel:
    """A model that says `reply 1`, `reply 2` and so on."""
    return ScriptedModel(f"reply {number}" for number in count(1))


@pytest.fixture(params=["sqlite-file", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database of each engine in turn; SQLite in memory has `desk`, and the contracts of the store."""
    return url_of(request, str(request.param))


@pytest.fixture
def desk(sqlite_memory: Memory, events: RecordedEvents) -> RunDesk:
    """Runs on SQLite in memory."""
    return RunDesk(sqlite_memory, numbered(), events)


@pytest.fixture
def every_desk(memory: Memory, events: RecordedEvents) -> RunDesk:
    """Runs on each database in turn, with an engine in the test's process."""
    return RunDesk(memory, numbered(), events)


@pytest.fixture
def saver(every_desk: RunDesk) -> CountingSaver:
    """The checkpointer of the desk."""
    every_desk.saver = saver = CountingSaver()
    return saver


@pytest.fixture
async def make_chat() -> AsyncIterator[Chats]:
    """Makes chats, which are closed at the end: name it last, so that their memories are closed after them."""
    chats = Chats()
    yield chats
    await chats.close()
