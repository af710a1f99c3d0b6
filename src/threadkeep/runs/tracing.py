"""The trace and the token usage of an active run. Events are collected in memory and stored in groups."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.base import message_to_dict
from langchain_core.outputs import ChatGeneration, LLMResult
from pydantic_core import to_jsonable_python

from threadkeep.agent.counting import count_tokens
from threadkeep.agent.turn_options import kept_name
from threadkeep.boundary import Tasks
from threadkeep.errors import BudgetSpent, StoreError
from threadkeep.records import Json
from threadkeep.records.runs import NO_BUDGET, NO_USAGE, STATUS, Run, TokenUsage, TraceEvent
from threadkeep.runs.options import Prices, RunServiceOptions
from threadkeep.runs.streams import RunStream
from threadkeep.store.runs.trace import RunTrace, TraceGroup

type Data = Mapping[str, Json]

_MOST_REMEMBERED = 50
_AT_ITS_START = frozenset({STATUS, "node_started"})
"""Kinds of events that add little to the row of a started run, so they may be stored later than other events."""

_START_TIMES = 10
_MOST_EVENTS = 5_000
"""The maximum number of events that are kept while the database is down; beyond it, the oldest groups are dropped."""

UNNAMED = "unnamed"
"""The model name for calls of models that do not report their name."""


class Ledger(AsyncCallbackHandler):
    """The token usage of one execution of a run, checked against the budgets of the run and its ancestors.

    It ignores the run's events. The subclass `RunTracer`, for runs in the database, records them.

    As a callback, it adds the usage of each model call exactly once. Concurrent calls may exceed a budget, because a
    call is counted when it ends. A model without a price costs nothing.

    - `limited`: the run and its ancestors, but only runs that have a budget.
    - `usages`: the usage of the run's own model calls, not of its child runs.
    - `spent`: the error that stopped a model call; None if none was stopped.
    """

    raise_error = True  # an error from `check` must stop the call
    # Ignore other events, each of which would cost a coroutine in each step of a graph.
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, prices: Prices) -> None:
        self.limit(())
        self.has_children = False
        self.spent: BudgetSpent | None = None
        self.usages: list[TokenUsage] = []
        self._prices = prices
        self._asked: dict[UUID, tuple[str, list[BaseMessage]]] = {}

    def note(
        self, kind: str, node: str | None = None, data: Data | None = None, *, usage: TokenUsage | None = None
    ) -> None:
        """Record an event, with its `usage` if it reports a model call."""

    def limit(self, runs: Sequence[Run]) -> None:
        """Check from now on the budgets of those runs that have one."""
        self.limited = [run for run in runs if run.budget != NO_BUDGET]
        # LangChain starts a task for each event unless the handler is inline, but an inline error skips other handlers.
        self.run_inline = not self.limited

    async def check(self) -> None:
        """Check before a model call that no budget is used up.

        Raises:
            BudgetSpent: a budget is used up.
        """
        for run in self.limited:
            self.spent = spent_budget(run, await self._used(run))
            if self.spent is not None:
                raise self.spent

    async def crossed(self) -> BudgetSpent | None:
        """Return the first exceeded budget as an error; return None if no budget is exceeded."""
        for run in self.limited:
            if (crossed := spent_budget(run, await self._used(run), crossed=True)) is not None:
                return crossed
        return None

    async def on_chat_model_start(
        self,
        serialized: Mapping[str, Any] | None,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Check the budget before a call."""
        await self.check()
        name = (metadata or {}).get("ls_model_name")
        self._asked[run_id] = (name if isinstance(name, str) and name else UNNAMED, messages[0] if messages else [])

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Record the usage after a call, as the provider reports it, or else as Threadkeep estimates it."""
        name, asked = self._asked.pop(run_id, (UNNAMED, []))
        generation = response.generations[0][0] if response.generations and response.generations[0] else None
        answer = generation.message if isinstance(generation, ChatGeneration) else None
        if not isinstance(answer, AIMessage):
            return
        named = answer.response_metadata.get("model_name")
        model = kept_name(named if isinstance(named, str) and named else name)
        reported = answer.usage_metadata
        input_tokens = reported["input_tokens"] if reported else count_tokens(asked, model)
        output_tokens = reported["output_tokens"] if reported else count_tokens(answer, model)
        details = reported.get("input_token_details") if reported else None
        cached = min((details or {}).get("cache_read") or 0, input_tokens)
        # Try both names, because some providers report a model name that differs from the requested one.
        price = (self._prices.of(model) or self._prices.of(name)) if self._prices else None
        cost = None if price is None else price.cost(input_tokens, output_tokens, cached)
        self.usages.append(TokenUsage(model, 1, input_tokens, output_tokens, cached, 0 if reported else 1, cost))
        data: dict[str, Json] = {
            "model": model,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "cache_read_tokens": cached,
            "cost": cost,
            **({} if reported else {"estimated": True}),
            # With this id, a reader of the trace finds the message.
            **({"answer": answer.id} if answer.id else {}),
        }
        self.note("model_called", data=data, usage=self.usages[-1])

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Forget a failed call, because its usage is neither known nor estimated."""
        self._asked.pop(run_id, None)

    async def _used(self, run: Run) -> Sequence[TokenUsage]:
        return self.usages


def spent_budget(run: Run, usages: Sequence[TokenUsage], *, crossed: bool = False) -> BudgetSpent | None:
    """Return an error if a run has used up its budget; with `crossed`, only if it has exceeded the budget."""
    total = sum(usages, NO_USAGE)
    for limit, used, allowed in (
        ("max_tokens", total.tokens, run.budget.max_tokens),
        ("max_cost", total.cost or 0.0, run.budget.max_cost),
    ):
        if allowed is not None and (used > allowed or (used == allowed and not crossed)):
            return BudgetSpent(run.run_id, limit=limit, used=used, allowed=allowed, estimated=total.estimated)
    return None


class Debounced(ABC):
    """A base class that calls `_store` later, in a separate task, when the lock `working` is free."""

    def __init__(self) -> None:
        self.working = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    @abstractmethod
    async def _store(self) -> None: ...

    def within(self, seconds: float) -> None:
        """Schedule a call of `_store` in `seconds`, unless a call is scheduled for an earlier time."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() <= loop.time() + seconds:
            return
        self.disarm()
        self._timer = loop.call_later(seconds, self._due, seconds)

    def disarm(self) -> None:
        """Cancel the scheduled call of `_store`. The next call of `within` schedules one again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Cancel the scheduled call of `_store`, and wait for calls in progress."""
        self.disarm()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _due(self, seconds: float) -> None:
        self._timer = None
        if self.working.locked():
            self.within(seconds)
            return
        _ = self._tasks.start(self._store())


class RunTracer(Debounced, Ledger):
    """The trace and the token usage of one run in the database.

    Events and usage are stored in groups: within `trace_seconds` while a caller in this process follows the run,
    otherwise within `late_trace_seconds`. Therefore a short run stores them only at its end. If the process is killed,
    those after the last stored group are lost.

    `lost` is called if another process owns the run. `used` stores the pending usage of the whole tree, and returns the
    usage of a run and all runs below it. It is called before each model call for each run in `limited`.
    """

    def __init__(
        self,
        trace: RunTrace,
        stream: RunStream,
        owner: str,
        options: RunServiceOptions,
        *,
        lost: Callable[[], None],
        used: Callable[[str], Awaitable[Sequence[TokenUsage]]],
        begins: bool,
    ) -> None:
        Debounced.__init__(self)
        Ledger.__init__(self, options.prices)
        self._trace = trace
        self._stream = stream
        self._owner = owner
        self._lost = lost
        self._usage_of = used
        self._seconds = options.trace_seconds
        self._late_seconds = options.late_trace_seconds
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

    async def _used(self, run: Run) -> Sequence[TokenUsage]:
        return await self._usage_of(run.run_id)

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

    def __init__(self, notes: Ledger) -> None:
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
