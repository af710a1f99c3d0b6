"""History in LangGraph's checkpoints: a `MessagesState` graph with one node, compiled with a saver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from bench.contenders import Place, TurnTexts

type Graph = CompiledStateGraph[MessagesState, Answer, MessagesState, MessagesState]

_POOL_CONNECTIONS = 16
_NODE = "reply"


@dataclass(frozen=True)
class Answer:
    """The answer of the graph's node, passed in the run context, which is not stored."""

    text: str


class GraphConversation:
    """A thread of the graph."""

    def __init__(self, graph: Graph, session_id: str) -> None:
        self._graph = graph
        self._config: RunnableConfig = {"configurable": {"thread_id": session_id}}

    async def append(self, turn: TurnTexts) -> None:
        """Run the graph once with the question; its only node returns the answer."""
        await self._graph.ainvoke({"messages": [HumanMessage(turn.user)]}, self._config, context=Answer(turn.assistant))

    async def tail(self, limit: int) -> Sequence[object]:
        """Return the newest messages of the thread's state."""
        state = await self._graph.aget_state(self._config)
        messages: list[AnyMessage] = state.values.get("messages", [])
        return messages[-limit:]


class GraphContender:
    """A graph with its checkpoints in a database."""

    def __init__(self, saver: BaseCheckpointSaver[str]) -> None:
        graph = StateGraph(MessagesState, context_schema=Answer)
        graph.add_node(_NODE, _reply)
        graph.add_edge(START, _NODE)
        self._graph = graph.compile(checkpointer=saver)

    @asynccontextmanager
    async def conversation(self, session_id: str) -> AsyncIterator[GraphConversation]:
        """Yield a thread of the graph."""
        yield GraphConversation(self._graph, session_id)

    async def fill(self, session_id: str, turns: Sequence[TurnTexts]) -> None:
        """Store many turns in one checkpoint; one for each turn would be gigabytes."""
        messages = [message for turn in turns for message in (HumanMessage(turn.user), AIMessage(turn.assistant))]
        config: RunnableConfig = {"configurable": {"thread_id": session_id}}
        await self._graph.aupdate_state(config, {"messages": messages}, as_node=_NODE)

    async def settle(self) -> None:
        """Do nothing, because no work is deferred."""


@asynccontextmanager
async def open_sqlite_saver(place: Place) -> AsyncIterator[GraphContender]:
    """`AsyncSqliteSaver`, as its documentation shows; it turns WAL on by itself."""
    async with AsyncSqliteSaver.from_conn_string(str(place.file)) as saver:
        yield GraphContender(saver)


@asynccontextmanager
async def open_postgres_saver(place: Place) -> AsyncIterator[GraphContender]:
    """`AsyncPostgresSaver` on a pool, so that sessions do not wait for each other."""
    async with AsyncConnectionPool(
        place.url,
        connection_class=AsyncConnection[DictRow],
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
        min_size=1,
        max_size=_POOL_CONNECTIONS,
        open=False,
    ) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield GraphContender(saver)


async def _reply(state: MessagesState, runtime: Runtime[Answer]) -> dict[str, list[AIMessage]]:
    return {"messages": [AIMessage(runtime.context.text)]}
