"""Tests of the contract suite as a user of the package runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

WRONG_STORE = """
from contextlib import asynccontextmanager
from datetime import UTC, datetime
import pytest
from threadkeep.store.driver import StoreOptions
from threadkeep.store.migrations import migrate
from threadkeep.store.sqlite import SqliteDriver
from threadkeep.store.tables import TableTranscripts
from threadkeep.testing import TranscriptContract


class Forgetful(TableTranscripts):
    async def delete(self, session_id, **options):
        return False


@pytest.mark.asyncio
class TestMine(TranscriptContract):
    @asynccontextmanager
    async def open_transcripts(self):
        driver = SqliteDriver(None, StoreOptions())
        await migrate(driver, datetime.now(UTC))
        transcripts = Forgetful(driver, count=len, clock=lambda: datetime.now(UTC))
        try:
            yield transcripts
        finally:
            await transcripts.close()
            await driver.close()
"""


@pytest.mark.slow
def test_a_failed_guarantee_shows_its_values(tmp_path: Path) -> None:
    """pytest rewrites assertions only in test files and in modules that ask for it."""
    (tmp_path / "test_mine.py").write_text(WRONG_STORE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "deleted_session_is_gone"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert run.returncode == 1, run.stderr
    assert "assert False is True" in run.stdout
