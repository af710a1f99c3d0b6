"""The part of a model call that is repeated at the beginning of the next call."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from threadkeep.agent.extras import SECTION_KEY


def told(messages: Sequence[BaseMessage]) -> list[tuple[str, object, object]]:
    """Return the parts of messages that a provider receives."""
    return [(m.type, m.content, m.tool_calls if isinstance(m, AIMessage) else None) for m in messages]


def up_to_input(call: Sequence[BaseMessage]) -> list[tuple[str, object, object]]:
    """Return a call up to its last input or, if earlier, to the first block retrieved for that input."""
    inputs = [n for n, m in enumerate(call) if isinstance(m, HumanMessage) and SECTION_KEY not in m.additional_kwargs]
    found = [n for n, m in enumerate(call) if m.additional_kwargs.get(SECTION_KEY) in ("snippets", "selected")]
    return told(call[: min(inputs[-1] + 1, *found, len(call))])


def shared_beginnings(calls: Sequence[Sequence[BaseMessage]]) -> float:
    """Return the share of calls that begin with the previous call up to its last input."""
    pairs = [(up_to_input(before), told(after)) for before, after in itertools.pairwise(calls)]
    return sum(after[: len(before)] == before for before, after in pairs) / len(pairs)
