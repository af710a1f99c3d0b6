"""The input and the end of a root run, which LangChain's callbacks tell and no hook of a middleware does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

type OnEnd = Callable[[object, BaseException | None], Awaitable[None] | None]
"""Called at the end of a root run with its output or its error; both are None if it was interrupted."""

_MOST_RUNS = 1_000

_TOOLS = "tools"
"""The node of LangChain's agents that runs tools."""

_PUSHED = "__pregel_push"
"""The first part of `langgraph_path` in the metadata of a task that was begun with `Send`."""


@dataclass
class _Run:
    """The input and the thread of a root run, and what waits for its end."""

    input: object
    thread: object = None
    on_end: list[OnEnd] = field(default_factory=list)


class RootCallbacks(BaseCallbackHandler):
    """Knows the root run that a task belongs to; at most a thousand runs are remembered.

    LangChain gives the handler to every root run of the process. The methods for starts and ends are synchronous and do
    little: they are called for runs that have nothing to do with a memory too.
    """

    run_inline = True

    def __init__(self) -> None:
        self._runs: OrderedDict[UUID, _Run] = OrderedDict()
        self._current: ContextVar[UUID | None] = ContextVar("threadkeep_root_run", default=None)
        self._sent: ContextVar[bool] = ContextVar("threadkeep_sent", default=False)

    @property
    def ignore_llm(self) -> bool:
        """Leave model calls out."""
        return True

    ignore_agent = ignore_chat_model = ignore_custom_event = ignore_retriever = ignore_retry = ignore_llm

    @property
    def input(self) -> object:
        """The input of this task's root run; None if that is unknown."""
        run = self._run()
        return None if run is None else run.input

    @property
    def goes_on(self) -> bool:
        """Return whether this task's root run continues from a checkpoint, without an input of its own."""
        run = self._run()
        return run is not None and (run.input is None or isinstance(run.input, Command))

    @property
    def in_branch(self) -> bool:
        """Return whether this task is in a branch that a program began with `Send` and an input for it."""
        return self._sent.get()

    def at_end(self, on_end: OnEnd) -> None:
        """Call a function when this task's root run ends; never if that is unknown."""
        if (run := self._run()) is not None:
            run.on_end.append(on_end)

    def on_chain_start(
        self,
        serialized: Any,
        inputs: object,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Note the root run of what this task does from now on, and whether it is a branch of that."""
        known = metadata or {}
        if parent_run_id is not None:
            self._note_branch(known)
        else:
            self._sent.set(False)
            self._current.set(run_id)
            self._runs[run_id] = _Run(inputs, known.get("thread_id"))
            if len(self._runs) > _MOST_RUNS:
                self._runs.popitem(last=False)

    def _note_branch(self, metadata: Mapping[str, Any]) -> None:
        """Note the begin of a branch. A tool, and a run in a thread of its own, belong to none."""
        run = self._run()
        if metadata.get("langgraph_node") == _TOOLS or (run is not None and run.thread != metadata.get("thread_id")):
            self._sent.set(False)
        elif tuple(metadata.get("langgraph_path", ()))[:1] == (_PUSHED,):
            self._sent.set(True)

    def on_chain_end(self, outputs: object, *, run_id: UUID, **_: Any) -> None:
        """Tell that a run ended."""
        if (run := self._runs.pop(run_id, None)) is not None:
            for on_end in run.on_end:
                on_end(outputs, None)

    async def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Tell that a run failed, before its caller hears it."""
        run = self._runs.pop(run_id, None)
        failure = None if isinstance(error, GraphBubbleUp) else error
        for on_end in run.on_end if run is not None else ():
            waiting = on_end(None, failure)
            if waiting is not None:
                await waiting

    def _run(self) -> _Run | None:
        current = self._current.get()
        return None if current is None else self._runs.get(current)


root_callbacks: Final = RootCallbacks()
"""The handler of this process. LangChain has it from the first import of an agent's memory on."""

register_configure_hook(ContextVar[Any]("threadkeep_root_callbacks", default=root_callbacks), inheritable=False)
