"""Routes of assistants, which are workflows, and the server's version."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field, JsonValue

from threadkeep.records.json_values import example
from threadkeep.version import __version__
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.callers import PUBLIC
from threadkeep.web.problems import documented
from threadkeep.web.schemas import Metadata
from threadkeep.workflows.definition import Compiler, Workflow

router = APIRouter(tags=["langgraph"])

AssistantId = Annotated[str, Path(max_length=200, description="The name of a workflow.")]

_OF_ONE: dict[str, Any] = {"responses": documented(404, 422), "openapi_extra": PUBLIC}
_LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


class ServerInfo(BaseModel):
    """The version and the features of the server."""

    version: str
    flags: dict[str, bool]


class AssistantBody(BaseModel, json_schema_serialization_defaults_required=True):
    """A workflow in the format of an assistant of LangGraph's server."""

    assistant_id: str
    graph_id: str
    name: str
    description: str
    version: int = 1
    config: dict[str, JsonValue] = {}
    context: dict[str, JsonValue] = {}
    metadata: dict[str, JsonValue] = Field({}, description="`version`: the version of the workflow.")
    created_at: datetime = _LONG_AGO
    updated_at: datetime = _LONG_AGO

    @classmethod
    def of(cls, workflow: Workflow) -> AssistantBody:
        """Return a workflow as an assistant of the same name."""
        name = workflow.name
        metadata: dict[str, JsonValue] = {"version": workflow.version}
        return cls(
            assistant_id=name, graph_id=name, name=name, description=workflow.description or "", metadata=metadata
        )


_MESSAGES: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"messages": {"type": "array", "items": {"type": "object"}}},
}


class SchemasBody(BaseModel, json_schema_serialization_defaults_required=True):
    """The JSON schemas of an assistant's input, output, state, config and context."""

    graph_id: str
    input_schema: dict[str, JsonValue] = _MESSAGES
    output_schema: dict[str, JsonValue] = _MESSAGES
    state_schema: dict[str, JsonValue] = _MESSAGES
    config_schema: dict[str, JsonValue] = {}
    context_schema: dict[str, JsonValue] = {}


class AssistantSearchBody(BaseModel, json_schema_extra=example(limit=10)):
    """A search for assistants."""

    graph_id: str | None = Field(None, description="Only the workflow of this name.")
    name: str | None = Field(None, description="Only names with this text.")
    metadata: Metadata | None = Field(None, description="Only assistants with all of these values.")
    limit: int = Field(10, ge=1, le=1000, description="The maximum number of results.")
    offset: int = Field(0, ge=0, description="The number of results to skip.")


@router.get("/info", summary="Get the version of the server", openapi_extra=PUBLIC)
async def get_info() -> ServerInfo:
    """Return the version. Chat pages call this to find out whether there is a server."""
    return ServerInfo(version=__version__, flags={"assistants": True, "crons": False, "langsmith": False})


@router.post("/assistants/search", summary="List assistants", responses=documented(400, 413, 422), openapi_extra=PUBLIC)
async def search_assistants(app: AppInUse, body: AssistantSearchBody | None = None) -> list[AssistantBody]:
    """List the workflows that match a search. The built-in workflow comes first."""
    asked = body or AssistantSearchBody()
    listed = [AssistantBody.of(one) for one in app.workflows.all()]
    found = [one for one in listed if _matches(one, asked)]
    return found[asked.offset : asked.offset + asked.limit]


@router.post("/assistants/count", summary="Count assistants", responses=documented(400, 413, 422), openapi_extra=PUBLIC)
async def count_assistants(app: AppInUse, body: AssistantSearchBody | None = None) -> int:
    """Return the number of workflows that match a search, even if it is above the search's limit."""
    asked = body or AssistantSearchBody()
    return sum(_matches(AssistantBody.of(one), asked) for one in app.workflows.all())


@router.get("/assistants/{assistant_id}", summary="See an assistant", **_OF_ONE)
async def get_assistant(assistant_id: AssistantId, app: AppInUse) -> AssistantBody:
    """Return a workflow in the format of an assistant."""
    return AssistantBody.of(app.workflows.get(assistant_id))


@router.get("/assistants/{assistant_id}/schemas", summary="See the schemas of an assistant", **_OF_ONE)
async def get_schemas(assistant_id: AssistantId, app: AppInUse) -> SchemasBody:
    """Return the schemas of input, output and state, which are the same for all workflows."""
    return SchemasBody(graph_id=app.workflows.get(assistant_id).name)


@router.get("/assistants/{assistant_id}/graph", summary="See the graph of an assistant", **_OF_ONE)
async def get_graph(assistant_id: AssistantId, app: AppInUse) -> dict[str, Any]:
    """Return the nodes and edges of a workflow."""
    graph = Compiler(checkpointer=None, store=None).compiled(app.workflows.get(assistant_id)).get_graph()
    return {str(name): value for name, value in graph.to_json().items()}


def _matches(assistant: AssistantBody, asked: AssistantSearchBody) -> bool:
    if asked.graph_id not in (None, assistant.graph_id):
        return False
    if asked.name is not None and asked.name.lower() not in assistant.name.lower():
        return False
    return all(assistant.metadata.get(name) == value for name, value in (asked.metadata or {}).items())
