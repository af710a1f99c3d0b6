"""Input and output models of facts, procedures and persons."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, JsonValue, model_validator

from threadkeep.errors import InvalidInput
from threadkeep.records.json_values import example
from threadkeep.records.knowledge import (
    MAX_KEY_CHARACTERS,
    MAX_OWNER_CHARACTERS,
    Evidence,
    Fact,
    FactKind,
    Person,
    Procedure,
    ProcedureContent,
    ProcedureSource,
    Proposal,
    ProposalStatus,
    Scope,
    ScopeKind,
)
from threadkeep.store.codec import in_utc

_MOST_IDS = 1_000
_MOST_TIMES = 2**53

# These are assignments, because pydantic cannot add constraints to `type` aliases.
Owner = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_OWNER_CHARACTERS,
        description="The owner: a session id, the name of a workspace, or any id of a person.",
        examples=["user-456"],
    ),
]
Key = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_KEY_CHARACTERS,
        description="The name of the fact, unique in its scope.",
        examples=["home_city"],
    ),
]
_Time = Annotated[AwareDatetime, AfterValidator(in_utc)]
Confidence = Annotated[float, Field(ge=0, le=1, description="The confidence in the fact.")]


class EvidenceView(BaseModel, extra="forbid", from_attributes=True):
    """The origin of a fact: a message of a session by its `seq`, or a run."""

    session_id: str | None = None
    seq: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    run_id: str | None = None


class ScopedView(BaseModel):
    """The base class of views of records that belong to a session, a workspace or a person."""

    id: str
    scope: ScopeKind
    owner: Owner

    @classmethod
    def of(cls, record: Fact | Procedure | Proposal) -> Self:
        """Return the view of a record; fields with the same names are copied."""
        values = {name: getattr(record, name) for name in cls.model_fields if hasattr(record, name)}
        return cls.model_validate({**values, "scope": record.scope.kind, "owner": record.scope.owner})


class FactView(ScopedView, extra="forbid", json_schema_serialization_defaults_required=True):
    """A fact about a session, a workspace or a person: a key with its present value or a past value."""

    id: Annotated[str, Field(min_length=1, max_length=64)]
    key: Key
    value: JsonValue
    kind: FactKind
    confidence: Confidence
    confirmed: int = Field(ge=1, le=_MOST_TIMES, description="The number of times that the value was remembered.")
    contradicted: int = Field(ge=0, le=_MOST_TIMES, description="The number of times that another value replaced it.")
    valid_from: _Time
    valid_to: _Time | None = Field(None, description="The end of its validity; null while it is valid.")
    updated_at: _Time
    evidence: list[EvidenceView] = Field([], description="The messages and runs that it comes from, up to 20.")

    def record(self) -> Fact:
        """Convert the view to a fact.

        Raises:
            InvalidInput: the owner or the key is not valid, or the fact ends before it begins.
        """
        if self.valid_to is not None and self.valid_to < self.valid_from:
            raise InvalidInput("valid_to must not be before valid_from.")
        values = self.model_dump(exclude={"scope", "owner", "evidence"})
        evidence = tuple(Evidence(**origin.model_dump()) for origin in self.evidence)
        return Fact(scope=Scope(self.scope, self.owner), evidence=evidence, **values)


class FactList(BaseModel):
    """A page of facts, last changed first."""

    facts: list[FactView]
    next_cursor: str | None = Field(description="Pass it as `cursor` to get the next page; null at the end.")


class FactInput(
    BaseModel,
    extra="forbid",
    json_schema_extra=example(scope="user", owner="user-456", key="home_city", value="Lisbon"),
):
    """A fact to store: the value of a key of a session, a workspace or a person."""

    scope: ScopeKind
    owner: Owner
    key: Key
    value: JsonValue = Field(description="Any JSON value except null.")
    kind: FactKind | None = Field(None, description="By default the kind of the previous value, or `world_knowledge`.")
    confidence: Confidence = 1.0
    evidence: EvidenceView | None = None


class ProposalView(ScopedView):
    """A fact that was proposed from a message, and the decision about it, if there is one."""

    key: str
    value: JsonValue
    kind: FactKind | None
    confidence: float
    evidence: EvidenceView
    origin: str = Field(description="The origin in words.", examples=["from message 17 of room:1"])
    learner: str = Field(description="The model that proposed it, or `directives`.")
    directive: str | None = Field(description="The kind of a directive; null for a model's proposal.")
    status: ProposalStatus
    fact_id: str | None = Field(description="The id of the accepted fact.")
    decided_by: str | None = Field(description="The person who decided, or the confidence that accepted it.")
    created_at: datetime
    updated_at: datetime


class ProposalList(BaseModel):
    """A page of proposals, last changed first."""

    proposals: list[ProposalView]
    next_cursor: str | None = Field(description="Pass it as `cursor` to get the next page; null at the end.")


class DecisionInput(BaseModel, extra="forbid", json_schema_extra=example(decision="accept", by="ops@example.com")):
    """A person's decision about a proposal."""

    decision: Literal["accept", "reject", "undo"]
    by: Annotated[str, Field(min_length=1, max_length=512, description="The person who decides.")]


class ProcedureInput(
    BaseModel,
    extra="forbid",
    json_schema_extra=example(
        scope="workspace",
        owner="shop",
        name="refund",
        goal_contains=["money back"],
        content_type="tool_sequence",
        content=["find_order", "pay_back"],
    ),
):
    """A procedure to store. It replaces the procedure with the same name."""

    scope: ScopeKind
    owner: Owner
    name: Annotated[str, Field(min_length=1, max_length=MAX_KEY_CHARACTERS)]
    content: JsonValue = Field(description="Any JSON value except null.")
    content_type: ProcedureContent = "snippet"
    description: str = ""
    goal_contains: list[str] = Field([], description="Applies if the goal contains one of these, ignoring case.")
    context_has: list[str] = Field([], description="Applies if the context has all of these names.")
    source: ProcedureSource = "taught"
    active: bool = True

    def record(self) -> Procedure:
        """Convert the input to a procedure.

        Raises:
            InvalidInput: a field cannot be stored; the error names it.
        """
        return Procedure(scope=Scope(self.scope, self.owner), **self.model_dump(exclude={"scope", "owner"}))


class ProcedureView(ScopedView, ProcedureInput, json_schema_serialization_defaults_required=True):
    """A stored procedure with the counts of its uses."""

    used: int
    succeeded: int
    failed: int
    created_at: datetime | None
    updated_at: datetime | None


class ProcedureList(BaseModel):
    """A page of procedures, last changed first."""

    procedures: list[ProcedureView]
    next_cursor: str | None = Field(description="Pass it as `cursor` to get the next page; null at the end.")


class PersonList(BaseModel):
    """A page of persons, last seen first."""

    persons: list[Person]
    next_cursor: str | None = Field(description="Pass it as `cursor` to get the next page; null at the end.")


class PersonInput(BaseModel, extra="forbid", json_schema_extra=example(id="telegram:123", name="Ann")):
    """An id of a person, such as `telegram:123`, and the person's name in that channel."""

    id: Owner
    name: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None


class MergeInput(BaseModel, extra="forbid", json_schema_extra=example(into="user-456")):
    """The id of the person into whom another person is merged."""

    into: Owner


class ForgetInput(BaseModel, extra="forbid", json_schema_extra=example(ids=["0199f3a0-5d1c-7c52-9d51-6f8f1d0a8f10"])):
    """The ids of facts or procedures to delete."""

    ids: Annotated[list[str], Field(max_length=_MOST_IDS)]


class ForgetFactsInput(
    BaseModel, extra="forbid", json_schema_extra=example(scope="user", owner="user-456", keys=["home_city"])
):
    """The facts to delete: by their `ids`, or all facts of an owner, or only the owner's facts with these `keys`."""

    ids: Annotated[list[str], Field(max_length=_MOST_IDS)] | None = None
    scope: ScopeKind | None = None
    owner: Owner | None = None
    keys: Annotated[list[Key], Field(max_length=_MOST_IDS)] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        named = self.scope is not None and self.owner is not None
        if (self.ids is not None) == named or (self.ids is not None and self.keys is not None):
            raise ValueError("name either ids, or scope and owner (and keys, unless all facts are meant)")
        return self


class Forgotten(BaseModel, json_schema_serialization_defaults_required=True):
    """The result of deleting facts or procedures."""

    forgotten: int = Field(description="The number deleted; for facts, all values of their keys count.")
    not_found: list[str] = Field([], description="Ids and keys that do not exist, or that this user may not see.")
