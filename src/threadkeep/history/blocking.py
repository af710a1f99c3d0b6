"""Calls to a memory from other threads and event loops, and wrappers with blocking methods."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from functools import cached_property, update_wrapper
from typing import Any, Concatenate, Self, overload

from threadkeep.boundary import OnFailure
from threadkeep.errors import InvalidInput, StoreClosed

_LOOK_SECONDS = 1.0
"""Seconds between two checks that the event loop still runs, while a caller waits for its result."""

_CLOSED = "The memory was closed during this call; close it when all calls are done."


class LoopBlocked(Exception):
    """The event loop of a memory is blocked; the coroutine was dropped before it began."""


class MemoryLoop:
    """The event loop of a memory, which runs coroutines for other threads and loops.

    If `dedicated` is true, the loop's thread runs only the memory, so code of callers cannot block the loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._process_id = os.getpid()
        self.dedicated = False

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop with the caller's context variables, and return its result.

        If the wait is interrupted, the coroutine is cancelled.

        Raises:
            StoreClosed: the loop does not run or ended during the call, or the memory was opened in another process.
            InvalidInput: the caller runs on this loop, so waiting would block it forever.
        """
        return self._wait_for(self._submit(work))

    def run_unless_blocked[T](self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a coroutine as `run` does, but only if the loop starts it within `seconds`.

        Raises:
            LoopBlocked: the loop was blocked for `seconds`, or the caller runs on the loop.
        """
        if self.is_own_thread:
            work.close()
            raise LoopBlocked
        taken, begun = threading.Lock(), threading.Event()

        async def begin() -> T:
            if not taken.acquire(blocking=False):
                raise LoopBlocked
            begun.set()
            return await work

        with OnFailure(work.close):
            future = self._submit(begin())
            if not begun.wait(seconds) and not future.done() and taken.acquire(blocking=False):
                raise LoopBlocked
        return self._wait_for(future)

    async def run_from_any_loop[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and await its result, from this or another loop.

        Raises:
            StoreClosed: the loop does not run or ended during the call, or the memory was opened in another process.
        """
        if self.is_running_here:
            return await work
        future = asyncio.wrap_future(self._submit(work))
        try:
            return await future
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise StoreClosed(_CLOSED) from None

    def post(self, call: Callable[[], object]) -> None:
        """Call a function on the loop, at once if the caller is on it, otherwise soon.

        If the loop has ended or belongs to another process, the function is never called.
        """
        if self.is_own_thread:
            call()
        elif self.of_this_process:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(call)

    @property
    def of_this_process(self) -> bool:
        """True if the memory was opened in this process; a forked child has a copy of it, but no loop thread."""
        return os.getpid() == self._process_id

    @property
    def is_running_here(self) -> bool:
        """True if the caller is a coroutine on this loop."""
        return asyncio.get_running_loop() is self._loop

    @property
    def is_own_thread(self) -> bool:
        """True if the caller is in the thread of this event loop, and the loop runs."""
        return threading.get_ident() == self._thread_id and self._loop.is_running()

    def _submit[T](self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with OnFailure(work.close):
            self._check()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait_for[T](self, future: Future[T]) -> T:
        try:
            while True:
                try:
                    return future.result(_LOOK_SECONDS)
                except TimeoutError:
                    if future.done():
                        return future.result()
                    self._check()
        except CancelledError:
            raise StoreClosed(_CLOSED) from None
        finally:
            future.cancel()

    def _check(self) -> None:
        if not self.of_this_process:
            raise StoreClosed(
                "This memory was opened in another process; open one in each process after the fork, such as in "
                "Celery's worker_process_init or gunicorn's post_fork."
            )
        if self.is_own_thread:
            raise InvalidInput(
                "A blocking call on the memory's own event loop would wait for itself; await the asynchronous method."
            )
        if not self._loop.is_running():
            raise StoreClosed(
                "The event loop of this memory does not run; use the memory before it is closed, and open it with "
                "open_memory_sync where no event loop runs."
            )


class Wrapper[W]:
    """A wrapper of an asynchronous object. Its blocking methods run the object's methods on the memory's event loop."""

    def __init__(self, asynchronous: W, loop: MemoryLoop) -> None:
        self._asynchronous = asynchronous
        self.loop = loop

    @property
    def asynchronous(self) -> W:
        """The asynchronous object, for code that runs on the memory's own loop."""
        return self._asynchronous

    def wait_for[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the memory's event loop and return its result."""
        return self.loop.run(work)


class _Verb[W, **P, R]:
    """A descriptor: as an attribute of a wrapper class, it is the blocking form of an asynchronous method."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: Wrapper[W], owner: type) -> Callable[P, R]: ...

    def __get__(self, instance: Wrapper[W] | None, owner: type) -> Self | Callable[P, R]:
        """Return the method bound to the wrapper `instance`, or the descriptor itself."""
        if instance is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return self._call(instance, *args, **kwargs)

        update_wrapper(call, self._method)
        del call.__wrapped__  # type: ignore[attr-defined]  # its first parameter is self, which is bound here
        call.__signature__ = self._signature  # type: ignore[attr-defined]
        return call

    def _call(self, wrapper: Wrapper[W], *args: P.args, **kwargs: P.kwargs) -> R:
        raise NotImplementedError

    @cached_property
    def _signature(self) -> inspect.Signature:
        signature = inspect.signature(self._method)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class Blocking[W, **P, T](_Verb[W, P, T]):
    """A wrapper's method that waits for the result of an asynchronous method."""

    def __init__(self, method: Callable[Concatenate[W, P], Coroutine[Any, Any, T]]) -> None:
        super().__init__(method)

    def _call(self, wrapper: Wrapper[W], *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = wrapper.wait_for(self._method(wrapper.asynchronous, *args, **kwargs))
        return found


class Called[W, **P, T](_Verb[W, P, T]):
    """A wrapper's method that runs a synchronous method on the memory's loop. No task of the loop runs meanwhile."""

    def __init__(self, method: Callable[Concatenate[W, P], T]) -> None:
        super().__init__(method)

    def _call(self, wrapper: Wrapper[W], *args: P.args, **kwargs: P.kwargs) -> T:
        async def work() -> T:
            found: T = self._method(wrapper.asynchronous, *args, **kwargs)
            return found

        return wrapper.wait_for(work())


class Iterated[W, **P, T](_Verb[W, P, Iterator[T]]):
    """A wrapper's method that returns a generator over an asynchronous iterator."""

    def __init__(self, method: Callable[Concatenate[W, P], AsyncIterator[T]]) -> None:
        super().__init__(method)

    def _call(self, wrapper: Wrapper[W], *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = self._method(wrapper.asynchronous, *args, **kwargs)
        # If the caller stops early, the iterator stays open until the event loop closes it.
        while found := wrapper.wait_for(_next(items)):
            yield found[0]


async def _next[T](items: AsyncIterator[T]) -> tuple[T] | None:
    """Return the next item in a tuple, or None at the end."""
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None
