"""Paths through a workflow: reachable nodes, predecessors, and joins. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from threadkeep.workflows.document import Continuing, Entry, WorkflowDocument
from threadkeep.workflows.nodes import CategorizerNode, IngestPromptNode, RouterNode
from threadkeep.workflows.nodes.base import END_NAME
from threadkeep.workflows.yaml_source import Path


def targets_of(entry: Entry) -> Iterator[tuple[Path, str]]:
    """Yield the next nodes that a node may choose, each with the path of its option."""
    if isinstance(entry, Continuing):
        if isinstance(entry.next, str):
            yield ("next",), entry.next
        else:
            for place, name in enumerate(entry.next):
                yield ("next", place), name
    elif isinstance(entry, CategorizerNode):
        for place, category in enumerate(entry.categories):
            yield ("categories", place, "next"), category.next
        yield ("default",), entry.default
    elif isinstance(entry, RouterNode):
        for place, rule in enumerate(entry.rules):
            yield ("rules", place, "next"), rule.next
        yield ("otherwise",), entry.otherwise
    elif isinstance(entry, IngestPromptNode):
        yield ("next",), entry.next
        yield ("skip",), entry.skip


@dataclass(frozen=True)
class Paths:
    """The paths through a workflow: `following` maps each node to its possible next nodes, `end` among them.

    `branches` are the nodes after which the run continues with several nodes at once; `choosing` nodes select one of
    their next nodes.
    """

    following: Mapping[str, tuple[str, ...]]
    start: str
    branches: tuple[tuple[str, ...], ...] = ()
    choosing: frozenset[str] = frozenset()

    @classmethod
    def of(cls, document: WorkflowDocument) -> Paths:
        """Return the paths through a document, without targets that are not nodes."""
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
        """Return all nodes that can come after a node; includes the node itself only if it is on a cycle."""
        return self._reached(self.following.get(name, ()))

    def before(self, name: str) -> frozenset[str]:
        """Return all nodes that can come before a node."""
        return frozenset(other for other in self.following if name in self.after(other))

    def beginning_at(self, name: str) -> frozenset[str]:
        """Return a node and all nodes that can come after it."""
        return self._reached([name])

    def reaches_end(self, name: str, *, avoiding: Iterable[str]) -> bool:
        """Return True if the run can get from a node to the end without passing the nodes to avoid."""
        avoided = frozenset(avoiding)
        return END_NAME in self._reached((one for one in self.following[name] if one not in avoided), avoided)

    @property
    def has_circle(self) -> bool:
        """Return True if a node can come after itself."""
        return any(name in self.after(name) for name in self.following)

    def beside(self) -> dict[str, frozenset[str]]:
        """Return the nodes that may run in parallel to each node: nodes on other branches, and not on its own."""
        found: dict[str, frozenset[str]] = {}
        for ways in self._ways():
            for place, way in enumerate(ways):
                others = frozenset[str]().union(*(other for number, other in enumerate(ways) if number != place))
                for name in way - others:
                    found[name] = found.get(name, frozenset()) | (others - way)
        return found

    def meetings(self) -> dict[str, tuple[str, ...]]:
        """Return the joins of branches that every run takes, each with the nodes that lead to it.

        Branches with a choice and branches on a cycle have no join, because a run could wait for nodes that never
        run.
        """
        certain = self._certain()
        leading: dict[str, list[str]] = {}
        for name, targets in self.following.items():
            for target in targets if not self.has_circle else ():
                leading.setdefault(target, []).append(name)
        return {
            target: tuple(names)
            for target, names in leading.items()
            if target != END_NAME
            and len(names) > 1
            and all(one in certain and one not in self.choosing for one in names)
        }

    def repeated(self) -> frozenset[str]:
        """Return the nodes that may run several times: joins without waiting, and all nodes after them."""
        waited = self.meetings()
        found: set[str] = set()
        for branch, ways in zip(self.branches, self._ways(), strict=True):
            for place, way in enumerate(ways):
                for other in ways[place + 1 :]:
                    common = way & other
                    apart = (way | other) - common
                    led_to = {*branch, *(target for name in apart for target in self.following[name])}
                    if common & led_to - waited.keys():
                        found |= common
        return frozenset(found)

    def _certain(self) -> frozenset[str]:
        """Return the nodes that are part of every run."""
        found: set[str] = set()
        waiting = [self.start]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self.following.get(name, ()) if name not in self.choosing else ()
        return frozenset(found)

    def _ways(self) -> Iterator[list[frozenset[str]]]:
        """Yield, for each branching, the nodes reachable on each branch."""
        for branch in self.branches:
            yield [self.beginning_at(target) - {END_NAME} for target in branch]

    def _reached(self, names: Iterable[str], avoided: frozenset[str] = frozenset()) -> frozenset[str]:
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [one for one in self.following.get(name, ()) if one not in avoided]
        return frozenset(found)
