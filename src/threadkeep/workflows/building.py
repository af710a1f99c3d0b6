"""Building of a workflow's graph from its document, with nodes that store the turn if no other node does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from langgraph.graph import END, START, StateGraph

from threadkeep.workflows.document import Continuing, Entry, WorkflowDocument
from threadkeep.workflows.nodes import (
    CategorizerNode,
    RecordAnswerNode,
    RecordQuestionNode,
    RetrieveNode,
    RouterNode,
    SubworkflowNode,
    TemplateNode,
)
from threadkeep.workflows.nodes.base import END_NAME
from threadkeep.workflows.nodes.speaking import SpeakingNode
from threadkeep.workflows.paths import Paths
from threadkeep.workflows.questions import reset_commands, stores_question
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState
from threadkeep.workflows.turn_ends import ANSWER, QUESTION, Graph, add_node

__all__ = ["TurnPlan", "add_node", "build_graph"]


@dataclass(frozen=True)
class TurnPlan:
    """The nodes that store the turn, and the additional nodes that are needed.

    A node stores its message as the answer if it runs once, and if no node after it or in parallel adds a message.
    If the run can end with another message, the answer is stored at the very end. If the run does not begin with a
    node that stores the question, the question is stored first. At `meetings` the run waits for all nodes that lead
    there.
    """

    start: str
    answering: frozenset[str]
    records_question: bool
    records_answer: bool
    meetings: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, document: WorkflowDocument) -> TurnPlan:
        """Return the plan of a checked document."""
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
    """Return the graph of a checked document, not compiled."""
    plan = TurnPlan.of(document)
    builder: Graph = StateGraph(WorkflowState, context_schema=RunContext)
    ends = ANSWER if plan.records_answer else END_NAME
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


def _add_ends(builder: Graph, document: WorkflowDocument, plan: TurnPlan) -> None:
    resets = reset_commands(document.nodes.values())
    if plan.records_question:
        add_node(builder, QUESTION, RecordQuestionNode(reset_commands=resets))
        builder.add_edge(START, QUESTION)
    builder.add_edge(QUESTION if plan.records_question else START, plan.start)
    if plan.records_answer:
        # Deferred until nothing else is left: one branch may end while others continue.
        add_node(builder, ANSWER, RecordAnswerNode(reset_commands=resets), defer=True)
        builder.add_edge(ANSWER, END)


def _ready(name: str, entry: Entry, document: WorkflowDocument, plan: TurnPlan, ends: str) -> Entry:
    """Return a copy of a node with the changes that this workflow needs."""
    changes: dict[str, object] = {}
    if isinstance(entry, SpeakingNode) and stores_question(entry) and name not in plan.answering:
        changes["answers"] = False
    if isinstance(entry, SpeakingNode) and not any(isinstance(one, RetrieveNode) for one in document.nodes.values()):
        # Without passages, model calls reserve no tokens for them.
        changes["snippets"] = False
    if isinstance(entry, SubworkflowNode) and "max_depth" not in entry.model_fields_set:
        changes["max_depth"] = document.options.max_depth
    if ends != END_NAME:
        changes |= _ending_at(entry, ends)
    return entry.model_copy(update=changes) if changes else entry


def _ending_at(entry: Entry, ends: str) -> Mapping[str, object]:
    """Return the changes that send a node to `ends` instead of the end."""

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
