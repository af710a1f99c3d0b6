"""Runs that are opened on first use; callers that need no runs need no engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context

from threadkeep.errors import StoreClosed
from threadkeep.runs.service import RunService
from threadkeep.runs.unrecorded import UnrecordedTurns


class RunsOnDemand:
    """A lazily opened run service; a failure is raised to the caller, and the next caller tries again.

    It lives in its own task, independent of requests, until `close`.
    """

    def __init__(self, opening: Callable[[UnrecordedTurns], AbstractAsyncContextManager[RunService]]) -> None:
        self.unrecorded = UnrecordedTurns()
        self._opening = opening
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[RunService] | None = None
        self._closing = False
        self._may_end = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """True if the runs are open."""
        opened = self._opened
        return opened is not None and opened.done() and opened.exception() is None

    async def service(self) -> RunService:
        """Return the open service.

        Raises:
            StoreClosed: the application is being closed.
            StoreUnavailable: the database does not answer.
        """
        if self._closing:
            raise StoreClosed("The application is being closed, and takes no more runs.")
        opened = self._opened
        if opened is None or (opened.done() and opened.exception() is not None):
            opened = self._opened = self._begin()
        return await asyncio.shield(opened)

    def open_soon(self) -> None:
        """Begin to open in the background; a failure is raised by a later `service()`."""
        if not self._closing and self._opened is None:
            self._opened = self._begin()

    async def close(self, seconds: float = 0.0) -> None:
        """Close the service; active runs may continue for `seconds` and are then left to other processes."""
        self._closing = True
        opened = self._opened
        if opened is not None and opened.done() and opened.exception() is None:
            await opened.result().close(seconds)
        self._may_end.set()
        if self._task is not None:
            await self._task

    def _begin(self) -> asyncio.Future[RunService]:
        opened: asyncio.Future[RunService] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_open(opened), context=Context(), name="threadkeep-runs")
        return opened

    async def _keep_open(self, opened: asyncio.Future[RunService]) -> None:
        try:
            async with self._opening(self.unrecorded) as service:
                opened.set_result(service)
                await self._may_end.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
            opened.exception()  # the caller may have gone away
