"""Facts, procedures and persons: knowledge that outlives a session."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from threadkeep.errors import InvalidInput, InvalidMessage
from threadkeep.records.json_values import DESCRIBED, Json, as_json, dump_json, is_finite, is_whole

type ScopeKind = Literal["session", "workspace", "user"]
type FactKind = Literal[
    "preference",
    "decision",
    "lesson_learned",
    "terminology",
    "correction",
    "relationship",
    "world_knowledge",
    "self_knowledge",
]
type ProcedureContent = Literal["prompt_template", "tool_sequence", "workflow", "snippet"]
type ProcedureSource = Literal["taught", "learned"]
type ProposalStatus = Literal["open", "accepted", "rejected", "undone"]

SCOPE_KINDS: tuple[ScopeKind, ...] = get_args(ScopeKind.__value__)
"""The kinds of scopes, the most specific first."""
FACT_KINDS: tuple[FactKind, ...] = get_args(FactKind.__value__)
PROCEDURE_CONTENTS: tuple[ProcedureContent, ...] = get_args(ProcedureContent.__value__)
PROPOSAL_STATUSES: tuple[ProposalStatus, ...] = get_args(ProposalStatus.__value__)
PROCEDURE_SOURCES: tuple[ProcedureSource, ...] = get_args(ProcedureSource.__value__)

MAX_OWNER_CHARACTERS = 512
MAX_KEY_CHARACTERS = 128
"""The maximum length of a key, so that a key and its owner fit into a PostgreSQL index entry."""
MAX_VALUE_CHARACTERS = 10_000
MAX_CONTENT_CHARACTERS = 50_000
MAX_DEPTH = 32

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and lone surrogates, which are not allowed in names."""

_MOST_CONDITIONS = 50
_SEPARATORS = re.compile(r"[\s-]+")
_CAMEL_CASE = re.compile(r"[a-z][a-zA-Z0-9.]*")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class Scope:
    """The owner of facts and procedures: a session, a workspace or a person, identified by its id."""

    kind: ScopeKind
    owner: str

    def __post_init__(self) -> None:
        """Reject an unknown kind or an invalid owner."""
        if self.kind not in SCOPE_KINDS:
            raise InvalidInput(f"A scope is one of {', '.join(SCOPE_KINDS)}.")
        check_name("scope's owner", self.owner, MAX_OWNER_CHARACTERS)


class Evidence(NamedTuple):
    """The origin of a fact: a message (`session_id` and `seq`), a whole session, or a run."""

    session_id: str | None = None
    seq: int | None = None
    run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A fact: the value of a key in a scope.

    `confirmed` counts how often the value was remembered, and `contradicted` how often another value replaced it. A
    fact is valid until `valid_to`, if that is set. A scope has at most one valid fact for each key. `evidence` is in
    the order in which it was added.
    """

    id: str
    scope: Scope
    key: str
    value: Json
    kind: FactKind
    confidence: float
    confirmed: int
    contradicted: int
    valid_from: datetime
    valid_to: datetime | None
    updated_at: datetime
    evidence: tuple[Evidence, ...] = ()

    @property
    def text(self) -> str:
        """The fact as a text: its key and its value."""
        value = self.value if isinstance(self.value, str) else dump_json(self.value)
        return f"{self.key}: {value}"


@dataclass(frozen=True)
class NewFact:
    """A fact to remember.

    If `kind` is None, a new fact is `world_knowledge`, and an existing fact keeps its kind. `key` is replaced by its
    canonical form (`canonical_key`).
    """

    key: str
    value: Json
    kind: FactKind | None = None
    confidence: float = 1.0
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        """Reject a fact that could not be stored and found again. The error does not quote the value."""
        check_name("fact's key", self.key, MAX_KEY_CHARACTERS)
        object.__setattr__(self, "key", canonical_key(self.key))
        check_name("fact's key", self.key, MAX_KEY_CHARACTERS)  # the canonical form may be longer
        if self.kind is not None and self.kind not in FACT_KINDS:
            raise InvalidInput(f"A fact's kind is one of {', '.join(FACT_KINDS)}.")
        object.__setattr__(self, "value", _value("fact's value", self.value, MAX_VALUE_CHARACTERS))
        if not is_finite(self.confidence) or not 0 <= self.confidence <= 1:
            raise InvalidInput("A fact's confidence is a number from 0 to 1.")
        if self.evidence is not None:
            _check_evidence(self.evidence)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A fact that a `learner` or a line of a message (a directive, such as `preference (user): …`) has proposed.

    `evidence` names the message, and `fact_id` the fact that was stored on acceptance. `decided_by` is the person who
    decided or, after an automatic acceptance, the required confidence, as in `confidence 0.8`.
    """

    id: str
    scope: Scope
    key: str
    value: Json
    kind: FactKind | None
    directive: str | None
    confidence: float
    evidence: Evidence
    learner: str
    status: ProposalStatus
    fact_id: str | None
    created_at: datetime
    updated_at: datetime
    decided_by: str | None

    @property
    def origin(self) -> str:
        """The origin of the proposal as a text: the message from which it was learned."""
        return f"from message {self.evidence.seq} of {self.evidence.session_id}"


@dataclass(frozen=True)
class ProposalQuery:
    """A filter for a list of proposals, most recently changed first. See `FactQuery` for its fields."""

    status: ProposalStatus | None = None
    scope: Scope | None = None
    session_id: str | None = None
    user_id: str | None = None
    limit: int = 100
    cursor: tuple[datetime, str] | None = None


@dataclass(frozen=True)
class FactQuery:
    """A filter for a list of facts, most recently changed first.

    `text` is searched in keys and values. `past` includes earlier values. If `user_id` is given, the list has only
    facts about this person and facts of the person's sessions.
    """

    scope: Scope | None = None
    scope_kind: ScopeKind | None = None
    kind: FactKind | None = None
    key: str | None = None
    text: str | None = None
    past: bool = False
    user_id: str | None = None
    limit: int = 100
    cursor: tuple[datetime, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """Instructions for a kind of task, with a name that is unique in their scope.

    A procedure applies if the goal contains a phrase of `goal_contains`, in upper or lower case, and the context has
    all names of `context_has`. Without phrases, its name or description must match the goal. `used` counts its uses,
    and `succeeded` and `failed` their outcomes; a new content resets them. The store assigns the id, the counts and
    the times.
    """

    scope: Scope
    name: str
    content: Json
    content_type: ProcedureContent = "snippet"
    description: str = ""
    goal_contains: tuple[str, ...] = ()
    context_has: tuple[str, ...] = ()
    source: ProcedureSource = "taught"
    active: bool = True
    id: str = ""
    used: int = 0
    succeeded: int = 0
    failed: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None

    def __post_init__(self) -> None:
        """Reject a procedure that could not be stored and found again."""
        check_name("procedure's name", self.name, MAX_KEY_CHARACTERS)
        if self.content_type not in PROCEDURE_CONTENTS:
            raise InvalidInput(f"A procedure's content_type is one of {', '.join(PROCEDURE_CONTENTS)}.")
        if self.source not in PROCEDURE_SOURCES:
            raise InvalidInput(f"A procedure's source is one of {', '.join(PROCEDURE_SOURCES)}.")
        if not isinstance(self.description, str) or len(self.description) > MAX_VALUE_CHARACTERS:
            raise InvalidInput(f"A procedure's description is text of at most {MAX_VALUE_CHARACTERS} characters.")
        if not isinstance(self.active, bool):
            raise InvalidInput("A procedure's active is True or False.")
        for name in ("goal_contains", "context_has"):
            object.__setattr__(self, name, _conditions(name, getattr(self, name)))
        object.__setattr__(self, "content", _value("procedure's content", self.content, MAX_CONTENT_CHARACTERS))


@dataclass(frozen=True)
class ProcedureQuery:
    """A filter for a list of procedures, most recently changed first. See `FactQuery` for its fields."""

    scope: Scope | None = None
    scope_kind: ScopeKind | None = None
    name: str | None = None
    text: str | None = None
    active: bool | None = None
    user_id: str | None = None
    limit: int = 100
    cursor: tuple[datetime, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Person:
    """A person known under one or more ids; each id is a `user_id`, or a channel's sender such as `telegram:123`."""

    __pydantic_config__ = DESCRIBED

    id: str
    """The canonical id, under which facts are stored."""
    aliases: tuple[str, ...]
    """All ids of the person, `id` first."""
    names: tuple[str, ...]
    """The names that the person has used in channels, most recently seen first."""
    merged: Mapping[str, str] = field(default_factory=dict)
    """Maps each merged id to the id into which it was merged."""
    preferences: Mapping[str, object] = field(default_factory=dict)
    """The values of the person's valid facts of the kind `preference`, by key."""
    first_seen_at: datetime
    last_seen_at: datetime
    """The time when the person was last seen, exact to an hour."""
    new: bool = False
    """True if this call created the person."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A question of a person with its answer and the outcome of its run.

    `seq` is the position of the first message of the question. `ended` is the status of the run if it has ended, else
    the status of the answer. `tools` has the names of the called tools, as far as they are still stored. `feedback` is
    the value of the key `feedback` in the metadata of the answer or the question.
    """

    session_id: str
    seq: int
    asked: str
    answered: str | None
    ended: str
    tools: tuple[str, ...] = ()
    workflow: str | None = None
    error: str | None = None
    run_id: str | None = None
    feedback: Json = None
    at: datetime


@dataclass(frozen=True)
class PersonQuery:
    """A filter for a list of persons, most recently seen first; `text` is searched in their ids and names."""

    text: str | None = None
    limit: int = 100
    cursor: tuple[datetime, str] | None = None


@lru_cache(maxsize=4_000)
def canonical_key(key: str) -> str:
    """Return the stored form of a fact's key: `home_city` for `Home City`, `home-city` and `homeCity`."""
    key = key.strip()
    words = _HUMP.sub("_", key) if _CAMEL_CASE.fullmatch(key) else _SEPARATORS.sub("_", key)
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", words).casefold())


def check_name(what: str, value: object, most: int) -> None:
    """Check a name or an id; `what` describes it in the error.

    Raises:
        InvalidInput: the value is not text, is blank or too long, or has control characters or lone surrogates.
    """
    if not isinstance(value, str) or not value.strip() or len(value) > most or CONTROLS.search(value):
        raise InvalidInput(f"A {what} is text of 1 to {most} characters, not only spaces, without control characters.")


def _check_evidence(evidence: Evidence) -> None:
    if not isinstance(evidence, Evidence) or evidence == Evidence():
        raise InvalidInput("Evidence names a message (session_id and seq), a session or a run.")
    for name in ("session_id", "run_id"):
        if getattr(evidence, name) is not None:
            check_name(f"piece of evidence's {name}", getattr(evidence, name), MAX_OWNER_CHARACTERS)
    seq = evidence.seq
    if seq is not None and not is_whole(seq, 1):
        raise InvalidInput("Evidence's seq is a whole number from 1, or None.")
    if seq is not None and evidence.session_id is None:
        raise InvalidInput("Evidence with a seq has a session_id: a seq is a position in one session.")


def _value(what: str, value: Json, most: int) -> Json:
    if value is None:
        raise InvalidInput(f"A {what} cannot be None; forget the key instead.")
    try:
        copy = as_json(value)
    except InvalidMessage:
        raise InvalidInput(f"A {what} is JSON: text keys, finite numbers, no bytes, not too deep.") from None
    if len(dump_json(copy)) > most:
        raise InvalidInput(f"A {what} has at most {most} characters as JSON.")
    if not _is_flat(copy, MAX_DEPTH):
        raise InvalidInput(f"A {what} is at most {MAX_DEPTH} levels deep.")
    return copy


def _is_flat(value: Json, levels: int) -> bool:
    """Return True if the lists and objects of a JSON value are nested at most `levels` deep."""
    if isinstance(value, Mapping):
        return levels > 0 and all(_is_flat(inner, levels - 1) for inner in value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return levels > 0 and all(_is_flat(inner, levels - 1) for inner in value)
    return True


def _conditions(name: str, values: Sequence[str]) -> tuple[str, ...]:
    if isinstance(values, str) or len(values) > _MOST_CONDITIONS:
        raise InvalidInput(f"A procedure's {name} is a list of at most {_MOST_CONDITIONS} texts.")
    for value in values:
        check_name(f"text of a procedure's {name}", value, MAX_KEY_CHARACTERS)
    return tuple(dict.fromkeys(values))
