"""Work that has to be done: although the database is down for a while, although its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from threadkeep.errors import StoreUnavailable

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


async def insist[T](work: Callable[[], Awaitable[T]]) -> T:
    """Do work, again and again until the database answers; whoever waits for it may be cancelled."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


async def undisturbed[T](work: Coroutine[object, object, T]) -> T:
    """Do work to its end; a caller who is cancelled once meanwhile stays for it, and is cancelled after it."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody asks for it any more
        raise
    return task.result()
