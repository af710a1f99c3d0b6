"""Descriptions of workflows as JSON values, the keys of their agents' conversations, and drawings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables.graph import Edge as DrawableEdge
from langchain_core.runnables.graph import Graph as DrawableGraph
from langgraph.graph import END, START

from threadkeep.errors import InvalidInput
from threadkeep.history.keys import Refusal
from threadkeep.records import Json
from threadkeep.records.json_values import DESCRIBED
from threadkeep.workflows.definition import Compiler, Workflow
from threadkeep.workflows.nodes import AgentNode, NodeKind, SubworkflowNode

_PLACES = {START: "start", END: "end"}


def describe(workflow: Workflow) -> dict[str, Any]:
    """Return a short description of a workflow as JSON values, for lists of workflows."""
    return {
        "name": workflow.name,
        "description": workflow.description,
        "version": workflow.version,
        "source": workflow.source,
        "nodes": len(workflow.builder.nodes),
        "children": list(workflow.children),
    }


def describe_whole(workflow: Workflow) -> dict[str, Any]:
    """Return the full description of a workflow as JSON values.

    Raises:
        InvalidWorkflow: the graph cannot be compiled.
    """
    graph = Compiler(checkpointer=None, store=None).compiled(workflow).get_graph()
    following: dict[str, list[str]] = {}
    for edge in sorted(graph.edges, key=lambda one: (one.source, one.target)):
        following.setdefault(edge.source, []).append(_PLACES.get(edge.target, edge.target))
    kinds = {name: node.node_kind for name, node in workflow.nodes.items()}
    nodes = [
        {"name": name, "kind": kinds.get(name, "python"), "next": following.get(name, [])}
        for name in workflow.builder.nodes
    ]
    return {
        **describe(workflow),
        "nodes": nodes,
        "options": workflow.options.model_dump(mode="json"),
        "output": workflow.output,
        "definition": workflow.definition,
    }


_SCOPES = ("inputs", "results", "node_outputs", "configurable", "user_context")


@dataclass(frozen=True)
class KeyExplanation:
    """The key that one agent derives from a payload for its conversation in the graph store.

    If `uses_store` is false, the agent reads the run's session instead, and the key is not used.
    """

    __pydantic_config__ = DESCRIBED

    node: str
    uses_store: bool
    """True if the agent's history is in the graph store under this key."""
    namespace: tuple[str, ...]
    key: str | None
    """Null if no candidate gives a key; the agent then reads and stores no turns."""
    conversation_key: str | None
    """The value of the winning candidate, before it is inserted into the key template."""
    winner: str | None
    """The first candidate with a valid value."""
    refused: tuple[Refusal, ...]
    """The templates that were rejected, in the order in which they were tried, and the reasons."""


def explain_key(workflow: Workflow, payload: Mapping[str, Json], *, by_hand: bool = False) -> list[KeyExplanation]:
    """Return the key that each agent derives from a payload for its conversation, without using the database.

    A payload with any of `inputs`, `results`, `node_outputs`, `configurable` and `user_context` is used as it is. Any
    other payload is used as `inputs`. Key templates may use `thread_id` only if a person starts the run (`by_hand`).
    """
    if not isinstance(payload, Mapping):
        raise InvalidInput("A payload must be a JSON object; wrap the data of the channel in one.")
    for name in _SCOPES:
        if not isinstance(payload.get(name, {}), Mapping):
            raise InvalidInput(f"`{name}` of the payload must be a JSON object; put its value into one.")
    scope: dict[str, object] = dict(payload) if any(name in payload for name in _SCOPES) else {"inputs": payload}
    scope["thread_id"] = payload.get("thread_id")
    found: list[KeyExplanation] = []
    for name, node in workflow.nodes.items():
        if not isinstance(node, AgentNode):
            continue
        resolution = node.resolve(scope, by_hand=by_hand)
        tried = len(resolution.refused)
        texts = [one for one in node.history_key_candidates if isinstance(one, str)]
        won = resolution.conversation_key is not None
        found.append(
            KeyExplanation(
                node=name,
                uses_store=node.use_graph_chat_history,
                namespace=node.history_namespace,
                key=resolution.key,
                conversation_key=resolution.conversation_key,
                winner=texts[tried if resolution.key is not None else tried - 1] if won else None,
                refused=resolution.refused,
            )
        )
    return found


# Keywords of Mermaid. Mermaid misreads a node id that begins with a keyword.
_WORDS = frozenset(
    {"call", "class", "classdef", "click", "default", "direction", "end", "flowchart", "graph", "href", "interpolate"}
    | {"linkstyle", "style", "subgraph"}
)
_PLAIN_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*")
_MOST_LABEL_CHARACTERS = 60


_COLORS: Mapping[str, tuple[NodeKind, ...]] = {
    "fill:#dbeafe,stroke:#2563eb,color:#111": ("agent", "model"),
    "fill:#fef3c7,stroke:#d97706,color:#111": ("categorizer", "router"),
    "fill:#dcfce7,stroke:#16a34a,color:#111": ("retrieve", "identify_user", "remember", "recall"),
    "fill:#ede9fe,stroke:#7c3aed,color:#111": ("subworkflow",),
    "fill:#f3f4f6,stroke:#6b7280,color:#111": ("template", "append_message", "ingest_prompt", "build_candidate"),
    "fill:#ffffff,stroke:#9ca3af,color:#6b7280,stroke-dasharray:4": ("record_question", "record_answer"),
}


def draw_mermaid(workflow: Workflow) -> str:
    """Return the workflow as a Mermaid diagram, which GitHub and most editors can show.

    Raises:
        InvalidWorkflow: the graph cannot be compiled.
    """
    graph = Compiler(checkpointer=None, store=None).compiled(workflow).get_graph()
    kinds = {name: node.node_kind for name, node in workflow.nodes.items()}
    ids = {name: _id_of(name, number) for number, name in enumerate(graph.nodes)}
    drawn = DrawableGraph(
        # Remove the metadata: `_label` has put it into the label, and LangGraph would draw it a second time.
        {
            ids[name]: node._replace(id=ids[name], name=_label(workflow, name, kinds), metadata=None)
            for name, node in graph.nodes.items()
        },
        [_drawn_edge(edge, ids) for edge in graph.edges],
    )
    lines = [drawn.draw_mermaid().rstrip()]
    for color, colored in _COLORS.items():
        for kind in colored:
            named = [ids[name] for name, found in kinds.items() if found == kind]
            if named:
                lines += [f"\tclassDef {kind} {color}", f"\tclass {','.join(named)} {kind}"]
    return "\n".join(lines) + "\n"


def draw_svg(workflow: Workflow) -> str:
    """Draw the workflow as SVG with the Mermaid engine of the extra `draw`, which needs no browser and no network.

    Raises:
        ModuleNotFoundError: the extra is not installed.
    """
    return str(_drawn(workflow).svg())


def draw_png(workflow: Workflow) -> bytes:
    """Return the workflow as PNG on a white background; see `draw_svg`."""
    return bytes(_drawn(workflow).png(scale=2.0, background="#ffffff"))


def _drawn(workflow: Workflow) -> Any:
    import mermaidx  # type: ignore[import-untyped]

    return mermaidx.render(draw_mermaid(workflow))


def _label(workflow: Workflow, name: str, kinds: Mapping[str, NodeKind]) -> str:
    kind = kinds.get(name)
    if kind is None or kind in ("record_question", "record_answer"):
        return name.replace("_", " ") if kind is not None else _escaped(name)
    node = workflow.nodes[name]
    detail = f"{kind} → {node.workflow}" if isinstance(node, SubworkflowNode) else kind
    return f"{_escaped(name)}<br/><small>{_escaped(detail)}</small>"


def _drawn_edge(edge: DrawableEdge, ids: Mapping[str, str]) -> DrawableEdge:
    label = _escaped(str(edge.data)) if edge.data is not None else None
    return edge._replace(source=ids[edge.source], target=ids[edge.target], data=label)


def _id_of(name: str, number: int) -> str:
    """Return the Mermaid id of a node: its name if Mermaid can read it, or else an id made of `number`."""
    plain = _PLAIN_ID.fullmatch(name) and name.partition("-")[0].lower() not in _WORDS
    return name if plain else f"_node{number}"


def _escaped(text: str) -> str:
    line = " ".join(text.split())
    shown = line if len(line) <= _MOST_LABEL_CHARACTERS else f"{line[:_MOST_LABEL_CHARACTERS]}…"
    return re.sub(r"[^\w →…=,-]", lambda found: f"#{ord(found[0])};", shown)
