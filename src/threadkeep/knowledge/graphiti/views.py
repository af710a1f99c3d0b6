"""Input and output models of Graphiti for HTTP, the command line and other interfaces."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field

from threadkeep.errors import GraphitiClosure
from threadkeep.knowledge.graphiti.maintenance import Check
from threadkeep.knowledge.graphiti.service import Promoted
from threadkeep.knowledge.promotion import PromotedKind, Promotion, Relation, RelationOf
from threadkeep.knowledge.views import FactView, Key, Owner
from threadkeep.records.graphiti import Consent, DataClass, Delivery
from threadkeep.records.json_values import example
from threadkeep.records.knowledge import MAX_VALUE_CHARACTERS, ScopeKind

Somebody = Annotated[str, Field(min_length=1, max_length=512, description="The decider.", examples=["ops@example.com"])]


class ConsentList(BaseModel):
    """The newest 20 decisions about consent, newest first."""

    consents: list[Consent]


class ConsentInput(
    BaseModel,
    extra="forbid",
    json_schema_extra=example(decision="grant", data_classes=["chat_text"], by="ops@example.com"),
):
    """A decision to grant or decline consent to send data to the configured Graphiti server."""

    decision: Literal["grant", "decline"]
    data_classes: list[DataClass] = Field([], description="Kinds of data to allow; a grant needs `chat_text`.")
    by: Somebody


class TrustInput(
    BaseModel, extra="forbid", json_schema_extra=example(workspace="shop", trusted=True, by="ops@example.com")
):
    """A decision to trust a workspace or not. Only data of trusted workspaces is sent to Graphiti."""

    workspace: Owner | None = Field(None, description="The name of the workspace; null means runs without one.")
    trusted: bool = True
    by: Somebody


class TrustView(BaseModel):
    """The workspaces whose data may be sent to Graphiti, if there is consent; null means runs without a workspace."""

    trusted: list[str | None]


class CheckInput(BaseModel, extra="forbid", json_schema_extra=example(smoke=True)):
    """The options for testing the connection to the Graphiti server."""

    smoke: bool = Field(False, description="Also write a message into a new group, and delete the group.")


class CheckList(BaseModel):
    """The checks of the connection to the Graphiti server, and their overall result."""

    ok: bool
    checks: list[Check]


class RelationInput(BaseModel, extra="forbid"):
    """A relation between two things, named by a word from a fixed list."""

    source: Annotated[str, Field(min_length=1, max_length=200)]
    name: Relation
    target: Annotated[str, Field(min_length=1, max_length=200)]


class PromotionInput(
    BaseModel,
    extra="forbid",
    json_schema_extra=example(kind="decision", text="Use PostgreSQL.", scope="workspace", owner="shop"),
):
    """A fact to store in the database and to send to Graphiti."""

    kind: PromotedKind
    text: Annotated[str, Field(min_length=1, max_length=MAX_VALUE_CHARACTERS)]
    scope: ScopeKind
    owner: Owner
    key: Key | None = None
    relations: list[RelationInput] = []

    def record(self) -> Promotion:
        """Convert the input to a promotion.

        Raises:
            InvalidInput: the fact cannot be stored, or looks like a secret.
        """
        relations = tuple(RelationOf(one.source, one.name, one.target) for one in self.relations)
        return Promotion(self.kind, self.text, self.scope, self.key, relations)


class PromotedView(BaseModel):
    """The stored fact, and the state of its delivery to Graphiti."""

    fact: FactView
    queued: int = Field(description="Episodes that wait to be sent; 0 if the fact was sent before.")
    closed: GraphitiClosure | None = Field(description="Why the fact is not sent to the graph; null if it is.")

    @classmethod
    def of(cls, promoted: Promoted) -> Self:
        """Return the view of a fact that was stored and, if allowed, queued for Graphiti."""
        return cls(fact=FactView.of(promoted.fact), queued=promoted.queued, closed=promoted.closed)


class UndoInput(BaseModel, extra="forbid", json_schema_extra=example(fact_id="0199f3a0-5d1c-7c52-9d51-6f8f1d0a8f10")):
    """The fact whose promotion will be undone, in the database and in Graphiti."""

    fact_id: Annotated[str, Field(min_length=1, max_length=64)]


class BackfillInput(BaseModel, extra="forbid", json_schema_extra=example(session_ids=["session-123"])):
    """The older turns to queue for Graphiti: of some sessions, of one user, or of all sessions."""

    session_ids: Annotated[list[str], Field(max_length=1_000)] | None = Field(None, description="Default: all.")
    user_id: str | None = Field(None, description="Only sessions of this user.")
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1_000


class DeliveryList(BaseModel):
    """A page of messages for Graphiti with the state of their delivery, in the order of their numbers."""

    deliveries: list[Delivery]
    next_after: int | None = Field(description="Pass it as `after` to get the next page; null at the end.")


class DeliveryChoice(BaseModel, extra="forbid", json_schema_extra={"examples": [{"number": 12}, {}]}):
    """The message to retry or drop, by its number; without a number, all messages to which the action applies."""

    number: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    status: Literal["queued", "dead"] | None = Field(None, description="Drop only messages of this status.")


class Changed(BaseModel):
    """The number of messages that were queued again or dropped."""

    changed: int


class PurgeInput(BaseModel, extra="forbid", json_schema_extra=example(scope="user", owner="user-456")):
    """The session, workspace or person whose Graphiti group will be deleted."""

    scope: ScopeKind
    owner: Owner
