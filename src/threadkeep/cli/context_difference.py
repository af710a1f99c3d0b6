"""What changed from one model call to another: what came, what went and why, and what they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from threadkeep.cli.context_drawing import show_title
from threadkeep.cli.context_reasons import in_words
from threadkeep.cli.context_rows import Row, row_of, say_rows
from threadkeep.cli.context_view import ContextView, SeenMessage
from threadkeep.cli.terminal import Terminal
from threadkeep.cli.wording import counted
from threadkeep.context.manifest import ContextManifest, Entry, ExclusionReason, LeftOut, Section

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
    """Two calls, the earlier one first. `shared` is how many leading messages are the same in both."""

    before: ContextView
    after: ContextView
    shared: int
    came: tuple[SeenMessage, ...]
    went: tuple[tuple[SeenMessage, Departure], ...]

    @classmethod
    def between(cls, one: ContextView, other: ContextView) -> Difference:
        """The difference of two calls, whichever was first."""
        before, after = sorted((one, other), key=_moment)
        keys = [_key(entry) for entry in before.manifest.entries], [_key(entry) for entry in after.manifest.entries]
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*keys, strict=False)))
        came = tuple(message for message in after.messages if _key(message.entry) not in keys[0])
        gone = (message for message in before.messages if _key(message.entry) not in keys[1])
        went = tuple((message, _departure(message.entry, before.manifest, after.manifest)) for message in gone)
        return cls(before, after, shared, came, went)

    @property
    def shared_tokens(self) -> int:
        """The tokens of what is shared, by the later call's counter."""
        return sum(entry.tokens for entry in self.after.manifest.entries[: self.shared])

    @property
    def stable(self) -> bool:
        """Whether the later call begins with all that did not depend on the earlier one's input."""
        prefix = self.before.manifest.prefix
        return prefix is not None and prefix.messages <= self.shared

    def to_dict(self) -> dict[str, object]:
        """All of it as JSON values."""
        return {
            "before": _name(self.before.manifest),
            "after": _name(self.after.manifest),
            "shared": {"messages": self.shared, "tokens": self.shared_tokens, "stable_prefix": self.stable},
            "came": [message.to_dict() for message in self.came],
            "went": [{**message.to_dict(), "reason": reason} for message, reason in self.went],
        }


def show_difference(terminal: Terminal, difference: Difference) -> None:
    """Say what is shared, then what came and what went."""
    before, after = difference.before.manifest, difference.after.manifest
    show_title(terminal, before, "from  ")
    show_title(terminal, after, "to    ")
    terminal.say()
    for line in _sharing(difference):
        terminal.labelled("", line)
    terminal.say()
    if not difference.came and not difference.went:
        terminal.say("Nothing came and nothing went.")
        return
    width = terminal.out.width
    came = [row_of(message, after, characters=width) for message in difference.came]
    gone: dict[str, list[Row]] = {}
    for message, reason in difference.went:
        gone.setdefault(_why(reason, after), []).append(row_of(message, before, characters=width))
    say_rows(terminal, [("+", "", came), *(("-", f"- {why}:", rows) for why, rows in gone.items())], marked=True)


def _sharing(difference: Difference) -> list[str]:
    before, after = difference.before.manifest, difference.after.manifest
    share = 100 * difference.shared_tokens / max(after.tokens, 1)
    tokens = f"{difference.shared_tokens:,} of {counted(after.tokens, 'token')} ({share:.0f} %)"
    same = f"Both begin with the same {counted(difference.shared, 'message')}"
    lines = [f"{same}: {tokens}, which a provider's prompt cache can reuse."]
    if after.reported is not None:
        lines.append(f"The provider took {counted(after.reported.cached_tokens, 'token')} from its cache.")
    if difference.stable:
        lines.append("All that did not depend on the earlier input is at the beginning of the later call too.")
    elif before.anchor_seq != after.anchor_seq:
        lines.append(
            f"The window was cut back: it began at message {max(before.anchor_seq, 1)}, then at {after.anchor_seq}."
        )
    else:
        lines.append("What did not depend on the earlier input changed; the first line below says what.")
    return lines


def _departure(entry: Entry, before: ContextManifest, after: ContextManifest) -> Departure:
    """Why the later call does not have what the earlier one had."""
    if entry.section in _DEPARTURES:
        return _DEPARTURES[entry.section]
    reason = _reason(entry, before, after)
    if reason is None and entry.section == "steps" and before.run_id != after.run_id:
        return "turn_over"
    return reason or "deleted"


def _reason(entry: Entry, before: ContextManifest, after: ContextManifest) -> Departure | None:
    """What the later record says of it."""
    gaps = (gap for gap in after.excluded if entry.seq and gap.first_seq <= entry.seq <= gap.last_seq)
    if (gap := next(gaps, None)) is not None:
        return gap.reason
    if (left := next((one for one in reversed(after.left_out) if _is_of(entry, one, before, after)), None)) is not None:
        return left.reason
    return "changed" if any(entry.id and entry.id == other.id for other in after.entries) else None


def _is_of(entry: Entry, left: LeftOut, before: ContextManifest, after: ContextManifest) -> bool:
    """Whether a message of the earlier call is of a stretch that the later one was not sent.

    Only the ends of a stretch are named; one that the earlier call did not have is before, or behind, all that it had.
    """
    if left.last_id is None or entry.id is None:
        return entry.id is not None and entry.id == left.id
    places = {other.id: place for place, other in enumerate(before.entries)}
    if before.run_id != after.run_id and left.id not in places and left.last_id not in places:
        return False
    return places.get(left.id, -1) <= places[entry.id] <= places.get(left.last_id, len(places))


def _why(reason: Departure, after: ContextManifest) -> str:
    match reason:
        case "found_anew" | "turn_over" | "other_summary" | "other_prompt" | "changed" | "deleted":
            return _WORDS[reason]
        case _:
            return in_words(reason, after)


def _key(entry: Entry) -> tuple[object, ...]:
    """What two entries of the same text have in common."""
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
    made = manifest.created_at
    return {
        "session_id": manifest.session_id,
        "run_id": manifest.run_id,
        "call": manifest.call,
        "created_at": made.isoformat() if made else None,
        "tokens": manifest.tokens,
    }
