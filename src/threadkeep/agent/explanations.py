"""Explanations of a recorded model call in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from threadkeep.context.manifest import ContextManifest, FactExclusion, FactsLeftOut, GraphOutcome, ScopeRecall
from threadkeep.context.window import ExclusionReason
from threadkeep.records import Message, SessionInfo, Summary

_REASONS: Mapping[ExclusionReason, str] = {
    "over_limit": "over the limit of {messages} messages",
    "over_budget": "over the budget of {tokens:,} tokens",
    "before_anchor": "before the beginning of the window",
    "reset": "before the reset",
    "summarised": "a summary stands for it",
    "failed": "an answer that failed",
    "duplicate": "already in the call",
    "role": "a system note, which models do not receive",
    "orphan_tool": "a tool's result without its call, or a call without its result",
    "archived": "archived",
    "folded": "repeated later in the same words, and counted there",
    "superseded": "taken back, or replaced by a later version",
    "empty": "without content that can be sent",
}
_OUTCOMES: Mapping[GraphOutcome, str] = {
    "ok": "asked",
    "deadline": "did not answer in time",
    "failed": "failed",
    "breaker_open": "not asked, because it failed a moment ago",
    "off": "off",
    "no_consent": "not asked: no consent was given",
    "untrusted": "not asked: the workspace is not trusted",
}
_COUNTS = {
    "superseded": "are no longer valid",
    "duplicate": "are shown for another scope",
    "over_quota": "are beyond the limit",
    "no_room": "did not fit",
    "queued": "messages are not sent yet",
    "unconfirmed": "messages were sent, but are not confirmed yet",
    "dead": "messages were given up; see `threadkeep knowledge deliveries`",
}
_LEFT_OUT: Mapping[FactExclusion, str] = {
    "no_room": "did not fit",
    "same_key": "are hidden by another fact with the same key",
    "over_limit": "further facts are not relevant to the input",
}


def in_words(reason: ExclusionReason, manifest: ContextManifest) -> str:
    """Say in words why a message was excluded, such as `over the limit of 20 messages`."""
    return _REASONS[reason].format(messages=manifest.max_messages, tokens=manifest.budget or 0)


def recall_in_words(one: ScopeRecall) -> str:
    """Say in words how a Graphiti query for the facts of one session, workspace or user (a scope) has ended."""
    outcome = f"{one.shown} of {one.found} facts are shown" if one.outcome == "ok" else _OUTCOMES[one.outcome]
    counts = {words: int(getattr(one, name)) for name, words in _COUNTS.items()}
    return "; ".join([f"{one.scope}: {outcome}", *(f"{count} {words}" for words, count in counts.items() if count)])


def describe_left_out(one: FactsLeftOut) -> str:
    """Say in words why facts about a session, a workspace or a user (a scope) were not sent to the model."""
    count = f"{one.count} " if one.count else ""
    ids = f" ({', '.join(one.ids)}{', …' if one.count > len(one.ids) else ''})" if one.ids else ""
    return f"{one.scope}: {count}{_LEFT_OUT[one.reason]}{ids}"


type OutcomeKind = Literal[
    "shown", "recalled", "fact", "summarised", "left_out", "later", "elsewhere", "foreign", "unknown"
]


@dataclass(frozen=True)
class MessageOutcome:
    """The treatment of a message in a model call (sent, quoted, left out, …)."""

    kind: OutcomeKind
    words: str


@dataclass(frozen=True)
class CallRecord:
    """A recorded model call (`manifest`), its session, and all summaries of the session by id."""

    manifest: ContextManifest
    session: SessionInfo
    summaries: Mapping[str, Summary]


def outcome_of(message: Message, home: SessionInfo, call: CallRecord) -> MessageOutcome:
    """Return what happened to a message of the session `home` in a recorded call."""
    own = home.session_id == call.session.session_id
    found = _sent_as_itself(message, call.manifest) if own else None
    found = found or _quoted(message, home.session_id, call.manifest)
    if found is not None:
        return found
    if own:
        return _absent(message, call)
    if home.user_id != call.session.user_id:
        owner = "in a session without a user" if home.user_id is None else f"another user's ({home.user_id})"
        return MessageOutcome("foreign", f"{owner}, so it is never recalled here")
    return MessageOutcome("elsewhere", "in another session of the same user, and not recalled for this call")


def _sent_as_itself(message: Message, manifest: ContextManifest) -> MessageOutcome | None:
    for entry in manifest.entries:
        same = entry.seq == message.seq if entry.seq is not None else entry.id is not None and entry.id == message.id
        if same and (entry.source == "transcript" or entry.section in ("window", "input")):
            words = "the input of the call" if entry.section == "input" else "in the window"
            if entry.tokens_before is not None:
                words += f", cut from {entry.tokens_before:,} to {entry.tokens:,} tokens"
            elif entry.source != "transcript":  # such as a repeated question with its count
                words += ", in another form than stored"
            return MessageOutcome("shown", words)
    return None


def _quoted(message: Message, session_id: str, manifest: ContextManifest) -> MessageOutcome | None:
    for entry in manifest.entries:
        for rank, turn in enumerate(entry.turns, 1):
            if (turn.session_id, turn.seq) == (session_id, message.seq):
                return MessageOutcome("recalled", f"recalled at rank {rank} of {len(entry.turns)}")
        for fact in entry.facts:
            if any((turn.session_id, turn.seq) == (session_id, message.seq) for turn in fact.evidence):
                return MessageOutcome("fact", f"as the evidence of a known fact of the {fact.scope}")
    return None


def _absent(message: Message, call: CallRecord) -> MessageOutcome:
    """Return what happened to a message of the call's session that was neither sent (whole or cut) nor quoted."""
    seq, manifest = message.seq or 0, call.manifest
    gap = next((gap for gap in manifest.excluded if gap.first_seq <= seq <= gap.last_seq), None)
    if gap is None:
        newest = max([entry.seq or 0 for entry in manifest.entries] + [one.last_seq for one in manifest.excluded] + [0])
        if seq > newest:
            return MessageOutcome("later", "said after this call")
        return MessageOutcome("unknown", "not in the record of the call")
    if gap.reason == "summarised":
        sent = (call.summaries.get(name) for entry in manifest.entries for name in entry.summaries)
        found = next((one for one in sent if one is not None and one.first_seq <= seq <= one.last_seq), None)
        where = f"in the summary of {found.first_seq}–{found.last_seq}" if found else "a summary stands for it"
        return MessageOutcome("summarised", where)
    return MessageOutcome("left_out", in_words(gap.reason, manifest))
