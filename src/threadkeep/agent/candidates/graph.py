"""The graph: `ingest_prompt → call_model → build_candidate`, with a way out where there is nothing to go on with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Any, cast
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from threadkeep.agent.candidates.nodes import CandidateNodes, PromptedModel
from threadkeep.agent.candidates.state import CandidateState, bounded_state
from threadkeep.agent.prompt_template import PromptTemplate
from threadkeep.agent.reducers import bounded_messages
from threadkeep.graph_store.items import Locks
from threadkeep.history.memory_options import utc_now
from threadkeep.observe import Observer, Observers

_LOCKS: WeakKeyDictionary[BaseCheckpointSaver[Any], Locks[tuple[int, str]]] = WeakKeyDictionary()


class CandidateGraph(CompiledStateGraph[CandidateState, None, CandidateState, CandidateState]):
    """A compiled candidate graph.

    With a checkpointer, the runs of one thread come one after the other in this process: LangGraph lets each of several
    runs at once begin with the same checkpoint, and keeps the memory of one of them.
    """

    async def astream(
        self,
        input: Any,  # noqa: A002 - LangGraph's name
        config: RunnableConfig | None = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Run the graph when it is its thread's turn, and yield what LangGraph yields."""
        running = cast("AsyncGenerator[Any]", super().astream(input, config, **options))
        # The turn ends when the run does, also when its reader goes away in the middle.
        async with self._turn(config), aclosing(running) as parts:
            async for part in parts:
                yield part

    @asynccontextmanager
    async def _turn(self, config: RunnableConfig | None) -> AsyncIterator[None]:
        saver = self.checkpointer
        thread_id = merge_configs(self.config, config).get("configurable", {}).get("thread_id")
        if not isinstance(saver, BaseCheckpointSaver) or thread_id is None:
            yield
            return
        # A lock belongs to one event loop.
        key = (id(asyncio.get_running_loop()), str(thread_id))
        async with _LOCKS.setdefault(saver, Locks[tuple[int, str]]()).of(key):
            yield


def candidate_graph(
    model: PromptedModel,
    *,
    system_prompt: str = "",
    max_messages: int = 8,
    max_chars: int = 8000,
    flat: bool | PromptTemplate = False,
    timeout_seconds: float | None = None,
    observers: Sequence[Observer] = (),
    clock: Callable[[], datetime] = utc_now,
    checkpointer: Checkpointer = None,
    store: BaseStore | None = None,
) -> CandidateGraph:
    """A compiled graph that makes a prompt of an event, calls a model, and proposes its answer.

    ::

        result = await candidate_graph(model).ainvoke({"event": {"message": {"id": "42", "text": "Hi"}}})
        result["outcome"], result["candidate"]

    Without a checkpointer the memory is that of one run; with one, the events of a thread have their turns. To add
    nodes or to compile it otherwise, take its `builder`.

    Args:
        model: a chat model, or anything else that takes messages (or a text, if `flat`) and gives a message or a text.
        system_prompt: stands first in every call.
        max_messages: how many messages are remembered, the system prompt counted; less than 1 is 1.
        max_chars: how many characters they may have together; 0 is unlimited.
        flat: whether the model is sent one text, `(role) content` joined by blank lines; a template makes another text.
        timeout_seconds: how long the model may take; None is without end.
        observers: told of each update of the memory, each call and each failure; never of what was said.
        clock: gives the time of candidates and errors.
        checkpointer: keeps the memory from run to run of a thread; True: the one of the graph that this is a node of.
        store: a LangGraph store for nodes that are added.
    """
    reducer = bounded_messages(max_messages, max_chars)
    nodes = CandidateNodes(
        model=model,
        system_prompt=system_prompt,
        flat=flat,
        timeout_seconds=timeout_seconds,
        reducer=reducer,
        observer=Observers(*observers),
        clock=clock,
    )
    builder = StateGraph(bounded_state(reducer))
    builder.add_node("ingest_prompt", nodes.ingest_prompt)
    builder.add_node("call_model", nodes.call_model)
    builder.add_node("build_candidate", nodes.build_candidate)
    builder.add_edge(START, "ingest_prompt")
    builder.add_conditional_edges("ingest_prompt", _after_prompt, ["call_model", "build_candidate", END])
    builder.add_conditional_edges("call_model", _after_call, ["build_candidate", END])
    builder.add_edge("build_candidate", END)
    compiled = builder.compile(checkpointer=checkpointer, store=store, name="candidate_graph")
    return CandidateGraph(**vars(compiled))


def _after_prompt(state: CandidateState) -> str:
    if state.get("outcome") == "SKIP":
        return END
    # The text is there already when the same event came again.
    return "call_model" if state.get("llmText") is None else "build_candidate"


def _after_call(state: CandidateState) -> str:
    return END if state.get("outcome") == "ERROR" else "build_candidate"
