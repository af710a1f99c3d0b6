"""Fake platforms, each in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.channels.fake_telegram import FakeTelegram, faking_telegram
from tests.channels.fake_wecom import FakeWeCom, faking_wecom
from tests.conftest import MOSTLY_SQLITE, url_of


@pytest.fixture(params=MOSTLY_SQLITE)
def shared_url(request: pytest.FixtureRequest) -> str:
    """An empty database that several processes can open."""
    return url_of(request, str(request.param))


@pytest.fixture
def telegram(tmp_path: Path) -> Iterator[FakeTelegram]:
    """A Telegram of the test's own."""
    with faking_telegram(tmp_path) as fake:
        yield fake


@pytest.fixture
def wecom(tmp_path: Path) -> Iterator[FakeWeCom]:
    """A WeCom of the test's own."""
    with faking_wecom(tmp_path) as fake:
        yield fake
