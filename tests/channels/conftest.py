"""Fixtures: fake platforms, each in a separate process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.channels.fake_telegram import FakeTelegram, faking_telegram
from tests.channels.fake_wecom import FakeWeCom, faking_wecom
from tests.conftest import MOSTLY_SQLITE, url_of


@pytest.fixture(params=MOSTLY_SQLITE)
def shared_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database that several processes can open."""
    return url_of(request, str(request.param))


@pytest.fixture
def telegram(tmp_path: Path) -> Iterator[FakeTelegram]:
    """Run a fake Telegram for the test."""
    with faking_telegram(tmp_path) as fake:
        yield fake


@pytest.fixture
def wecom(tmp_path: Path) -> Iterator[FakeWeCom]:
    """Run a fake WeCom for the test."""
    with faking_wecom(tmp_path) as fake:
        yield fake
