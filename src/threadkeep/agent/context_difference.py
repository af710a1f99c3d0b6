"""Differences between two model calls: added, removed and shared messages, with reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, cast

from threadkeep.agent.context_view import ContextView, SeenMessage
from threadkeep.agent.explanations import in_words
from threadkeep.context.manifest import ContextManifest, Entry, ExclusionReason, LeftOut, Section

if TYPE_CHECKING:
    from threadkeep.history.memory import Memory
    from threadkeep.store.manifests import StoredManifest

type Departure = (
    ExclusionReason | Literal["found_anew", "turn_over", "other_summary", "other_prompt", "changed", "deleted"]
)

_DEPARTURES: Mapping[Section, Departure] = {
    "system": "other_prompt",
    "summary": "other_summary",
    "facts": "found_anew",
    "snippets": "found_anew",
    "selected": "found_anew",
}
_WORDS: dict[str, str] = {
    "found_anew": "looked for anew for each input",
    "turn_over": "the turn that it belonged to is over",
    "other_summary": "another summary, or none, stands in its place",
    "other_prompt": "the system message is another one",
    "changed": "in, but cut or written in another way",
    "deleted": "not there any more",
}


@dataclass(frozen=True)
class Difference:
    """Two calls, the earlier one first. `shared` is the number of equal leading messages."""

    before: ContextView
    after: ContextView
    shared: int
    came: tuple[SeenMessage, ...]
    went: tuple[tuple[SeenMessage, Departure], ...]

    @classmethod
    def between(cls, one: ContextView, other: ContextView) -> Difference:
        """Return the difference of two calls, in either order."""
        before, after = sorted((one, other), key=_moment)
        keys = [_key(entry) for entry in before.manifest.entries], [_key(entry) for entry in after.manifest.entries]
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*keys, strict=False)))
        came = tuple(message for message in after.messages if _key(message.entry) not in keys[0])
        gone = (message for message in before.messages if _key(message.entry) not in keys[1])
        went = tuple((message, _departure(message.entry, before.manifest, after.manifest)) for message in gone)
        return cls(before, after, shared, came, went)

    @property
    def shared_tokens(self) -> int:
        """The tokens of the shared messages, by the later call's counter."""
        return sum(entry.tokens for entry in self.after.manifest.entries[: self.shared])

    @property
    def stable(self) -> bool:
        """True if the later call begins with every input-independent message of the earlier call."""
        prefix = self.before.manifest.prefix
        return prefix is not None and prefix.messages <= self.shared

    @property
    def gone(self) -> dict[str, list[SeenMessage]]:
        """The removed messages by the reason in words."""
        gone: dict[str, list[SeenMessage]] = {}
        for message, reason in self.went:
            words = _WORDS.get(reason) or in_words(cast("ExclusionReason", reason), self.after.manifest)
            gone.setdefault(words, []).append(message)
        return gone

    def to_dict(self) -> dict[str, object]:
        """Return the difference as JSON values."""
        return {
            "before": _name(self.before.manifest),
            "after": _name(self.after.manifest),
            "shared": {"messages": self.shared, "tokens": self.shared_tokens, "stable_prefix": self.stable},
            "came": [message.to_dict() for message in self.came],
            "went": [{**message.to_dict(), "reason": reason} for message, reason in self.went],
        }


async def call_before(memory: Memory, call: StoredManifest, *, user_id: str | None = None) -> StoredManifest | None:
    """Return the previous recorded call of a call's session, or of its run if it has no session; None if it is gone."""
    if call.session_id is None:
        older = [one for one in await memory.manifests.of_run(call.run_id) if one.call < call.call][-1:]
    else:
        older = await memory.manifests.of_session(call.session_id, user_id=user_id, limit=1, before=call.cursor)
    return older[0] if older else None


def _departure(entry: Entry, before: ContextManifest, after: ContextManifest) -> Departure:
    """Return the reason why an entry of the earlier call is missing in the later one."""
    if entry.section in _DEPARTURES:
        return _DEPARTURES[entry.section]
    reason = _reason(entry, before, after)
    if reason is None and entry.section == "steps" and before.run_id != after.run_id:
        return "turn_over"
    return reason or "deleted"


def _reason(entry: Entry, before: ContextManifest, after: ContextManifest) -> Departure | None:
    """Return the reason in the later record, or None."""
    gaps = (gap for gap in after.excluded if entry.seq and gap.first_seq <= entry.seq <= gap.last_seq)
    if (gap := next(gaps, None)) is not None:
        return gap.reason
    if (left := next((one for one in reversed(after.left_out) if _is_of(entry, one, before, after)), None)) is not None:
        return left.reason
    return "changed" if any(entry.id and entry.id == other.id for other in after.entries) else None


def _is_of(entry: Entry, left: LeftOut, before: ContextManifest, after: ContextManifest) -> bool:
    """Return True if a message of the earlier call belongs to a range that the later one excluded.

    Only the ends of a range are named; an end that the earlier call did not have is before or after all its
    messages.
    """
    if left.last_id is None or entry.id is None:
        return entry.id is not None and entry.id == left.id
    positions = {other.id: position for position, other in enumerate(before.entries)}
    if before.run_id != after.run_id and left.id not in positions and left.last_id not in positions:
        return False
    return positions.get(left.id, -1) <= positions[entry.id] <= positions.get(left.last_id, len(positions))


def _key(entry: Entry) -> tuple[object, ...]:
    """Return a key that is equal for entries with the same text."""
    match entry.source:
        case "transcript":
            return "transcript", entry.id or entry.seq
        case "summaries":
            return "summaries", entry.summaries
        case "turns":
            return "turns", entry.turns
        case "text":
            return "text", entry.digest


def _moment(view: ContextView) -> tuple[str, int]:
    made = view.manifest.created_at
    return (made.isoformat() if made else "", view.manifest.call)


def _name(manifest: ContextManifest) -> dict[str, object]:
    return {name: getattr(manifest, name) for name in ("session_id", "run_id", "call", "created_at", "tokens")}
