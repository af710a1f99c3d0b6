"""Lifetimes of what is open for long: entered and left by one task."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any


class Lifetime[T](AbstractAsyncContextManager[T]):
    """A context manager that a task of its own enters and leaves, whichever tasks open and close it.

    At the end of an event loop asyncio closes all async generators at the same time. Context managers made of
    generators that stand in each other would each be closed twice, and fail ("asynchronous generator is already
    running"). Before that it cancels all tasks and waits for them: this one leaves its context in order.
    """

    def __init__(self, context: AbstractAsyncContextManager[T], name: str) -> None:
        self._context = context
        self._name = name
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> T:
        """Enter the context; a failure is raised here."""
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(entered), name=self._name)
        try:
            both: list[asyncio.Future[Any]] = [self._task, entered]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._task.cancel()
            await asyncio.wait([self._task])
            raise
        if not entered.done():
            await self._task
        return entered.result()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the context; a failure is raised here. It was left already if the event loop ends."""
        self._leave.set()
        if self._task is not None and not (self._task.done() and self._task.cancelled()):
            await self._task

    async def _live(self, entered: asyncio.Future[T]) -> None:
        async with self._context as opened:
            entered.set_result(opened)
            await self._leave.wait()
