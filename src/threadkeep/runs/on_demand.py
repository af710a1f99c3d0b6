"""Runs that are opened when they are first wanted: a chat alone needs no engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context

from threadkeep.errors import StoreClosed
from threadkeep.runs.service import RunService


class RunsOnDemand:
    """Opens the runs of an application once, whoever asks first; a failure is told, and the next who asks tries again.

    They live in a task of their own, and with nobody's request, until `close`.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[RunService]]) -> None:
        self._opening = opening
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[RunService] | None = None
        self._closing = asyncio.Event()

    async def service(self) -> RunService:
        """The open service.

        Raises:
            StoreClosed: the application is being closed.
            StoreUnavailable: the database does not answer.
        """
        if self._closing.is_set():
            raise StoreClosed("The application is being closed, and takes no more runs.")
        if self._opened is None or (self._opened.done() and self._opened.exception() is not None):
            self._opened = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._keep_open(self._opened), context=Context(), name="threadkeep-runs")
        return await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Close what was opened; runs that go on are left to others."""
        self._closing.set()
        if self._task is not None:
            await self._task

    async def _keep_open(self, opened: asyncio.Future[RunService]) -> None:
        try:
            async with self._opening() as service:
                opened.set_result(service)
                await self._closing.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
            opened.exception()  # whoever asked may have gone away
