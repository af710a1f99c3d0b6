"""What all nodes have in common: options that never change, and a step of a run that they are called for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.types import Command
from pydantic import BaseModel, ConfigDict

from threadkeep.errors import InvalidInput
from threadkeep.graphs.resources import RunContext
from threadkeep.graphs.state import WorkflowState
from threadkeep.graphs.templates import render, scope_of
from threadkeep.records import Json

type NodeKind = Literal[
    "agent",
    "model",
    "categorizer",
    "router",
    "retrieve",
    "template",
    "append_message",
    "subworkflow",
    "ingest_prompt",
    "build_candidate",
    "record_question",
    "record_answer",
]

type Again = Literal["nothing", "a model call", "model calls", "marked tools", "unknown"]
"""What it costs to carry a node out once more, when its process has died.

That of marked tools is model calls: what they have done is on record. Unknown is where it may do something twice.
"""

END_NAME = "end"
"""How YAML and options name the end of a workflow."""


class Node(BaseModel):
    """A node: its options, frozen, so that nothing of one run is left for the next.

    Add it to any graph whose state is a `WorkflowState`: `builder.add_node("answer", AgentNode(...))`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    node_kind: ClassVar[NodeKind]
    speaks: ClassVar[bool] = False
    """Whether it puts an assistant message into the state."""

    @property
    def again(self) -> Again:
        """What it costs to carry it out once more."""
        return "unknown"

    def templates(self) -> Iterable[tuple[str, str]]:
        """The templates among the options, each with the path of its option."""
        return ()

    def targets(self) -> Mapping[str, str]:
        """Where it may send the run by itself, with the reason for each; empty where edges say it."""
        return {}


@dataclass(frozen=True)
class Step:
    """One call of a node: its name, its run, the graph's store."""

    name: str
    context: RunContext
    store: BaseStore | None

    @classmethod
    def of(cls, config: RunnableConfig, runtime: Runtime[RunContext]) -> Step:
        """The step that a node is called for.

        Raises:
            InvalidInput: the graph was called without a RunContext.
        """
        if not isinstance(runtime.context, RunContext):
            raise InvalidInput("A workflow's nodes need their run: call the graph with context=RunContext(...).")
        return cls(str(config.get("metadata", {}).get("langgraph_node", "")), runtime.context, runtime.store)

    @property
    def message_id(self) -> str:
        """The id of what this node says in this run, the same when it is carried out again."""
        return f"{self.context.run_id}:{self.name}"


def found(step: Step, output: Json, result: Mapping[str, Json]) -> WorkflowState:
    """What a node adds to the state: its output, and its result for templates."""
    return {"node_outputs": {step.name: output}, "results": {step.name: dict(result)}}


def rendered(template: str, state: WorkflowState) -> str:
    """A template in this run."""
    return render(template, scope_of(state))


def sent_to(target: str, update: WorkflowState) -> Command[str]:
    """An update, and the node with which the run goes on."""
    return Command(goto=END if target == END_NAME else target, update=update)
