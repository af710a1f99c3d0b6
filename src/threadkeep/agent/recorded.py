"""`recorded`: a wrapper that records the turns of a compiled graph whose builder accepts no middleware."""

from __future__ import annotations

import operator
import warnings
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from copy import copy
from typing import Annotated, Any, Final, TypedDict, cast

from langchain_core.messages import AIMessage, RemoveMessage
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langchain_core.runnables.base import RunnableBindingBase
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.pregel import Pregel
from langgraph.types import Command, StateUpdate
from pydantic import BaseModel

from threadkeep.agent.answers import has_detector
from threadkeep.agent.conversion import id_of
from threadkeep.agent.invocation import has_saver, kinds_among
from threadkeep.agent.questions import messages_in
from threadkeep.agent.recorded_turns import GraphInput, GraphTurn, GraphTurns, State
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.boundary import OnFailure
from threadkeep.errors import MiddlewareWarning
from threadkeep.history.memory import Memory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.memory.sync_memory import SyncMemory


def recorded(
    graph: Runnable[Any, Any], memory: Memory | SyncMemory, options: TurnOptions | None = None
) -> RecordedGraph:
    """Return a wrapper of a graph, such as a supervisor's, that records each call of the graph as a turn of a session.

    The question is stored before the graph runs, and the final answer when the graph ends. The answer's author is the
    name of its message. Agents with `SessionMemory` inside the graph take part in the turn. A graph without a
    checkpointer gets the earlier turns before its input, but the result and streams omit them. For a repeated
    message of a finished turn, the stored answers are returned, and the graph does not run. The wrapper has the methods
    of the graph: `invoke`, `stream` and `batch`, or `ainvoke`, `astream`, `astream_events` and `abatch`.

    The question is stored without the data that `PIIMiddleware` in the graph detects. A kind with a custom detector
    cannot be detected before the graph runs; a `MiddlewareWarning` names it.
    """
    return RecordedGraph(graph, memory, options or TurnOptions())


class RecordedGraph(Runnable[Any, Any]):
    """A wrapper that records the turns of a graph; see `recorded`. Other attributes are read from the graph."""

    def __init__(self, graph: Runnable[Any, Any], memory: Memory | SyncMemory, options: TurnOptions) -> None:
        self._graph: Any = graph
        self._inner = _without_bindings(graph)
        self._configurable = _configurable(graph)
        channel = getattr(self._inner, "channels", {}).get("messages")
        self._adds_messages = getattr(channel, "operator", None) is add_messages
        name, kinds = getattr(self._inner, "name", None), _redacted_kinds(graph)
        tools = [getattr(getattr(node, "bound", None), "tools_by_name", {}) for _, node in _nodes(graph)]
        direct = frozenset(name for named in tools for name, tool in named.items() if tool.return_direct)
        self._turns = OnLoop(
            memory,
            lambda opened: GraphTurns(opened, options, name=name, redacted=kinds, direct_tools=direct),
        )
        self._classes: dict[str, type] = {}
        self._begun_turns: list[GraphTurn] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def invoke(self, input: GraphInput, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        """Run the graph; return its final state.

        Raises:
            InvalidKey: the config names no session.
            WrongUser: the session belongs to another user.
        """
        with closing(self._begin(input, config, kwargs)) as turn:
            result = turn.graph.invoke(turn.given, turn.config, **turn.options)
            _, first_stored = self._end(turn)
        return turn.without_history(result, first_stored)

    def stream(
        self,
        input: GraphInput,  # noqa: A002 - as above
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Run the graph; yield the parts of its stream as they arrive.

        If another process has stored an answer first, the parts of that answer follow.
        """
        with closing(self._begin(input, config, kwargs)) as turn:
            with closing(turn.graph.stream(turn.given, turn.config, **turn.options)) as parts:
                yield from map(turn.part_without_history, parts)
            state, first_stored = self._end(turn)
            if first_stored is not None:
                self._prepare_first_stored(turn, state, first_stored)
                yield from turn.graph.stream(turn.given, turn.config, **turn.options)

    async def ainvoke(self, input: GraphInput, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - as above
        """Run the graph; return its final state; see `invoke`."""
        with closing(await self._abegin(input, config, kwargs)) as turn:
            result = await turn.graph.ainvoke(turn.given, turn.config, **turn.options)
            _, first_stored = await self._aend(turn)
        return turn.without_history(result, first_stored)

    async def astream(
        self,
        input: GraphInput,  # noqa: A002 - as above
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Run the graph; yield the parts of its stream as they arrive; see `stream`."""
        with closing(await self._abegin(input, config, kwargs)) as turn:
            # If the reader stops early, close the graph's stream before the next turn begins.
            async with aclosing(turn.graph.astream(turn.given, turn.config, **turn.options)) as parts:
                async for part in parts:
                    yield turn.part_without_history(part)
            state, first_stored = await self._aend(turn)
            if first_stored is not None:
                self._prepare_first_stored(turn, state, first_stored)
                async with aclosing(turn.graph.astream(turn.given, turn.config, **turn.options)) as parts:
                    async for part in parts:
                        yield part

    def stream_events(self, input: GraphInput, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - as above
        """Run the graph; return its events, in the versions that the graph supports."""
        graph = self._with_streams()
        if graph is None:
            return super().stream_events(input, config, **kwargs)
        return graph.stream_events(input, config, **kwargs)

    def astream_events(self, input: GraphInput, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - as above
        """Run the graph; return its events, in the versions that the graph supports."""
        turns: list[GraphTurn] = []
        graph = self._with_streams(turns)
        if graph is None:
            return super().astream_events(input, config, **kwargs)
        events = graph.astream_events(input, config, **kwargs)
        return _events_without_history(events, turns) if kwargs.get("version", "v2") == "v2" else events

    def get_graph(self, *args: Any, **kwargs: Any) -> Any:
        """Return the graph for drawing; see the graph's own `get_graph` for the arguments."""
        return self._graph.get_graph(*args, **kwargs)

    def _with_streams(self, turns: list[GraphTurn] | None = None) -> Any:
        """Return a copy of the graph whose streams go through this wrapper; None if it is no LangGraph graph.

        The turns that the streams begin are appended to `turns`.
        """
        if not isinstance(self._graph, Pregel):
            return None
        wrapper, graph = copy(self), cast("Any", copy(self._graph))
        wrapper._begun_turns = turns  # noqa: SLF001 - a copy of this object
        graph.stream, graph.astream = wrapper.stream, wrapper.astream
        return graph

    def _final(self, turn: GraphTurn) -> object:
        """Return the graph's output. Remember the classes of its Pydantic objects: a repeated turn restores them."""
        state = turn.ending.output
        if turn.options.get("output_keys") == "messages":
            state = {"messages": state}
        if not isinstance(state, Mapping):
            return state
        self._classes |= {name: type(value) for name, value in state.items() if isinstance(value, BaseModel)}
        try:
            return {**state, "messages": messages_in(state)}
        except (TypeError, ValueError, NotImplementedError):
            return {}  # the `messages` of this graph are no LangChain messages

    def _with_bound(self, config: RunnableConfig | None) -> RunnableConfig:
        """Return the config of a call, completed with the `configurable` values from the graph's `with_config`."""
        given, config = (config or {}).get("configurable", {}), ensure_config(config)
        return {**config, "configurable": {**config.get("configurable", {}), **self._configurable, **given}}

    def _begin(self, given: GraphInput, config: RunnableConfig | None, options: Mapping[str, Any]) -> GraphTurn:
        config = self._with_bound(config)
        context, saves = options.get("context"), has_saver(self._inner, config)
        turn = self._turns.wait_for(lambda turns: turns.begin(given, config, context, has_saver=saves))
        with OnFailure(turn.close):
            saved = self._inner.get_state(turn.config).values if self._needs_state(turn) else None
            if saved is not None:
                self._turns.wait_for(lambda _: turn.without_outdated(saved), turn.turns)
            self._prepare(turn, saved, options)
        return turn

    async def _abegin(self, given: GraphInput, config: RunnableConfig | None, options: Mapping[str, Any]) -> GraphTurn:
        config = self._with_bound(config)
        context, saves = options.get("context"), has_saver(self._inner, config)
        turn = await self._turns.call(lambda turns: turns.begin(given, config, context, has_saver=saves))
        with OnFailure(turn.close):
            saved = (await self._inner.aget_state(turn.config)).values if self._needs_state(turn) else None
            if saved is not None:
                await self._turns.call(lambda _: turn.without_outdated(saved))
            self._prepare(turn, saved, options)
        return turn

    def _end(self, turn: GraphTurn) -> tuple[object, AIMessage | None]:
        """End a turn. Return the graph's output, and the answer that another process stored first, if any."""
        state = self._final(turn)
        first_stored = self._turns.wait_for(lambda _: turn.end(state), turn.turns)
        if first_stored is not None and self._needs_state(turn):
            self._inner.bulk_update_state(*_update_to(first_stored, state, turn.config))
        return state, first_stored

    async def _aend(self, turn: GraphTurn) -> tuple[object, AIMessage | None]:
        """End a turn. Return the graph's output, and the answer that another process stored first, if any."""
        state = self._final(turn)
        first_stored = await self._turns.call(lambda _: turn.end(state))
        if first_stored is not None and self._needs_state(turn):
            await self._inner.abulk_update_state(*_update_to(first_stored, state, turn.config))
        return state, first_stored

    def _needs_state(self, turn: GraphTurn) -> bool:
        """Return True if the turn reads and writes the checkpointer's state."""
        return has_saver(self._inner, turn.config) and (self._adds_messages or turn.ended is not None)

    def _prepare(self, turn: GraphTurn, saved: State | None, options: Mapping[str, Any]) -> None:
        """Set the turn's graph and options. If the turn has already ended, set a graph that replays its end."""
        if self._begun_turns is not None:
            self._begun_turns.append(turn)
        if turn.ended is None:
            turn.graph, turn.options = self._graph, {**options, "control": turn.control}
            return
        state = turn.final_state(turn.ended, saved, getattr(self._inner, "output_channels", ()), self._classes)
        self._prepare_end(turn, state, turn.ended.messages, options)

    def _prepare_end(
        self, turn: GraphTurn, state: State, answers: Sequence[AIMessage], options: Mapping[str, Any]
    ) -> None:
        turn.graph, turn.given = graph_of_end(self._inner, state, answers)
        turn.options = {name: value for name, value in options.items() if name in _OF_RESULTS}

    def _prepare_first_stored(self, turn: GraphTurn, state: object, first_stored: AIMessage) -> None:
        """Set the turn's graph, input and options to stream the answer that another process stored first."""
        turn.config = {**turn.config, "run_id": None}
        self._prepare_end(turn, turn.without_history(state, first_stored), [first_stored], turn.options)


async def _events_without_history(events: AsyncIterator[Any], turns: Sequence[GraphTurn]) -> AsyncIterator[Any]:
    """Yield the events of a graph. Remove the inserted earlier turns from the graph's output."""
    async with aclosing(cast("AsyncGenerator[Any]", events)) as parts:
        async for event in parts:
            data = event["data"]
            if turns and event["event"] == "on_chain_end" and not event["parent_ids"]:
                data = {**data, "output": turns[0].without_history(data["output"])}
            yield {**event, "data": data}


def _redacted_kinds(graph: Runnable[Any, Any]) -> frozenset[str]:
    """Return the kinds of data that `PIIMiddleware` in a graph detects. Omit custom detectors, and warn about them."""
    found = kinds_among(tuple([name for name, _ in _nodes(graph)]))
    own = frozenset(kind for kind in found if not has_detector(kind))
    if own:
        warnings.warn(
            f"PIIMiddleware looks for {', '.join(sorted(own))} with a detector of your own, and `recorded` stores the "
            "question before it runs; give SessionMemory to the agents of the graph instead.",
            MiddlewareWarning,
            stacklevel=4,
        )
    return found - own


def _nodes(graph: Runnable[Any, Any]) -> Iterator[tuple[str, object]]:
    """Yield the nodes of a graph and of its subgraphs, with their names."""
    graph = _without_bindings(graph)
    subgraphs = graph.get_subgraphs(recurse=True) if isinstance(graph, Pregel) else ()
    for one in (graph, *(sub for _, sub in subgraphs)):
        for name, node in getattr(one, "nodes", {}).items():
            yield name, node
            # LangGraph does not list a subgraph that is wrapped, for example by `with_retry()`.
            if isinstance(bound := getattr(node, "bound", None), RunnableBindingBase):
                yield from _nodes(bound)


def _without_bindings(graph: Runnable[Any, Any]) -> Any:
    """Return the graph inside wrappers such as the wrapper of `with_retry()`."""
    while isinstance(graph, RunnableBindingBase):
        graph = graph.bound
    return graph


def _configurable(graph: Runnable[Any, Any]) -> dict[str, Any]:
    """Return the `configurable` values of a graph and its wrappers. Values of outer wrappers take precedence."""
    inner = _configurable(graph.bound) if isinstance(graph, RunnableBindingBase) else {}
    return {**inner, **(getattr(graph, "config", None) or {}).get("configurable", {})}


def _update_to(reply: AIMessage, state: Any, config: RunnableConfig) -> tuple[RunnableConfig, list[list[StateUpdate]]]:
    """Return the arguments of `bulk_update_state` that replace the last reply with `reply`.

    A last reply that calls tools stays, because the tools' results need it. The update is written as `START`, which
    exists in every graph. An empty update as `END` removes the tasks that would run next.
    """
    last = next(message for message in reversed(state["messages"]) if isinstance(message, AIMessage))
    removed = [] if last.tool_calls else [RemoveMessage(str(last.id))]
    update = {"messages": [*removed, reply]}
    newest = {name: value for name, value in config["configurable"].items() if name != "checkpoint_id"}
    return {"configurable": newest}, [[StateUpdate(update, START)], [StateUpdate(None, END)]]


_OF_RESULTS: Final = frozenset({"stream_mode", "version", "subgraphs", "output_keys", "print_mode", "debug"})
"""The options of a call that are also used to replay a finished turn."""


def graph_of_end(graph: Any, state: State, answers: Sequence[AIMessage]) -> tuple[Any, State]:
    """Return a graph that ends with the given state, and the graph's input.

    The graph replaces the real one if the turn has already ended, so that callers still get a result, a stream or
    events. Each author has a node that returns the author's answers.
    """
    messages, ids = state["messages"], [answer.id for answer in answers]
    ends = [index for index, message in enumerate(messages) if id_of(message) in ids]
    steps: deque[tuple[str, dict[str, Any]]] = deque()
    for before, end in zip([ends[0] - 1, *ends], ends, strict=False):
        name = next(answer.name for answer in answers if answer.id == id_of(messages[end])) or "model"
        name = name.replace(":", "_").replace("|", "_")
        steps.append((f"{name}_" if name in state else name, {"messages": messages[before + 1 : end + 1]}))
    steps[-1][1].update({**state, "messages": [*steps[-1][1]["messages"], *messages[ends[-1] + 1 :]]})
    nodes = dict.fromkeys(name for name, _ in steps)

    def step(_: object) -> Command[Any]:
        _, update = steps.popleft()
        return Command(update=update, goto=steps[0][0] if steps else END)

    schema: Any = TypedDict
    builder: Any = StateGraph(schema("State", {**dict.fromkeys(state, Any), "messages": Annotated[list, operator.add]}))
    for name in nodes:
        builder.add_node(name, step)
    builder.add_edge(START, next(iter(nodes)))
    compiled = builder.compile(checkpointer=False, name=getattr(graph, "name", None))
    compiled.stream_mode = getattr(graph, "stream_mode", "values")
    return compiled, {"messages": messages[: ends[0]]}
