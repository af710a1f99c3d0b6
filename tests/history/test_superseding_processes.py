"""Tests of taking messages back in several processes at once, and in a process that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Literal

import pytest

from tests.children import Child, run_together
from threadkeep import MemoryOptions, Message, open_memory
from threadkeep.graph_store import items as table
from threadkeep.store.superseding import SupersedingWriter

type Keeping = Literal["tables", "graph_store"]

ROOM = "room"
MESSAGES = 450
PROCESSES = 3
EACH = 20

pytestmark = pytest.mark.parametrize("keeping", ["tables", "graph_store"])


def options(keeping: Keeping) -> MemoryOptions:
    """Return the options with which each process opens the memory."""
    return MemoryOptions(background=False, transcripts=keeping)


async def say(url: str, keeping: Keeping, count: int) -> None:
    """Store some messages."""
    async with open_memory(url, options=options(keeping)) as memory:
        await memory.session(ROOM).append([Message("user", f"{number}") for number in range(count)])


async def read(url: str, keeping: Keeping) -> tuple[list[str], list[str], int]:
    """Return the active messages, the superseded ones, and the count of the session."""
    async with open_memory(url, options=options(keeping)) as memory:
        session = memory.session(ROOM)
        active = [message.content for message in await session.tail(1000)]
        history = await session.tail(1000, view="history")
        superseded = [message.content for message in history if message.superseded_at is not None]
        return active, superseded, await session.count()


def take_back(url: str, keeping: Keeping, times: int) -> list[str]:
    """Take messages back one at a time, and return them."""

    async def taking() -> list[str]:
        async with open_memory(url, options=options(keeping)) as memory:
            session = memory.session(ROOM)
            return [message.content for _ in range(times) for message in await session.take_back()]

    return asyncio.run(taking())


def test_processes_that_take_back_at_once_get_different_messages(shared_url: str, keeping: Keeping) -> None:
    count = PROCESSES * EACH - 5
    asyncio.run(say(shared_url, keeping, count))
    taken = run_together(take_back, [(shared_url, keeping, EACH)] * PROCESSES)
    assert sorted(text for one in taken for text in one) == sorted(map(str, range(count)))
    active, superseded, counted = asyncio.run(read(shared_url, keeping))
    assert (active, len(superseded), counted) == ([], count, 0)


def die_while_taking_back(url: str, keeping: Keeping, moment: str) -> None:
    """Take nearly all messages back, and kill the process during or after the write."""

    async def taking() -> None:
        async with open_memory(url, options=options(keeping)) as memory:
            arm(moment)
            await memory.session(ROOM).take_back(MESSAGES - 10)

    asyncio.run(taking())


def arm(moment: str) -> None:
    """Make this process kill itself during superseding or right after it."""

    def kill(*_: object, **__: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "marked":
        SupersedingWriter.refresh = kill  # type: ignore[method-assign]
        put = table._TableWriting.put  # noqa: SLF001 - no public API reaches the middle of a write

        async def put_and_die(self: Any, *arguments: Any, **named: Any) -> None:
            await put(self, *arguments, **named)
            kill()

        table._TableWriting.put = put_and_die  # type: ignore[method-assign]  # noqa: SLF001
    else:
        from threadkeep.history.session_events import SessionEvents
        from threadkeep.observe import StoreWrite

        ended = SessionEvents.ended

        def die_after_a_write(*arguments: Any, **named: Any) -> None:
            if StoreWrite in arguments:
                kill()
            ended(*arguments, **named)

        SessionEvents.ended = die_after_a_write  # type: ignore[method-assign]


@pytest.mark.parametrize(("moment", "left"), [("marked", MESSAGES), ("written", 10)])
@pytest.mark.slow
def test_a_process_that_is_killed_takes_back_all_or_nothing(
    shared_url: str, keeping: Keeping, moment: str, left: int
) -> None:
    """The change covers several chunks and derived fields; the next process continues normally."""
    asyncio.run(say(shared_url, keeping, MESSAGES))
    child = Child(die_while_taking_back, shared_url, keeping, moment)
    child.process.join()
    assert child.process.exitcode == -signal.SIGKILL
    active, superseded, counted = asyncio.run(read(shared_url, keeping))
    assert (len(active), len(superseded), counted) == (left, MESSAGES - left, left)
    assert take_back(shared_url, keeping, 1) == [active[-1]]
