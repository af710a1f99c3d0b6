"""Tests of answers that neither the database nor the disk can store: they are not returned."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from tests.web.services import check_problem, client_of, history, opened_app, said, say, settings_for, streamed, until
from threadkeep.testing import ScriptedModel


@asynccontextmanager
async def nothing_is_stored(database: Path, pending: Path) -> AsyncIterator[None]:
    """Hold the lock of a database, and replace the folder of pending turns by a file."""
    with closing(sqlite3.connect(database, isolation_level=None, check_same_thread=False)) as other:
        # In a thread, because writes of the service need the event loop to end.
        await asyncio.to_thread(other.execute, "BEGIN EXCLUSIVE")
        await asyncio.to_thread(shutil.rmtree, pending)
        await asyncio.to_thread(pending.touch)
        yield
        await asyncio.to_thread(pending.unlink)
        other.execute("ROLLBACK")


async def test_an_answer_that_could_be_lost_is_not_returned(tmp_path: Path) -> None:
    """The caller gets 503. A repeat returns the answer of the same model call once it is stored."""
    database, pending = tmp_path / "threadkeep.db", tmp_path / "pending"
    settings = settings_for(tmp_path, database_url=f"sqlite:///{database}", write_timeout=0.5, lock_timeout=0.5)
    model = ScriptedModel(["hello", "only one"])
    async with opened_app(model, settings) as app, client_of(app) as client:
        await say(client, "hi", session_id="room")
        body = {"message": "and now?", "session_id": "room", "message_id": "m2"}
        async with nothing_is_stored(database, pending):
            for _ in range(2):
                check_problem(await client.post("/api/v1/chat", json=body), 503, "database-unavailable")
            assert len(model.calls) == 2
        await until(lambda: app.memory.pending.count == 0)
        assert (await say(client, "and now?", session_id="room", message_id="m2"))["response"] == "only one"
        told = [(role, text) for role, text, _ in said(await history(client, "room"))]
        assert told == [("user", "hi"), ("assistant", "hello"), ("user", "and now?"), ("assistant", "only one")]
    assert len(model.calls) == 2


async def test_a_message_without_an_id_can_be_sent_again(tmp_path: Path) -> None:
    """The problem has the generated ids, with which the message is stored once."""
    database, pending = tmp_path / "threadkeep.db", tmp_path / "pending"
    settings = settings_for(tmp_path, database_url=f"sqlite:///{database}", write_timeout=0.5, lock_timeout=0.5)
    async with opened_app(ScriptedModel(["hello", "only one"]), settings) as app, client_of(app) as client:
        await say(client, "hi", session_id="room")
        async with nothing_is_stored(database, pending):
            refused = await client.post("/api/v1/chat", json={"message": "and now?", "session_id": "room"})
            problem = check_problem(refused, 503, "database-unavailable")
        await until(lambda: app.memory.pending.count == 0)
        again = await say(client, "and now?", session_id=problem["session_id"], message_id=problem["message_id"])
        assert again["response"] == "only one"
        assert len(await history(client, "room")) == 4


async def test_a_stream_does_not_end_with_an_answer_that_could_be_lost(tmp_path: Path) -> None:
    """A stream whose tokens were sent ends with an error."""
    database, pending = tmp_path / "threadkeep.db", tmp_path / "pending"
    settings = settings_for(tmp_path, database_url=f"sqlite:///{database}", write_timeout=0.5, lock_timeout=0.5)
    async with opened_app(ScriptedModel(["hello", "only one"]), settings) as app, client_of(app) as client:
        await say(client, "hi", session_id="room")
        body = {"message": "and now?", "session_id": "room", "message_id": "m2"}
        async with nothing_is_stored(database, pending):
            events = await streamed(client, body)
            assert (events[-1].name, events[-1].data["status"]) == ("error", 503)
        await until(lambda: app.memory.pending.count == 0)
        again = await streamed(client, body)
        assert (again[-1].name, again[-1].data["response"]) == ("end", "only one")
