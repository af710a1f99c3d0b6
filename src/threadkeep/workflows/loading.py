"""Loading of workflows from files and modules, with checks of their edges, names and imports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from threadkeep.errors import InvalidInput, InvalidWorkflow, WorkflowProblem
from threadkeep.records import Json
from threadkeep.workflows.building import Paths, build_graph, targets_of
from threadkeep.workflows.definition import Compiler, Workflow, digest_of, python_workflow
from threadkeep.workflows.document import (
    NAME,
    NAME_CURE,
    RESERVED_NAMES,
    Entry,
    WorkflowDocument,
    document_of,
    in_order,
    suggestion,
)
from threadkeep.workflows.nodes import AgentNode, AppendMessageNode, RetrieveNode, RouterNode, SubworkflowNode
from threadkeep.workflows.nodes.agent import check_tools
from threadkeep.workflows.nodes.base import END_NAME, import_named, made_by
from threadkeep.workflows.state import check_template, nodes_named
from threadkeep.workflows.yaml_source import MOST_CHARACTERS, YamlSource, read_yaml
from threadkeep.workflows.yaml_source import Path as ValuePath


@dataclass(frozen=True)
class _Checks:
    """The checks of a workflow document. Each method yields the problems that it finds, with their positions."""

    document: WorkflowDocument
    source: YamlSource
    paths: Paths

    def names(self) -> Iterator[WorkflowProblem]:
        for name in RESERVED_NAMES & self.document.nodes.keys():
            sentence = f"{name!r} is a reserved name; rename the node."
            yield self.source.problem(sentence, ("nodes", name), at_key=True)
        if self.document.output is not None and self.document.output not in self.document.nodes:
            yield self.source.problem(self._nothing("output", self.document.output), ("output",))

    def edges(self) -> Iterator[WorkflowProblem]:
        if self.document.start is not None and self.document.start not in self.document.nodes:
            yield self.source.problem(self._nothing("start", self.document.start), ("start",))
        for name, entry in self.document.nodes.items():
            for path, target in targets_of(entry):
                if target != END_NAME and target not in self.document.nodes:
                    option = next(str(step) for step in reversed(path) if isinstance(step, str))
                    yield self.source.problem(self._nothing(option, target), ("nodes", name, *path))

    def ways(self) -> Iterator[WorkflowProblem]:
        reached = self.paths.beginning_at(self.paths.start)
        for name in self.document.nodes:
            if name not in reached:
                sentence = f"No path leads from {self.paths.start!r} to {name!r}; name it in a next, or remove it."
            elif END_NAME not in self.paths.after(name):
                sentence = f"No path leads from {name!r} to the end; write end as a next of it or of a later node."
            else:
                continue
            yield self.source.problem(sentence, ("nodes", name), at_key=True)

    def templates(self) -> Iterator[WorkflowProblem]:
        for name, entry in self.document.nodes.items():
            for option, template in entry.templates():
                at: ValuePath = ("nodes", name, option)
                try:
                    check_template(template)
                except InvalidInput as error:
                    yield self.source.problem(str(error), at)
                else:
                    yield from self._named_before(name, nodes_named(template), at)
            if isinstance(entry, AppendMessageNode) and entry.session is not None:
                yield from self._named_before(name, nodes_named(entry.session), ("nodes", name, "session"))
            if isinstance(entry, RouterNode):
                for position, rule in enumerate(entry.rules):
                    named = nodes_named(f"{{{{{rule.path}}}}}")
                    yield from self._named_before(name, named, ("nodes", name, "rules", position, "path"))

    def children(self) -> Iterator[WorkflowProblem]:
        for name, entry in self.document.nodes.items():
            if not isinstance(entry, SubworkflowNode):
                continue
            if entry.workflow == self.document.name:
                sentence = f"Node {name!r} runs its own workflow, which is a cycle; name another one."
                yield self.source.problem(sentence, ("nodes", name, "workflow"))
            if entry.input_source != "node_output":
                continue
            if entry.source_node_id is None:
                sentence = f"Node {name!r} uses the output of a node, but does not name the node; add source_node_id."
                yield self.source.problem(sentence, ("nodes", name), at_key=True)
            else:
                yield from self._named_before(name, [entry.source_node_id], ("nodes", name, "source_node_id"))

    def imports(self) -> Iterator[WorkflowProblem]:
        for name, entry in self.document.nodes.items():
            for at, error in _import_errors(entry):
                yield self.source.problem(str(error), ("nodes", name, *at))

    def _named_before(self, name: str, named: Iterable[str], at: ValuePath) -> Iterator[WorkflowProblem]:
        known = {*self.paths.before(name), *self.document.given_results}
        for other in dict.fromkeys(named):
            if other in known:
                continue
            if other == name:
                sentence = f"Node {name!r} cannot use its own result; name an earlier node."
            elif other in self.document.nodes:
                sentence = f"Node {name!r} uses the result of {other!r}, which runs later; change their order."
            else:
                sentence = (
                    f"Node {name!r} uses the result of {other!r}, which is not a node: correct the name"
                    f"{self._near(other)}, or list it in given_results if the run gets it from outside."
                )
            yield self.source.problem(sentence, at)

    def _nothing(self, option: str, name: str) -> str:
        return f"{option} names {name!r}, which is not a node: correct the name{self._near(name)}, or add the node."

    def _near(self, name: str) -> str:
        return suggestion(name, [one for one in (*self.document.nodes, END_NAME) if one != name])


def _import_errors(entry: Entry) -> Iterator[tuple[ValuePath, InvalidInput]]:
    for position, reference in enumerate(entry.tools if isinstance(entry, AgentNode) else ()):
        try:
            check_tools(reference)
        except InvalidInput as error:
            yield ("tools", position), error
    if isinstance(entry, RetrieveNode):
        try:
            _ = entry.made_retriever
        except InvalidInput as error:
            yield ("retriever",), error


SUFFIXES = (".yaml", ".yml")


def load_yaml(path: Path, *, imports: bool = True) -> Workflow:
    """Load the workflow of a YAML file.

    Raises:
        InvalidWorkflow: the file cannot be read or is invalid. The error has the line of each invalid part.
    """
    try:
        # Limit the size, because the path may name any file.
        with path.open("rb") as file:
            text = file.read(4 * MOST_CHARACTERS + 1).decode("utf-8-sig")
    except OSError as error:
        sentence = f"The file cannot be read ({error.strerror}); check its path and permissions."
        raise InvalidWorkflow([WorkflowProblem(sentence, str(path))]) from None
    except UnicodeDecodeError:
        raise InvalidWorkflow([WorkflowProblem("The file is not UTF-8 text; save it in UTF-8.", str(path))]) from None
    return read_workflow(text, file=str(path), imports=imports)


def read_workflow(text: str, *, file: str | None = None, imports: bool = True) -> Workflow:
    """Return the workflow of a YAML text.

    Args:
        text: the YAML.
        file: the name of the file in errors.
        imports: True to import tools and retrievers, to check that they exist.

    Raises:
        InvalidWorkflow: the text is invalid. The error has the line of each invalid part.
    """
    return _workflow_of(read_yaml(text, file), imports=imports)


def restore_workflow(definition: Mapping[str, Json]) -> Workflow:
    """Return the workflow of a stored definition. It has the same graph and version as the stored workflow.

    Raises:
        InvalidWorkflow: this version of Threadkeep cannot build the workflow.
    """
    # Convert through JSON, because `definition` may have mappings and sequences other than dict and list.
    value: Json = json.loads(json.dumps(definition))
    return _workflow_of(YamlSource(value, None), imports=False)


def load_python(name: str, reference: str) -> Workflow:
    """Return the workflow that an import string names: a graph, a `Workflow`, or a function that returns one.

    Raises:
        InvalidWorkflow: the import string names no workflow or a workflow with another name, or LangGraph rejects the
            graph.
    """
    if not NAME.fullmatch(name):
        raise InvalidWorkflow(f"{name!r}={reference} cannot be a workflow: {NAME_CURE}")
    try:
        thing = import_named(reference)
        if callable(thing) and not isinstance(thing, Workflow) and not hasattr(thing, "builder"):
            thing = made_by(thing, reference)
    except InvalidInput as error:
        raise InvalidWorkflow(f"Workflow {name!r}: {error}") from error
    if isinstance(thing, Workflow) and thing.name != name:
        raise InvalidWorkflow(f"{reference!r} is named {thing.name!r}; write {thing.name}={reference}.")
    workflow = thing if isinstance(thing, Workflow) else python_workflow(name, thing, origin=reference)
    # Compile now, so that LangGraph reports wrong edges now and not in the first run.
    Compiler(checkpointer=None, store=None).compiled(workflow)
    return workflow


def _workflow_of(source: YamlSource, *, imports: bool) -> Workflow:
    document = document_of(source)
    checks = _Checks(document, source, Paths.of(document))
    problems = [*checks.names(), *checks.edges()]
    if not problems:
        # These checks work only if all edges lead to existing nodes.
        problems = [*checks.ways(), *checks.templates(), *checks.children()]
    if imports:
        problems += checks.imports()
    if problems:
        raise InvalidWorkflow(in_order(problems))
    return Workflow(
        document.name,
        build_graph(document),
        version=digest_of(source.value),
        source="yaml",
        description=document.description,
        options=document.options,
        definition=source.value if isinstance(source.value, Mapping) else {},
        output=document.output,
        origin=source.file,
        positions=source,
    )
