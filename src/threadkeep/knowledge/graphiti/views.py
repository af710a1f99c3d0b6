"""Graphiti as HTTP, the command line and others show and take it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field

from threadkeep.errors import GraphitiClosure
from threadkeep.knowledge.graphiti.service import Promoted
from threadkeep.knowledge.promotion import PromotedKind, Promotion, Relation, RelationOf
from threadkeep.knowledge.views import FactView, Key, Owner
from threadkeep.records.graphiti import Consent, DataClass, Delivery
from threadkeep.records.json_values import example
from threadkeep.records.knowledge import MAX_VALUE_CHARACTERS, ScopeKind

Somebody = Annotated[str, Field(min_length=1, max_length=512, description="Who decides.", examples=["ops@example.com"])]


class ConsentList(BaseModel):
    """The decisions about consent, newest first."""

    consents: list[Consent]


class ConsentInput(
    BaseModel,
    extra="forbid",
    json_schema_extra=example(decision="grant", data_classes=["chat_text"], by="ops@example.com"),
):
    """A decision about the endpoint of the settings."""

    decision: Literal["grant", "decline"]
    data_classes: list[DataClass] = Field([], description="What may go there; for a grant `chat_text` at least.")
    by: Somebody


class TrustInput(
    BaseModel, extra="forbid", json_schema_extra=example(workspace="shop", trusted=True, by="ops@example.com")
):
    """The trust in a workspace."""

    workspace: Owner | None = Field(None, description="Its name; null is that of runs that name none.")
    trusted: bool = True
    by: Somebody


class TrustView(BaseModel):
    """The workspaces that are trusted."""

    trusted: list[str | None]


class CheckInput(BaseModel, extra="forbid", json_schema_extra=example(smoke=True)):
    """The options of a connection test."""

    smoke: bool = Field(False, description="Also write a message into a group of its own, and delete it again.")


class CheckView(BaseModel, from_attributes=True):
    """A check of a connection test."""

    name: str
    ok: bool
    milliseconds: float
    problem: str | None = Field(description="What is wrong, and what to do about it.")


class CheckList(BaseModel):
    """The checks of a connection test, and their overall result."""

    ok: bool
    checks: list[CheckView]


class RelationInput(BaseModel, extra="forbid"):
    """A relation of two things, in the vocabulary of the graph."""

    source: Annotated[str, Field(min_length=1, max_length=200)]
    name: Relation
    target: Annotated[str, Field(min_length=1, max_length=200)]


class PromotionInput(
    BaseModel,
    extra="forbid",
    json_schema_extra=example(kind="decision", text="Use PostgreSQL.", scope="workspace", owner="shop"),
):
    """A fact to store in the database and in the graph."""

    kind: PromotedKind
    text: Annotated[str, Field(min_length=1, max_length=MAX_VALUE_CHARACTERS)]
    scope: ScopeKind
    owner: Owner
    key: Key | None = None
    relations: list[RelationInput] = []

    def record(self) -> Promotion:
        """Return the promotion.

        Raises:
            InvalidInput: it cannot be stored, or looks like a secret.
        """
        relations = tuple(RelationOf(one.source, one.name, one.target) for one in self.relations)
        return Promotion(self.kind, self.text, self.scope, self.key, relations)


class PromotedView(BaseModel):
    """The stored fact, and its delivery to the graph."""

    fact: FactView
    queued: int = Field(description="Episodes that wait to be sent; 0 if the graph has been told before.")
    closed: GraphitiClosure | None = Field(description="Why the graph is not told.")

    @classmethod
    def of(cls, promoted: Promoted) -> Self:
        """Return the view of a promotion."""
        return cls(fact=FactView.of(promoted.fact), queued=promoted.queued, closed=promoted.closed)


class UndoInput(BaseModel, extra="forbid", json_schema_extra=example(fact_id="0199f3a0-5d1c-7c52-9d51-6f8f1d0a8f10")):
    """The fact whose promotion is undone."""

    fact_id: Annotated[str, Field(min_length=1, max_length=64)]


class BackfillInput(BaseModel, extra="forbid", json_schema_extra=example(session_ids=["session-123"])):
    """Earlier turns to send."""

    session_ids: Annotated[list[str], Field(max_length=1_000)] | None = Field(None, description="By default all.")
    user_id: str | None = Field(None, description="Only sessions of this user.")
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1_000


class DeliveryList(BaseModel):
    """Some messages, in the order of their numbers."""

    deliveries: list[Delivery]
    next_after: int | None = Field(description="Pass it as `after` for the next ones; null at the end.")


class DeliveryChoice(BaseModel, extra="forbid", json_schema_extra={"examples": [{"number": 12}, {}]}):
    """A message, or all messages to which the action applies."""

    number: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    status: Literal["queued", "dead"] | None = Field(None, description="Of all only those; to drop them.")


class Changed(BaseModel):
    """The number of messages that were changed."""

    changed: int


class PurgeInput(BaseModel, extra="forbid", json_schema_extra=example(scope="user", owner="user-456")):
    """The scope whose group is to be deleted."""

    scope: ScopeKind
    owner: Owner
