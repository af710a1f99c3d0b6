"""Manifests: records of the messages in model calls.

A manifest says which messages were sent, how many tokens they had, and why others were not sent. It has no texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cache, cached_property
from typing import Literal

from pydantic import GetJsonSchemaHandler, TypeAdapter, computed_field
from pydantic.json_schema import JsonSchemaValue, SkipJsonSchema
from pydantic_core import CoreSchema

from threadkeep.context.window import Exclusion, ExclusionReason
from threadkeep.records import Json
from threadkeep.records.json_values import ENCODER
from threadkeep.records.knowledge import ScopeKind

type Section = Literal[
    "system", "summary", "window", "earlier_steps", "input", "facts", "snippets", "selected", "steps"
]
type WindowKind = Literal["anchored", "sliding"]
type Source = Literal["transcript", "summaries", "turns", "text"]
type FactSource = Literal["memory", "graphiti"]
type FactExclusion = Literal["no_room", "same_key", "over_limit"]
type GraphOutcome = Literal["ok", "deadline", "failed", "breaker_open", "off", "no_consent", "untrusted"]


@dataclass(frozen=True)
class TurnReference:
    """A stored message that is quoted in a model call, by its session and `seq`."""

    session_id: str
    seq: int


@dataclass(frozen=True)
class QuoteReference(TurnReference):
    """A stored message that is quoted in a model call, whole or in part."""

    part: tuple[int, int] | None = None
    """The quoted range of a long message's characters; absent if the whole message is quoted."""


@dataclass(frozen=True)
class FactReference:
    """A stored fact or a fact from Graphiti that is quoted in a model call, with its origin."""

    id: str
    scope: ScopeKind
    source: FactSource = "memory"
    """Absent for `memory`, the facts of this database."""
    since: date | None = None
    """The first day on which the fact is valid, in UTC."""
    evidence: tuple[TurnReference, ...] = ()
    """The messages that the fact comes from."""
    rank: int | None = None
    """The position of a Graphiti fact among the recalled facts, from 1."""


@dataclass(frozen=True)
class ScopeRecall:
    """The outcome of a Graphiti query for the facts of one scope: the session, the workspace or the user."""

    scope: ScopeKind
    outcome: GraphOutcome = "ok"
    """Absent for `ok`."""
    found: int = 0
    """Facts that the query returned."""
    shown: int = 0
    """Facts in the context."""
    superseded: int = 0
    """Facts left out because they are no longer valid."""
    duplicate: int = 0
    """Facts left out because another scope has them."""
    over_quota: int = 0
    """Facts left out because the maximum number of facts was reached."""
    no_room: int = 0
    """Facts left out because they did not fit into the section's tokens."""
    queued: int = 0
    """Messages of the scope that wait to be sent to Graphiti."""
    unconfirmed: int = 0
    """Messages that were sent, but are not confirmed yet."""
    dead: int = 0
    """Messages that Threadkeep has given up sending."""


@dataclass(frozen=True)
class FactsLeftOut:
    """Stored facts of a scope that were not sent in a model call, and the reason.

    `no_room`: they did not fit. `same_key`: a fact of a more specific scope, or a newer one, has the same key.
    `over_limit`: the scope has too many facts, so only relevant facts were searched for. Here, `count` is 0.
    """

    scope: ScopeKind
    reason: FactExclusion
    count: int = 0
    ids: tuple[str, ...] = ()
    """The ids of the first 20 of these facts."""


@dataclass(frozen=True)
class ConversationLocation:
    """The location of a conversation that an agent stores in a LangGraph store, and the names of keys and fields."""

    key: str
    namespace: tuple[str, ...]
    meta_key_suffix: str = "__meta__"
    """The end of the key of the conversation's metadata item; absent for `__meta__`."""
    value_field: str = "content"
    """The field with a message's text; absent for `content`."""


@dataclass(frozen=True)
class Entry:
    """A message of a model call: its section, its tokens, and the source of its text.

    A text that is in no transcript, such as a system prompt or a cut message, is stored apart from the manifest, and
    `digest` refers to it. `snippets` and `facts` are in the order in which the text quotes them.
    """

    section: Section
    tokens: int
    """The tokens of the message, by the counter of the manifest."""
    source: Source = "text"
    """The source of the text. `transcript`: the message at `seq` or with the `id`. `summaries` and `turns`: the fields
    with these names. `text` (absent in JSON): the stored text with this `digest`, which is in no transcript."""
    seq: int | None = None
    """The position in the session's transcript."""
    id: str | None = None
    """The id of the message."""
    digest: str | None = None
    """SHA-256 of the stored text."""
    summaries: tuple[str, ...] = ()
    """Ids of the summaries in the message."""
    turns: tuple[QuoteReference, ...] = ()
    """The quoted messages."""
    snippets: tuple[str, ...] = ()
    """Ids of the passages in the message."""
    facts: tuple[FactReference, ...] = ()
    """The quoted facts."""
    tokens_before: int | None = None
    """The tokens that the message had before it was cut; absent if it was not cut."""

    # Cached, because the calls of later turns have the same entries of earlier messages.
    @cached_property
    def short_json(self) -> str:
        """The entry as JSON. `true` replaces the id of a transcript message, because its `seq` identifies it."""
        is_stored = self.source == "transcript" and self.seq is not None and self.id is not None
        if is_stored and self.tokens_before is None:  # an earlier message, as most entries are
            start = f'"section":"{self.section}","tokens":{self.tokens}'
            return f'{{{start},"source":"transcript","seq":{self.seq},"id":true}}'
        values = _entry_adapter().dump_python(self, mode="json", exclude_defaults=True)
        return ENCODER.encode({**values, "id": True} if is_stored else values)


@dataclass(frozen=True)
class LeftOut:
    """A message that was not sent to the model, or a range of adjacent messages, and the reason.

    Messages of the transcript are in `ContextManifest.excluded`, but a range here may include some of them as well.
    """

    id: str | None
    """The id of the (first) message, if it has one."""
    reason: ExclusionReason
    last_id: str | None = None
    """The id of the last message of a range; absent for a single message."""
    count: int = 1
    """The number of messages; absent for a single message."""


@dataclass(frozen=True)
class ReportedUsage:
    """Tokens as counted by the provider."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Input tokens from the provider's prompt cache."""


@dataclass(frozen=True)
class StablePrefix:
    """The first messages of a model call, none of which depends on the input. Later calls may begin with them too."""

    messages: int
    tokens: int
    digest: str
    """SHA-256 of these messages."""


@dataclass(frozen=True, kw_only=True)
class ContextManifest:
    """The record of one model call: which messages were sent, which were not, and why.

    A manifest contains no text. It is stored with its session, or with its run if `session_id` is None. Each `seq` is a
    position in the session's transcript or, if `conversation` is set, in this conversation of a LangGraph store.
    Fields with default values are absent in JSON.
    """

    session_id: str | None = None
    """The session of the run; absent if the run belongs to no session."""
    run_id: str
    call: int = 0
    """The number of the call in its run (1, 2, 3, …); 0 until the manifest is stored."""
    node: str | None = None
    """The node of a workflow that made the call."""
    conversation: ConversationLocation | None = None
    """The conversation that the positions refer to, if it is not the session's transcript."""
    created_at: datetime | SkipJsonSchema[None] = None
    model: str | None = None
    counter: str
    """The name of the token counter, with the learned factor of the model if there is one."""
    budget: int | None = None
    """The maximum number of tokens, measured by the counter."""
    max_messages: int | None = None
    """The maximum number of messages of earlier turns."""
    window: WindowKind = "anchored"
    """The way in which the start of the window is chosen; absent for `anchored`."""
    anchor_seq: int = 0
    """The `seq` where the window begins; absent while nothing was cut."""
    entries: tuple[Entry, ...] = ()
    """The messages that were sent, in order."""
    excluded: tuple[Exclusion, ...] = ()
    """Messages of the transcript that were not sent."""
    left_out: tuple[LeftOut, ...] = ()
    """Messages outside of the transcript, such as tool calls of the run, that were not sent."""
    dropped: int = 0
    """The number of earlier messages that were left out and are not summarised."""
    tokens: int = 0
    """Tokens of all messages that were sent, measured by the counter."""
    tools: int = 0
    """Tokens of the tool definitions, in addition to `tokens`; absent without tools."""
    prefix: StablePrefix | None = None
    digest: str = ""
    """SHA-256 of all messages that were sent, which `threadkeep.rebuild` verifies."""
    reported: ReportedUsage | None = None
    """The tokens that the provider reported; absent if it reported nothing."""
    notes: tuple[str, ...] = ()
    """Missing parts: `history_unavailable`, `no_room_for_facts`, `no_room_for_snippets`, `no_room_for_selected`, or
    `record_unreadable` for a damaged record."""
    graph: tuple[ScopeRecall, ...] = ()
    """The outcomes of Graphiti queries; absent if there were none."""
    facts_left_out: tuple[FactsLeftOut, ...] = ()
    """Facts of the database that were found but not sent; absent if there are none."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sections(self) -> dict[Section, int]:
        """The tokens of each section, in the order of sending."""
        tokens: dict[Section, int] = {}
        for entry in self.entries:
            tokens[entry.section] = tokens.get(entry.section, 0) + entry.tokens
        return tokens

    def to_dict(self) -> dict[str, Json]:
        """Return the manifest as JSON values, without default values, and with the tokens per section."""
        values: dict[str, Json] = _adapter().dump_python(self, mode="json", exclude_defaults=True)
        return values

    def to_short_json(self) -> str:
        """Return the JSON of `to_dict` for a row that has columns for the session and the run.

        `true` replaces their ids, if they are set, and the ids of transcript messages (see `Entry.short_json`).
        """
        values = replace(self, entries=self.entries[:1]).to_dict()
        values |= {name: True for name in ("session_id", "run_id") if name in values}
        if not self.entries:
            return ENCODER.encode(values)
        values |= {"entries": True, "sections": {str(name): tokens for name, tokens in self.sections.items()}}
        # No text in the JSON can equal this key, because quotes in texts are escaped.
        before, key, after = ENCODER.encode(values).partition('"entries":')
        entries = ",".join([entry.short_json for entry in self.entries])
        return f"{before}{key}[{entries}]{after.removeprefix('true')}"

    def message_ids(self) -> list[tuple[int, str]]:
        """Return the `seq` and the id of each transcript message, whose id `to_short_json` leaves out."""
        messages = [entry for entry in self.entries if entry.source == "transcript"]
        return [(one.seq, one.id) for one in messages if one.seq is not None and one.id is not None]

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the JSON schema. It also requires `call` and `created_at`, which every stored manifest has."""
        found = handler(schema)
        handler.resolve_ref_schema(found)["required"] += ["call", "created_at"]
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Json]) -> ContextManifest:
        """Return the manifest from the values of `to_dict`; raise `ValueError` if they are invalid."""
        return _adapter().validate_python(values)


@cache
def _adapter() -> TypeAdapter[ContextManifest]:
    # Do not set `use_attribute_docstrings`: it reads the source of each class, which would double the time of a
    # process's first turn.
    return TypeAdapter(ContextManifest)


@cache
def _entry_adapter() -> TypeAdapter[Entry]:
    return TypeAdapter(Entry)
