"""Wrappers that run calls on the event loop of a memory, for callers on any event loop and in any OS thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, cast
from weakref import WeakKeyDictionary

from threadkeep.errors import InvalidInput
from threadkeep.history import memory as history
from threadkeep.history.blocking import LoopBlocked
from threadkeep.memory.memory import Memory
from threadkeep.memory.sync_memory import SyncMemory

_companions: WeakKeyDictionary[history.Memory, SyncMemory] = WeakKeyDictionary()
_companion_lock = threading.RLock()
_BLOCKED_SECONDS = {"companion": 0.1, "tables": 0.5, "graph_store": 5.0}
"""Seconds until a loop counts as blocked. The store of the transcripts decides if no companion is open."""
caller_loop: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("threadkeep_caller_loop", default=None)
"""The event loop on which the caller awaits this code; None if it is the memory's own loop."""

blocked_loop: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("threadkeep_blocked_loop", default=None)
"""The event loop that is blocked while its caller waits for this code, if any."""


class OnLoop[M: history.Memory, H]:
    """A wrapper of an object that belongs to a memory; it runs calls on the memory's event loop.

    A blocking call may come from the thread of that loop, as from `agent.invoke` in a notebook cell, or from a thread
    for which the loop waits. Such a call runs on a companion memory: the same database, opened again on the loop of
    another thread. The companion has its own wrapped object, and is closed with the memory.
    """

    def __init__(self, memory: M | SyncMemory, make: Callable[[M], H]) -> None:
        self._memory = cast("M", memory.asynchronous) if isinstance(memory, SyncMemory) else memory
        if not isinstance(self._memory, history.Memory):
            raise InvalidInput("Open the memory first: `async with open_memory(url)` or `with open_memory_sync(url)`.")
        self._make = make
        self._own = make(self._memory)
        self._second: H | None = None

    @property
    def made(self) -> list[H]:
        """The wrapped object and, if a companion memory is open, the wrapped object of the companion."""
        return [self._own] if self._second is None else [self._own, self._second]

    async def call[**P, T](
        self, verb: Callable[Concatenate[H, P], Coroutine[Any, Any, T]], *arguments: P.args, **named: P.kwargs
    ) -> T:
        """Run a method of the wrapped object on the memory's event loop, or on the loop of the companion memory.

        Raises:
            StoreClosed: the memory is closed.
        """
        if self._memory.loop.is_running_here:
            return await verb(self._own, *arguments, **named)
        token, blocked = caller_loop.set(asyncio.get_running_loop()), blocked_loop.set(None)
        try:
            companion = _companions.get(self._memory)
            if companion is not None and companion.loop.is_own_thread:
                return await verb(self._of_companion(companion), *arguments, **named)
            return await self._memory.loop.run_from_any_loop(verb(self._own, *arguments, **named))
        finally:
            caller_loop.reset(token)
            blocked_loop.reset(blocked)

    async def call_even_if_blocked[T](self, verb: Callable[[H], Coroutine[Any, Any, T]]) -> T:
        """Run a method as `call` does; if the memory's loop is blocked, run it on the companion's loop.

        A method that runs in another thread is not cancelled with the caller.
        """
        companion, loop = _companions.get(self._memory), self._memory.loop
        if loop.dedicated or loop.is_running_here or (companion is not None and companion.loop.is_own_thread):
            return await self.call(verb)
        return await asyncio.to_thread(self.wait_for, verb)

    def wait_for[T](self, verb: Callable[[H], Coroutine[Any, Any, T]], of: H | None = None) -> T:
        """Run a method on a loop that the caller does not block, and wait for the result.

        `of` is the wrapped object of an earlier call, to run this call on the same loop.

        Raises:
            StoreClosed: the memory is closed.
            InvalidInput: the caller is in the memory's own thread, or blocks its loop and no companion is possible.
        """
        token, blocked = caller_loop.set(None), blocked_loop.set(running_loop())
        try:
            return self._wait_for(verb, of)
        finally:
            caller_loop.reset(token)
            blocked_loop.reset(blocked)

    def _wait_for[T](self, verb: Callable[[H], Coroutine[Any, Any, T]], of: H | None) -> T:
        loop = self._memory.loop
        if of is not None and of is self._second:
            return _companions[self._memory].wait_for(verb(of))
        if of is not None or loop.dedicated:
            return loop.run(verb(self._own))
        transcripts = "graph_store" if self._memory.in_graph_store else "tables"
        seconds = _BLOCKED_SECONDS["companion" if self._memory in _companions else transcripts]
        try:
            return loop.run_unless_blocked(verb(self._own), seconds)
        except LoopBlocked:
            with _companion_lock:
                companion = _companions.get(self._memory) or SyncMemory.companion_of(self._memory)
                _companions[self._memory] = companion
        return companion.wait_for(verb(self._of_companion(companion)))

    def _of_companion(self, companion: SyncMemory) -> H:
        with _companion_lock:
            if self._second is None:
                self._second = self._make(cast("M", companion.asynchronous))
            return self._second


class MemoryAdapter:
    """A base class of adapters whose asynchronous methods use a memory; decorate the adapter with `on_any_loop`."""

    def __init__(self, memory: Memory | SyncMemory) -> None:
        self._memories: OnLoop[Memory, Memory] = OnLoop(memory, lambda opened: opened)

    @property
    def memory(self) -> Memory:
        """The memory of the adapter. In the thread of its companion (see `OnLoop`), this is the companion."""
        made = self._memories.made
        return next((one for one in made if one.loop.is_own_thread), made[0])


def on_any_loop[A: MemoryAdapter](adapter: type[A]) -> type[A]:
    """Run the coroutine methods of an adapter on its memory's event loop, so that any loop may await them."""

    def wrapped[T](method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
        @wraps(method)
        async def call(self: A, *args: Any, **named: Any) -> T:
            return await self._memories.call_even_if_blocked(lambda _: method(self, *args, **named))

        return call

    for name, method in list(vars(adapter).items()):
        if inspect.iscoroutinefunction(method):
            setattr(adapter, name, wrapped(method))
    return adapter


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
