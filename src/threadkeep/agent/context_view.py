"""Views of model calls: the messages of a recorded call or of the next call, and differences between two calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.utils.uuid import uuid7

from threadkeep.agent.call_measure import ModelUse
from threadkeep.agent.conversion import text_of
from threadkeep.agent.explanations import in_words
from threadkeep.agent.rebuilding import ContextParts, recorded
from threadkeep.agent.turn_context import TurnContext
from threadkeep.context.manifest import ContextManifest, Entry, LeftOut, Section
from threadkeep.context.plan import EXTRAS
from threadkeep.context.window import ExclusionReason
from threadkeep.errors import BudgetTooSmall, ContextGone

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from threadkeep.agent.turn_options import TurnOptions
    from threadkeep.history.memory import Memory
    from threadkeep.history.session import Session
    from threadkeep.store.manifests import StoredManifest

SECTIONS: tuple[Section, ...] = (
    "system", "summary", "window", "earlier_steps", "input", "facts", "snippets", "selected", "steps",
)  # fmt: skip
_ALWAYS_SHOWN = ("system", "window")
_INTRODUCED = ("summary", *EXTRAS)
_ROLES = {"human": "user", "ai": "assistant"}


@dataclass(frozen=True)
class PreviewOptions:
    """The inputs for a preview of the next model call: an agent's options, its system prompt, and its model."""

    options: TurnOptions
    system_prompt: str = ""
    model: BaseChatModel | None = None


@dataclass(frozen=True)
class SeenMessage:
    """A message of a model call, and its entry in the call's record. `role` and `text` are None if it was deleted."""

    entry: Entry
    role: str | None = None
    text: str | None = None
    calls: tuple[str, ...] = ()

    @classmethod
    def of(cls, entry: Entry, message: BaseMessage) -> SeenMessage:
        """Return the message as sent to the model, with tool calls as `name(arguments)`."""
        made = message.tool_calls if isinstance(message, AIMessage) else []
        calls = tuple(f"{call['name']}({json.dumps(call['args'], ensure_ascii=False)})" for call in made)
        return cls(entry, _ROLES.get(message.type, message.type), text_of(message), calls)

    @property
    def words(self) -> str:
        """The text and the tool calls of the message, or a notice if the message was deleted."""
        if self.text is None:
            return "(no longer stored)"
        text = self.text.partition("\n\n")[2] if self.entry.section in _INTRODUCED else ""
        return " ".join(filter(None, (text or self.text, *(f"→ {call}" for call in self.calls))))

    def to_dict(self) -> dict[str, object]:
        """Return the message as JSON values."""
        values = {name: value for name, value in asdict(self.entry).items() if value not in (None, ())}
        values |= {"seq": self.entry.seq, "role": self.role, "content": self.text}
        return values | ({"tool_calls": list(self.calls)} if self.calls else {})


@dataclass(frozen=True)
class ContextView:
    """The record of a model call (its manifest), and the messages with their texts, in sending order."""

    manifest: ContextManifest
    messages: tuple[SeenMessage, ...] = field(repr=False)

    @property
    def sections(self) -> list[tuple[Section, int, int]]:
        """The name, tokens and message count of each section. Only `system` and `window` are listed if empty."""
        found = self.manifest.sections
        shown = [name for name in SECTIONS if name in found or name in _ALWAYS_SHOWN]
        return [(name, found.get(name, 0), sum(m.entry.section == name for m in self.messages)) for name in shown]

    @property
    def budget(self) -> int:
        """The maximum number of tokens of the call, or the tokens sent if it has no budget."""
        return self.manifest.budget or self.manifest.tokens

    @property
    def free(self) -> int:
        """The unused tokens of the budget."""
        return max(self.budget - self.manifest.tokens, 0)

    def to_dict(self) -> dict[str, object]:
        """Return the view as JSON values."""
        manifest = self.manifest
        values = {key: value for key, value in manifest.to_dict().items() if key not in ("entries", "sections")}
        return {
            "call": None,
            **values,
            "max_messages": manifest.max_messages,
            "max_tokens": manifest.budget,
            "tokens": manifest.tokens,
            "tools": manifest.tools,
            "free": self.free,
            "window": manifest.window,
            "anchor_seq": manifest.anchor_seq,
            "sections": [{"name": name, "tokens": n, "messages": count} for name, n, count in self.sections],
            "messages": [message.to_dict() for message in self.messages],
            "excluded": [asdict(gap) for gap in manifest.excluded],
            "left_out": [asdict(one) for one in manifest.left_out],
            "cuts": [
                {"seq": entry.seq, "tokens_before": entry.tokens_before, "tokens_after": entry.tokens}
                for entry in manifest.entries
                if entry.tokens_before is not None
            ],
            "dropped": manifest.dropped,
        }


async def preview(memory: Memory, session: Session, parameters: PreviewOptions) -> ContextView:
    """Return a preview of the next model call, without the new input and the messages that depend on it.

    Raises:
        SessionNotFound: the session does not exist, or belongs to another user.
        BudgetTooSmall: the system prompt alone exceeds the budget, so every call would fail.
    """
    await session.info()
    question = HumanMessage("…", id=str(uuid7()))
    # Leave out the sections that depend on the input, which is unknown.
    contexts = TurnContext(memory, session, replace(parameters.options, sources=()), [question], run_id="")
    system = SystemMessage(parameters.system_prompt) if parameters.system_prompt else None
    try:
        sent = await contexts.context([question], system, ModelUse(parameters.model))
    except BudgetTooSmall as error:
        raise BudgetTooSmall(
            f"No message could be answered. {error} The settings are THREADKEEP_SYSTEM_PROMPT and "
            "THREADKEEP_HISTORY_MAX_TOKENS."
        ) from None
    manifest = contexts.manifest
    if manifest is None:
        raise RuntimeError("A context that was built has a record.")
    pairs = zip(manifest.entries, [*([sent.system] if sent.system else []), *sent.messages], strict=True)
    seen = tuple(SeenMessage.of(entry, message) for entry, message in pairs if entry.section != "input")
    entries = tuple(one.entry for one in seen)
    return ContextView(replace(manifest, entries=entries, tokens=sum(entry.tokens for entry in entries)), seen)


async def recorded_view(memory: Memory, stored: StoredManifest) -> ContextView:
    """Return the view of a recorded model call. Deleted messages have no text."""
    manifest = recorded(stored)
    parts = await ContextParts.read(manifest, memory)
    return ContextView(manifest, tuple(_seen(parts, entry) for entry in manifest.entries))


def _seen(parts: ContextParts, entry: Entry) -> SeenMessage:
    try:
        return SeenMessage.of(entry, parts.message(entry))
    except ContextGone:
        return SeenMessage(entry)


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
    "found_anew": "searched again for each input",
    "turn_over": "its turn has ended",
    "other_summary": "another summary, or none, is sent instead",
    "other_prompt": "the system message is different",
    "changed": "still sent, but cut or written differently",
    "deleted": "no longer stored",
}


@dataclass(frozen=True)
class Difference:
    """The difference between two calls.

    `shared` is the number of equal messages at the beginning. `came` has the messages that only the later call has.
    `went` has the messages that only the earlier call has, each with the reason why the later call lacks it.
    """

    before: ContextView
    after: ContextView
    shared: int
    came: tuple[SeenMessage, ...]
    went: tuple[tuple[SeenMessage, Departure], ...]

    @classmethod
    def between(cls, one: ContextView, other: ContextView) -> Difference:
        """Return the difference between two calls, passed in either order."""
        before, after = sorted((one, other), key=lambda view: (str(view.manifest.created_at or ""), view.manifest.call))
        keys = [_key(entry) for entry in before.manifest.entries], [_key(entry) for entry in after.manifest.entries]
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*keys, strict=False)))
        came = tuple(message for message in after.messages if _key(message.entry) not in keys[0])
        removed = (message for message in before.messages if _key(message.entry) not in keys[1])
        went = tuple((message, _departure(message.entry, before.manifest, after.manifest)) for message in removed)
        return cls(before, after, shared, came, went)

    @property
    def shared_tokens(self) -> int:
        """The tokens of the shared messages, as the later call counted them."""
        return sum(entry.tokens for entry in self.after.manifest.entries[: self.shared])

    @property
    def stable(self) -> bool:
        """True if the later call begins with the earlier call's prefix, which the provider may have cached."""
        prefix = self.before.manifest.prefix
        return prefix is not None and prefix.messages <= self.shared

    @property
    def gone(self) -> dict[str, list[SeenMessage]]:
        """The messages that only the earlier call has, grouped by the reason why they are missing in the later one."""
        removed: dict[str, list[SeenMessage]] = {}
        for message, reason in self.went:
            words = _WORDS.get(reason) or in_words(cast("ExclusionReason", reason), self.after.manifest)
            removed.setdefault(words, []).append(message)
        return removed

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
    """Return the call that was recorded before `call` in the same session, or in the same run if it has no session."""
    if call.session_id is None:
        older = [one for one in await memory.manifests.of_run(call.run_id) if one.call < call.call][-1:]
    else:
        older = await memory.manifests.of_session(call.session_id, user_id=user_id, limit=1, before=call.cursor)
    return older[0] if older else None


def _departure(entry: Entry, before: ContextManifest, after: ContextManifest) -> Departure:
    """Return the reason why a message of the earlier model call (its `entry`) is missing in the later one."""
    if entry.section in _DEPARTURES:
        return _DEPARTURES[entry.section]
    gaps = (gap for gap in after.excluded if entry.seq and gap.first_seq <= entry.seq <= gap.last_seq)
    if (gap := next(gaps, None)) is not None:
        return gap.reason
    if (left := next((one for one in reversed(after.left_out) if _is_of(entry, one, before, after)), None)) is not None:
        return left.reason
    if any(entry.id and entry.id == other.id for other in after.entries):
        return "changed"
    return "turn_over" if entry.section == "steps" and before.run_id != after.run_id else "deleted"


def _is_of(entry: Entry, left: LeftOut, before: ContextManifest, after: ContextManifest) -> bool:
    """Return True if the message of `entry` is in `left`, a range of messages that the later call left out."""
    if left.last_id is None or entry.id is None:
        return entry.id is not None and entry.id == left.id
    positions = {other.id: position for position, other in enumerate(before.entries)}
    if before.run_id != after.run_id and left.id not in positions and left.last_id not in positions:
        return False
    return positions.get(left.id, -1) <= positions[entry.id] <= positions.get(left.last_id, len(positions))


def _key(entry: Entry) -> tuple[object, ...]:
    """Return a key that is equal for manifest entries of messages with the same content."""
    match entry.source:
        case "transcript":
            return "transcript", entry.id or entry.seq
        case "summaries":
            return "summaries", entry.summaries
        case "turns":
            return "turns", entry.turns
        case "text":
            return "text", entry.digest


def _name(manifest: ContextManifest) -> dict[str, object]:
    return {name: getattr(manifest, name) for name in ("session_id", "run_id", "call", "created_at", "tokens")}
