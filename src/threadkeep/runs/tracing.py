"""The trace of a run while it goes on: noted at once, stored in groups, by the run's owner alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.messages.base import message_to_dict
from pydantic_core import to_jsonable_python

from threadkeep.errors import StoreError
from threadkeep.records import Json
from threadkeep.records.runs import TokenUsage, TraceEvent
from threadkeep.runs.live import LiveRun
from threadkeep.runs.postponed import Postponed
from threadkeep.store.runs.trace import RunTrace, TraceGroup

type Data = Mapping[str, Json]

_MOST_EVENTS = 5_000
"""How many events wait for a database that is down, before older ones are given up."""


class Notes(Protocol):
    """Where what happens in a run is noted."""

    def note(self, kind: str, node: str | None = None, data: Data | None = None) -> None:
        """Note an event."""
        ...


class RunTracer:
    """Notes what happens in one run; `seconds` is how long an event waits for others at most.

    What was noted since the last group is lost with a process that is killed. `lost` is called when the run is another
    process's by now.
    """

    def __init__(
        self, trace: RunTrace, live: LiveRun, owner: str, *, lost: Callable[[], None], seconds: float, begins: bool
    ) -> None:
        self._trace = trace
        self._live = live
        self._owner = owner
        self._lost = lost
        self._seconds = seconds
        self._group = TraceGroup()
        self._sealed: deque[TraceGroup] = deque()
        self._number: int | None = 0 if begins else None
        self._storing = Postponed(self._store)

    def note(self, kind: str, node: str | None = None, data: Data | None = None) -> None:
        """Note an event."""
        self._group.events.append(TraceEvent(kind, node, data or {}))
        self._storing.within(self._seconds)

    def use(self, usage: TokenUsage) -> None:
        """Note what a model call took."""
        self._group.usage.append(usage)
        self._storing.within(self._seconds)

    async def flush(self) -> None:
        """Store what was noted so far.

        Raises:
            StoreError: the database does not take it; it is kept for the next try.
        """
        self._storing.disarm()
        async with self._storing.working:
            self._seal()
            await self._store_sealed(leaving=0)
        self._live.signal()

    async def flush_with[T](self, store: Callable[[TraceGroup], Awaitable[T | None]]) -> T | None:
        """Store what was noted so far, the last of it by `store`, with what belongs to it; answers what that answers.

        Raises:
            StoreError: the database does not take it; it is kept for the next try.
        """
        self._storing.disarm()
        async with self._storing.working:
            self._seal()
            await self._store_sealed(leaving=1)
            group = self._sealed[0] if self._sealed else TraceGroup()
            group.after = await self._newest()
            stored = await store(group)
            self._sealed.clear()
        self._live.signal()
        return stored

    async def close(self) -> None:
        """Let go of what is half done; nothing is stored any more."""
        await self._storing.close()

    def _seal(self) -> None:
        if self._group.events or self._group.usage:
            self._sealed.append(self._group)
            self._group = TraceGroup()

    async def _newest(self) -> int:
        """The newest event that is stored: known before anything is, so that an answer that is lost doubles nothing."""
        if self._number is None:
            self._number = await self._trace.last_number(self._live.run_id)
        return self._number

    async def _store_sealed(self, *, leaving: int) -> None:
        while len(self._sealed) > leaving:
            group = self._sealed[0]
            number = await self._trace.append(
                self._live.run_id, group.events, usage=group.usage, owner=self._owner, after=await self._newest()
            )
            self._sealed.popleft()
            if number is None:
                self._sealed.clear()
                self._lost()
                return
            self._number = number

    async def _store(self) -> None:
        try:
            await self.flush()
        except StoreError:
            # The answer does not wait for its trace; the end of the run tries again.
            while sum(len(group.events) for group in self._sealed) > _MOST_EVENTS and len(self._sealed) > 1:
                self._sealed.popleft()


class ToolTrace(AsyncCallbackHandler):
    """A callback of a run that notes the calls of tools, with what they were given and what they gave."""

    run_inline = True
    # What it does not listen to is not worth a coroutine for each step of a graph.
    ignore_chain = ignore_llm = ignore_chat_model = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._called: dict[UUID, tuple[str, str | None]] = {}

    async def on_tool_start(
        self,
        serialized: Mapping[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        metadata: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Before a tool."""
        name = str((serialized or {}).get("name") or "tool")
        node = node_of(metadata)
        self._called[run_id] = (name, node)
        given = {key: value for key, value in (inputs or {}).items() if key != "runtime"} if inputs else input_str
        self._notes.note("tool_called", node, {"tool": name, "call": str(run_id), "args": jsonable(given)})

    async def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """After a tool."""
        name, node = self._called.pop(run_id, ("tool", None))
        self._notes.note("tool_finished", node, {"tool": name, "call": str(run_id), "result": jsonable(output)})

    async def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """After a tool that raised."""
        name, node = self._called.pop(run_id, ("tool", None))
        self._notes.note("tool_finished", node, {"tool": name, "call": str(run_id), "error": type(error).__name__})


def node_of(metadata: Mapping[str, Any] | None) -> str | None:
    """The node of the workflow that something happened in, however deep inside."""
    namespace = (metadata or {}).get("langgraph_checkpoint_ns")
    return namespace.partition(":")[0] or None if isinstance(namespace, str) else None


def jsonable(value: object) -> Json:
    """A value as JSON; what has no such form, as its type's name."""
    if isinstance(value, BaseMessage):
        value = message_to_dict(value)
    found: Json = to_jsonable_python(value, fallback=lambda other: type(other).__name__, serialize_unknown=True)
    return found
