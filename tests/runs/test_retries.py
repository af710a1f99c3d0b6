"""Tests of work that a cancellation of its caller does not stop."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from threadkeep.boundary import shielded
from threadkeep.errors import StoreUnavailable
from threadkeep.testing import Gate


async def test_a_caller_that_is_cancelled_twice_leaves_no_error_to_log() -> None:
    """The work of a caller that does not wait any more ends with an error, and asyncio does not log it."""
    gate, logged = Gate(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

    async def work() -> None:
        await gate.pass_through()
        raise StoreUnavailable("It is down.")

    caller = asyncio.create_task(shielded(work()))
    await gate.reached()
    while not caller.done():
        caller.cancel()
        await asyncio.sleep(0)
    gate.open()
    while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)
    assert caller.cancelled()
    # The traceback of the cancellation refers to the task of the work.
    del caller
    gc.collect()
    assert logged == []
