"""A preview of the next model call of a session, without its input."""

from __future__ import annotations

from dataclasses import dataclass, replace

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.utils.uuid import uuid7

from threadkeep.agent.call_measure import ModelUse
from threadkeep.agent.turn_context import TurnContext
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.context.manifest import ContextManifest
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session

_PLACEHOLDER = "…"


@dataclass(frozen=True)
class Preview:
    """A context that is not sent: its manifest, and the message of each entry."""

    manifest: ContextManifest
    messages: tuple[BaseMessage, ...]


async def preview(
    memory: Memory,
    session: Session,
    options: TurnOptions,
    *,
    system_prompt: str = "",
    model: BaseChatModel | None = None,
) -> Preview:
    """Return the context of the next call of an agent with these options, without storing anything.

    Sections that depend on the input (recalled turns, passages, tool calls) are not in it.

    Raises:
        BudgetTooSmall: the system prompt leaves no room for any input.
    """
    question = HumanMessage(_PLACEHOLDER, id=str(uuid7()))
    contexts = TurnContext(memory, session, replace(options, sources=()), [question])
    system = SystemMessage(system_prompt) if system_prompt else None
    sent = await contexts.build([question], system, ModelUse(model), run_id="")
    manifest = contexts.manifest
    if manifest is None:
        raise RuntimeError("A context that was built has a record.")
    messages = [*([sent.system] if sent.system else []), *sent.messages]
    kept = [place for place, entry in enumerate(manifest.entries) if entry.section != "input"]
    entries = tuple(manifest.entries[place] for place in kept)
    shown = replace(manifest, entries=entries, tokens=sum(entry.tokens for entry in entries))
    return Preview(shown, tuple(messages[place] for place in kept))
