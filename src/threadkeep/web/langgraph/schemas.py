"""Schemas of LangGraph's server API. Fields that Threadkeep has no use for are accepted and ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from threadkeep.web.schemas import Metadata

type ThreadStatus = Literal["idle", "busy", "interrupted", "error"]


class CheckpointBody(BaseModel):
    """A checkpoint: the end of a turn."""

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str = Field(description="The `seq` of the turn's last message; 0 is before the first one.")


class InterruptBody(BaseModel):
    """A question of a run to a person."""

    id: str
    value: Any = None


class TaskBody(BaseModel):
    """A run that waits for a person."""

    id: str
    name: str
    error: str | None = None
    interrupts: list[InterruptBody] = []
    checkpoint: CheckpointBody | None = None
    state: Any = None
    result: Any = None


class ThreadStateBody(BaseModel):
    """The state of a thread at the end of a turn."""

    values: dict[str, Any] = Field(description="`messages`: the active messages of the transcript.")
    next: list[str] = Field(description="The workflow that waits for a person; empty otherwise.")
    tasks: list[TaskBody] = []
    interrupts: list[InterruptBody] = []
    checkpoint: CheckpointBody
    parent_checkpoint: CheckpointBody | None
    metadata: dict[str, Any]
    created_at: datetime | None


class ThreadBody(BaseModel):
    """A thread."""

    thread_id: str
    created_at: datetime
    updated_at: datetime
    metadata: dict[str, Any]
    status: ThreadStatus
    values: dict[str, Any] | None = None
    interrupts: dict[str, list[InterruptBody]] = {}
    config: dict[str, Any] = {}


class ThreadCreateBody(BaseModel):
    """A request for a thread."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"thread_id": "session-123"}]})

    thread_id: str | None = Field(None, description="The session; a new id if there is none.")
    metadata: Metadata | None = Field(
        None, description="Returned, and not stored: a thread is stored by its first run."
    )
    if_exists: Literal["raise", "do_nothing"] | None = Field(None, description="For a thread that exists: 409, or it.")


class ThreadPatchBody(BaseModel):
    """Changes to a thread."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"metadata": {"title": "Order 4711"}}]})

    metadata: Metadata | None = Field(None, description="Added to the session's metadata.")


class ThreadSearchBody(BaseModel):
    """A search for threads."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"limit": 20}]})

    metadata: Metadata | None = Field(
        None, description="Only threads that have all of these; `graph_id` and `assistant_id` name a workflow."
    )
    ids: Annotated[list[str], Field(max_length=200)] | None = Field(None, description="Only these threads.")
    status: ThreadStatus | None = Field(None, description="Only threads that stand so.")
    limit: int = Field(10, ge=1, le=1000, description="How many at most.")
    offset: int = Field(0, ge=0, le=10_000, description="How many of the newest to leave out.")


class HistoryBody(BaseModel):
    """A request for the checkpoints of a thread."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"limit": 10}]})

    limit: int = Field(10, ge=1, le=1000, description="How many checkpoints at most, the newest first.")
    before: dict[str, JsonValue] | str | None = Field(None, description="Only checkpoints before this one.")


class CommandBody(BaseModel):
    """A command of the streaming protocol."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": 1,
                    "method": "run.start",
                    "params": {
                        "assistant_id": "chat",
                        "input": {"messages": [{"role": "user", "content": "My order is 4711."}]},
                    },
                }
            ]
        }
    )

    id: int = Field(ge=0, lt=2**53, description="Chosen by the client; the response repeats it.")
    method: str = Field(
        description="`run.start`, `input.respond`, `input.inject`, `state.get`, `state.listCheckpoints`."
    )
    params: dict[str, JsonValue] = Field(default_factory=dict, description="The parameters of the method.")


class CommandResponseBody(BaseModel):
    """The response to a command."""

    type: Literal["success", "error"]
    id: int | None
    result: dict[str, Any] | None = None
    error: str | None = Field(None, description="A code: `invalid_argument`, `unknown_command`, `no_such_run` …")
    message: str | None = Field(None, description="What is wrong, and what to do.")


class EventStreamBody(BaseModel):
    """The choice of events of a thread."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"channels": ["values", "messages", "lifecycle", "input"]}]}
    )

    channels: Annotated[list[str], Field(max_length=100)] = Field(
        description="`values`, `updates`, `messages`, `tools`, `lifecycle`, `input`, `checkpoints`, `tasks`, `custom`."
    )
    namespaces: list[list[str]] | None = Field(None, description="Prefixes of namespaces; all events are at the root.")
    depth: int | None = Field(None, ge=0)
    since: int | None = Field(None, ge=0, lt=2**53, description="Only events after this `seq`.")
