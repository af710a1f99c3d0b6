"""Events: frozen records of counts, times and names, without text that people wrote.

Except ids and the names of bots, workflows and error classes, all texts come from closed sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, dataclass_transform, get_args

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


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _Record:
    """A base class whose subclasses are frozen dataclasses with keyword-only fields."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)


class Event(_Record):
    """An event. A field `error` has the name of an error class, never its message, which may quote people."""


class SessionEvent(Event):
    """An event that concerns a session; `session_id` is None if the session is unknown."""

    session_id: str | None = None


class StoreEvent(SessionEvent):
    """An event of reading or writing a session."""

    backend: Backend
    channel: Channel = "other"


class WorkflowRunEvent(SessionEvent):
    """An event of a run of a workflow."""

    workflow: str
    run_id: str | None = None


class StoreRead(StoreEvent):
    """A read of a session's stored data ended. The outcome is `fallback` if the caller continued without the data."""

    outcome: Outcome = "ok"
    milliseconds: float


class StoreWrite(StoreEvent):
    """A write to the store ended. The outcome is `fallback` if the turn must wait, and is written later."""

    outcome: Outcome = "ok"
    milliseconds: float


class ReadFailed(StoreEvent):
    """A session's stored data could not be read. The outcome is `fallback` if the agent answered without it."""

    outcome: Outcome = "error"
    error: str


class WriteFailed(StoreEvent):
    """A turn, or data of a turn such as its tool steps, could not be written.

    The outcome is `fallback` if the turn waits for a retry, and `conflict` if another writer changed the conversation
    in a LangGraph store. Each failed attempt emits this event, the only event that increases the counter of failed
    writes. If retries alone cannot succeed, `reason` says what the operator has to do.
    """

    outcome: Outcome = "error"
    error: str
    reason: str | None = None


class WriteDeferred(StoreEvent):
    """A turn could not be written and is pending. It is tried again until it is written, or a person drops it."""

    messages: int


class WriteRecovered(StoreEvent):
    """A turn that had to wait was written, after `tries` attempts."""

    tries: int


class WriteDropped(StoreEvent):
    """A person dropped a turn that waited to be written: it is never stored."""


class AgentOutsideTurn(SessionEvent):
    """An agent with memory was called without a new question, so this call does not use the session."""


class TurnBegunInTool(SessionEvent):
    """The first agent with memory runs in another agent's tool, so the tool's message begins the turn."""


class TurnWaits(SessionEvent):
    """A turn has waited `seconds` for an earlier turn of the same session in this process."""

    seconds: float


class HistoryDiffers(SessionEvent):
    """A client sent earlier messages that are not in the transcript; they were stored as new messages."""

    messages: int


class AnswerDiscarded(StoreEvent):
    """An answer was not stored, because its question was deleted meanwhile."""


class PendingWrites(Event):
    """The number of turns that wait to be written in this process may have changed; it is `count` now."""

    backend: Backend
    count: int


class HistoryTruncated(SessionEvent):
    """A window or a model call left out older messages of the session because of its limits, or cut a message."""

    channel: Channel = "other"
    dropped: int
    cut: bool = False


class KeyResolutionFailed(Event):
    """No valid key of a conversation could be derived from the values in a run."""

    channel: Channel = "other"
    reason: str
    candidates: int = 0
    run_id: str | None = None


class ContextBuilt(SessionEvent):
    """The context of a model call was built; `dropped` earlier messages were left out."""

    run_id: str | None = None
    messages: int
    tokens: int
    dropped: int = 0


class MemoryUpdated(Event):
    """Messages were added to the memory of a graph that `candidate_graph` built, and the memory was cut to its limits.

    `trimmed_by_chars` characters and `trimmed_by_count` messages were removed, each because of its own limit.
    """

    before_count: int
    after_count: int
    trimmed_by_chars: int = 0
    trimmed_by_count: int = 0
    run_id: str | None = None


class PromptSent(Event):
    """`candidate_graph` called its model. `flat` is true if it sent one text, not messages. `tokens` is an estimate."""

    messages: int
    characters: int
    tokens: int
    flat: bool = False
    run_id: str | None = None


class SummaryMade(SessionEvent):
    """A summary of `messages` messages was stored. If `of` is `summaries`, it was written from older summaries."""

    channel: Channel = "other"
    messages: int
    tokens: int
    of: SummarySource = "messages"
    milliseconds: float


class SummaryFailed(SessionEvent):
    """An attempt to summarise older messages of a session failed; earlier summaries stay."""

    channel: Channel = "other"
    reason: SummaryFailure
    error: str | None = None


class FactsProposed(SessionEvent):
    """Facts were proposed from messages in a session, or accepted automatically.

    `dropped` is the number of proposals above the limit of one call.
    """

    proposed: int
    accepted: int
    dropped: int = 0


class LearningFailed(SessionEvent):
    """Learning facts from a session failed, for all of its scopes or for one. The session's next turn tries again."""

    error: str


class LearningSkipped(SessionEvent):
    """Learning skipped messages up to `last_seq`, because the learner failed for them in three turns."""

    error: str
    last_seq: int


class ManifestsDropped(Event):
    """Manifests, the records of model calls, were dropped.

    `crowded`: too many were waiting for the database. `session_gone`: their session or run was deleted or never
    stored. `refused`: the database rejects the manifest. `closing`: the memory was closed before they were written.
    """

    backend: Backend
    count: int
    reason: ManifestLoss


class ManifestWriteFailed(Event):
    """Records of model calls could not be written. They are retried or dropped; the calls and turns continue."""

    backend: Backend
    error: str
    waiting: int


class MessagesPruned(Event):
    """A retention pass archived or deleted `messages` messages of `sessions` sessions."""

    action: RetentionAction
    sessions: int
    messages: int


class RunsPruned(Event):
    """A retention pass deleted finished runs in whole trees (runs with descendants), and unused workflow versions."""

    trees: int
    runs: int
    versions: int = 0


class IndexingBegan(Event):
    """Many messages must be indexed; searches are incomplete until `IndexingDone`."""

    messages: int


class IndexingDone(Event):
    """Searches are complete again: the messages that `IndexingBegan` reported are indexed."""

    messages: int
    milliseconds: float


class PruningFailed(SessionEvent):
    """A retention pass was interrupted by an error, or skipped a damaged session; the next pass does the rest."""

    error: str


class ExtraNotFound(SessionEvent):
    """A search for facts, passages or older turns failed; the model is called without its results."""

    section: ExtraSection
    error: str


class EmbeddingsSkipped(SessionEvent):
    """An embedding model failed for some messages. Full-text search finds them; embedding is retried later."""

    count: int
    error: str


class RecallIndexNotStored(SessionEvent):
    """The search index of a session could not be stored. This is tried again when the session has more messages."""

    error: str


class ModelFailed(SessionEvent):
    """A model call raised an error."""

    channel: Channel = "other"
    error: str
    run_id: str | None = None


type TurnStatus = Literal["complete", "interrupted", "failed"]
type RunOutcome = Literal["done", "failed", "cancelled", "interrupted", "waiting"]
type RunWork = Literal["engine", "takeover", "watch", "upkeep", "keeping_progress", "ending_turn", "clearing_up"]

RUN_OUTCOMES: tuple[RunOutcome, ...] = get_args(RunOutcome.__value__)


class RunFinished(WorkflowRunEvent):
    """A run ended or waits for a person. `set_aside` is true if only a person can start the run again."""

    status: RunOutcome
    error: str | None = None
    milliseconds: float
    set_aside: bool = False


class BudgetCrossed(WorkflowRunEvent):
    """A run succeeded, but its last model call exceeded the budget of this run or of an ancestor (`budget_run_id`)."""

    limit: str
    used: float
    allowed: float
    budget_run_id: str | None = None


class RunRetried(WorkflowRunEvent):
    """A run failed with a temporary error; `attempt` is the number of the next attempt."""

    error: str
    attempt: int


class RunTakenOver(WorkflowRunEvent):
    """A run was taken over, usually because its process died. `attempt` is the number of the new attempt."""

    attempt: int


class RunTrouble(Event):
    """Background work for runs, such as taking over runs, failed and is retried; `work` is its name."""

    work: RunWork
    error: str


class RunWorkRecovered(Event):
    """Background work for runs succeeds again. Only the work `keeping_progress` emits this event."""

    work: RunWork


class TurnFinished(SessionEvent):
    """A turn ended. `estimated` is true if a provider did not report all tokens."""

    channel: Channel = "other"
    status: TurnStatus = "complete"
    milliseconds: float
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    estimated: bool = False
    workflow: str | None = None
    run_id: str | None = None


type UpdateOutcome = Literal["taken", "repeated", "ignored", "refused"]
type UpdateReason = Literal[
    "malformed",
    "kind",
    "chat_type",
    "no_text",
    "incomplete",
    "from_bot",
    "not_addressed",
    "not_for_us",
    "too_long",
    "too_many",
    "signature_missing",
    "signature_wrong",
    "stale",
    "unreadable",
    "receiver_wrong",
]
type DeliveryOutcome = Literal["delivered", "nothing", "postponed", "failed"]
type ChannelWork = Literal["taking", "delivery", "polling", "following"]

DELIVERY_FAILURES = ("ReplyLimit", "ReplyTimeOver", "SessionState", "InvalidUser", "Forbidden", "NoResponseAddress")
"""The errors of failed deliveries that metrics count under their own names; all others count as `other`."""


class UpdateReceived(SessionEvent):
    """A bot got an update from its platform: it was `taken`, `repeated`, `ignored` or `refused` (for a `reason`)."""

    channel: Channel
    bot: str
    outcome: UpdateOutcome
    reason: UpdateReason | None = None


class AnswerSent(SessionEvent):
    """An attempt of a bot to deliver an answer ended, `milliseconds` after the question was taken.

    `uncertain` is true if a part may have arrived unnoticed or twice, because an attempt had no clear result.
    """

    channel: Channel
    bot: str
    outcome: DeliveryOutcome
    parts: int = 0
    error: str | None = None
    uncertain: bool = False
    milliseconds: float


class ChannelTrouble(Event):
    """Work for one bot or for all bots, such as polling, failed and will be retried."""

    channel: Channel
    bot: str | None = None
    work: ChannelWork
    error: str


type DeliveryResult = Literal["queued", "sent", "confirmed", "repeated", "dead"]
type DeadReason = Literal[
    "not_stored",
    "refused",
    "outbox_full",
    "gone",
    "consent_withdrawn",
    "dropped",
    "purged",
    "undone",
    "not_deleted",
]
type GraphitiWork = Literal["delivery", "recall", "backfill"]
type GraphRecallOutcome = Literal["ok", "partial", "deadline", "failed", "breaker_open"]


class EpisodesDelivered(Event):
    """Messages for a Graphiti server were queued, sent, confirmed, queued again or given up (`dead`)."""

    result: DeliveryResult
    count: int
    reason: DeadReason | None = None


class GraphRecalled(SessionEvent):
    """A turn waited `milliseconds` for a Graphiti server and used `facts` facts."""

    outcome: GraphRecallOutcome
    facts: int = 0
    milliseconds: float


class GraphitiTrouble(Event):
    """Work for a Graphiti server failed and will be retried. `error` is a kind, such as `unreachable`."""

    work: GraphitiWork
    error: str
