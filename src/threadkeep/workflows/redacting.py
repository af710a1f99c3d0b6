"""Questions of graphs whose agents have middleware: what the middleware made of the question is what is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from threadkeep.agent.conversion import text_of
from threadkeep.history.blocking import MemoryLoop

_HOOKS: Final = (".before_agent", ".before_model")
"""The ends of the names of the nodes that `create_agent` makes for the hooks of its middleware."""

_OWN: Final = "SessionMemory."


def has_middleware(builder: StateGraph[Any, Any, Any, Any]) -> bool:
    """Return whether an agent in a graph has middleware that sees the question before its model.

    Agents are found as nodes, and in the functions, methods and objects that are nodes.
    """
    try:
        graph = builder.compile()
    except ValueError:
        return False  # the error is reported when the graph is compiled for its runs
    graphs = [graph, *(found for _, found in graph.get_subgraphs(recurse=True)), *_owned(builder)]
    return any(_is_hook(name) for one in graphs if isinstance(one, Pregel) for name in one.nodes)


class LateQuestion(BaseCallbackHandler):
    """Stores the question of a run at the first model call that follows hooks of middleware, before the model is asked.

    Agents may be given the question in a message with another id; it is known by its words at the first hook.
    """

    run_inline = True

    def __init__(
        self,
        loop: MemoryLoop,
        asked: Sequence[BaseMessage],
        keep: Callable[[Sequence[BaseMessage]], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._asked = asked
        self._keep = keep
        self._seen: dict[str, BaseMessage] = {}
        self._stored = False

    def on_chain_start(self, serialized: Any, inputs: object, *, name: str | None = None, **_: Any) -> None:
        """Look for the question in the state that a hook is given."""
        if self._stored or name is None or not _is_hook(name) or not isinstance(inputs, Mapping):
            return
        for message in inputs.get("messages") or ():
            if isinstance(message, HumanMessage) and message.id and message.id not in self._seen:
                found = [one for one in self._asked if one.id == message.id or text_of(one) == text_of(message)]
                if found:
                    self._seen[message.id] = found[-1]

    async def on_chat_model_start(self, serialized: Any, messages: Sequence[Sequence[BaseMessage]], **_: Any) -> None:
        """Store the question as a model is sent it."""
        sent = [message for one in messages for message in one if message.id in self._seen]
        if self._stored or not sent:
            return
        self._stored = True
        asked = [message.model_copy(update=self._origin(message)) for message in sent]
        await self._loop.run_from_any_loop(self._store(asked))

    def _origin(self, message: BaseMessage) -> dict[str, object]:
        """Return the id of the question that a message is a copy of, and the time when it was sent."""
        one = self._seen[str(message.id)]
        return {"id": one.id, "response_metadata": one.response_metadata}

    async def _store(self, asked: Sequence[BaseMessage]) -> None:
        await self._keep(asked)


def _is_hook(name: str) -> bool:
    return name.endswith(_HOOKS) and not name.startswith(_OWN)


def _owned(builder: StateGraph[Any, Any, Any, Any]) -> Iterator[Pregel[Any, Any, Any, Any]]:
    """Yield the graphs that nodes have as attributes: of an object that is called, or of the object of a method."""
    for spec in builder.nodes.values():
        for called in (getattr(spec.runnable, "afunc", None), getattr(spec.runnable, "func", None)):
            owner = getattr(called, "__self__", called)
            yield from (value for value in getattr(owner, "__dict__", {}).values() if isinstance(value, Pregel))
