"""The schema of a workflow's YAML file. The published JSON schema is generated from it."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

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

SCHEMA_VERSION = 1
SCHEMA_ID = "https://github.com/threadkeep/threadkeep/raw/main/src/threadkeep/workflows/workflow.schema.json"

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
NAME_CURE = "a name begins with a letter and has A-Z, a-z, 0-9, _ and -, at most 64."

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
    """A model with tools, in the memory of the run's session."""

    kind: Literal["agent"]


class ModelEntry(ModelNode, Continuing):
    """A single model call in the memory of the run's session."""

    kind: Literal["model"]


class CategorizerEntry(CategorizerNode):
    """A model that sorts the newest message into one of a few categories; the category determines the next node."""

    kind: Literal["categorizer"]


class RouterEntry(RouterNode):
    """Rules that determine the next node, without a model."""

    kind: Literal["router"]


class RetrieveEntry(RetrieveNode, Continuing):
    """A search for passages of a knowledge base that fit the question."""

    kind: Literal["retrieve"]


class TemplateEntry(TemplateNode, Continuing):
    """A text rendered from values of the run."""

    kind: Literal["template"]


class AppendMessageEntry(AppendMessageNode, Continuing):
    """A message of the bot that is added to a transcript."""

    kind: Literal["append_message"]


class SubworkflowEntry(SubworkflowNode, Continuing):
    """Another workflow, which gets only the given input from its parent."""

    kind: Literal["subworkflow"]


class IngestPromptEntry(IngestPromptNode):
    """A prompt made of an event and its prompt annotations."""

    kind: Literal["ingest_prompt"]


class BuildCandidateEntry(BuildCandidateNode, Continuing):
    """A candidate made of the model's answer."""

    kind: Literal["build_candidate"]


class IdentifyUserEntry(IdentifyUserNode, Continuing):
    """The person of the run, with the facts and the last episodes of the person."""

    kind: Literal["identify_user"]


class RememberEntry(RememberNode, Continuing):
    """A fact to remember beyond the session."""

    kind: Literal["remember"]


class RecallEntry(RecallNode, Continuing):
    """Facts, episodes or procedures that bear on the question."""

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
"""The schemas of nodes by kind."""


class WorkflowDocument(_Part):
    """A workflow in a YAML file."""

    schema_version: Literal[1] = Field(alias="schema", description="The version of this format.")
    name: Name = Field(description="The name of the workflow.")
    description: str = Field("", max_length=2000, description="Its purpose, in one sentence.")
    start: str | None = Field(None, description="The node that runs first; by default the first one in the document.")
    output: str | None = Field(None, description="The node whose output is the result; by default the run's answer.")
    given_results: tuple[Name, ...] = Field(
        (), max_length=64, description="Results that a run gets from outside, such as those of a channel's parser."
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


def published_schema() -> dict[str, Any]:
    """Return the JSON schema published next to this module."""
    text = files("threadkeep.workflows").joinpath("workflow.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
