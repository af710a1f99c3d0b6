"""The SQLite driver, where its thread and its callers could get out of step."""

from __future__ import annotations

import asyncio
import contextlib

from threadkeep import Message, open_memory


async def test_a_cancelled_write_leaves_the_next_one_its_transaction() -> None:
    """Wherever a caller is cancelled, also between asking for a transaction and getting it, the next write works."""
    async with open_memory("sqlite://") as memory:
        session = memory.session("room:1")
        await session.append([Message("user", "one")])
        for steps in range(12):
            task = asyncio.create_task(session.reset())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await session.append([Message("user", f"after {steps} steps")])
        assert await session.count() == 13
