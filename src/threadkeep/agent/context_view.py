"""The context of a recorded or a future model call: its manifest with the texts that it refers to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage, BaseMessage

from threadkeep.agent.conversion import text_of
from threadkeep.agent.preview import preview
from threadkeep.agent.rebuilding import ContextParts
from threadkeep.context.manifest import ContextManifest, Entry, Section
from threadkeep.context.plan import EXTRAS
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
class ContextLook:
    """The parameters of a preview: an agent's options, its system prompt, and its model (None: unknown)."""

    options: TurnOptions
    system_prompt: str = ""
    model: BaseChatModel | None = None


@dataclass(frozen=True)
class SeenMessage:
    """A message of a context; role and text are missing if their source no longer exists."""

    entry: Entry
    role: str | None = None
    text: str | None = None
    calls: tuple[str, ...] = ()

    @classmethod
    def of(cls, entry: Entry, message: BaseMessage) -> SeenMessage:
        """Return a message as it was sent, with tool calls as `name(arguments)`."""
        made = message.tool_calls if isinstance(message, AIMessage) else []
        calls = tuple(f"{call['name']}({json.dumps(call['args'], ensure_ascii=False)})" for call in made)
        return cls(entry, _ROLES.get(message.type, message.type), text_of(message), calls)

    @property
    def words(self) -> str:
        """Return the readable text; for a block of quotes or summaries, the part after its introduction."""
        if self.text is None:
            return "(not there any more)"
        text = self.text.partition("\n\n")[2] if self.entry.section in _INTRODUCED else ""
        return " ".join(filter(None, (text or self.text, *(f"→ {call}" for call in self.calls))))

    def to_dict(self) -> dict[str, object]:
        """Return the message as JSON values."""
        values = {name: value for name, value in asdict(self.entry).items() if value not in (None, ())}
        values |= {"seq": self.entry.seq, "role": self.role, "content": self.text}
        return values | ({"tool_calls": list(self.calls)} if self.calls else {})


@dataclass(frozen=True)
class ContextView:
    """The manifest of a call, and its messages with their texts, in sending order."""

    manifest: ContextManifest
    messages: tuple[SeenMessage, ...] = field(repr=False)

    @property
    def sections(self) -> list[tuple[Section, int, int]]:
        """Return tokens and number of messages of each used section; system and window are always included."""
        found = self.manifest.sections
        shown = [name for name in SECTIONS if name in found or name in _ALWAYS_SHOWN]
        return [(name, found.get(name, 0), sum(m.entry.section == name for m in self.messages)) for name in shown]

    @property
    def budget(self) -> int:
        """The most tokens that could be sent."""
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
            "cuts": list(self._cuts()),
            "dropped": manifest.dropped,
        }

    def _cuts(self) -> Iterator[dict[str, object]]:
        for entry in self.manifest.entries:
            if entry.tokens_before is not None:
                yield {"seq": entry.seq, "tokens_before": entry.tokens_before, "tokens_after": entry.tokens}


async def look_ahead(memory: Memory, session: Session, look: ContextLook) -> ContextView:
    """Return a preview of the next model call, without the new input and the results that depend on it.

    Raises:
        SessionNotFound: the session does not exist.
        BudgetTooSmall: the system prompt alone exceeds the budget, so every call would fail.
    """
    await session.info()
    try:
        seen = await preview(memory, session, look.options, system_prompt=look.system_prompt, model=look.model)
    except BudgetTooSmall as error:
        raise BudgetTooSmall(
            f"No message could be answered. {error} The settings are THREADKEEP_SYSTEM_PROMPT and "
            "THREADKEEP_HISTORY_MAX_TOKENS."
        ) from None
    pairs = zip(seen.manifest.entries, seen.messages, strict=True)
    return ContextView(seen.manifest, tuple(SeenMessage.of(entry, message) for entry, message in pairs))


async def look_back(memory: Memory, stored: StoredManifest) -> ContextView:
    """Return a recorded model call, with the texts that still exist."""
    values = {"created_at": stored.created_at.isoformat(), **stored.manifest, "call": stored.call}
    manifest = ContextManifest.from_dict(values)
    parts = await ContextParts.read(manifest, memory)
    return ContextView(manifest, tuple(_seen(parts, entry) for entry in manifest.entries))


def _seen(parts: ContextParts, entry: Entry) -> SeenMessage:
    try:
        return SeenMessage.of(entry, parts.message(entry))
    except ContextGone:
        return SeenMessage(entry)
