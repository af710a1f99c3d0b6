"""Schemas of requests and responses that several routes share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from operator import eq
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue

from threadkeep.records import Message, Role, Status, dump_json
from threadkeep.records.json_values import example
from threadkeep.runs.chat_turns import ChatContext
from threadkeep.runs.views import ESTIMATED
from threadkeep.store.codec import clean_json, clean_text

MAX_MESSAGE_CHARACTERS = 100_000
MAX_ID_CHARACTERS = 512
MAX_TITLE_CHARACTERS = 200
MAX_METADATA_DEPTH = 32


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("An id has printable characters only; remove the others.")
    if value.isspace():
        raise ValueError("An id needs a character that is not a space.")
    return value


def _storable(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    dump_json(value)
    level: list[object] = [value]
    for _ in range(MAX_METADATA_DEPTH):
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = [value for part in inner for value in part]
    if level:
        raise ValueError(f"The object is at most {MAX_METADATA_DEPTH} levels deep; nest it less deeply.")
    return clean_json(value)


# These are assignments, because pydantic cannot add constraints to `type` aliases.
# Characters that databases reject are replaced here, so that the model sees the stored text.
CLEANED = BeforeValidator(lambda value: clean_text(value) if isinstance(value, str) else value)
CleanText = Annotated[str, CLEANED]
GivenId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS), AfterValidator(_printable)]
Metadata = Annotated[dict[str, JsonValue], AfterValidator(_storable)]
# Put the limits before `CLEANED`. After it, pydantic's errors would say "items" instead of characters.
Tag = Annotated[str, Field(min_length=1, max_length=100), CLEANED]


EMPTY: Sequence[object] = (None, False, 0, "", [], {})


def unsupported(cure: str, accepted: Sequence[object] = EMPTY) -> AfterValidator:
    """Return a validator that rejects a field with the sentence `cure` unless its value is accepted."""

    def refuse(value: object) -> object:
        if value not in accepted:
            raise ValueError(f"This is not supported here; {cure}.")
        return value

    return AfterValidator(refuse)


Unsupported = Annotated[JsonValue, unsupported("leave it out")]


def _if_any(default: object = None, *, description: str) -> Any:
    """Return a field that is omitted from JSON if it has its default value."""
    return Field(default, description=description, exclude_if=partial(eq, default))


class ChatRequestBody(
    BaseModel,
    extra="forbid",
    json_schema_extra=example(
        message="What is your refund policy?", session_id="session-123", user_id="user-456", message_id="web-0001"
    ),
):
    """A message to the assistant."""

    message: CleanText = Field(
        min_length=1, max_length=MAX_MESSAGE_CHARACTERS, description="The user's message, as typed."
    )
    session_id: str | None = Field(
        None,
        description="The conversation: any text of 1 to 256 characters, such as `session-123`, `telegram:123` or "
        "`me@example.com`. By default the user's last session with the workflow, or a new one; the answer names it.",
    )
    user_id: GivenId | None = Field(
        None, description="The user. The first user who writes in a session owns it; other users get status 404."
    )
    workflow: Annotated[str, Field(max_length=200)] | None = Field(None, description="The workflow; by default `chat`.")
    message_id: GivenId | None = Field(
        None,
        description="The caller's own id for this message. If the id is repeated in the session, the response is the "
        "first answer, at any time and from any process; after a failure the message is tried again.",
    )
    metadata: Metadata = Field(default_factory=dict, description="Any data to store with the message.")


class Usage(BaseModel, from_attributes=True):
    """The tokens of all model calls of the turn that gave the answer."""

    input_tokens: int
    output_tokens: int
    estimated: bool = ESTIMATED


class ChatResponseBody(
    BaseModel,
    from_attributes=True,
    json_schema_extra=example(
        session_id="session-123",
        run_id="0199f3a0-5d1c-7c52-9d51-6f8f1d0a8f10",
        message_id="web-0001",
        response="Our refund policy allows returns within 30 days.",
        confidence=None,
        escalated=False,
        usage={"input_tokens": 812, "output_tokens": 12},
        context={"messages": 9, "tokens": 790, "dropped": 4},
    ),
):
    """The assistant's answer."""

    session_id: str
    run_id: str
    message_id: str = Field(description="The id of the user's message: the caller's, or a generated one.")
    response: CleanText
    confidence: float | None = Field(description="The confidence of the workflow, if it has one.")
    escalated: bool = Field(description="True if the workflow handed the question to a person.")
    usage: Usage
    context: ChatContext


class HistoryMessage(BaseModel):
    """A message of a transcript."""

    seq: int = Field(description="The position in the session: 1, 2, 3, …")
    id: str = Field(description="The id of the message: the sender's, or a generated one.")
    role: Role
    content: str
    timestamp: datetime = Field(description="The time given by the sender, or else when it was stored.")
    confidence: float | None = _if_any(description="Assistant messages only; absent if unknown.")
    escalated: bool | None = _if_any(description="Assistant messages only.")
    author: str | None = _if_any(description="The name of its writer, a person or an agent; absent if unknown.")
    status: Status = Field(
        description="`interrupted` and `failed`: ended early. `erased`: an empty row. `complete`: all others."
    )
    superseded_at: datetime | None = _if_any(description="When it was superseded; absent while it is active.")
    superseded_by: str | None = _if_any(description="The id of its new version; absent if there is none.")

    @classmethod
    def of(cls, message: Message) -> Self:
        """Convert a stored message to this schema."""
        is_answer = message.role == "assistant"
        return cls(
            seq=message.seq or 0,
            id=message.id or "",
            role=message.role,
            content=message.content,
            timestamp=message.sent_at or message.created_at,  # type: ignore[arg-type]  # a stored message has a time
            confidence=message.confidence if is_answer else None,
            escalated=message.escalated if is_answer else None,
            author=message.author,
            status=message.status,
            superseded_at=message.superseded_at,
            superseded_by=message.superseded_by,
        )


class History(BaseModel):
    """A page of a session's messages, oldest first."""

    session_id: str
    messages: list[HistoryMessage]
    count: int = Field(description="The number of messages in this page.")
    next_before: int | None = Field(description="Pass it as `before` for older messages; null at the beginning.")


class SessionBody(BaseModel, from_attributes=True):
    """The metadata of a session."""

    session_id: str
    user_id: str | None = Field(description="The owner.")
    title: str | None = Field(description="The first 50 characters of the first user message, unless changed.")
    last_message: str | None = Field(description="The first 100 characters of the newest message.")
    message_count: int
    reset_seq: int = Field(description="The model sees only messages after this position; 0 without a reset.")
    active: bool
    tags: tuple[str, ...]
    metadata: dict[str, JsonValue]
    created_at: datetime
    updated_at: datetime
    revision: int = _if_any(0, description="Incremented when messages are superseded; absent if none ever was.")
    parent_session_id: str | None = _if_any(description="For a branch: the session that it was created from.")
    parent_seq: int | None = _if_any(description="For a branch: the last position copied from the parent.")
    agent: str | None = _if_any(
        description="For a conversation that an agent keeps below its parent session: its name. Else absent."
    )
    namespace: tuple[str, ...] = _if_any(
        (),
        description="For a conversation that an agent stores itself: its namespace in the graph store. Else absent.",
    )


_DAMAGED = _if_any(
    (),
    description="Sessions that were skipped because one of their items in the graph store cannot be read; absent if "
    "there are none.",
)


class SessionList(BaseModel):
    """A page of sessions, newest activity first."""

    sessions: list[SessionBody]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null at the end.")
    damaged: tuple[str, ...] = _DAMAGED


class SessionPatch(BaseModel, extra="forbid", json_schema_extra=example(title="Refund of order 17", tags=["refund"])):
    """Changes to a session; an absent or null field keeps its value."""

    title: Annotated[str, Field(max_length=MAX_TITLE_CHARACTERS), CLEANED] | None = None
    tags: Annotated[list[Tag], Field(max_length=50)] | None = Field(None, description="All tags, not only new ones.")
    metadata: Metadata | None = Field(None, description="All metadata, not only new fields.")
    active: bool | None = None


class TakeBackBody(BaseModel, extra="forbid", json_schema_extra=example(n=2)):
    """A request to take back the newest messages."""

    n: int = Field(1, ge=1, le=200)


class TakenBack(BaseModel):
    """The messages that were taken back, oldest first."""

    session_id: str
    messages: list[HistoryMessage]
    count: int = Field(description="The number of messages; fewer than requested if the session has no more.")


class EditBody(
    BaseModel, extra="forbid", json_schema_extra=example(message_id="web-0001", message="What is your return policy?")
):
    """A new version of a message."""

    message_id: GivenId = Field(description="The message to supersede, with all later ones.")
    message: CleanText = Field(min_length=1, max_length=MAX_MESSAGE_CHARACTERS, description="The new text.")
    new_message_id: GivenId | None = Field(
        None, description="The id of the new version. Repeating the edit with this id changes nothing."
    )


class Edited(BaseModel):
    """The new version of a message."""

    session_id: str
    message: HistoryMessage


class RegenerateBody(BaseModel, extra="forbid", json_schema_extra=example(message_id="web-0001")):
    """The question to answer again, by `message_id` or `run_id`; by default, the newest."""

    run_id: GivenId | None = Field(None, description="A run that answered the question.")
    message_id: GivenId | None = Field(None, description="The id of the question; not together with `run_id`.")
    workflow: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="The workflow that answers; by default the same as before."
    )


class BranchBody(BaseModel, extra="forbid", json_schema_extra=example(at=4)):
    """A request to copy a session's messages, all or up to the message `at`, to a new session (a branch)."""

    at: int | None = Field(
        None, ge=1, lt=2**53, description="The `seq` of its last message; by default it has all messages."
    )
    session_id: str | None = Field(
        None, description="The id of the branch; by default a new one. Repeating the request changes nothing."
    )


class SearchHitBody(BaseModel):
    """A message found by a search."""

    session_id: str
    score: float = Field(description="Higher is better; comparable within one answer only.")
    message: HistoryMessage


class SearchResult(BaseModel):
    """Messages with all the words of a query, best first."""

    hits: list[SearchHitBody]
    count: int
    unindexed: int = Field(
        description="Messages that were not searched because they are not indexed yet. 0, except for a while after an "
        "upgrade or an import."
    )
    damaged: tuple[str, ...] = _DAMAGED


class Health(BaseModel, json_schema_serialization_defaults_required=True):
    """The liveness of the process."""

    status: str = "ok"


class Readiness(BaseModel, json_schema_serialization_defaults_required=True):
    """The readiness of the service. It is ready if its database answers."""

    ready: bool = True
    backend: str = Field(description="The database engine.")
    schema_version: int = Field(description="The schema that the service works with.")
    pending_writes: int = Field(description="Turns of this process that wait to be written.")
    unreadable_writes: int = Field(description="Unreadable lines of pending files that no person has dropped yet.")
