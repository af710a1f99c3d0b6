"""What goes over the wire as JSON, in and out; also what `/docs` shows."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from threadkeep.records import Message, Role, SearchHit, SessionInfo, Status, dump_json
from threadkeep.store.codec import clean_text

MAX_MESSAGE_CHARACTERS = 100_000
MAX_ID_CHARACTERS = 512
MAX_METADATA_DEPTH = 32


def _cleaned(value: object) -> object:
    """Text without the characters that no database keeps, so that the model is told what is stored."""
    return clean_text(value) if isinstance(value, str) else value


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("an id has printable characters only")
    return value


def _storable(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    dump_json(value)
    level: list[object] = [value]
    for _ in range(MAX_METADATA_DEPTH):
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = [value for part in inner for value in part]
    if level:
        raise ValueError(f"metadata is at most {MAX_METADATA_DEPTH} levels deep")
    return value


# Plain names and not `type` aliases: pydantic would not see into those when it puts further limits on them.
CleanText = Annotated[str, BeforeValidator(_cleaned)]
GivenId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS), AfterValidator(_printable)]
Metadata = Annotated[dict[str, JsonValue], AfterValidator(_storable)]
Tag = Annotated[CleanText, Field(min_length=1, max_length=100)]


class ChatRequestBody(BaseModel):
    """A message to the assistant."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "message": "What is your refund policy?",
                    "session_id": "session-123",
                    "user_id": "user-456",
                    "message_id": "web-0001",
                }
            ]
        },
    )

    message: CleanText = Field(
        min_length=1, max_length=MAX_MESSAGE_CHARACTERS, description="What the user says, as it was typed."
    )
    session_id: str | None = Field(
        None,
        description="The conversation: A-Z, a-z, 0-9, colon, _ and -, such as `session-123` or `telegram:123`. "
        "Without one a new session begins, and the answer names it.",
    )
    user_id: GivenId | None = Field(
        None, description="Who speaks. The first to write in a session owns it; for everybody else it is not there."
    )
    workflow: Annotated[str, Field(max_length=200)] | None = Field(None, description="What answers: `chat`.")
    message_id: GivenId | None = Field(
        None,
        description="The caller's own id of this message. The same id again in the same session gets the first answer "
        "again, whenever and wherever it arrives; after a failure it is a new try.",
    )
    metadata: Metadata = Field(default_factory=dict, description="Anything to keep with the message.")


class Usage(BaseModel):
    """Tokens of the turn's model calls."""

    input_tokens: int
    output_tokens: int


class Context(BaseModel):
    """What the last model call of the turn saw."""

    messages: int = Field(description="Messages that were sent, the system message and the new one included.")
    tokens: int = Field(description="Tokens that were sent, by Threadkeep's own counter.")
    dropped: int = Field(description="Earlier messages that were left out to keep the limits.")


class ChatResponseBody(BaseModel):
    """What the assistant said."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "session_id": "session-123",
                    "run_id": "0199f3a0-5d1c-7c52-9d51-6f8f1d0a8f10",
                    "message_id": "web-0001",
                    "response": "Our refund policy allows returns within 30 days.",
                    "confidence": None,
                    "escalated": False,
                    "usage": {"input_tokens": 812, "output_tokens": 12},
                    "context": {"messages": 9, "tokens": 790, "dropped": 4},
                }
            ]
        }
    )

    session_id: str
    run_id: str
    message_id: str = Field(description="The id of the user's message: the caller's, or the one it was given.")
    response: CleanText
    confidence: float | None = Field(description="How sure the workflow is, if it says so.")
    escalated: bool = Field(description="Whether the workflow handed the question to a person.")
    usage: Usage
    context: Context


class HistoryMessage(BaseModel):
    """One message of a transcript."""

    seq: int = Field(description="The place in the session: 1, 2, 3, …")
    role: Role
    content: str
    timestamp: datetime = Field(description="When it was sent, if the sender said so; else when it was stored.")
    confidence: float | None = Field(None, description="Assistant messages only; absent when not known.")
    escalated: bool | None = Field(None, description="Assistant messages only.")
    status: Status = Field(description="`interrupted` and `failed` are answers that broke off; `complete` all others.")

    @classmethod
    def of(cls, message: Message) -> Self:
        """A stored message; what does not apply to it is not set, and so not sent."""
        values: dict[str, object] = {
            "seq": message.seq,
            "role": message.role,
            "content": message.content,
            "timestamp": message.sent_at or message.created_at,
            "status": message.status,
        }
        if message.role == "assistant":
            values["escalated"] = message.escalated
            if message.confidence is not None:
                values["confidence"] = message.confidence
        return cls.model_validate(values)


class History(BaseModel):
    """Some messages of a session, oldest first."""

    session_id: str
    messages: list[HistoryMessage]
    count: int = Field(description="How many messages are in this answer.")
    next_before: int | None = Field(description="Pass it as `before` for the older ones; null at the beginning.")


class SessionBody(BaseModel):
    """What is known of a session."""

    model_config = ConfigDict(from_attributes=True)

    session_id: str
    user_id: str | None = Field(description="Who owns it.")
    title: str | None = Field(description="The first user message, 50 characters of it, unless it was changed.")
    last_message: str | None = Field(description="The newest message, 100 characters of it.")
    message_count: int
    reset_seq: int = Field(description="The model sees messages after this place only; 0 before any reset.")
    active: bool
    tags: tuple[str, ...]
    metadata: dict[str, JsonValue]
    created_at: datetime
    updated_at: datetime
    namespace: tuple[str, ...] = Field(
        (),
        description="Where in the graph store a conversation is that an agent keeps by itself; absent for a session.",
    )

    @classmethod
    def of(cls, info: SessionInfo) -> Self:
        """What the memory knows of a session."""
        return cls.model_validate(info)


class SessionList(BaseModel):
    """Some sessions, newest activity first."""

    sessions: list[SessionBody]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next ones; null at the end.")


class SessionPatch(BaseModel):
    """What to change of a session; a field that is absent or null stays as it is."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"title": "Refund of order 17", "tags": ["refund"]}]}
    )

    title: Annotated[CleanText, Field(max_length=200)] | None = None
    tags: Annotated[list[Tag], Field(max_length=50)] | None = Field(None, description="All tags, not only new ones.")
    metadata: Metadata | None = Field(None, description="All metadata, not only what is new.")
    active: bool | None = None


class SearchHitBody(BaseModel):
    """A message that a search found."""

    session_id: str
    score: float = Field(description="Higher is better; comparable within one answer only.")
    message: HistoryMessage

    @classmethod
    def of(cls, hit: SearchHit) -> Self:
        """What the memory found."""
        return cls(session_id=hit.session_id, score=hit.score, message=HistoryMessage.of(hit.message))


class SearchResult(BaseModel):
    """Messages with all the words of a query, best first."""

    hits: list[SearchHitBody]
    count: int
    unindexed: int = Field(
        description="Messages that were not looked at, since they are not in the search index yet: 0 but for a while "
        "after an upgrade or an import."
    )


class Health(BaseModel):
    """The service is alive."""

    status: str = "ok"


class Readiness(BaseModel):
    """The service can work: its database answers."""

    ready: bool = True
    backend: str = Field(description="The database engine.")
    schema_version: int = Field(description="The schema that the service works with.")
    pending_writes: int = Field(description="Turns of this process that wait to be written.")
