"""Storage of a run's question and answer in workflows that have no nodes for this."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import Pregel

from threadkeep.agent.conversion import text_of
from threadkeep.history.blocking import MemoryLoop
from threadkeep.workflows.nodes import AgentNode, ModelNode, Node, RecordAnswerNode, RecordQuestionNode
from threadkeep.workflows.nodes.base import END_NAME
from threadkeep.workflows.nodes.messages import RecordingNode
from threadkeep.workflows.nodes.speaking import SpeakingNode

_HOOKS: Final = (".before_agent", ".before_model")
"""Suffixes of the names of the nodes for middleware hooks before the model."""

_OWN: Final = "SessionMemory."


def has_middleware(builder: StateGraph[Any, Any, Any, Any]) -> bool:
    """Return True if an agent in a graph has middleware, besides `SessionMemory`, with a hook before the model.

    Agents are searched for among the nodes, and in the attributes of their objects and functions.
    """
    try:
        graph = builder.compile()
    except ValueError:
        return False  # the error is reported when the graph is compiled for its runs
    graphs = [graph, *(found for _, found in graph.get_subgraphs(recurse=True)), *_owned(builder)]
    return any(_is_hook(name) for one in graphs if isinstance(one, Pregel) for name in one.nodes)


class LateQuestion(BaseCallbackHandler):
    """A callback that stores the question just before the first model call, after middleware may have changed it.

    An agent may get the question in a message with another id; the first middleware hook recognises it by its text.
    """

    run_inline = True

    def __init__(
        self,
        loop: MemoryLoop,
        asked: Sequence[BaseMessage],
        keep: Callable[[Sequence[BaseMessage]], Coroutine[Any, Any, None]],
    ) -> None:
        self._loop = loop
        self._asked = asked
        self._keep = keep
        self._seen: dict[str, BaseMessage] = {}
        self._stored = False

    def on_chain_start(self, serialized: Any, inputs: object, *, name: str | None = None, **_: Any) -> None:
        """When a middleware hook begins, remember the ids of input messages that match the question by id or text."""
        if self._stored or name is None or not _is_hook(name) or not isinstance(inputs, Mapping):
            return
        for message in inputs.get("messages") or ():
            if isinstance(message, HumanMessage) and message.id and message.id not in self._seen:
                found = [one for one in self._asked if one.id == message.id or text_of(one) == text_of(message)]
                if found:
                    self._seen[message.id] = found[-1]

    async def on_chat_model_start(self, serialized: Any, messages: Sequence[Sequence[BaseMessage]], **_: Any) -> None:
        """At the first model call that contains the question, store the question as the model gets it."""
        sent = [message for one in messages for message in one if message.id in self._seen]
        if self._stored or not sent:
            return
        self._stored = True
        asked: list[BaseMessage] = []
        for message in sent:
            one = self._seen[str(message.id)]
            # The response metadata has the time at which the platform received the question.
            asked.append(message.model_copy(update={"id": one.id, "response_metadata": one.response_metadata}))
        await self._loop.run_from_any_loop(self._keep(asked))


def _is_hook(name: str) -> bool:
    return name.endswith(_HOOKS) and not name.startswith(_OWN)


def _owned(builder: StateGraph[Any, Any, Any, Any]) -> Iterator[Pregel[Any, Any, Any, Any]]:
    """Yield compiled graphs in attributes of a node's function or, if a node is a method, in those of its object."""
    for spec in builder.nodes.values():
        for called in (getattr(spec.runnable, "afunc", None), getattr(spec.runnable, "func", None)):
            owner = getattr(called, "__self__", called)
            yield from (value for value in getattr(owner, "__dict__", {}).values() if isinstance(value, Pregel))


type Graph = StateGraph[Any, Any, Any, Any]

QUESTION, ANSWER = "record_question", "record_answer"
_MESSAGES = "messages"


def add_node(builder: Graph, name: str, node: Node, *, defer: bool = False) -> None:
    """Add a Threadkeep node to a graph, with metadata for drawings."""
    destinations = {END if target == END_NAME else target: why for target, why in node.targets().items()}
    # LangGraph's types have no node that takes both a config and a runtime.
    action: Any = node
    kind = {"kind": node.node_kind}
    builder.add_node(name, action, metadata=kind, defer=defer, destinations=destinations or None)


def nodes_in(builder: Graph) -> dict[str, Node]:
    """Return the Threadkeep nodes of a graph, by name."""
    found: dict[str, Node] = {}
    for name, spec in builder.nodes.items():
        called = getattr(spec.runnable, "afunc", None)
        if isinstance(called, Node):
            found[name] = called
    return found


def with_turn_ends(builder: Graph) -> Graph:
    """Return a copy of a graph that stores the question first, and the last message as the answer.

    If an agent of the graph has middleware with a hook before the model, the question is stored after this middleware.
    The graph is returned unchanged in three cases: it has an `AgentNode`, `ModelNode`, or node that stores the question
    or the answer; its state has no messages; or it has deferred nodes, which would run in parallel with the node that
    stores the answer.
    """
    if _MESSAGES not in builder.channels or any(spec.defer for spec in builder.nodes.values()):
        return builder
    if any(isinstance(node, SpeakingNode | RecordingNode) for node in nodes_in(builder).values()):
        return builder
    extended = copied_graph(builder)
    question, answer = _free_name(builder, QUESTION), _free_name(builder, ANSWER)
    first = {edge for edge in extended.edges if edge[0] == START}
    if not first and START not in extended.branches:
        return builder  # LangGraph reports that the graph has no first node
    extended.edges = (extended.edges - first) | {(question, end) for _, end in first}
    if START in extended.branches:
        extended.branches[question] = extended.branches.pop(START)
    add_node(extended, question, RecordQuestionNode(waits=has_middleware(builder)))
    add_node(extended, answer, RecordAnswerNode(), defer=True)
    extended.add_edge(START, question)
    # The node `answer` is deferred, so this edge makes it the last node of every run.
    extended.add_edge(question, answer)
    extended.add_edge(answer, END)
    return extended


def copied_graph(builder: Graph) -> Graph:
    """Return a copy to which nodes can be added, so that the caller's graph does not change."""
    copied = copy.copy(builder)
    copied.nodes, copied.edges = dict(builder.nodes), set(builder.edges)
    copied.branches = defaultdict(dict, {name: dict(branches) for name, branches in builder.branches.items()})
    copied.waiting_edges, copied.channels = set(builder.waiting_edges), dict(builder.channels)
    copied.managed, copied.schemas = dict(builder.managed), dict(builder.schemas)
    return copied


def _free_name(builder: Graph, name: str) -> str:
    names = (name if number == 1 else f"{name}_{number}" for number in count(1))
    return next(one for one in names if one not in builder.nodes and one not in builder.channels)


def stores_question(node: Node) -> bool:
    """Return True if a node stores the run's question in the run's session."""
    if isinstance(node, AgentNode):
        return node.input is None and not node.use_graph_chat_history
    return isinstance(node, RecordQuestionNode) or (isinstance(node, ModelNode) and node.input is None)


def reset_commands(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the reset commands of the nodes. A message that is a reset command is not stored."""
    commands: dict[str, None] = {}
    for node in nodes:
        if isinstance(node, RecordQuestionNode):
            commands |= dict.fromkeys(node.reset_commands)
        elif isinstance(node, AgentNode) and node.reset_command is not None:
            commands[node.reset_command] = None
    return tuple(commands)


def only_wraps_tools(middleware: AgentMiddleware[Any, Any, Any]) -> bool:
    """Return True if a middleware only wraps tool calls, and so has no effect on an agent without tools."""
    hooks = ("after_agent", "aafter_agent", "after_model", "aafter_model", "wrap_model_call", "awrap_model_call")
    return not getattr(middleware, "tools", ()) and not sees_question(middleware) and not _has_any(middleware, hooks)


def sees_question(middleware: AgentMiddleware[Any, Any, Any]) -> bool:
    """Return True if a middleware has a hook that may run before the question is stored."""
    return _has_any(middleware, ("before_agent", "abefore_agent", "before_model", "abefore_model"))


def _has_any(middleware: AgentMiddleware[Any, Any, Any], hooks: Iterable[str]) -> bool:
    return any(getattr(type(middleware), hook) is not getattr(AgentMiddleware, hook) for hook in hooks)
