"""A workflow: its graph, not compiled yet, and what its runs need to know of it."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

from langgraph.graph import StateGraph

from threadkeep.errors import InvalidWorkflow
from threadkeep.graphs.nodes import Node, SubworkflowNode
from threadkeep.graphs.options import RunOptions
from threadkeep.graphs.yaml_source import YamlSource
from threadkeep.records import Json

type Source = Literal["yaml", "python", "built-in"]
type Graph = StateGraph[Any, Any, Any, Any]

_DIGITS = 16


@dataclass(frozen=True, eq=False)
class Workflow:
    """A workflow. `builder` is compiled in `threadkeep.graphs.compiling`, and nowhere else.

    `version` changes with the definition: runs end on the one that they began with. `definition` is the YAML as JSON
    values, None for Python, from which the same workflow can be built again elsewhere. `output` names the node whose
    output is the result; without it the result is what the run says. `origin` is the file or the import string;
    `places` are where its parts stand in the file, for what is wrong between several workflows.
    """

    name: str
    builder: Graph
    version: str
    source: Source = "python"
    description: str = ""
    options: RunOptions = field(default_factory=RunOptions)
    definition: Mapping[str, Json] | None = None
    output: str | None = None
    origin: str | None = None
    places: YamlSource | None = field(default=None, repr=False)

    @property
    def nodes(self) -> dict[str, Node]:
        """Those of its nodes that are of our kinds, by their names; a graph in Python may have others."""
        found: dict[str, Node] = {}
        for name, spec in self.builder.nodes.items():
            called = getattr(spec.runnable, "afunc", None)
            if isinstance(called, Node):
                found[name] = called
        return found

    @property
    def children(self) -> tuple[str, ...]:
        """The names of the workflows that it runs."""
        return tuple(dict.fromkeys(node.workflow for node in self.nodes.values() if isinstance(node, SubworkflowNode)))


def python_workflow(
    name: str,
    builder: object,
    *,
    version: str | None = None,
    description: str = "",
    options: RunOptions | None = None,
    output: str | None = None,
    origin: str | None = None,
) -> Workflow:
    """A workflow of a graph that was built in Python.

    Args:
        name: what it is called.
        builder: a `StateGraph` that is not compiled.
        version: of the graph; by default a digest of the source of the module that calls or is named.
        description: what it is for.
        options: how its runs are carried out.
        output: the node whose output is the result.
        origin: the import string by which it was found, if any.

    Raises:
        InvalidWorkflow: it is no such graph; the sentence says what to name instead.
    """
    if not isinstance(builder, StateGraph):
        compiled = isinstance(getattr(builder, "builder", None), StateGraph)
        cure = "it is compiled already: name its `builder`" if compiled else "name a StateGraph that is not compiled"
        raise InvalidWorkflow(f"Workflow {name!r} cannot be used ({type(builder).__name__}): {cure}.")
    module = (origin or "").partition(":")[0] or _caller()
    return Workflow(
        name,
        builder,
        version=version or _digest_of_module(module),
        description=description,
        options=options or RunOptions(),
        output=output,
        origin=origin,
    )


def digest_of(definition: Json) -> str:
    """The version of a definition: the same for every way to write the same values."""
    text = json.dumps(definition, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _caller() -> str:
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""


def _digest_of_module(name: str) -> str:
    """A digest of a module's source; of its name where there is no source."""
    module = sys.modules.get(name)
    try:
        text = inspect.getsource(module) if module is not None else name
    except (OSError, TypeError):
        text = name
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
