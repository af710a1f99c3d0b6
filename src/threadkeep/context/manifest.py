"""Manifests: the positions, ids, counts and reasons behind a window or a model call, never text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Literal

from threadkeep.records import Json, Message
from threadkeep.records.knowledge import ScopeKind
from threadkeep.records.messages import messages_html

if TYPE_CHECKING:
    from pydantic import TypeAdapter

type ExclusionReason = Literal[
    "over_budget",
    "over_limit",
    "before_anchor",
    "reset",
    "summarised",
    "duplicate",
    "role",
    "orphan_tool",
    "archived",
    "empty",
    "folded",
    "superseded",
    "failed",
]


@dataclass(frozen=True)
class Cut:
    """A message that is shortened with a mark in the window."""

    seq: int
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True)
class Exclusion:
    """A range of excluded positions (both ends included) and the reason."""

    first_seq: int
    last_seq: int
    reason: ExclusionReason


@dataclass(frozen=True)
class WindowManifest:
    """The record of one window.

    `included` are the positions of its messages in order. `dropped` is the number of excluded messages since the
    last reset that are neither archived nor superseded; if the caller did not know the number of messages, it is the
    number of positions in the excluded ranges.
    """

    counter: str
    max_messages: int | None
    max_tokens: int | None
    tokens: int
    included: tuple[int, ...] = ()
    cuts: tuple[Cut, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    dropped: int = 0


@dataclass(frozen=True)
class Window:
    """The newest messages that fit, oldest first."""

    messages: tuple[Message, ...]
    tokens: int
    manifest: WindowManifest

    def _repr_html_(self) -> str:
        """Return the window as an HTML table for notebooks."""
        title = f"Window of {len(self.messages)} messages, {self.tokens:,} tokens; {self.manifest.dropped:,} left out"
        return messages_html(title, self.messages)


type Section = Literal[
    "system", "summary", "window", "earlier_steps", "input", "facts", "snippets", "selected", "steps"
]
type Source = Literal["transcript", "summaries", "turns", "text"]
type FactSource = Literal["memory", "graphiti"]
type FactExclusion = Literal["no_room", "same_key", "over_limit"]
type GraphOutcome = Literal["ok", "deadline", "failed", "breaker_open", "off", "no_consent", "untrusted"]


@dataclass(frozen=True)
class TurnReference:
    """A message of a transcript that is quoted in a context."""

    session_id: str
    seq: int


@dataclass(frozen=True)
class QuoteReference(TurnReference):
    """A quoted message; of a long one only the `part`, a range of characters."""

    part: tuple[int, int] | None = None


@dataclass(frozen=True)
class FactReference:
    """A fact that is quoted in a context: its origin, its first day, and the messages that state it.

    `rank` is the rank of a Graphiti fact in the recall, from 1.
    """

    id: str
    scope: ScopeKind
    source: FactSource = "memory"
    since: str | None = None
    evidence: tuple[TurnReference, ...] = ()
    rank: int | None = None


@dataclass(frozen=True)
class ScopeRecall:
    """The outcome of a Graphiti query for one scope, with the reasons for missing facts.

    Of the facts `found`, some are `shown`; the others are `superseded`, a `duplicate` of a shown fact, `over_quota`,
    or did not fit (`no_room`). `queued` messages of the scope wait to be sent; `unconfirmed` messages were sent but
    not yet seen there; `dead` messages were given up.
    """

    scope: ScopeKind
    outcome: GraphOutcome = "ok"
    found: int = 0
    shown: int = 0
    superseded: int = 0
    duplicate: int = 0
    over_quota: int = 0
    no_room: int = 0
    queued: int = 0
    unconfirmed: int = 0
    dead: int = 0


@dataclass(frozen=True)
class FactsLeftOut:
    """Known facts of a scope that are not in a context, and the reason; `ids` are the first 20 of them.

    They had `no_room`, or a more specific scope or a newer fact has their key (`same_key`). If a scope has so many
    facts that they are searched, others that do not bear on the input are `over_limit`; they are not counted.
    """

    scope: ScopeKind
    reason: FactExclusion
    count: int = 0
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConversationPlace:
    """A conversation that an agent stores in a graph store: its key and its layout."""

    key: str
    namespace: tuple[str, ...]
    meta_key_suffix: str = "__meta__"
    value_field: str = "content"


@dataclass(frozen=True)
class Entry:
    """A message of a model call: its section, its tokens by the counter, and the source of its text.

    `source` names the origin of the text: the `transcript`'s message at `seq` (or with the `id`, if it was not
    stored yet), the `summaries` with these ids, quoted older `turns`, or a `text` stored under its `digest`
    (SHA-256) because no transcript has it: system prompts, tool calls and results, cut messages. `snippets` are ids
    of knowledge base results; `facts` name the quoted facts; both in the order of the text. `tokens_before` is the
    original size of a cut message.
    """

    section: Section
    tokens: int
    source: Source = "text"
    seq: int | None = None
    id: str | None = None
    digest: str | None = None
    summaries: tuple[str, ...] = ()
    turns: tuple[QuoteReference, ...] = ()
    snippets: tuple[str, ...] = ()
    facts: tuple[FactReference, ...] = ()
    tokens_before: int | None = None


@dataclass(frozen=True)
class LeftOut:
    """Messages of the run's state that were not sent, and the reason.

    Either one message, by its `id` (None if it has none), or `count` consecutive messages of the state, without
    system messages, up to `last_id`. Messages of the transcript are listed as excluded positions too.
    """

    id: str | None
    reason: ExclusionReason
    last_id: str | None = None
    count: int = 1


@dataclass(frozen=True)
class ReportedUsage:
    """Tokens as the provider counted them; `cached_tokens` is the part of the input from its prompt cache."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True)
class StablePrefix:
    """The leading messages that the next call may share: their number, their tokens and their hash (SHA-256)."""

    messages: int
    tokens: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class ContextManifest:
    """The record of one model call: the messages sent, in order, and the excluded ones with reasons; no message text.

    It is stored with its session, or with its run if it has no `session_id`; `node` of the workflow made the call.
    Positions refer to the session's transcript, or to a `conversation` that the node stores elsewhere. Without any
    transcript, as in a run without a session, every entry is a `text`.

    `tokens` and the tokens of entries are by `counter`, and so are the tokens of the `tools`, which are added to
    them; `reported` is by the provider. `digest` is a hash of all messages, which `threadkeep.rebuild` verifies. The
    window began at `anchor_seq` (0: nothing was cut yet). `call` numbers the calls of a run from 1 (0 before it is
    stored). `notes` name missing parts, such as `history_unavailable`. `graph` is the outcome of the Graphiti query
    for each scope. `facts_left_out` are known facts of the database that were not sent.
    """

    session_id: str | None = None
    run_id: str
    call: int = 0
    node: str | None = None
    conversation: ConversationPlace | None = None
    created_at: datetime | None = None
    model: str | None = None
    counter: str
    budget: int | None = None
    max_messages: int | None = None
    window: Literal["anchored", "sliding"] = "anchored"
    anchor_seq: int = 0
    entries: tuple[Entry, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    dropped: int = 0
    tokens: int = 0
    tools: int = 0
    prefix: StablePrefix | None = None
    digest: str = ""
    reported: ReportedUsage | None = None
    notes: tuple[str, ...] = ()
    graph: tuple[ScopeRecall, ...] = ()
    facts_left_out: tuple[FactsLeftOut, ...] = ()

    @property
    def sections(self) -> dict[Section, int]:
        """Tokens per section, in sending order."""
        tokens: dict[Section, int] = {}
        for entry in self.entries:
            tokens[entry.section] = tokens.get(entry.section, 0) + entry.tokens
        return tokens

    def to_dict(self) -> dict[str, Json]:
        """Return the manifest as JSON values, without default values, with the tokens per section."""
        values: dict[str, Json] = _adapter().dump_python(self, mode="json", exclude_defaults=True)
        sections: dict[str, Json] = {str(name): tokens for name, tokens in self.sections.items()}
        return {**values, "sections": sections}

    @classmethod
    def from_dict(cls, values: Mapping[str, Json]) -> ContextManifest:
        """Return the manifest that `to_dict` described. Raises `ValueError` for anything else."""
        return _adapter().validate_python({key: value for key, value in values.items() if key != "sections"})


@cache
def _adapter() -> TypeAdapter[ContextManifest]:
    from pydantic import TypeAdapter  # windows do not need it, so it is imported on use

    return TypeAdapter(ContextManifest)
