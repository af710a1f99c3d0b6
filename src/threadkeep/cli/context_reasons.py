"""Why something is not in a context, in words."""

from __future__ import annotations

from collections.abc import Mapping

from threadkeep.context.manifest import ContextManifest, ExclusionReason

_WORDS: Mapping[ExclusionReason, str] = {
    "over_limit": "over the limit of {messages} messages",
    "over_budget": "over the budget of {tokens:,} tokens",
    "before_anchor": "before the place where the window begins",
    "reset": "before the reset",
    "summarised": "a summary stands for it",
    "duplicate": "in already",
    "role": "a note, which no model is sent",
    "orphan_tool": "a tool's result without its call, or a call without its result",
    "archived": "archived",
    "folded": "said before in the same words, and counted there",
    "empty": "nothing is in it that could be sent",
}


def in_words(reason: ExclusionReason, manifest: ContextManifest) -> str:
    """A reason as a person says it, with the limits that applied."""
    return _WORDS[reason].format(messages=manifest.max_messages, tokens=manifest.budget or 0)
