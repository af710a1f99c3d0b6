"""Routes that list and show workflows, and that explain the keys under which their agents store conversations."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field, JsonValue

from threadkeep.records.json_values import example
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.callers import PUBLIC, READS
from threadkeep.web.problems import documented
from threadkeep.workflows.definition import WorkflowSource
from threadkeep.workflows.describing import KeyExplanation, describe, describe_whole, draw_mermaid, explain_key


class _Described(BaseModel):
    name: str
    description: str
    version: str = Field(description="Changes with the definition. A run keeps the version with which it started.")
    source: WorkflowSource
    children: list[str] = Field(description="The workflows that it runs as children.")


class WorkflowSummary(_Described):
    """The entry of a workflow in the list of workflows."""

    nodes: int


class WorkflowList(BaseModel):
    """The list of all workflows."""

    workflows: list[WorkflowSummary]


class WorkflowNodeBody(BaseModel):
    """A node of a workflow. The kind `python` marks a node of a graph that is written in Python."""

    name: str
    kind: str
    next: list[str] = Field(description="The possible next nodes; `end` is the end of the run.")


class WorkflowBody(_Described):
    """A workflow with all details."""

    nodes: list[WorkflowNodeBody]
    options: dict[str, JsonValue] = Field(description="The options of its runs; null means no limit.")
    output: str | None = Field(description="The node that provides the result; null: the run's answer.")
    definition: dict[str, JsonValue] | None = Field(description="The YAML as JSON; null for Python code.")
    mermaid: str = Field(description="The workflow as a Mermaid diagram.")


class KeyRequestBody(
    BaseModel,
    extra="forbid",
    json_schema_extra=example(payload={"results": {"telegram_events_parser": {"bot_id": "b1", "chat_id": 12345}}}),
):
    """The payload of a run. The response has the keys under which agents would store the run's conversation."""

    payload: dict[str, Any] = Field(
        description="The payload of a run: `inputs`, `results`, `configurable`, `user_context`. Any other object is "
        "used as the inputs."
    )
    by_hand: bool = Field(False, description="True for a run that a person starts: `thread_id` is used.")


class ExplainedKeys(BaseModel):
    """The keys under which the agents of a workflow would store the conversation."""

    workflow: str
    agents: list[KeyExplanation]


router = APIRouter(prefix="/api/v1/workflows", tags=["workflows"])

WorkflowName = Annotated[str, Path(max_length=128, description="The workflow's name.")]


@router.get("", summary="List workflows", openapi_extra=PUBLIC)
async def list_workflows(app: AppInUse) -> WorkflowList:
    """List the built-in workflow, then the workflows in `THREADKEEP_WORKFLOWS`."""
    return WorkflowList(workflows=[WorkflowSummary.model_validate(describe(one)) for one in app.workflows.all()])


@router.get("/{name}", summary="See a workflow", responses=documented(404, 422))
async def get_workflow(name: WorkflowName, app: AppInUse) -> WorkflowBody:
    """Return a workflow with its nodes, edges, options, definition, and a Mermaid diagram."""
    workflow = app.workflows.get(name)
    return WorkflowBody.model_validate({**describe_whole(workflow), "mermaid": draw_mermaid(workflow)})


@router.post(
    "/{name}/explain-key",
    summary="Explain which session key a payload gets",
    responses=documented(400, 404, 413, 422),
    openapi_extra=READS,
)
async def explain_keys(name: WorkflowName, body: KeyRequestBody, app: AppInUse) -> ExplainedKeys:
    """Return the key of each agent's conversation in a run with this payload, and why other keys were rejected.

    The request reads and stores no data.
    """
    workflow = app.workflows.get(name)
    agents = explain_key(workflow, body.payload, by_hand=body.by_hand)
    return ExplainedKeys(workflow=workflow.name, agents=agents)
