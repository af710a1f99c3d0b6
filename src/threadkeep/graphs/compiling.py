"""The one place where a workflow becomes a graph that can be called, with its checkpointer and its store."""

from __future__ import annotations

from typing import Any

from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from threadkeep.errors import InvalidWorkflow
from threadkeep.graphs.definition import Workflow

type CompiledWorkflow = CompiledStateGraph[Any, Any, Any, Any]

_MOST_COMPILED = 256


class Compiler:
    """Compiles workflows, each once, with the checkpointer and the graph store of the application.

    Both are opened at the top and handed in; every way in gets its graphs here.
    """

    def __init__(self, *, checkpointer: Checkpointer, store: BaseStore | None) -> None:
        self._checkpointer = checkpointer
        self._store = store
        self._compiled: dict[Workflow, CompiledWorkflow] = {}

    @property
    def store(self) -> BaseStore | None:
        """The graph store."""
        return self._store

    def compiled(self, workflow: Workflow) -> CompiledWorkflow:
        """The graph of a workflow.

        Raises:
            InvalidWorkflow: the graph cannot be compiled; LangGraph says why.
        """
        known = self._compiled.get(workflow)
        if known is None:
            if len(self._compiled) >= _MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            known = self._compiled[workflow] = self._compile(workflow)
        return known

    def without_checkpoints(self) -> Compiler:
        """A compiler with the same store, for graphs that keep nothing while they run."""
        return Compiler(checkpointer=False, store=self._store)

    def _compile(self, workflow: Workflow) -> CompiledWorkflow:
        try:
            return workflow.builder.compile(checkpointer=self._checkpointer, store=self._store, name=workflow.name)
        except ValueError as error:
            raise InvalidWorkflow(f"The graph of workflow {workflow.name!r} cannot be compiled: {error}") from error
