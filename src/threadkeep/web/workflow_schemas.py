"""Workflows as they go over the wire."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from threadkeep.graphs.definition import Source
from threadkeep.history.keys import Reason


class WorkflowSummary(BaseModel):
    """What there is to know of a workflow in a list."""

    name: str
    description: str
    version: str = Field(description="Changes with the definition; a run ends on the version that it began with.")
    source: Source
    nodes: int
    children: list[str] = Field(description="The workflows that it runs.")


class WorkflowList(BaseModel):
    """All workflows."""

    workflows: list[WorkflowSummary]


class WorkflowNodeBody(BaseModel):
    """One node; of the kind `python` is a function of a graph in Python."""

    name: str
    kind: str
    next: list[str] = Field(description="Where the run may go on; `end` is the end.")


class WorkflowBody(BaseModel):
    """A workflow, whole."""

    name: str
    description: str
    version: str
    source: Source
    nodes: list[WorkflowNodeBody]
    children: list[str]
    options: dict[str, JsonValue] = Field(description="How its runs are carried out; null for no such limit.")
    output: str | None = Field(description="The node whose output is the result; null: what the run says.")
    definition: dict[str, JsonValue] | None = Field(description="The YAML as JSON; null where it is code.")
    mermaid: str = Field(description="Its picture in Mermaid's language.")


class KeyRequestBody(BaseModel):
    """A payload to explain."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"payload": {"results": {"telegram_events_parser": {"bot_id": "b1", "chat_id": 12345}}}}]
        },
    )

    payload: dict[str, Any] = Field(
        description="What a run would be given: `inputs`, `results`, `configurable`, `user_context`; any other object "
        "is the inputs."
    )
    by_hand: bool = Field(False, description="As in a run that a person starts: `thread_id` counts.")


class RefusalBody(BaseModel):
    """A candidate that gave no key, as its author typed it."""

    candidate: str
    reason: Reason


class KeyExplanationBody(BaseModel):
    """What one agent makes of the payload."""

    node: str
    uses_store: bool = Field(description="Whether the agent's history is in the graph store under this key.")
    namespace: list[str]
    key: str | None = Field(description="null: it would work in memory only.")
    conversation_key: str | None = Field(description="What the winning candidate gave, before the key template.")
    winner: str | None = Field(description="The candidate that won.")
    refused: list[RefusalBody] = Field(description="Those before it, in the order of trying.")


class ExplainedKeys(BaseModel):
    """The keys of all agents of a workflow."""

    workflow: str
    agents: list[KeyExplanationBody]
