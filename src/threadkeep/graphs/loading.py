"""Workflows from files and modules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from threadkeep.errors import InvalidInput, InvalidWorkflow, WorkflowProblem
from threadkeep.graphs.building import build_graph
from threadkeep.graphs.checking import check_document
from threadkeep.graphs.compiling import Compiler
from threadkeep.graphs.definition import Workflow, digest_of, python_workflow
from threadkeep.graphs.document import NAME, NAME_CURE
from threadkeep.graphs.nodes.references import import_named, made_by
from threadkeep.graphs.reading import document_of
from threadkeep.graphs.yaml_source import MOST_CHARACTERS, YamlSource, read_yaml
from threadkeep.records import Json

SUFFIXES = (".yaml", ".yml")


def load_yaml(path: Path, *, imports: bool = True) -> Workflow:
    """The workflow of a YAML file.

    Raises:
        InvalidWorkflow: it is none; each problem has its line.
    """
    try:
        # No more than can be a workflow: a path may be anything.
        with path.open("rb") as file:
            text = file.read(4 * MOST_CHARACTERS + 1).decode("utf-8-sig")
    except OSError as error:
        sentence = f"The file cannot be read ({error.strerror}); check its path and permissions."
        raise InvalidWorkflow([WorkflowProblem(sentence, str(path))]) from None
    except UnicodeDecodeError:
        raise InvalidWorkflow([WorkflowProblem("The file is no text in UTF-8; save it as such.", str(path))]) from None
    return read_workflow(text, file=str(path), imports=imports)


def read_workflow(text: str, *, file: str | None = None, imports: bool = True) -> Workflow:
    """The workflow of a YAML text.

    Args:
        text: the YAML.
        file: what errors call it.
        imports: whether tools and retrievers are imported to see whether they are there.

    Raises:
        InvalidWorkflow: it is none; each problem has its line.
    """
    return _workflow_of(read_yaml(text, file), imports=imports)


def restore_workflow(definition: Mapping[str, Json]) -> Workflow:
    """The workflow of a definition that was kept: the same graph, of the same version.

    Raises:
        InvalidWorkflow: this Threadkeep cannot build it any more.
    """
    # As it came out of a database, which may have changed the kinds of lists and maps.
    value: Json = json.loads(json.dumps(definition))
    return _workflow_of(YamlSource(value, None), imports=False)


def load_python(name: str, reference: str) -> Workflow:
    """The workflow that a module has under a name: a graph that is not compiled, what makes one, or a `Workflow`.

    Raises:
        InvalidWorkflow: there is none.
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
        raise InvalidWorkflow(f"{reference!r} is the workflow {thing.name!r}; write {thing.name}={reference}.")
    workflow = thing if isinstance(thing, Workflow) else python_workflow(name, thing, origin=reference)
    # Now, and not at the first run: LangGraph looks at the edges when it compiles.
    Compiler(checkpointer=None, store=None).compiled(workflow)
    return workflow


def _workflow_of(source: YamlSource, *, imports: bool) -> Workflow:
    document = document_of(source)
    check_document(document, source, imports=imports)
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
        places=source,
    )
