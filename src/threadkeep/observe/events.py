"""What can happen, as frozen records of counts, times and names that are no words of people.

Names are from closed sets, but for those that authors gave their workflows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

type Backend = Literal["sqlite", "postgres", "other"]
type Channel = Literal["telegram", "wecom_cs", "wecom_aibot", "wecom_dm", "http", "other"]
type Outcome = Literal["ok", "fallback", "conflict", "error"]
type RetentionAction = Literal["archive", "delete"]
type SummarySource = Literal["messages", "summaries"]
type ExtraSection = Literal["facts", "snippets", "selected"]
type ManifestLoss = Literal["crowded", "session_gone", "refused", "closing"]
type SummaryFailure = Literal["model", "timeout", "empty", "too_long", "outdated", "store", "crowded"]

BACKENDS: tuple[Backend, ...] = get_args(Backend.__value__)
CHANNELS: tuple[Channel, ...] = get_args(Channel.__value__)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome.__value__)
RETENTION_ACTIONS: tuple[RetentionAction, ...] = get_args(RetentionAction.__value__)
SUMMARY_SOURCES: tuple[SummarySource, ...] = get_args(SummarySource.__value__)
MANIFEST_LOSSES: tuple[ManifestLoss, ...] = get_args(ManifestLoss.__value__)
SUMMARY_FAILURES: tuple[SummaryFailure, ...] = get_args(SummaryFailure.__value__)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened; an `error` is the name of an error's class, since its sentence may quote people."""


@dataclass(frozen=True, kw_only=True)
class StoreRead(Event):
    """A read of the store ended, well or not; `fallback` means that the caller went on without what it wanted."""

    backend: Backend
    channel: Channel = "other"
    outcome: Outcome = "ok"
    milliseconds: float
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class StoreWrite(Event):
    """A write to the store ended, well or not; `fallback` means that the turn was kept to be written later."""

    backend: Backend
    channel: Channel = "other"
    outcome: Outcome = "ok"
    milliseconds: float
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReadFailed(Event):
    """Memory could not be read: `fallback` when the agent answered without it, `error` when the caller was told."""

    backend: Backend
    channel: Channel = "other"
    outcome: Outcome = "error"
    error: str
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class WriteFailed(Event):
    """A turn could not be written: `fallback` when it was kept for a retry, else `error` or `conflict`.

    It is told once for each failing try, and it alone raises the counter of failed writes.
    """

    backend: Backend
    channel: Channel = "other"
    outcome: Outcome = "error"
    error: str
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class WriteDeferred(Event):
    """A turn went to the pending writes, where it stays until it is written or a person drops it."""

    backend: Backend
    channel: Channel = "other"
    messages: int
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class WriteRecovered(Event):
    """A turn from the pending writes has been written."""

    backend: Backend
    channel: Channel = "other"
    tries: int
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class WriteDropped(Event):
    """A person dropped a turn from the pending writes."""

    backend: Backend
    channel: Channel = "other"
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerDiscarded(Event):
    """An answer was stored nowhere, because its session was deleted after the question."""

    backend: Backend
    channel: Channel = "other"
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class PendingWrites(Event):
    """How many turns wait to be written now."""

    backend: Backend
    count: int


@dataclass(frozen=True, kw_only=True)
class HistoryTruncated(Event):
    """A window left older messages out, or cut one, because of its limits."""

    channel: Channel = "other"
    dropped: int
    cut: bool = False
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class KeyResolutionFailed(Event):
    """No candidate gave a valid session id; `reason` is one of the reasons of `threadkeep.resolve_key`."""

    channel: Channel = "other"
    reason: str
    candidates: int = 0
    run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ContextBuilt(Event):
    """A model call got its context: how many messages and tokens, and how many messages were left out."""

    run_id: str | None = None
    session_id: str | None = None
    messages: int
    tokens: int
    dropped: int = 0


@dataclass(frozen=True, kw_only=True)
class MemoryUpdated(Event):
    """Messages came into a run's memory: how many there were with them, how many stayed, and what went by each limit.

    `trimmed_by_chars` is in characters, those of cut messages included; `trimmed_by_count` in messages.
    """

    before_count: int
    after_count: int
    trimmed_by_chars: int = 0
    trimmed_by_count: int = 0
    run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class PromptSent(Event):
    """A model was called with a run's memory: how many messages, their characters, and their tokens as estimated.

    `flat` says that they went as one text.
    """

    messages: int
    characters: int
    tokens: int
    flat: bool = False
    run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class SummaryMade(Event):
    """A summary was stored: for how many messages it stands, its own tokens, and whether it was made of summaries."""

    channel: Channel = "other"
    messages: int
    tokens: int
    of: SummarySource = "messages"
    milliseconds: float
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class SummaryFailed(Event):
    """A session could not be compressed, for now; nothing has changed. `error` is there when one was behind it."""

    channel: Channel = "other"
    reason: SummaryFailure
    error: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ManifestsDropped(Event):
    """Records of model calls were not kept.

    `crowded`: too many waited for the database. `session_gone`: their session (or run) was deleted, or never stored.
    `refused`: the database does not take this one. `closing`: the memory was closed before it took them.
    """

    backend: Backend
    count: int
    reason: ManifestLoss


@dataclass(frozen=True, kw_only=True)
class ManifestWriteFailed(Event):
    """Records of model calls could not be written and wait for the next try; calls and turns go on."""

    backend: Backend
    error: str
    waiting: int


@dataclass(frozen=True, kw_only=True)
class MessagesPruned(Event):
    """A round of retention archived or deleted messages: how many, and of how many sessions."""

    action: RetentionAction
    sessions: int
    messages: int


@dataclass(frozen=True, kw_only=True)
class RunsPruned(Event):
    """A round of retention deleted runs that were over for long, and versions of workflows that no run has any more.

    A tree is a run with all that were carried out for it.
    """

    trees: int
    runs: int
    versions: int = 0


@dataclass(frozen=True, kw_only=True)
class IndexingBegan(Event):
    """So much is not in the search index that searches miss some of it for a while: after an upgrade or an import."""

    messages: int


@dataclass(frozen=True, kw_only=True)
class IndexingDone(Event):
    """Searches find everything again: the messages that `IndexingBegan` told of are in the index."""

    messages: int
    milliseconds: float


@dataclass(frozen=True, kw_only=True)
class PruningFailed(Event):
    """A round of retention was broken off; what it did is done, and the next one goes on."""

    error: str


@dataclass(frozen=True, kw_only=True)
class ExtraNotFound(Event):
    """A section that is found anew for each input could not be looked for; the model call goes on without it."""

    section: ExtraSection
    error: str
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class EmbeddingsSkipped(Event):
    """A model of embeddings did not take some messages; words find them, and they are tried again later."""

    count: int
    error: str
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFailed(Event):
    """A model call raised."""

    channel: Channel = "other"
    error: str
    run_id: str | None = None
    session_id: str | None = None
