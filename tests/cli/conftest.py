"""Fixtures: a command line over an empty database."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import CommandLine
from tests.conftest import MOSTLY_SQLITE, url_of


@pytest.fixture
def cli(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> CommandLine:
    """Return the command line over a SQLite file that does not exist yet."""
    return CommandLine(tmp_path, sqlite_url, monkeypatch=monkeypatch, captured=capsysbinary)


@pytest.fixture(params=MOSTLY_SQLITE)
def any_cli(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> CommandLine:
    """Return the command line over an empty database of each kind."""
    return CommandLine(tmp_path, url_of(request, str(request.param)), monkeypatch=monkeypatch, captured=capsysbinary)
