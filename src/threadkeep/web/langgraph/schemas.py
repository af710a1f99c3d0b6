"""Schemas of LangGraph's server API. Unknown fields are ignored; most known but unsupported fields are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from langgraph.graph import END
from pydantic import BaseModel, Field, JsonValue

from threadkeep.errors import InvalidInput
from threadkeep.records.json_values import example
from threadkeep.records.runs import Run, RunStatus
from threadkeep.runs.requests import metadata_of
from threadkeep.web.schemas import Metadata, Unsupported, unsupported

type ThreadRunStatus = Literal["pending", "running", "success", "error", "timeout", "interrupted"]
type ThreadField = Literal[
    "thread_id",
    "created_at",
    "updated_at",
    "state_updated_at",
    "metadata",
    "config",
    "context",
    "status",
    "values",
    "interrupts",
]
type StreamMode = Literal[
    "values",
    "messages",
    "updates",
    "events",
    "tasks",
    "checkpoints",
    "debug",
    "custom",
    "messages-tuple",
    "tools",
    "lifecycle",
]
type ThreadStatus = Literal["idle", "busy", "interrupted", "error"]


class CheckpointBody(BaseModel, json_schema_serialization_defaults_required=True):
    """A checkpoint of a thread. There is a checkpoint at the end of each turn."""

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str = Field(description="The `seq` of the turn's last message; 0 before the first turn.")


class InterruptBody(BaseModel, json_schema_serialization_defaults_required=True):
    """A question that a run asks a person."""

    id: str
    value: Any = None


class TaskBody(BaseModel, json_schema_serialization_defaults_required=True):
    """A task in the state of a thread: a run that waits for a person."""

    id: str
    name: str
    error: str | None = None
    interrupts: list[InterruptBody] = []
    checkpoint: CheckpointBody | None = None
    state: Any = None
    result: Any = None


class ThreadStateBody(BaseModel, json_schema_serialization_defaults_required=True):
    """The state of a thread at the end of a turn."""

    values: dict[str, Any] = Field(description="`messages`: the active messages of the transcript.")
    next: list[str] = Field(description="The workflow that waits for a person or is active; empty otherwise.")
    tasks: list[TaskBody] = []
    interrupts: list[InterruptBody] = []
    checkpoint: CheckpointBody
    parent_checkpoint: CheckpointBody | None
    metadata: dict[str, Any]
    created_at: datetime | None


class ThreadBody(BaseModel, json_schema_serialization_defaults_required=True):
    """A thread in the format of LangGraph's server: a session with its status and its values."""

    thread_id: str
    created_at: datetime
    updated_at: datetime
    metadata: dict[str, Any]
    status: ThreadStatus
    values: dict[str, Any] | None = None
    interrupts: dict[str, list[InterruptBody]] = {}
    config: dict[str, Any] = {}


_NOT_SUPPORTED: Any = Field(None, description="Not supported.")
_Lifetime = Annotated[JsonValue, unsupported("the retention of the service deletes old messages", [None])]


class ThreadCreateBody(BaseModel, json_schema_extra=example(thread_id="session-123")):
    """A request to create a thread."""

    thread_id: str | None = Field(None, description="The id of the session; by default a new one.")
    metadata: Metadata | None = Field(
        None, description="Stored at once if the request names a user (`user_id`), else kept 30 days for the first run."
    )
    supersteps: Annotated[JsonValue, unsupported("add messages by POST /threads/{thread_id}/state")] = _NOT_SUPPORTED
    ttl: _Lifetime = _NOT_SUPPORTED
    if_exists: Literal["raise", "do_nothing"] | None = Field(
        None, description="If the thread exists, `raise` (default) returns 409, `do_nothing` returns the thread."
    )


class ThreadPatchBody(BaseModel, json_schema_extra=example(metadata={"title": "Order 4711"})):
    """Changes to a thread."""

    metadata: Metadata | None = Field(None, description="Added to the session's metadata.")
    ttl: _Lifetime = _NOT_SUPPORTED


class ThreadSearchBody(BaseModel, json_schema_extra=example(limit=20)):
    """A search for threads."""

    metadata: Metadata | None = Field(
        None, description="Only threads with all of these values; `graph_id` and `assistant_id` name a workflow."
    )
    ids: Annotated[list[str], Field(max_length=200)] | None = Field(None, description="Only these threads.")
    status: ThreadStatus | None = Field(None, description="Only threads with this status.")
    limit: int = Field(10, ge=1, le=1000, description="The maximum number of results.")
    offset: int = Field(0, ge=0, le=10_000, description="The number of results to skip.")
    sort_by: Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"] = Field(
        "updated_at", description="The order, among the 1,000 threads with the newest activity."
    )
    sort_order: Literal["asc", "desc"] = "desc"
    select: Annotated[list[ThreadField], Field(max_length=20)] | None = Field(
        None, description="The fields to return. Messages are read only if `values` is one of them."
    )
    values: Annotated[JsonValue, unsupported("search by `metadata`, or for words with /search")] = _NOT_SUPPORTED
    extract: Annotated[JsonValue, unsupported("name `values` in `select`")] = _NOT_SUPPORTED


class HistoryBody(BaseModel, json_schema_extra=example(limit=10)):
    """A request for the checkpoints of a thread."""

    limit: int = Field(10, ge=1, le=1000, description="The maximum number of checkpoints, newest first.")
    before: dict[str, JsonValue] | str | None = Field(None, description="Only checkpoints before this one.")
    checkpoint: dict[str, JsonValue] | None = Field(None, description="Only this checkpoint.")
    metadata: Annotated[JsonValue, unsupported("filter the returned states")] = _NOT_SUPPORTED


class CheckpointQueryBody(BaseModel, json_schema_extra=example(checkpoint={"checkpoint_id": "2"})):
    """A request for the state of a thread at a checkpoint, by default at the newest one."""

    checkpoint: dict[str, JsonValue] | None = Field(None, description="An object with its `checkpoint_id`.")


class StateUpdateBody(
    BaseModel, json_schema_extra=example(values={"messages": [{"role": "user", "content": "Hello"}]})
):
    """A request to add messages to a thread."""

    values: dict[str, JsonValue] | None = Field(None, description="`messages`: the messages to add.")
    checkpoint: dict[str, JsonValue] | None = Field(None, description="If given, it must be the newest checkpoint.")
    checkpoint_id: str | None = Field(None, description="The id of the checkpoint, instead of `checkpoint`.")


class StateUpdatedBody(BaseModel):
    """The newest checkpoint of a thread after an update of its state."""

    checkpoint: CheckpointBody


class CommandBody(
    BaseModel,
    json_schema_extra=example(
        id=1,
        method="run.start",
        params={"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "My order is 4711."}]}},
    ),
):
    """A command of the streaming protocol."""

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
    message: str | None = Field(None, description="The fault and its cure.")
    meta: dict[str, int] | None = Field(None, description="`applied_through_seq`: a run's events have a greater `seq`.")


class EventStreamBody(BaseModel, json_schema_extra=example(channels=["values", "messages", "lifecycle", "input"])):
    """A request for a stream of a thread's events."""

    channels: Annotated[list[str], Field(max_length=100)] = Field(
        description="`values`, `updates`, `messages`, `tools`, `lifecycle`, `input`, `checkpoints`, `tasks`, `custom`."
    )
    namespaces: list[list[str]] | None = Field(None, description="Prefixes of namespaces; all events are at the root.")
    depth: int | None = Field(None, ge=0)
    since: int | None = Field(None, ge=0, lt=2**53, description="Only events after this `seq`.")


class RunCreateBody(
    BaseModel,
    json_schema_extra=example(
        assistant_id="chat",
        input={"messages": [{"role": "user", "content": "My order is 4711."}]},
        stream_mode=["values", "messages-tuple"],
    ),
):
    """A request for a run."""

    assistant_id: str = Field(min_length=1, max_length=200, description="The name of a workflow.")
    input: JsonValue = Field(None, description="`messages`, and other inputs of the workflow.")
    command: dict[str, JsonValue] | None = Field(
        None,
        description="`resume`: the answer to a waiting run. `goto` `__end__`: cancel the waiting run. `input`, "
        "`metadata`, `context` and `multitask_strategy` have no effect beside it; a new message is refused.",
    )
    stream_mode: Annotated[list[StreamMode], Field(max_length=20)] | StreamMode | None = Field(
        None, description="`values` (default), `updates`, `messages`, `messages-tuple`, `custom`, `checkpoints`."
    )
    metadata: Metadata | None = Field(None, description="Stored with the message.")
    config: dict[str, JsonValue] | None = Field(
        None, description="`configurable` may have `user_id`, like the query, and the `checkpoint_id` to continue from."
    )
    context: dict[str, JsonValue] | None = Field(None, description="Known data about the user.")
    checkpoint: dict[str, JsonValue] | None = Field(None, description="The checkpoint to continue from.")
    checkpoint_id: str | None = Field(None, description="The id of the checkpoint, instead of `checkpoint`.")
    multitask_strategy: str | None = Field(None, description="What to do if a run of the thread is active.")
    if_not_exists: Literal["create", "reject"] | None = Field(
        None, description="If the thread does not exist, `reject` returns 404; by default the run creates it."
    )
    on_disconnect: Literal["cancel", "continue"] | None = Field(
        None, description="What to do if the client disconnects; by default the run continues."
    )
    on_completion: JsonValue = Field(None, description="`keep` is not supported for a run without a thread.")
    interrupt_before: Unsupported = _NOT_SUPPORTED
    interrupt_after: Unsupported = _NOT_SUPPORTED
    webhook: Unsupported = _NOT_SUPPORTED
    after_seconds: Unsupported = _NOT_SUPPORTED
    feedback_keys: Unsupported = _NOT_SUPPORTED

    def modes(self) -> list[StreamMode]:
        """Return the stream modes as a list; the default is `values`."""
        modes: list[StreamMode] | None = [self.stream_mode] if isinstance(self.stream_mode, str) else self.stream_mode
        return modes or ["values"]

    def check(self) -> None:
        """Reject commands that are not supported.

        Raises:
            InvalidInput: the command is not supported.
        """
        if self.command is None or self.ends_waiting:
            return
        if "resume" not in self.command or any(self.command.get(name) for name in ("goto", "update")):
            raise InvalidInput("`command` must be `resume` with the answer to a waiting run, or `goto` with `__end__`.")

    @property
    def ends_waiting(self) -> bool:
        """True if the command (`goto` `__end__`) ends the waiting run without an answer. Chat pages offer this."""
        given = {name: value for name, value in (self.command or {}).items() if value is not None}
        return given == {"goto": END}


class ThreadRunBody(BaseModel, json_schema_serialization_defaults_required=True):
    """A run in the format of LangGraph's server."""

    run_id: str
    thread_id: str | None
    assistant_id: str
    created_at: datetime
    updated_at: datetime
    status: ThreadRunStatus
    metadata: dict[str, Any] = {}
    multitask_strategy: str | None = None

    @classmethod
    def of(cls, run: Run) -> ThreadRunBody:
        """Return a run as LangGraph's server describes it."""
        return cls(
            run_id=run.run_id,
            thread_id=run.session_id,
            assistant_id=run.workflow,
            created_at=run.created_at,
            updated_at=run.ended_at or run.started_at or run.created_at,
            status=status_of(run),
            metadata=metadata_of(run),
        )


_STATUSES: Mapping[RunStatus, ThreadRunStatus] = {
    "queued": "pending",
    "running": "running",
    "done": "success",
    "failed": "error",
}


def status_of(run: Run) -> ThreadRunStatus:
    """Return the status of a run under the name that LangGraph's server uses."""
    return _STATUSES.get(run.status, "interrupted")
