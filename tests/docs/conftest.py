"""Fixtures: the folder, the environment and the database for executing the blocks of a page."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.pages import Page
from tests.docs.running import Placeholders

SHOWN_FOLDER = "/var/lib/threadkeep"
SHOWN_POSTGRES = "postgresql://threadkeep@db.internal/threadkeep"


@pytest.fixture
def placeholders_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[[Page], Placeholders]:
    """Return a function that maps the paths and addresses of a page to a folder and a database of the test."""
    for name in [name for name in os.environ if name.startswith("THREADKEEP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    # The pages assume this setting of the reader.
    monkeypatch.setenv("THREADKEEP_DATABASE_URL", f"sqlite:///{tmp_path}/threadkeep.db")
    monkeypatch.chdir(tmp_path)

    def make(page: Page) -> Placeholders:
        replacements = {SHOWN_FOLDER: str(tmp_path)}
        if SHOWN_POSTGRES in page.text:
            replacements[SHOWN_POSTGRES] = str(request.getfixturevalue("postgres_url"))
        return Placeholders(replacements)

    return make
