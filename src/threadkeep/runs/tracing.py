"""The trace of an active run: its events are collected in memory and stored in groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.messages.base import message_to_dict
from pydantic_core import to_jsonable_python

from threadkeep.errors import StoreError
from threadkeep.records import Json
from threadkeep.records.runs import STATUS, TokenUsage, TraceEvent
from threadkeep.runs.retries import Debounced
from threadkeep.runs.streams import RunStream
from threadkeep.store.runs.trace import RunTrace, TraceGroup

type Data = Mapping[str, Json]

_MOST_REMEMBERED = 50
_AT_ITS_START = frozenset({STATUS, "node_started"})
"""Kinds of events that add little to the row of a started run, so they may be stored later than other events."""

_START_TIMES = 10
_MOST_EVENTS = 5_000
"""The maximum number of events that are kept while the database is down; beyond it, the oldest groups are dropped."""


class Trace:
    """A trace that records nothing, for runs that are not stored."""

    def note(
        self, kind: str, node: str | None = None, data: Data | None = None, *, usage: TokenUsage | None = None
    ) -> None:
        """Record an event, with its `usage` if it reports a model call."""


class RunTracer(Debounced, Trace):
    """The trace of one run. If the process is killed, the events after the last stored group are lost.

    Events are stored in groups: within `seconds` while a caller in this process follows the run, otherwise within
    `late_seconds`. Therefore a short run stores its trace only at its end. `lost` is called if another process owns the
    run.
    """

    def __init__(
        self,
        trace: RunTrace,
        stream: RunStream,
        owner: str,
        *,
        lost: Callable[[], None],
        seconds: float,
        late_seconds: float,
        begins: bool,
    ) -> None:
        super().__init__()
        self._trace = trace
        self._stream = stream
        self._owner = owner
        self._lost = lost
        self._seconds = seconds
        self._late_seconds = late_seconds
        self._group = TraceGroup()
        self._sealed: deque[TraceGroup] = deque()
        self._number: int | None = 0 if begins else None
        self._stored: TraceGroup | None = TraceGroup() if begins else None

    def note(
        self, kind: str, node: str | None = None, data: Data | None = None, *, usage: TokenUsage | None = None
    ) -> None:
        """Add an event to the trace."""
        self._group.events.append(TraceEvent(kind, node, data or {}, self._trace.clock()))
        if usage is not None:
            self._group.usage.append(usage)
        times = _START_TIMES if kind in _AT_ITS_START else 1
        self.within(self._seconds if self._stream.followers else self._late_seconds * times)

    async def flush(self) -> None:
        """Store the events that were added so far.

        Raises:
            StoreError: the database did not store the events; the next call tries again.
        """
        self.disarm()
        async with self.working:
            self._seal()
            await self._store_sealed(leaving=0)
        self._stream.signal()

    async def flush_with[T](self, store: Callable[[TraceGroup], Awaitable[T | None]]) -> T | None:
        """Store all groups of events except the last; pass the last one to `store`, and return its result.

        Raises:
            StoreError: the database did not store the events; the next call tries again.
        """
        self.disarm()
        async with self.working:
            self._seal()
            await self._store_sealed(leaving=1)
            group = self._sealed[0] if self._sealed else TraceGroup()
            group.after = await self._newest()
            stored = await store(group)
            self._sealed.clear()
        self._stream.signal()
        return stored

    async def store_whole[T](self, store: Callable[[TraceGroup], Awaitable[T | None]]) -> T | None:
        """Pass all events of the run to `store` as one group, and return the result of `store`.

        Return None if nothing was stored. The group's `after` is the number of the newest stored event.
        """
        self.disarm()
        async with self.working:
            if self._sealed or self._stored is None:
                return None
            events, usage = self._stored.events + self._group.events, self._stored.usage + self._group.usage
            stored = await store(TraceGroup(events, usage, self._number))
            if stored is not None:
                self.disarm()
                self._group, self._stored = TraceGroup(), None
        return stored

    def _seal(self) -> None:
        if self._group.events or self._group.usage:
            self._sealed.append(self._group)
            self._group = TraceGroup()

    async def _newest(self) -> int:
        """Return the number of the newest stored event. With it, the database skips a group that is stored already."""
        if self._number is None:
            self._number = await self._trace.last_number(self._stream.run_id)
        return self._number

    async def _store_sealed(self, *, leaving: int) -> None:
        while len(self._sealed) > leaving:
            group = self._sealed[0]
            number = await self._trace.append(
                self._stream.run_id, group.events, usage=group.usage, owner=self._owner, after=await self._newest()
            )
            self._remember(self._sealed.popleft())
            if number is None:
                self._sealed.clear()
                self._lost()
                return
            self._number = number

    def _remember(self, group: TraceGroup) -> None:
        """Cache the stored events of a short trace for `store_whole`."""
        if self._stored is not None:
            self._stored.events += group.events
            self._stored.usage += group.usage
            if len(self._stored.events) > _MOST_REMEMBERED:
                self._stored = None

    async def _store(self) -> None:
        try:
            await self.flush()
        except StoreError:
            # Ignore the error: the next write stores these events too. If they become too many, drop the oldest groups.
            while sum(len(group.events) for group in self._sealed) > _MOST_EVENTS and len(self._sealed) > 1:
                self._sealed.popleft()


class ToolTrace(AsyncCallbackHandler):
    """A LangChain callback that records the tool calls of a run in its trace, with arguments and results."""

    run_inline = True
    # Ignore other events, each of which would cost a coroutine in each step of a graph.
    ignore_chain = ignore_llm = ignore_chat_model = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, notes: Trace) -> None:
        self._notes = notes
        self._called: dict[UUID, tuple[str, str | None, str]] = {}

    async def on_tool_start(
        self,
        serialized: Mapping[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        metadata: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        tool_call_id: str | None = None,
        **_: Any,
    ) -> None:
        """Record the start of a tool call, under the id that the model gave it, if any."""
        name = str((serialized or {}).get("name") or "tool")
        node, call = node_of(metadata), tool_call_id or str(run_id)
        self._called[run_id] = (name, node, call)
        given = {key: value for key, value in (inputs or {}).items() if key != "runtime"} if inputs else input_str
        self._notes.note("tool_called", node, {"tool": name, "call": call, "args": jsonable(given)})

    async def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """Record the result of a tool call."""
        name, node, call = self._called.pop(run_id, ("tool", None, str(run_id)))
        self._notes.note("tool_finished", node, {"tool": name, "call": call, "result": jsonable(output)})

    async def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Record a tool call that raised."""
        name, node, call = self._called.pop(run_id, ("tool", None, str(run_id)))
        self._notes.note("tool_finished", node, {"tool": name, "call": call, "error": type(error).__name__})


def node_of(metadata: Mapping[str, Any] | None) -> str | None:
    """Return the workflow's node in which an event happened, even if inside a subgraph; None if it is unknown."""
    namespace = (metadata or {}).get("langgraph_checkpoint_ns")
    return namespace.partition(":")[0] or None if isinstance(namespace, str) else None


def jsonable(value: object) -> Json:
    """Return a value as JSON; parts that JSON cannot represent become the names of their types."""
    if isinstance(value, BaseMessage):
        value = message_to_dict(value)
    found: Json = to_jsonable_python(value, fallback=lambda other: type(other).__name__, serialize_unknown=True)
    return found
