"""Context managers for errors and background tasks, and functions that describe or convert errors."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import Context
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial, wraps
from types import TracebackType
from typing import Any


def location_of(error: BaseException) -> str:
    """Return the file and line that raised an error, for reports without its message, which may quote people."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown location"


def retry_after(headers: Mapping[str, str], *, longest: float) -> float | None:
    """Return the pause that `Retry-After` demands, from 1 second to `longest`, or None if it is missing or invalid."""
    text = headers.get("Retry-After", "").strip()
    try:
        seconds = float(text) if text.isdecimal() else (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(seconds, 1.0), longest)


class ExitRequested(Exception):
    """The code of a node or a tool raised SystemExit."""


def without_exit[**P, R](call: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Wrap `call` to raise `ExitRequested` in place of SystemExit, which would end the process."""

    @wraps(call, updated=())
    async def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await call(*args, **kwargs)
        except SystemExit as error:
            raise ExitRequested from error

    return checked


@contextmanager
def of_extra(extra: str) -> Iterator[None]:
    """Add the name of the extra that installs the missing package to each `ModuleNotFoundError` of the block."""
    try:
        yield
    except ModuleNotFoundError as error:
        error.msg = f"{error.msg}; install it with: pip install 'threadkeep[{extra}]'"
        raise


def retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task that is not awaited, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


async def shielded[T](work: Coroutine[object, object, T]) -> T:
    """Await `work`. If the caller is cancelled, the cancellation is raised only when the work has ended.

    If the caller is cancelled twice, the cancellation is raised at once, and the work continues.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.add_done_callback(retrieve_exception)
        await asyncio.wait([task])
        raise
    return task.result()


@asynccontextmanager
async def running[T](work: Coroutine[Any, Any, T], name: str) -> AsyncIterator[asyncio.Task[T]]:
    """Run a task while the block runs; cancel the task at the end of the block."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Tasks(set[asyncio.Task[Any]]):
    """The background tasks of an owner that have not ended; asyncio itself keeps no strong references to tasks."""

    def start[T](
        self, work: Coroutine[Any, Any, T], name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Run `work` in a task, which stays in this set until it ends."""
        task = asyncio.create_task(work, name=name, context=context)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def cancel(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - not all have to end in time
        """Cancel the tasks, and wait up to `timeout` seconds until they have ended."""
        for task in self:
            task.cancel()
        if self:
            await asyncio.wait(self, timeout=timeout)


_MOST_WAITING = 1_000


class WorkQueue[R]:
    """A bounded queue with the newest request of each session, and the background tasks that work on the requests.

    Up to `most_at_once` sessions are worked on at once. `work` must catch its errors. It may add to `waiting` what it
    has left undone, also while the queue is closing.
    """

    def __init__(self, work: Callable[[R], Coroutine[Any, Any, None]], name: str, *, most_at_once: int) -> None:
        self.waiting: OrderedDict[str, R] = OrderedDict()
        self._work = work
        self._name = name
        self._most_at_once = most_at_once
        self._running: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def put(self, session_id: str, request: R) -> str | None:
        """Queue a request in place of the session's earlier one, and return at once; after `close`, do nothing.

        If more than 1,000 sessions wait, drop the first one and return its id.
        """
        if self._closed:
            return None
        self.waiting[session_id] = request
        dropped = self.waiting.popitem(last=False)[0] if len(self.waiting) > _MOST_WAITING else None
        self._begin()
        return dropped

    async def idle(self) -> None:
        """Wait until the queue is empty and no work is in progress."""
        while self._running:
            await asyncio.wait(self._running.values())

    async def close(self, seconds: float) -> None:
        """Accept no more requests, wait up to `seconds` until the queue is idle, then cancel the rest."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.idle(), seconds)
        self.waiting.clear()
        for task in self._running.values():
            task.cancel()
        await self.idle()

    def _begin(self) -> None:
        due = [session_id for session_id in self.waiting if session_id not in self._running]
        for session_id in due[: self._most_at_once - len(self._running)]:
            work = self._work(self.waiting.pop(session_id))
            # The context of the caller would keep the caller's run in memory, and its stream would get the tokens.
            task = self._running[session_id] = asyncio.create_task(work, context=Context(), name=self._name)
            task.add_done_callback(partial(self._ended, session_id))

    def _ended(self, session_id: str, task: asyncio.Task[None]) -> None:
        del self._running[session_id]
        if not task.cancelling():  # at the end of its loop, asyncio cancels all tasks; begin no others then
            self._begin()


class ErrorBoundary(AbstractContextManager["ErrorBoundary", bool]):
    """A context manager that catches any error of its block, stores it in `error`, and reports it.

    Use it in background loops that must survive each failure, around models and other code that may raise anything, and
    around each of many items. Cancellation, KeyboardInterrupt, SystemExit and the errors in `raising` pass through.
    """

    def __init__(
        self, report: Callable[[Exception], object] | None = None, *, raising: tuple[type[Exception], ...] = ()
    ) -> None:
        self.error: Exception | None = None
        self._report = report
        self._raising = raising

    @property
    def caught(self) -> Exception:
        """The error that ended the block; reading it raises `AttributeError` if there is none."""
        if self.error is None:
            raise AttributeError("The block raised no error; check that `error` is not None first.")
        return self.error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Store and report the error of the block, and suppress it."""
        if not isinstance(error, Exception) or isinstance(error, self._raising):
            return False
        self.error = error
        if self._report is not None:
            self._report(error)
        return True


class OnFailure(AbstractContextManager["OnFailure", None]):
    """A context manager that calls `undo` if its block raises or is cancelled."""

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Call `undo` if the block failed."""
        if kind is not None:
            self._undo()


class AsyncOnFailure(AbstractAsyncContextManager["AsyncOnFailure", None]):
    """The asynchronous form of `OnFailure`: it awaits `undo`."""

    def __init__(self, undo: Callable[[], Awaitable[object]]) -> None:
        self._undo = undo

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Await `undo` if the block failed."""
        if kind is not None:
            await self._undo()
