"""The graph: `ingest_prompt → call_model → build_candidate`, with a way out where there is nothing to go on with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from threadkeep.history.memory_options import utc_now
from threadkeep.observe import Observer, Observers
from threadkeep.workflow.candidates.nodes import CandidateNodes, PromptedModel
from threadkeep.workflow.candidates.state import CandidateState, bounded_state
from threadkeep.workflow.prompt_template import PromptTemplate
from threadkeep.workflow.reducers import bounded_messages


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
) -> CompiledStateGraph[CandidateState, None, CandidateState, CandidateState]:
    """A compiled graph that makes a prompt of an event, calls a model, and proposes its answer.

    ::

        result = await candidate_graph(model).ainvoke({"event": {"message": {"id": "42", "text": "Hi"}}})
        result["outcome"], result["candidate"]

    Without a checkpointer the memory is that of one run. To add nodes or to compile it otherwise, take its `builder`.

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
    return builder.compile(checkpointer=checkpointer, store=store, name="candidate_graph")


def _after_prompt(state: CandidateState) -> str:
    if state.get("outcome") == "SKIP":
        return END
    # The text is there already when the same event came again.
    return "call_model" if state.get("llmText") is None else "build_candidate"


def _after_call(state: CandidateState) -> str:
    return END if state.get("outcome") == "ERROR" else "build_candidate"
