"""The paths through a workflow, and the construction of its graph from the document in its YAML file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from langgraph.graph import END, START, StateGraph

from threadkeep.workflows.document import Continuing, Entry, WorkflowDocument
from threadkeep.workflows.nodes import (
    CategorizerNode,
    IngestPromptNode,
    RecordAnswerNode,
    RecordQuestionNode,
    RetrieveNode,
    RouterNode,
    SubworkflowNode,
    TemplateNode,
)
from threadkeep.workflows.nodes.base import END_NAME
from threadkeep.workflows.nodes.speaking import SpeakingNode
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState
from threadkeep.workflows.turn_ends import ANSWER, QUESTION, Graph, add_node, reset_commands, stores_question
from threadkeep.workflows.yaml_source import Path


def targets_of(entry: Entry) -> Iterator[tuple[Path, str]]:
    """Yield the possible next nodes of a node, each with the option that names it, such as `("rules", 0, "next")`."""
    if isinstance(entry, Continuing):
        if isinstance(entry.next, str):
            yield ("next",), entry.next
        else:
            for position, name in enumerate(entry.next):
                yield ("next", position), name
    elif isinstance(entry, CategorizerNode):
        for position, category in enumerate(entry.categories):
            yield ("categories", position, "next"), category.next
        yield ("default",), entry.default
    elif isinstance(entry, RouterNode):
        for position, rule in enumerate(entry.rules):
            yield ("rules", position, "next"), rule.next
        yield ("otherwise",), entry.otherwise
    elif isinstance(entry, IngestPromptNode):
        yield ("next",), entry.next
        yield ("skip",), entry.skip


@dataclass(frozen=True)
class Paths:
    """The paths through a workflow. `following` maps each node to its possible next nodes, or `end`.

    `branches` has the first nodes of each set of parallel branches. `choosing` has the nodes that continue with only
    one of their next nodes.
    """

    following: Mapping[str, tuple[str, ...]]
    start: str
    branches: tuple[tuple[str, ...], ...] = ()
    choosing: frozenset[str] = frozenset()

    @classmethod
    def of(cls, document: WorkflowDocument) -> Paths:
        """Return the paths through a document's workflow, without next nodes that do not exist."""
        known = {*document.nodes, END_NAME}
        following = {
            name: tuple(dict.fromkeys(target for _, target in targets_of(entry) if target in known))
            for name, entry in document.nodes.items()
        }
        start = document.start if document.start in document.nodes else next(iter(document.nodes))
        branches = tuple(
            following[name]
            for name, entry in document.nodes.items()
            if isinstance(entry, Continuing) and len(following[name]) > 1
        )
        choosing = frozenset(name for name, entry in document.nodes.items() if not isinstance(entry, Continuing))
        return cls(following, str(start), branches, choosing)

    def after(self, name: str) -> frozenset[str]:
        """Return all nodes that can come after a node, including itself if it is on a cycle."""
        return _reached(self.following.get(name, ()), self.following)

    def before(self, name: str) -> frozenset[str]:
        """Return all nodes that can come before a node, including itself if it is on a cycle."""
        return frozenset(other for other in self.following if name in self.after(other))

    def beginning_at(self, name: str) -> frozenset[str]:
        """Return a node and all nodes that can come after it."""
        return _reached([name], self.following)

    def reaches_end(self, name: str, *, avoiding: Iterable[str]) -> bool:
        """Return True if a path from a node to the end avoids the nodes in `avoiding`."""
        avoided = frozenset(avoiding)
        kept = {one: [target for target in targets if target not in avoided] for one, targets in self.following.items()}
        return END_NAME in _reached(kept[name], kept)

    def beside(self) -> dict[str, frozenset[str]]:
        """Map each node to the nodes on other branches that may run in parallel with it."""
        found: dict[str, frozenset[str]] = {}
        for nodes_of_branches in self._nodes_of_branches():
            for nodes in nodes_of_branches:
                others = frozenset[str]().union(*(other for other in nodes_of_branches if other is not nodes))
                for name in nodes - others:
                    found[name] = found.get(name, frozenset()) | (others - nodes)
        return found

    def meetings(self) -> dict[str, tuple[str, ...]]:
        """Map each node that waits for parallel branches to the nodes that lead to it.

        A node waits only if every run takes these branches and no cycle exists; otherwise, a run could wait forever.
        """
        if any(name in self.after(name) for name in self.following):
            return {}
        certain = self._certain()
        leading: dict[str, list[str]] = {}
        for name, targets in self.following.items():
            for target in targets:
                leading.setdefault(target, []).append(name)
        return {
            target: tuple(names)
            for target, names in leading.items()
            if target != END_NAME
            and len(names) > 1
            and all(one in certain and one not in self.choosing for one in names)
        }

    def repeated(self) -> frozenset[str]:
        """Return the nodes that may run once per branch, because they do not wait for all branches."""
        waited = self.meetings()
        found: set[str] = set()
        for branch, nodes_of_branches in zip(self.branches, self._nodes_of_branches(), strict=True):
            for number, nodes in enumerate(nodes_of_branches):
                for other in nodes_of_branches[number + 1 :]:
                    common = nodes & other
                    apart = (nodes | other) - common
                    led_to = {*branch, *(target for name in apart for target in self.following[name])}
                    if common & led_to - waited.keys():
                        found |= common
        return frozenset(found)

    def _certain(self) -> frozenset[str]:
        """Return the nodes that are part of every run."""
        certain = {name: targets for name, targets in self.following.items() if name not in self.choosing}
        return _reached([self.start], certain)

    def _nodes_of_branches(self) -> Iterator[list[frozenset[str]]]:
        """Yield, for each group of parallel branches, a list with one set of nodes per branch."""
        for branch in self.branches:
            yield [self.beginning_at(target) - {END_NAME} for target in branch]


def _reached(names: Iterable[str], following: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """Return the nodes in `names`, and all nodes that can come after them."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += following.get(name, ())
    return frozenset(found)


@dataclass(frozen=True)
class TurnPlan:
    """A plan of the nodes that store the question and the answer of a turn.

    answering: nodes whose message is the answer. Each runs once, and no later or parallel node adds a message.
    records_question: True to add a first node that stores the question.
    records_answer: True to add a last node that stores the answer, because a node outside `answering` may write it.
    meetings: maps each node that waits for parallel branches to the nodes for which it waits.
    """

    start: str
    answering: frozenset[str]
    records_question: bool
    records_answer: bool
    meetings: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, document: WorkflowDocument) -> TurnPlan:
        """Return the plan for a valid document; see `threadkeep.workflows.loading` for the checks."""
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
    """Return the uncompiled graph of a valid document; see `threadkeep.workflows.loading` for the checks."""
    plan = TurnPlan.of(document)
    builder: Graph = StateGraph(WorkflowState, context_schema=RunContext)
    ends = ANSWER if plan.records_answer else END_NAME
    for name, entry in document.nodes.items():
        node = _with_options(name, entry, document, plan, ends)
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
        # Defer this node, because one branch may end while others continue.
        add_node(builder, ANSWER, RecordAnswerNode(reset_commands=resets), defer=True)
        builder.add_edge(ANSWER, END)


def _with_options(name: str, entry: Entry, document: WorkflowDocument, plan: TurnPlan, ends: str) -> Entry:
    """Return a node with options adapted to the rest of the workflow, for example whether it stores the answer."""
    changes: dict[str, object] = {}
    if isinstance(entry, SpeakingNode) and stores_question(entry) and name not in plan.answering:
        changes["answers"] = False
    if isinstance(entry, SpeakingNode) and not any(isinstance(one, RetrieveNode) for one in document.nodes.values()):
        # If no node searches for passages, model calls need not reserve tokens for them.
        changes["snippets"] = False
    if isinstance(entry, SubworkflowNode) and "max_depth" not in entry.model_fields_set:
        changes["max_depth"] = document.options.max_depth
    if ends != END_NAME:
        changes |= _ending_at(entry, ends)
    return entry.model_copy(update=changes) if changes else entry


def _ending_at(entry: Entry, ends: str) -> Mapping[str, object]:
    """Return the options that must change so that a node continues at `ends` instead of ending the run."""

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
