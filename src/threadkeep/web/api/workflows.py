"""The workflows there are, and which session keys they make of a payload."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from threadkeep.graphs.describing import describe, describe_whole
from threadkeep.graphs.drawing import draw_mermaid
from threadkeep.graphs.explaining import explain_key
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.problems import documented
from threadkeep.web.workflow_schemas import (
    ExplainedKeys,
    KeyExplanationBody,
    KeyRequestBody,
    WorkflowBody,
    WorkflowList,
    WorkflowSummary,
)

router = APIRouter(prefix="/api/v1/workflows", tags=["workflows"])

WorkflowName = Annotated[str, Path(max_length=128, description="The workflow's name.")]


@router.get("", summary="List workflows")
async def list_workflows(app: AppInUse) -> WorkflowList:
    """The built-in workflow first, then those that `THREADKEEP_WORKFLOWS` names."""
    return WorkflowList(workflows=[WorkflowSummary.model_validate(describe(one)) for one in app.workflows.all()])


@router.get("/{name}", summary="See a workflow", responses=documented(404, 422))
async def get_workflow(name: WorkflowName, app: AppInUse) -> WorkflowBody:
    """Its nodes and where each leads, its options, its definition, and its picture in Mermaid's language."""
    workflow = app.workflows.get(name)
    return WorkflowBody.model_validate({**describe_whole(workflow), "mermaid": draw_mermaid(workflow)})


@router.post(
    "/{name}/explain-key", summary="Explain which session key a payload gets", responses=documented(400, 404, 413, 422)
)
async def explain_keys(name: WorkflowName, body: KeyRequestBody, app: AppInUse) -> ExplainedKeys:
    """For each agent of the workflow the key that it makes of a payload, and why each other candidate was refused.

    Nothing is read or written.
    """
    workflow = app.workflows.get(name)
    found = explain_key(workflow, body.payload, by_hand=body.by_hand)
    agents = [KeyExplanationBody.model_validate(one.to_dict()) for one in found]
    return ExplainedKeys(workflow=workflow.name, agents=agents)
