"""The shape of a workflow's YAML file. The JSON schema that is published is made of it."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from threadkeep.graphs.nodes import (
    AgentNode,
    AppendMessageNode,
    BuildCandidateNode,
    CategorizerNode,
    IngestPromptNode,
    ModelNode,
    RetrieveNode,
    RouterNode,
    SubworkflowNode,
    TemplateNode,
)
from threadkeep.graphs.options import RunOptions
from threadkeep.graphs.state import WorkflowState

SCHEMA_VERSION = 1
SCHEMA_ID = "https://github.com/threadkeep/threadkeep/raw/main/src/threadkeep/graphs/workflow.schema.json"

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
NAME_CURE = "a name begins with a letter and has A-Z, a-z, 0-9, _ and -, at most 64."

type Name = Annotated[str, Field(pattern=rf"^{NAME.pattern}$")]
type Targets = str | Annotated[tuple[str, ...], Field(min_length=1, max_length=32)]

# LangGraph has one room for the names of nodes and of the state's fields.
RESERVED_NAMES = frozenset({"start", "end", "record_question", "record_answer", *WorkflowState.__annotations__})


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)


class Continuing(_Part):
    """What nodes have that do not choose themselves where the run goes on."""

    next: Targets = Field(description="The node with which the run goes on, a list of nodes at once, or end.")


class AgentEntry(AgentNode, Continuing):
    """A model with tools, in the memory of the run's session."""

    kind: Literal["agent"]


class ModelEntry(ModelNode, Continuing):
    """One model call in the memory of the run's session."""

    kind: Literal["model"]


class CategorizerEntry(CategorizerNode):
    """A model puts the newest message into one of a few categories, which says where the run goes on."""

    kind: Literal["categorizer"]


class RouterEntry(RouterNode):
    """Rules on what is known say where the run goes on; no model is asked."""

    kind: Literal["router"]


class RetrieveEntry(RetrieveNode, Continuing):
    """Passages of a knowledge base that bear on the question."""

    kind: Literal["retrieve"]


class TemplateEntry(TemplateNode, Continuing):
    """A text made of what the run knows."""

    kind: Literal["template"]


class AppendMessageEntry(AppendMessageNode, Continuing):
    """A message that the bot says by itself enters a transcript."""

    kind: Literal["append_message"]


class SubworkflowEntry(SubworkflowNode, Continuing):
    """Another workflow, run with what it is given and nothing else of its parent."""

    kind: Literal["subworkflow"]


class IngestPromptEntry(IngestPromptNode):
    """Makes the question of an event and its prompt annotations."""

    kind: Literal["ingest_prompt"]


class BuildCandidateEntry(BuildCandidateNode, Continuing):
    """Proposes what the model said."""

    kind: Literal["build_candidate"]


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
)

ENTRIES: dict[str, type[BaseModel]] = {
    get_args(entry.model_fields["kind"].annotation)[0]: entry for entry in get_args(Entry.__value__)
}
"""The shapes of nodes by their kinds."""


class WorkflowDocument(_Part):
    """A workflow as a YAML file has it."""

    schema_version: Literal[1] = Field(alias="schema", description="The version of this shape.")
    name: Name = Field(description="What the workflow is called.")
    description: str = Field("", max_length=2000, description="What it is for, in a sentence.")
    start: str | None = Field(None, description="The first node; by default the one that stands first.")
    output: str | None = Field(None, description="The node whose output is the result; by default what the run says.")
    given_results: tuple[Name, ...] = Field(
        (), max_length=64, description="Results that a run is given from outside, such as those of a channel's parser."
    )
    options: RunOptions = Field(default=RunOptions(), description="How runs are carried out.")
    nodes: Annotated[dict[Name, Annotated[Entry, Field(discriminator="kind")]], Field(min_length=1, max_length=200)] = (
        Field(description="The nodes by their names.")
    )


def build_schema() -> dict[str, Any]:
    """The JSON schema of a workflow file, made of the options of the nodes."""
    schema = WorkflowDocument.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
        "title": "A workflow of Threadkeep",
    }


def published_schema() -> dict[str, Any]:
    """The JSON schema as it is published beside this module."""
    text = files("threadkeep.graphs").joinpath("workflow.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
