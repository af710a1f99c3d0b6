"""Loading of workflows from files and modules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from threadkeep.errors import InvalidInput, InvalidWorkflow, WorkflowProblem
from threadkeep.records import Json
from threadkeep.workflows.building import build_graph
from threadkeep.workflows.checking import check_document
from threadkeep.workflows.compiling import Compiler
from threadkeep.workflows.definition import Workflow, digest_of, python_workflow
from threadkeep.workflows.document import NAME, NAME_CURE
from threadkeep.workflows.nodes.references import import_named, made_by
from threadkeep.workflows.reading import document_of
from threadkeep.workflows.yaml_source import MOST_CHARACTERS, YamlSource, read_yaml

SUFFIXES = (".yaml", ".yml")


def load_yaml(path: Path, *, imports: bool = True) -> Workflow:
    """Load the workflow of a YAML file.

    Raises:
        InvalidWorkflow: the file is invalid; each problem has its line.
    """
    try:
        # Read no more than the maximum size of a workflow: the path may be any file.
        with path.open("rb") as file:
            text = file.read(4 * MOST_CHARACTERS + 1).decode("utf-8-sig")
    except OSError as error:
        sentence = f"The file cannot be read ({error.strerror}); check its path and permissions."
        raise InvalidWorkflow([WorkflowProblem(sentence, str(path))]) from None
    except UnicodeDecodeError:
        raise InvalidWorkflow([WorkflowProblem("The file is no text in UTF-8; save it as such.", str(path))]) from None
    return read_workflow(text, file=str(path), imports=imports)


def read_workflow(text: str, *, file: str | None = None, imports: bool = True) -> Workflow:
    """Return the workflow of a YAML text.

    Args:
        text: the YAML.
        file: the name of the file in errors.
        imports: True to import tools and retrievers, to check that they exist.

    Raises:
        InvalidWorkflow: the text is invalid; each problem has its line.
    """
    return _workflow_of(read_yaml(text, file), imports=imports)


def restore_workflow(definition: Mapping[str, Json]) -> Workflow:
    """Return the workflow of a stored definition: the same graph, of the same version.

    Raises:
        InvalidWorkflow: this version of Threadkeep cannot build it any more.
    """
    # The database may have returned other types of lists and maps.
    value: Json = json.loads(json.dumps(definition))
    return _workflow_of(YamlSource(value, None), imports=False)


def load_python(name: str, reference: str) -> Workflow:
    """Return the workflow that a module names: an uncompiled graph, a function that makes one, or a `Workflow`.

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
    # Compile now rather than at the first run: LangGraph checks the edges when it compiles.
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
