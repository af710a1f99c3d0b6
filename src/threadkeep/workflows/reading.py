"""Reading of workflows from YAML: validation against the published schema, each error with its line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from threadkeep.errors import InvalidWorkflow, WorkflowProblem
from threadkeep.records import Json
from threadkeep.workflows.document import ENTRIES, NAME_CURE, WorkflowDocument
from threadkeep.workflows.resources import RunOptions
from threadkeep.workflows.yaml_source import Path, YamlSource

# A union branch that only Python objects can match, never values of a file.
_NOTHING = object()
_PYTHON_ONLY = frozenset({"is_instance_of"})

# Cures by type of error; placeholders in braces take values of the schema.
_CURES: Mapping[str, str] = {
    "bool_type": "write true or false",
    "int_type": "write a whole number, without quotes",
    "float_type": "write a number, without quotes",
    "finite_number": "write a finite number",
    "string_type": "write text, in quotes if it looks like something else",
    "tuple_type": "write a list, such as [one, two]",
    "dict_type": "write names with values, as name: value",
    "model_type": "write names with values, as name: value",
    "model_attributes_type": "write names with values, as name: value",
    "literal_error": "write {expected}",
    "greater_than_equal": "write a number of at least {ge:g}",
    "greater_than": "write a number above {gt:g}",
    "less_than_equal": "write a number of at most {le:g}",
    "string_too_short": "write at least {min_length} character",
    "string_too_long": "write at most {max_length} characters",
    "too_short": "give at least {min_length}",
    "too_long": "give at most {max_length}",
}
# Cures for positions that allow several kinds of values.
_CURES_OF: Mapping[str, str] = {
    "next": "write the name of a node, a list of them, or end",
    "equals": "write text, a number, true or false",
}


def document_of(source: YamlSource) -> WorkflowDocument:
    """Return the document of a file.

    Raises:
        InvalidWorkflow: the file does not match the schema; `problems` lists everything that is wrong.
    """
    try:
        text = json.dumps(source.value, allow_nan=False)
    except ValueError:
        raise InvalidWorkflow([source.problem("The numbers of a workflow are finite; correct it.", ())]) from None
    try:
        return WorkflowDocument.model_validate_json(text, strict=True)
    except ValidationError as error:
        problems: dict[Path, WorkflowProblem] = {}
        for one in error.errors(include_url=False, include_input=False):
            if one["type"] not in _PYTHON_ONLY:
                path, problem = _problem_of(source, one)
                problems.setdefault(path, problem)
        # Parts around an invalid part are invalid only because of it.
        around = {path[:length] for path in problems for length in range(len(path))}
        outer = [problem for path, problem in problems.items() if path not in around]
        raise InvalidWorkflow(in_order(outer)) from None


def in_order(problems: Iterable[WorkflowProblem]) -> list[WorkflowProblem]:
    """Return problems in the order of the file."""
    return sorted(problems, key=lambda one: (one.line or 0, one.column or 0))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the most similar known name, if any."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _problem_of(source: YamlSource, error: Mapping[str, Any]) -> tuple[Path, WorkflowProblem]:
    """Return a problem, and the path that identifies it."""
    path, rest = _path_in(source.value, error["loc"])
    where = _name_of(path)
    at_key = "[key]" in rest
    match str(error["type"]):
        case "missing":
            name = rest[-1] if rest else "something"
            return (*path, name), source.problem(f"{where} has no {name}; add it.", path, at_key=True)
        case "extra_forbidden":
            sentence, at_key = _unknown(source.value, path), True
        case "union_tag_not_found":
            sentence, at_key = f"{where} has no kind; add one of {_kinds()}.", True
        case "union_tag_invalid":
            given = error.get("ctx", {}).get("tag")
            path = (*path, "kind")
            sentence = f"There is no kind of node {given!r}; kinds are {_kinds()}."
        case "literal_error" if path == ("schema",):
            sentence = "This schema is not known here; write schema: 1, or upgrade Threadkeep."
        case "string_pattern_mismatch":
            sentence = f"{where} is not written as it must be: {_pattern_cure(path)}"
        case kind:
            sentence = f"{where} cannot be used: {_cure(kind, path, error)}."
    return path, source.problem(sentence, path, at_key=at_key)


def _path_in(value: Json, loc: Sequence[str | int]) -> tuple[Path, tuple[str | int, ...]]:
    """Split an error's location into the part in the file and the rest: union branches, missing names."""
    path: list[str | int] = []
    rest: list[str | int] = []
    here: object = value
    for step in loc:
        inner = _inner(here, step)
        if inner is _NOTHING:
            rest.append(step)
        else:
            path.append(step)
            here = inner
    return tuple(path), tuple(rest)


def _inner(here: object, step: str | int) -> object:
    """Return the value at a step; `_NOTHING` if the step does not exist."""
    if isinstance(here, Mapping) and isinstance(step, str):
        return here.get(step, _NOTHING)
    return here[step] if isinstance(here, list) and isinstance(step, int) and step < len(here) else _NOTHING


def _name_of(path: Path) -> str:
    if not path:
        return "The workflow"
    if path[0] == "nodes" and len(path) > 1:
        inner = ".".join(map(str, path[2:]))
        return f"{inner} of node {path[1]!r}" if inner else f"Node {path[1]!r}"
    return ".".join(map(str, path))


def _unknown(value: Json, path: Path) -> str:
    name, known = str(path[-1]), _known_names(value, path[:-1])
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"There is no {name} here; did you mean {near[0]}?"
    return f"There is no {name} here; there may be {', '.join(known)}." if known else f"{name} is not allowed here."


def _known_names(value: Json, path: Path) -> list[str]:
    """Return the names that the schema allows at a path; empty if it does not restrict them."""
    if not path:
        return _names(WorkflowDocument)
    if path == ("options",):
        return _names(RunOptions)
    nodes = value.get("nodes") if isinstance(value, Mapping) else None
    node = nodes.get(str(path[-1])) if len(path) == 2 and isinstance(nodes, Mapping) else None
    kind = node.get("kind") if isinstance(node, Mapping) else None
    return _names(ENTRIES[kind]) if isinstance(kind, str) and kind in ENTRIES else []


def _names(model: type[BaseModel]) -> list[str]:
    return [one.alias or name for name, one in model.model_fields.items()]


def _kinds() -> str:
    return ", ".join(ENTRIES)


def _cure(kind: str, path: Path, error: Mapping[str, Any]) -> str:
    if kind.endswith("_type") and path and path[-1] in _CURES_OF:
        return _CURES_OF[str(path[-1])]
    if kind in _CURES:
        return _CURES[kind].format_map(error.get("ctx", {}))
    sentence = str(error["msg"]).removeprefix("Value error, ").rstrip(".")
    return f"{sentence[:1].lower()}{sentence[1:]}"


def _pattern_cure(path: Path) -> str:
    if path[-1:] == ("retriever",) or "tools" in path:
        return "write an import string, package.module:name."
    return NAME_CURE
