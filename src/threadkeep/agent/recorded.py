"""`recorded`: a compiled graph with the memory of its session, for agents whose builders take no middleware."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langgraph.graph.message import add_messages
from langgraph.pregel import Pregel
from langgraph.types import GraphOutput
from pydantic import BaseModel

from threadkeep.agent.answers import has_detector
from threadkeep.agent.invocation import kinds_among
from threadkeep.agent.recorded_turns import GraphEnd, GraphInput, GraphTurn, GraphTurns, State
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.boundary import OnFailure
from threadkeep.errors import MiddlewareWarning
from threadkeep.history.memory import Memory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.memory.sync_memory import SyncMemory


def recorded(
    graph: Runnable[Any, Any], memory: Memory | SyncMemory, options: TurnOptions | None = None
) -> RecordedGraph:
    """Return a graph that begins and ends the turn of its session, such as one of `create_supervisor`.

    The question is stored before the graph runs, the final answer when it ends, under the name of its message. Agents
    with `SessionMemory` inside take part in the turn. A graph without a checkpointer gets the earlier turns before its
    input; the result does not have them. A repeated message of a finished turn gets the stored answers, and the graph
    does not run. It is called like the graph: `invoke`, `stream` and `batch`, or `ainvoke`, `astream` and `abatch`.

    The question is stored without the data that `PIIMiddleware` in the graph looks for. A kind with a detector of your
    own cannot be found before the graph runs: a `MiddlewareWarning` names it.
    """
    return RecordedGraph(graph, memory, options or TurnOptions())


class RecordedGraph(Runnable[Any, Any]):
    """A graph with the memory of its session; see `recorded`. Other attributes are the graph's own."""

    def __init__(self, graph: Runnable[Any, Any], memory: Memory | SyncMemory, options: TurnOptions) -> None:
        self._has_saver = bool(getattr(graph, "checkpointer", None))
        self._graph: Any = graph
        channel = getattr(graph, "channels", {}).get("messages")
        self._saves_messages = self._has_saver and getattr(channel, "operator", None) is add_messages
        kinds = _redacted_kinds(graph)
        self._turns = OnLoop(
            memory,
            lambda opened: GraphTurns(opened, options, has_saver=self._has_saver, name=self._name, redacted=kinds),
        )
        self._classes: dict[str, type] = {}

    @property
    def _name(self) -> str:
        return str(getattr(self._graph, "name", None) or "")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._graph, name)

    def invoke(self, input: GraphInput, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        """Run the graph; return its final state.

        Raises:
            InvalidKey: the config names no session.
            WrongUser: the session is another user's.
        """
        turn = self._begun(input, config)
        try:
            if turn.ended is not None:
                state = self._state_of(turn, self._graph.get_state(turn.config).values if self._has_saver else None)
                return output_of(state, turn.ended.messages, kwargs)
            result = self._graph.invoke(turn.given, turn.config, control=turn.control, **kwargs)
            winner = self._turns.wait_for(lambda _: turn.end(self._final(turn)), turn.turns)
        finally:
            turn.turns.leave(turn)
        return turn.without_history(result, winner)

    def stream(
        self,
        input: GraphInput,  # noqa: A002 - as above
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Run the graph; yield the parts of its stream as they come."""
        turn = self._begun(input, config)
        try:
            if turn.ended is not None:
                state = self._state_of(turn, self._graph.get_state(turn.config).values if self._has_saver else None)
                yield from self._parts(turn.ended, state, kwargs)
                return
            yield from self._graph.stream(turn.given, turn.config, control=turn.control, **kwargs)
            self._turns.wait_for(lambda _: turn.end(self._final(turn)), turn.turns)
        finally:
            turn.turns.leave(turn)

    async def ainvoke(self, input: GraphInput, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - as above
        """Run the graph; return its final state.

        Raises:
            InvalidKey: the config names no session.
            WrongUser: the session is another user's.
        """
        turn = await self._abegun(input, config)
        try:
            if turn.ended is not None:
                state = self._state_of(turn, await self._saved(turn))
                return output_of(state, turn.ended.messages, kwargs)
            result = await self._graph.ainvoke(turn.given, turn.config, control=turn.control, **kwargs)
            winner = await self._turns.call(lambda _: turn.end(self._final(turn)))
        finally:
            turn.turns.leave(turn)
        return turn.without_history(result, winner)

    async def astream(
        self,
        input: GraphInput,  # noqa: A002 - as above
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Run the graph; yield the parts of its stream as they come."""
        turn = await self._abegun(input, config)
        try:
            if turn.ended is not None:
                for part in self._parts(turn.ended, self._state_of(turn, await self._saved(turn)), kwargs):
                    yield part
                return
            async for part in self._graph.astream(turn.given, turn.config, control=turn.control, **kwargs):
                yield part
            await self._turns.call(lambda _: turn.end(self._final(turn)))
        finally:
            turn.turns.leave(turn)

    async def _saved(self, turn: GraphTurn) -> State | None:
        """Return the state that the checkpointer has."""
        return (await self._graph.aget_state(turn.config)).values if self._has_saver else None

    def _state_of(self, turn: GraphTurn, saved: State | None) -> State:
        """Return the final state of a turn that has ended before; `saved` is the state of a checkpointer."""
        return turn.final_state(saved, getattr(self._graph, "output_channels", ()), self._classes)

    def _parts(self, ended: GraphEnd, state: State, options: Mapping[str, Any]) -> Iterator[Any]:
        modes = options.get("stream_mode") or getattr(self._graph, "stream_mode", "values")
        return parts_of(state, ended.messages, {**options, "stream_mode": modes})

    def _final(self, turn: GraphTurn) -> object:
        """Return the output of the graph; store the classes of its values, to restore them for repeats."""
        state = turn.ending.output
        if isinstance(state, Mapping):
            self._classes |= {name: type(value) for name, value in state.items() if isinstance(value, BaseModel)}
        return state

    def _begun(self, given: GraphInput, config: RunnableConfig | None) -> GraphTurn:
        config = ensure_config(config)
        turn = self._turns.wait_for(lambda turns: turns.begin(given, config))
        if self._saves_messages and turn.ended is None:
            with OnFailure(lambda: turn.turns.leave(turn)):
                saved = self._graph.get_state(turn.config).values.get("messages", ())
                self._turns.wait_for(lambda _: turn.without_outdated(saved), turn.turns)
        return turn

    async def _abegun(self, given: GraphInput, config: RunnableConfig | None) -> GraphTurn:
        config = ensure_config(config)
        turn = await self._turns.call(lambda turns: turns.begin(given, config))
        if self._saves_messages and turn.ended is None:
            with OnFailure(lambda: turn.turns.leave(turn)):
                saved = (await self._graph.aget_state(turn.config)).values.get("messages", ())
                await self._turns.call(lambda _: turn.without_outdated(saved))
        return turn


def _redacted_kinds(graph: Runnable[Any, Any]) -> frozenset[str]:
    """Return the kinds of data that `PIIMiddleware` in a graph looks for; warn of those without a known detector."""
    subgraphs = graph.get_subgraphs(recurse=True) if isinstance(graph, Pregel) else ()
    nodes = [name for one in (graph, *(sub for _, sub in subgraphs)) for name in getattr(one, "nodes", ())]
    found = kinds_among(nodes)
    own = frozenset(kind for kind in found if not has_detector(kind))
    if own:
        warnings.warn(
            f"PIIMiddleware looks for {', '.join(sorted(own))} with a detector of your own, and `recorded` stores the "
            "question before it runs; give SessionMemory to the agents of the graph instead.",
            MiddlewareWarning,
            stacklevel=4,
        )
    return found - own


def parts_of(state: State, answers: Sequence[AIMessage], options: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the stream of a turn that has ended, in the requested modes and shape."""
    asked = options.get("stream_mode")
    for mode in [asked] if isinstance(asked, str) else list(asked or ()):
        for data in _data_of(mode, state, answers):
            if options.get("version") == "v2":
                yield {"type": mode, "ns": (), "data": data, **({"interrupts": ()} if mode == "values" else {})}
                continue
            part = (*([()] if options.get("subgraphs") else []), *([] if isinstance(asked, str) else [mode]), data)
            yield part if len(part) > 1 else data


def output_of(state: State, answers: Sequence[AIMessage], options: Mapping[str, Any]) -> Any:
    """Return the result of a call for a turn that has ended."""
    if options.get("stream_mode", "values") != "values":
        return list(parts_of(state, answers, options))
    return GraphOutput(dict(state)) if options.get("version") == "v2" else dict(state)


def _data_of(mode: str, state: State, answers: Sequence[AIMessage]) -> Iterator[Any]:
    rest = {name: value for name, value in state.items() if name != "messages"}
    if mode == "values":
        yield dict(state)
    elif mode == "updates":
        for answer in answers:
            yield {answer.name or "model": {"messages": [answer], **(rest if answer is answers[-1] else {})}}
    elif mode == "messages":
        for answer in answers:
            yield answer, {"langgraph_node": answer.name or "model"}
