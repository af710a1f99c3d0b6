"""A workflow's graph built of its document, with the two ends of a turn where no node is the whole of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.graph import END, START, StateGraph

from threadkeep.graphs.definition import Graph
from threadkeep.graphs.document import Continuing, Entry, WorkflowDocument
from threadkeep.graphs.nodes import (
    CategorizerNode,
    Node,
    RecordAnswerNode,
    RecordQuestionNode,
    RetrieveNode,
    RouterNode,
    SubworkflowNode,
    TemplateNode,
)
from threadkeep.graphs.nodes.base import END_NAME
from threadkeep.graphs.nodes.speaking import SpeakingNode
from threadkeep.graphs.paths import Paths
from threadkeep.graphs.questions import reset_commands, stores_question
from threadkeep.graphs.resources import RunContext
from threadkeep.graphs.state import WorkflowState

_QUESTION, _ANSWER = "record_question", "record_answer"


@dataclass(frozen=True)
class TurnPlan:
    """Which nodes are the end of the turn, and what has to be stored beside them.

    A node stores what it says as the answer if it is carried out once, and nothing that comes after it or beside it
    speaks, too. Where the run can end with something else said, the answer is stored at the very end; where the run
    does not begin with a node that stores the question, that is stored first. At `meetings` the run waits for all nodes
    that lead there.
    """

    start: str
    answering: frozenset[str]
    records_question: bool
    records_answer: bool
    meetings: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, document: WorkflowDocument) -> TurnPlan:
        """The plan of a document that was checked."""
        paths = Paths.of(document)
        beside, repeated = paths.beside(), paths.repeated()
        speaking = frozenset(name for name, entry in document.nodes.items() if _speaks(entry))
        answering = frozenset(
            name
            for name, entry in document.nodes.items()
            if isinstance(entry, SpeakingNode)
            and entry.answers
            and stores_question(entry)
            and name not in repeated
            and not speaking & (paths.after(name) | beside.get(name, frozenset()))
        )
        return cls(
            paths.start,
            answering,
            records_question=not stores_question(document.nodes[paths.start]),
            records_answer=any(paths.reaches_end(name, avoiding=answering) for name in speaking - answering),
            meetings=paths.meetings(),
        )


def build_graph(document: WorkflowDocument) -> Graph:
    """The graph of a document that was checked, not compiled."""
    plan = TurnPlan.of(document)
    builder: Graph = StateGraph(WorkflowState, context_schema=RunContext)
    ends = _ANSWER if plan.records_answer else END_NAME
    for name, entry in document.nodes.items():
        node = _ready(name, entry, document, plan, ends)
        add_node(builder, name, node)
        if isinstance(node, Continuing):
            for target in (node.next,) if isinstance(node.next, str) else dict.fromkeys(node.next):
                if target not in plan.meetings:
                    builder.add_edge(name, END if target == END_NAME else target)
    for target, names in plan.meetings.items():
        builder.add_edge(list(names), target)
    _add_ends(builder, document, plan)
    return builder


def add_node(builder: Graph, name: str, node: Node, *, defer: bool = False) -> None:
    """Add a node of ours to a graph, with its kind, and with the ways that it may choose: drawings show both."""
    destinations = {END if target == END_NAME else target: why for target, why in node.targets().items()}
    # LangGraph knows no type of a node that takes both a config and a runtime.
    action: Any = node
    kind = {"kind": node.node_kind}
    builder.add_node(name, action, metadata=kind, defer=defer, destinations=destinations or None)


def _add_ends(builder: Graph, document: WorkflowDocument, plan: TurnPlan) -> None:
    resets = reset_commands(document.nodes.values())
    if plan.records_question:
        add_node(builder, _QUESTION, RecordQuestionNode(reset_commands=resets))
        builder.add_edge(START, _QUESTION)
    builder.add_edge(_QUESTION if plan.records_question else START, plan.start)
    if plan.records_answer:
        # When nothing else is left to do: a way may end while others go on.
        add_node(builder, _ANSWER, RecordAnswerNode(reset_commands=resets), defer=True)
        builder.add_edge(_ANSWER, END)


def _ready(name: str, entry: Entry, document: WorkflowDocument, plan: TurnPlan, ends: str) -> Entry:
    """A node as this workflow needs it: a copy, since what was read stays as it is."""
    changes: dict[str, object] = {}
    if isinstance(entry, SpeakingNode) and stores_question(entry) and name not in plan.answering:
        changes["answers"] = False
    if isinstance(entry, SpeakingNode) and not any(isinstance(one, RetrieveNode) for one in document.nodes.values()):
        # Nothing is found on the way: no room is kept for it in the model calls.
        changes["snippets"] = False
    if isinstance(entry, SubworkflowNode) and "max_depth" not in entry.model_fields_set:
        changes["max_depth"] = document.options.max_depth
    if ends != END_NAME:
        changes |= _ending_at(entry, ends)
    return entry.model_copy(update=changes) if changes else entry


def _ending_at(entry: Entry, ends: str) -> Mapping[str, object]:
    """The changes that send a node to another place instead of the end."""

    def there(target: str) -> str:
        return ends if target == END_NAME else target

    if isinstance(entry, Continuing):
        return {"next": there(entry.next) if isinstance(entry.next, str) else tuple(map(there, entry.next))}
    if isinstance(entry, CategorizerNode):
        moved = tuple(one.model_copy(update={"next": there(one.next)}) for one in entry.categories)
        return {"categories": moved, "default": there(entry.default)}
    if isinstance(entry, RouterNode):
        ruled = tuple(one.model_copy(update={"next": there(one.next)}) for one in entry.rules)
        return {"rules": ruled, "otherwise": there(entry.otherwise)}
    return {"next": there(entry.next), "skip": there(entry.skip)}


def _speaks(entry: Entry) -> bool:
    return entry.speaks or (isinstance(entry, TemplateNode) and entry.as_message)
