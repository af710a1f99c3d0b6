"""Tests of a SQLite file that another process locks: messages are answered soon, and each turn is stored once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS
from tests.outages import locked_meanwhile
from tests.web.services import client_of, history, opened_app, said, say, settings_for, until
from threadkeep.settings import Settings
from threadkeep.testing import ScriptedModel


async def test_a_locked_file_does_not_delay_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn does not wait for the lock, nor for other work of the process that waits for it.

    Each would take ten minutes.
    """
    # The upkeep ends the runs whose ends could not be stored; usually every ten seconds.
    run_options = Settings.run_options
    monkeypatch.setattr(Settings, "run_options", lambda *a, **k: replace(run_options(*a, **k), upkeep_seconds=0.2))
    path = tmp_path / "held.db"
    settings = settings_for(tmp_path, database_url=f"sqlite:///{path}", lock_timeout=600.0, write_timeout=0.2)
    model = ScriptedModel(lambda messages: f"to {messages[-1].text}" for _ in range(6))
    async with opened_app(model, settings) as app, client_of(app) as client:
        await say(client, "before", session_id="s1")
        async with locked_meanwhile(path), asyncio.timeout(HANG_SECONDS):
            for number in range(3):
                answer = await say(client, f"held {number}", session_id="s1", message_id=f"m{number}")
                assert answer["response"] == f"to held {number}"
            assert (await say(client, "hello", session_id="s2"))["response"] == "to hello"

        async def is_written() -> bool:
            return app.memory.pending.count == 0

        await until(is_written)
        assert [each[:2] for each in said(await history(client, "s1"))] == [
            ("user", "before"),
            ("assistant", "to before"),
            *[pair for n in range(3) for pair in (("user", f"held {n}"), ("assistant", f"to held {n}"))],
        ]
        again = await say(client, "held 1", session_id="s1", message_id="m1")
        assert again["response"] == "to held 1"
        assert len(model.calls) == 5


async def test_a_locked_file_without_tables_does_not_delay_answers(tmp_path: Path) -> None:
    """A locked file without tables does not delay the first turns, although creating the tables waits for the lock."""
    path = tmp_path / "held.db"
    settings = settings_for(tmp_path, database_url=f"sqlite:///{path}", lock_timeout=600.0, write_timeout=0.2)
    model = ScriptedModel(lambda messages: f"to {messages[-1].text}" for _ in range(6))
    async with opened_app(model, settings) as app, client_of(app) as client:
        async with locked_meanwhile(path), asyncio.timeout(HANG_SECONDS):
            for number in range(2):
                answer = await say(client, f"held {number}", session_id="s1", message_id=f"m{number}")
                assert answer["response"] == f"to held {number}"
        await until(lambda: app.memory.pending.count == 0)
        after = await say(client, "after", session_id="s1")
        assert (await client.get(f"/api/v1/runs/{after['run_id']}")).json()["status"] == "done"
        assert [text for _, text, _ in said(await history(client, "s1"))][::2] == ["held 0", "held 1", "after"]
