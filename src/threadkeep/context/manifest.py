"""Why a window or a model call holds what it holds: places, ids, counts and reasons, never text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Literal

from threadkeep.records import Json, Message

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
]


@dataclass(frozen=True)
class Cut:
    """One message that stands shortened, with the mark, in the window."""

    seq: int
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True)
class Exclusion:
    """A range of places (both ends included) that is out, and why."""

    first_seq: int
    last_seq: int
    reason: ExclusionReason


@dataclass(frozen=True)
class WindowManifest:
    """The record of one window.

    `included` are the places of its messages in order. `dropped` is how many messages since the last reset are out and
    not archived; when the caller could not say how many there are, it is the number of places in the excluded ranges.
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


type Section = Literal["system", "summary", "window", "input", "facts", "snippets", "selected", "steps"]
type Source = Literal["transcript", "summaries", "turns", "text"]


@dataclass(frozen=True)
class TurnReference:
    """A message of a transcript that is quoted in a context."""

    session_id: str
    seq: int


@dataclass(frozen=True)
class ConversationPlace:
    """A conversation that an agent keeps in a graph store by itself: its key, and how it is laid out there."""

    key: str
    namespace: tuple[str, ...]
    meta_key_suffix: str = "__meta__"
    value_field: str = "content"


@dataclass(frozen=True)
class Entry:
    """One message that was sent: its section, its tokens by the counter, and where its text is.

    `source` says what the text is made of: the `transcript`'s message at `seq` (or with the `id`, which has no place
    before it is written), the `summaries` with these ids, older `turns` that are quoted, or a `text` that is kept under
    its `digest` (SHA-256) because no transcript has it: system prompts, tool calls and results, cut messages.
    `snippets` are ids of what a knowledge base gave. `tokens_before` is the size of a message that was cut.
    """

    section: Section
    tokens: int
    source: Source = "text"
    seq: int | None = None
    id: str | None = None
    digest: str | None = None
    summaries: tuple[str, ...] = ()
    turns: tuple[TurnReference, ...] = ()
    snippets: tuple[str, ...] = ()
    tokens_before: int | None = None


@dataclass(frozen=True)
class LeftOut:
    """Messages of the run's state that were not sent, and why.

    One message, by its `id`, which is None for one without; or `count` messages that follow each other in the state,
    system messages aside, from that one to `last_id`. Those of them that the transcript has are excluded places too.
    """

    id: str | None
    reason: ExclusionReason
    last_id: str | None = None
    count: int = 1


@dataclass(frozen=True)
class ReportedUsage:
    """Tokens as the provider counted them; `cached_tokens` of the input came from its prompt cache."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True)
class StablePrefix:
    """The leading messages that the next call may share: how many, their tokens, and a hash of them (SHA-256)."""

    messages: int
    tokens: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class ContextManifest:
    """The record of one model call: what went in, in order, and what stayed out and why. It holds no message's text.

    It is kept with its session, or without a `session_id` with its run; `node` made the call in a workflow. Places are
    those of the session's transcript, or of a `conversation` that the node keeps elsewhere. Where there is no
    transcript at all, as in a run without a session, every entry is a `text`.

    `tokens` and those of the entries are by `counter`, and so are those of the `tools` that the model is told of, which
    come on top; `reported` is by the provider. `digest` is a hash of all messages:
    `threadkeep.rebuild` proves itself by it. `anchor_seq` is where the window began (0: nothing was cut yet), `call`
    numbers the calls of a run from 1 (0 before it is stored). `notes` say what was missing: `history_unavailable`.
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

    @property
    def sections(self) -> dict[Section, int]:
        """Tokens per section, in the order in which they are sent."""
        tokens: dict[Section, int] = {}
        for entry in self.entries:
            tokens[entry.section] = tokens.get(entry.section, 0) + entry.tokens
        return tokens

    def to_dict(self) -> dict[str, Json]:
        """The manifest as JSON values, without what is at its default, and with the tokens per section."""
        values: dict[str, Json] = _adapter().dump_python(self, mode="json", exclude_defaults=True)
        sections: dict[str, Json] = {str(name): tokens for name, tokens in self.sections.items()}
        return {**values, "sections": sections}

    @classmethod
    def from_dict(cls, values: Mapping[str, Json]) -> ContextManifest:
        """The manifest that `to_dict` described. Raises `ValueError` for anything else."""
        return _adapter().validate_python({key: value for key, value in values.items() if key != "sections"})


@cache
def _adapter() -> TypeAdapter[ContextManifest]:
    from pydantic import TypeAdapter  # windows need it not, and load nothing for it

    return TypeAdapter(ContextManifest)
