"""Fixtures: run services over an empty database, with a model that numbers its replies."""

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
    """Return a model that answers `reply 1`, `reply 2` and so on."""
    return ScriptedModel(f"reply {number}" for number in count(1))


@pytest.fixture(params=["sqlite-file", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Return an empty database of each kind. For SQLite in memory, use `desk`."""
    return url_of(request, str(request.param))


@pytest.fixture
def desk(sqlite_memory: Memory, events: RecordedEvents) -> RunDesk:
    """Return a desk over SQLite in memory."""
    return RunDesk(sqlite_memory, numbered(), events)


@pytest.fixture
def every_desk(memory: Memory, events: RecordedEvents) -> RunDesk:
    """Return a desk over each kind of database, with an engine in the test's process."""
    return RunDesk(memory, numbered(), events)


@pytest.fixture
def saver(every_desk: RunDesk) -> CountingSaver:
    """Return the checkpointer of the desk."""
    every_desk.saver = saver = CountingSaver()
    return saver


@pytest.fixture
async def make_chat() -> AsyncIterator[Chats]:
    """Return a factory of chats, and close them after the test.

    Name it last among the fixtures, so that the memories are closed after the chats.
    """
    chats = Chats()
    yield chats
    await chats.close()
