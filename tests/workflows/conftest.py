"""Fixtures: workflows over SQLite in memory, with a model that numbers its replies."""

from __future__ import annotations

from itertools import count

import pytest

from tests.recorded_events import RecordedEvents
from tests.workflows.desk import Desk
from threadkeep import Memory
from threadkeep.testing import ScriptedModel


@pytest.fixture
def desk(sqlite_memory: Memory, events: RecordedEvents) -> Desk:
    """Return a desk with a model that answers `reply 1`, `reply 2` and so on."""
    return Desk(sqlite_memory, ScriptedModel(f"reply {number}" for number in count(1)), events)
