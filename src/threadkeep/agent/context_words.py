"""The reasons and outcomes of a context's record in words, for the command line and the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from threadkeep.context.manifest import ContextManifest, Exclusion, ExclusionReason, GraphOutcome, ScopeRecall

_REASONS: Mapping[ExclusionReason, str] = {
    "over_limit": "over the limit of {messages} messages",
    "over_budget": "over the budget of {tokens:,} tokens",
    "before_anchor": "before the place where the window begins",
    "reset": "before the reset",
    "summarised": "a summary stands for it",
    "failed": "an answer that failed",
    "duplicate": "in already",
    "role": "a note, which no model is sent",
    "orphan_tool": "a tool's result without its call, or a call without its result",
    "archived": "archived",
    "folded": "said before in the same words, and counted there",
    "superseded": "taken back, or replaced by a later version",
    "empty": "nothing is in it that could be sent",
}
_OUTCOMES: Mapping[GraphOutcome, str] = {
    "ok": "asked",
    "deadline": "did not answer in time",
    "failed": "failed",
    "breaker_open": "not asked, since it failed a moment ago",
    "off": "off",
    "no_consent": "not asked: no consent was given",
    "untrusted": "not asked: the workspace is not trusted",
}
_COUNTS = {
    "superseded": "do not hold any more",
    "duplicate": "are shown for another scope",
    "over_quota": "are beyond the limit",
    "no_room": "had no room",
    "queued": "messages are not sent yet",
    "unconfirmed": "messages were sent and not seen there yet",
}


def in_words(reason: ExclusionReason, manifest: ContextManifest) -> str:
    """Return a reason in words, with the limits that applied."""
    return _REASONS[reason].format(messages=manifest.max_messages, tokens=manifest.budget or 0)


def recall_in_words(one: ScopeRecall) -> str:
    """Return the outcome of a Graphiti query for a scope, and the reasons for missing facts."""
    outcome = f"{one.shown} of {one.found} facts are shown" if one.outcome == "ok" else _OUTCOMES[one.outcome]
    counts = {words: int(getattr(one, name)) for name, words in _COUNTS.items()}
    return "; ".join([f"{one.scope}: {outcome}", *(f"{count} {words}" for words, count in counts.items() if count)])


def join_ranges(gaps: Sequence[Exclusion]) -> list[Exclusion]:
    """Join consecutive ranges that are excluded for the same reason."""
    joined: list[Exclusion] = []
    for gap in gaps:
        last = joined[-1] if joined else None
        if last is not None and last.reason == gap.reason != "summarised" and last.last_seq + 1 == gap.first_seq:
            joined[-1] = replace(last, last_seq=gap.last_seq)
        else:
            joined.append(gap)
    return joined
