"""Ways in which programs call agents with memory, behind one set of blocking methods."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, get_args

from langchain_core.runnables import RunnableConfig

from tests.agent.talking import ROOM, config_of, input_of
from tests.limits import HANG_SECONDS
from threadkeep import Memory, MemoryOptions, Message, SyncMemory, open_memory_sync
from threadkeep.observe import Observer

type WayName = Literal["async", "sync", "sync-beside-loop", "sync-in-loop", "async-over-sync"]

WAYS: tuple[WayName, ...] = get_args(WayName.__value__)


class Loop:
    """An event loop in a thread, as in a program or a notebook."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-loop")
        self._thread.start()

    def run[T](self, work: Awaitable[T]) -> T:
        """Run an awaitable on the loop and return its result."""

        async def working() -> T:
            return await work

        future: Future[T] = asyncio.run_coroutine_threadsafe(working(), self._loop)
        return future.result(HANG_SECONDS)

    def call[T](self, function: Callable[[], T]) -> T:
        """Call a function on the loop and block the loop until it returns, as a notebook cell does."""

        async def cell() -> T:
            return function()

        return self.run(cell())

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Way:
    """A way to call agents: synchronous or asynchronous, over a synchronous or an asynchronous memory."""

    def __init__(self, name: WayName, loop: Loop, memory: Memory | SyncMemory) -> None:
        self.name = name
        self.loop = loop
        self.memory = memory
        self.is_async = name.startswith("async")
        self.may_overlap = name != "sync-in-loop"

    def ask(self, graph: Any, given: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """Run a graph and return its final state."""
        config = config_of() if config is None else config
        if self.is_async:
            return self.loop.run(graph.ainvoke(given, config, **options))
        return self._sync(lambda: graph.invoke(given, config, **options))

    def say(self, graph: Any, words: str, message_id: str | None = None, thread_id: str = ROOM) -> str:
        """Send a text to an agent and return its answer."""
        return str(self.ask(graph, input_of(words, message_id), config_of(thread_id))["messages"][-1].text)

    def stream(self, graph: Any, given: Any, *, most: int | None = None, **options: Any) -> list[Any]:
        """Return the parts of a graph's stream; close the stream after `most` parts."""
        if self.is_async:
            return self.loop.run(_read(graph.astream(given, config_of(), **options), most))

        def read() -> list[Any]:
            parts: list[Any] = []
            stream = graph.stream(given, config_of(), **options)
            for part in stream:
                parts.append(part)
                if len(parts) == most:
                    break
            stream.close()
            return parts

        return self._sync(read)

    @contextmanager
    def open_stream(self, graph: Any, given: Any, *, parts: int, **options: Any) -> Iterator[None]:
        """Read some parts of a graph's stream, and close the stream after the block."""
        if self.is_async:
            stream = graph.astream(given, config_of(), **options)
            for _ in range(parts):
                self.loop.run(anext(stream))
            yield
            self.loop.run(stream.aclose())
            return
        stream = graph.stream(given, config_of(), **options)
        for _ in range(parts):
            self._sync(lambda: next(stream))
        yield
        self._sync(stream.close)

    def batch(self, graph: Any, given: Sequence[Any], configs: Sequence[RunnableConfig], **options: Any) -> list[Any]:
        """Run a graph for several inputs."""
        if self.is_async:
            return self.loop.run(graph.abatch(given, configs, **options))
        return self._sync(lambda: graph.batch(given, configs, **options))

    def together(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make several calls of these methods, concurrently if this way of calling can."""
        if not self.may_overlap:
            for call in calls:
                call()
            return
        with ThreadPoolExecutor(len(calls)) as threads:
            for done in [threads.submit(call) for call in calls]:
                done.result(HANG_SECONDS)

    def tail(self, session_id: str = ROOM) -> list[Message]:
        """Return the messages of a session."""
        session: Any = self.memory.session(session_id)
        if isinstance(self.memory, SyncMemory):
            return list(session.tail(1000))
        return self.loop.run(session.tail(1000))

    def kept(self, session_id: str = ROOM) -> list[tuple[str, str]]:
        """Return the roles and texts of a session; a role has its status added unless the status is `complete`."""
        return [
            (one.role if one.status == "complete" else f"{one.role} ({one.status})", one.content)
            for one in self.tail(session_id)
        ]

    def said(self) -> list[tuple[str | None, str]]:
        """Return the authors and texts of the session; the author of a person's message is None."""
        return [(one.author, one.content) for one in self.tail()]

    def close(self) -> None:
        """Close the memory; a second call does nothing."""
        if isinstance(self.memory, SyncMemory):
            self.memory.close()
        else:
            self.loop.run(self.memory.close())

    def _sync[T](self, call: Callable[[], T]) -> T:
        return self.loop.call(call) if self.name == "sync-in-loop" else call()


@contextmanager
def opened(name: WayName, url: str, options: MemoryOptions, observers: Sequence[Observer] = ()) -> Iterator[Way]:
    """Open a memory for a way of calling, and close it after the block."""
    with ExitStack() as stack:
        loop = Loop()
        stack.callback(loop.close)
        memory: Memory | SyncMemory
        if name in ("sync", "async-over-sync"):
            memory = stack.enter_context(open_memory_sync(url, options=options, observers=observers))
        else:
            memory = loop.run(Memory.open(url, options=options, observers=observers))
        way = Way(name, loop, memory)
        stack.callback(way.close)
        yield way


async def _read(stream: AsyncIterator[Any], most: int | None) -> list[Any]:
    parts: list[Any] = []
    async for part in stream:
        parts.append(part)
        if len(parts) == most:
            break
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
    return parts
