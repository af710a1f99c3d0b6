"""The base class of nodes, the call of a node in a run (`Step`), and the import of objects by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.types import Command
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import is_instance_schema

from threadkeep.errors import InvalidInput
from threadkeep.records import Json
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState, render, scope_of

_REFERENCE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")

type Reference = Annotated[
    str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", max_length=200)
]
"""The import string of a Python object, such as `shop.tools:find_order`."""


class PythonOnly:
    """An annotation for the type of an option that only Python code can set, and not a YAML file."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a schema that accepts instances of the annotated type."""
        return is_instance_schema(source)


IMPORTING_FIELDS = ("tools", "retriever")
"""The names of the nodes' options that contain import strings."""


def references_in(definition: Json) -> frozenset[str]:
    """Return the import strings in the definition of a workflow, at any depth."""
    found: set[str] = set()
    if isinstance(definition, list):
        found.update(*map(references_in, definition))
    if isinstance(definition, dict):
        for name, value in definition.items():
            if name in IMPORTING_FIELDS:
                found.update(item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str))
            found |= references_in(value)
    return frozenset(found)


def import_named(reference: str) -> object:
    """Return the object that an import string names.

    Raises:
        InvalidInput: the string is malformed, or the module or name cannot be imported.
    """
    if not _REFERENCE.fullmatch(reference):
        raise InvalidInput(f"{reference!r} is not an import string; write package.module:name.")
    module_name, _, path = reference.partition(":")
    try:
        thing: object = import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"{reference!r} cannot be imported: there is no module {error.name!r}. "
            "Install its package, run in its folder, or add its folder to PYTHONPATH."
        ) from error
    # Catch SystemExit too, because an imported script may try to exit the process.
    except (Exception, SystemExit) as error:
        raise InvalidInput(
            f"{reference!r} cannot be imported: its module raised {type(error).__name__}; import it to see why."
        ) from error
    for name in path.split("."):
        try:
            thing = getattr(thing, name)
        except AttributeError:
            raise InvalidInput(f"{reference!r} cannot be imported: there is no {name!r}; correct the name.") from None
    return thing


def made_by(make: Callable[[], object], reference: str) -> object:
    """Call the function that `reference` names, and return its result.

    Raises:
        InvalidInput: the function raised an error; the message contains its type.
    """
    try:
        return make()
    except Exception as error:  # the operator's function may raise any error
        raise InvalidInput(
            f"{reference!r} raised {type(error).__name__} when it was called without arguments; call it to see why."
        ) from error


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
    "identify_user",
    "remember",
    "recall",
    "record_question",
    "record_answer",
]

type Again = Literal["nothing", "a model call", "model calls", "marked tools", "unknown"]
"""The cost of executing a node again after its process died.

`marked tools`: the node has tools that must not run twice; calls of these tools are recorded, and not repeated.
`unknown`: a second execution may repeat the node's actions.
"""

END_NAME = "end"
"""The name that stands for the end of a workflow in YAML files and options."""


@dataclass(frozen=True)
class Step:
    """A call of a node: the node's name, the context of the run, the graph's store, and LangChain's config."""

    name: str
    context: RunContext
    store: BaseStore | None
    config: RunnableConfig = field(default_factory=RunnableConfig)

    @classmethod
    def of(cls, config: RunnableConfig, runtime: Runtime[RunContext]) -> Step:
        """Create the `Step` of a node's call.

        Raises:
            InvalidInput: the graph was called without a RunContext.
        """
        if not isinstance(runtime.context, RunContext):
            raise InvalidInput("The nodes of a workflow need a run: call the graph with context=RunContext(...).")
        name = str(config.get("metadata", {}).get("langgraph_node", ""))
        return cls(name, runtime.context, runtime.store, config)

    def model(self, given: str | BaseChatModel | None) -> BaseChatModel:
        """Return the chat model with the name `given`, by default the service's own; return a model unchanged."""
        return given if isinstance(given, BaseChatModel) else self.context.resources.model(given)

    @property
    def message_id(self) -> str:
        """The id of the node's message in this run, the same if the node is repeated."""
        return f"{self.context.run_id}:{self.name}"


class Node(BaseModel):
    """A node of a workflow: a frozen pydantic model of its options, without data of runs.

    Add it to any graph whose state is a `WorkflowState`: `builder.add_node("answer", AgentNode(...))`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    node_kind: ClassVar[NodeKind]
    repetition: ClassVar[Again] = "unknown"
    """The cost of executing any node of this class again."""
    speaks: ClassVar[bool] = False
    """True if the node adds an assistant message to the state."""
    template_options: ClassVar[tuple[str, ...]] = ()  # the names of the options that are templates

    @property
    def again(self) -> Again:
        """The cost of executing the node again after its process died, for example `a model call`."""
        return self.repetition

    def templates(self) -> Iterable[tuple[str, str]]:
        """Return the names and the texts of the options that are templates, without options that are not set."""
        return [(name, text) for name in self.template_options if (text := getattr(self, name)) is not None]

    def targets(self) -> Mapping[str, str]:
        """Map each next node that this node may choose to a label for drawings; empty if edges decide instead."""
        return {}

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> WorkflowState | Command[str]:
        """Run the node in a graph; LangGraph calls this."""
        return await self.run(Step.of(config, runtime), state)

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState | Command[str]:
        """Return an update of the state, or a command with the update and the name of the next node."""
        raise NotImplementedError(f"{type(self).__name__} is not a node yet: implement run().")


def found(step: Step, output: Json, result: Mapping[str, Json]) -> WorkflowState:
    """Return a state update with the node's `output` in `node_outputs`, and its `result` for templates in `results`."""
    return {"node_outputs": {step.name: output}, "results": {step.name: dict(result)}}


def rendered(template: str, state: WorkflowState) -> str:
    """Replace the placeholders of a template with values of the run's state."""
    return render(template, scope_of(state))


def sent_to(target: str, update: WorkflowState) -> Command[str]:
    """Return a command with an update of the state and the next node, or `end`."""
    return Command(goto=END if target == END_NAME else target, update=update)
