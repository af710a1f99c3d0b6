"""A workflow as a picture: LangGraph's own drawing in Mermaid, with the kinds of nodes; from it SVG and PNG."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from langchain_core.runnables.graph import Graph as DrawableGraph
from langchain_core.runnables.graph import Node as DrawableNode

from threadkeep.graphs.compiling import Compiler
from threadkeep.graphs.definition import Workflow
from threadkeep.graphs.nodes import NodeKind, SubworkflowNode

type PictureFormat = Literal["mermaid", "svg", "png"]

_COLORS: Mapping[str, tuple[NodeKind, ...]] = {
    "fill:#dbeafe,stroke:#2563eb,color:#111": ("agent", "model"),
    "fill:#fef3c7,stroke:#d97706,color:#111": ("categorizer", "router"),
    "fill:#dcfce7,stroke:#16a34a,color:#111": ("retrieve",),
    "fill:#ede9fe,stroke:#7c3aed,color:#111": ("subworkflow",),
    "fill:#f3f4f6,stroke:#6b7280,color:#111": ("template", "append_message", "ingest_prompt", "build_candidate"),
    "fill:#ffffff,stroke:#9ca3af,color:#6b7280,stroke-dasharray:4": ("record_question", "record_answer"),
}


def draw_mermaid(workflow: Workflow) -> str:
    """The workflow in Mermaid's language, as GitHub and most editors show it.

    Raises:
        InvalidWorkflow: the graph cannot be compiled.
    """
    graph = Compiler(checkpointer=None, store=None).compiled(workflow).get_graph()
    kinds = {name: node.node_kind for name, node in workflow.nodes.items()}
    drawn = DrawableGraph(
        {name: _labelled(node, _label(workflow, name, kinds)) for name, node in graph.nodes.items()}, graph.edges
    )
    lines = [drawn.draw_mermaid().rstrip()]
    for color, colored in _COLORS.items():
        for kind in colored:
            ids = [_safe_id(name) for name, found in kinds.items() if found == kind]
            if ids:
                lines += [f"\tclassDef {kind} {color}", f"\tclass {','.join(ids)} {kind}"]
    return "\n".join(lines) + "\n"


def draw_svg(workflow: Workflow) -> str:
    """The workflow as SVG. Needs the extra `draw`: Mermaid in an embedded engine, without a browser or a network.

    Raises:
        ModuleNotFoundError: the extra is not installed.
    """
    return str(_drawn(workflow).svg())


def draw_png(workflow: Workflow, *, scale: float = 2.0) -> bytes:
    """The workflow as PNG on white; see `draw_svg`."""
    return bytes(_drawn(workflow).png(scale=scale, background="#ffffff"))


def _drawn(workflow: Workflow) -> Any:
    import mermaidx  # type: ignore[import-untyped]

    return mermaidx.render(draw_mermaid(workflow))


def _label(workflow: Workflow, name: str, kinds: Mapping[str, NodeKind]) -> str:
    kind = kinds.get(name)
    if kind is None or kind in ("record_question", "record_answer"):
        return name.replace("_", " ") if kind is not None else name
    node = workflow.nodes[name]
    told = f"{kind} → {node.workflow}" if isinstance(node, SubworkflowNode) else kind
    return f"{name}<br/><small>{_harmless(told)}</small>"


def _labelled(node: DrawableNode, label: str) -> DrawableNode:
    # What LangGraph would draw of the metadata is in the label already.
    return node._replace(name=label, metadata=None)


def _harmless(text: str) -> str:
    """A name as part of a label: Mermaid has a meaning for brackets and quotes."""
    return re.sub(r"[^\w →.-]", " ", text)


def _safe_id(name: str) -> str:
    """How LangGraph writes a node's name as an id of Mermaid's."""
    return "".join(one if one.isascii() and (one.isalnum() or one in "_-") else f"\\{ord(one):x}" for one in name)
