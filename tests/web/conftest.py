"""Fixtures: a service over an empty database in memory, with the demo model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from tests.limits import HANG_SECONDS
from tests.web.services import client_of, opened_app, settings_for
from threadkeep.agent.demo import DemoModel
from threadkeep.app import App


@pytest.fixture(scope="session", autouse=True)
def unhurried_probes() -> Iterator[None]:
    """Raise the timeout of the readiness probe, so that a slow machine does not fail it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threadkeep.web.service.PATIENCE_SECONDS", HANG_SECONDS)
        yield


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    """Return an App with the demo model."""
    async with opened_app(DemoModel(), settings_for(tmp_path)) as opened:
        yield opened


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client of the service over `app`."""
    async with client_of(app) as client:
        yield client
