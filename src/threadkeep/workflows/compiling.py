"""Compilation of workflows with their checkpointer and store; no other module compiles them."""

from __future__ import annotations

from typing import Any

from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from threadkeep.errors import InvalidWorkflow
from threadkeep.workflows.definition import Workflow

type CompiledWorkflow = CompiledStateGraph[Any, Any, Any, Any]

_MOST_COMPILED = 256


class Compiler:
    """A compiler that compiles each workflow once, with the application's checkpointer and graph store.

    Both are opened by the application and passed in.
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
        """Return the compiled graph of a workflow.

        Raises:
            InvalidWorkflow: LangGraph cannot compile the graph and says why.
        """
        known = self._compiled.get(workflow)
        if known is None:
            if len(self._compiled) >= _MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            known = self._compiled[workflow] = self._compile(workflow)
        return known

    def without_checkpoints(self) -> Compiler:
        """Return a compiler with the same store and without a checkpointer."""
        return Compiler(checkpointer=False, store=self._store)

    def _compile(self, workflow: Workflow) -> CompiledWorkflow:
        try:
            return workflow.builder.compile(checkpointer=self._checkpointer, store=self._store, name=workflow.name)
        except ValueError as error:
            raise InvalidWorkflow(f"The graph of workflow {workflow.name!r} cannot be compiled: {error}") from error
