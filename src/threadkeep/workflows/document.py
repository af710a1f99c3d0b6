"""The schema of a workflow's YAML file. The published JSON schema is generated from it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from threadkeep.errors import InvalidWorkflow, WorkflowProblem
from threadkeep.records import Json
from threadkeep.workflows.nodes import (
    AgentNode,
    AppendMessageNode,
    BuildCandidateNode,
    CategorizerNode,
    IdentifyUserNode,
    IngestPromptNode,
    ModelNode,
    RecallNode,
    RememberNode,
    RetrieveNode,
    RouterNode,
    SubworkflowNode,
    TemplateNode,
)
from threadkeep.workflows.resources import RunOptions
from threadkeep.workflows.state import WorkflowState
from threadkeep.workflows.yaml_source import Path, YamlSource

SCHEMA_ID = "https://github.com/threadkeep/threadkeep/raw/main/src/threadkeep/workflows/workflow.schema.json"

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
NAME_CURE = "a name begins with a letter and consists of up to 64 of A-Z, a-z, 0-9, _ and -."

type Name = Annotated[str, Field(pattern=rf"^{NAME.pattern}$")]
type Targets = str | Annotated[tuple[str, ...], Field(min_length=1, max_length=32)]

# LangGraph uses one namespace for nodes and fields of the state.
RESERVED_NAMES = frozenset({"start", "end", "record_question", "record_answer", *WorkflowState.__annotations__})


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)


class Continuing(_Part):
    """Fields of nodes that do not choose the next node themselves."""

    next: Targets = Field(description="The next node, a list of nodes to run at once, or end.")


class AgentEntry(AgentNode, Continuing):
    """A model with tools that uses the memory of the run's session."""

    kind: Literal["agent"]


class ModelEntry(ModelNode, Continuing):
    """A single model call that uses the memory of the run's session."""

    kind: Literal["model"]


class CategorizerEntry(CategorizerNode):
    """A model that sorts the newest message into a category, which determines the next node."""

    kind: Literal["categorizer"]


class RouterEntry(RouterNode):
    """Rules that determine the next node, without a model."""

    kind: Literal["router"]


class RetrieveEntry(RetrieveNode, Continuing):
    """A search for passages of a knowledge base that are relevant to the question."""

    kind: Literal["retrieve"]


class TemplateEntry(TemplateNode, Continuing):
    """A text rendered from values of the run."""

    kind: Literal["template"]


class AppendMessageEntry(AppendMessageNode, Continuing):
    """A message that is added to a transcript without calling a model."""

    kind: Literal["append_message"]


class SubworkflowEntry(SubworkflowNode, Continuing):
    """Another workflow, which runs as a child and gets only the given input."""

    kind: Literal["subworkflow"]


class IngestPromptEntry(IngestPromptNode):
    """A node that makes the question of the run from an event: its text, and its annotations of the kind `prompt`."""

    kind: Literal["ingest_prompt"]


class BuildCandidateEntry(BuildCandidateNode, Continuing):
    """A node that turns the model's answer into a candidate: a proposed text."""

    kind: Literal["build_candidate"]


class IdentifyUserEntry(IdentifyUserNode, Continuing):
    """A node that finds the person behind the run's user id, with known facts and the last episodes."""

    kind: Literal["identify_user"]


class RememberEntry(RememberNode, Continuing):
    """A node that stores a fact about the user, the workspace or the session, for later runs."""

    kind: Literal["remember"]


class RecallEntry(RecallNode, Continuing):
    """A search for facts, episodes or procedures that are relevant to the question."""

    kind: Literal["recall"]


type Entry = (
    AgentEntry
    | ModelEntry
    | CategorizerEntry
    | RouterEntry
    | RetrieveEntry
    | TemplateEntry
    | AppendMessageEntry
    | SubworkflowEntry
    | IngestPromptEntry
    | BuildCandidateEntry
    | IdentifyUserEntry
    | RememberEntry
    | RecallEntry
)

ENTRIES: dict[str, type[BaseModel]] = {
    get_args(entry.model_fields["kind"].annotation)[0]: entry for entry in get_args(Entry.__value__)
}
"""The pydantic model of each kind of node."""


class WorkflowDocument(_Part):
    """A workflow in a YAML file."""

    # Not `Literal[1]`, which accepts `true`.
    schema_version: int = Field(alias="schema", ge=1, le=1, description="The version of this format.")
    name: Name = Field(description="The name of the workflow.")
    description: str = Field("", max_length=2000, description="The purpose of the workflow, in one sentence.")
    start: str | None = Field(None, description="The node that runs first; by default the first one in the document.")
    output: str | None = Field(None, description="The node whose output is the result; by default the run's answer.")
    given_results: tuple[Name, ...] = Field(
        (), max_length=64, description="Names of results that a run gets from outside, such as from a channel's parser."
    )
    options: RunOptions = Field(default=RunOptions(), description="Options of runs.")
    nodes: Annotated[dict[Name, Annotated[Entry, Field(discriminator="kind")]], Field(min_length=1, max_length=200)] = (
        Field(description="The nodes by their names.")
    )


def build_schema() -> dict[str, Any]:
    """Return the JSON schema of a workflow file, generated from the options of the nodes."""
    schema = WorkflowDocument.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
        "title": "A workflow of Threadkeep",
    }


# `_PYTHON_ONLY` has pydantic's types of errors for options that can be set only in Python, not in YAML.
_NOTHING = object()
_PYTHON_ONLY = frozenset({"is_instance_of"})

# Advice for pydantic's types of error. The error's context fills the placeholders.
_CURES: Mapping[str, str] = {
    "bool_type": "write true or false",
    "int_type": "write a whole number, without quotes",
    "float_type": "write a number, without quotes",
    "finite_number": "write a finite number",
    "string_type": "write text, in quotes if it looks like another type",
    "tuple_type": "write a list, such as [one, two]",
    "dict_type": "write names with values, as name: value",
    "model_type": "write names with values, as name: value",
    "model_attributes_type": "write names with values, as name: value",
    "literal_error": "write {expected}",
    "greater_than_equal": "write a number of at least {ge:g}",
    "greater_than": "write a number above {gt:g}",
    "less_than_equal": "write a number of at most {le:.16g}",
    "string_too_short": "write at least {min_length} character",
    "string_too_long": "write at most {max_length} characters",
    "too_short": "give at least {min_length}",
    "too_long": "give at most {max_length}",
}
# Advice for fields that allow several types of values.
_CURES_OF: Mapping[str, str] = {
    "next": "write the name of a node, a list of them, or end",
    "equals": "write text, a number, true or false",
}


def document_of(source: YamlSource) -> WorkflowDocument:
    """Return the content of a YAML file as a `WorkflowDocument`.

    Raises:
        InvalidWorkflow: the file does not match the schema; `problems` lists all errors.
    """
    try:
        text = json.dumps(source.value, allow_nan=False)
    except ValueError:
        raise InvalidWorkflow([source.problem("A number in a workflow must be finite; correct it.", ())]) from None
    try:
        return WorkflowDocument.model_validate_json(text, strict=True)
    except ValidationError as error:
        problems: dict[Path, WorkflowProblem] = {}
        for one in error.errors(include_url=False, include_input=False):
            if one["type"] not in _PYTHON_ONLY:
                path, problem = _problem_of(source, one)
                problems.setdefault(path, problem)
        # Drop the errors of a part that contains another invalid part, because they only repeat its error.
        around = {path[:length] for path in problems for length in range(len(path))}
        outer = [problem for path, problem in problems.items() if path not in around]
        raise InvalidWorkflow(in_order(outer)) from None


def in_order(problems: Iterable[WorkflowProblem]) -> list[WorkflowProblem]:
    """Return problems in the order of their positions in the file."""
    return sorted(problems, key=lambda one: (one.line or 0, one.column or 0))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name that is most similar, or an empty text."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _problem_of(source: YamlSource, error: Mapping[str, Any]) -> tuple[Path, WorkflowProblem]:
    """Convert a pydantic error to a problem, and return it with the path of the invalid part in the file."""
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
        case _ if path == ("schema",):
            sentence = "This version of Threadkeep does not know this schema; write schema: 1, or upgrade Threadkeep."
        case "string_pattern_mismatch":
            sentence = f"{where} has the wrong form: {_pattern_cure(path)}"
        case kind:
            sentence = f"{where} cannot be used: {_cure(kind, path, error)}."
    return path, source.problem(sentence, path, at_key=at_key)


def _path_in(value: Json, loc: Sequence[str | int]) -> tuple[Path, tuple[str | int, ...]]:
    """Split a pydantic error's location `loc` into the keys and indexes that exist in the file, and all others."""
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
    """Return the value in `here` under the key or index `step`, or `_NOTHING` if there is none."""
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
        return f"{name} is not allowed here; did you mean {near[0]}?"
    return f"{name} is not allowed here; allowed are {', '.join(known)}." if known else f"{name} is not allowed here."


def _known_names(value: Json, path: Path) -> list[str]:
    """Return the names that the schema allows at a path in the file: in the workflow, in its options, or in a node."""
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
