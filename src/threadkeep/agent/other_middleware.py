"""Warnings about the other middleware of an agent: it does the memory's job, or its place in the list loses something.

A middleware is not told what others an agent has. What they do is seen in the messages that come and go.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from threadkeep.agent.conversion import id_of, text_of
from threadkeep.agent.partial import PartialAnswer
from threadkeep.errors import MiddlewareWarning

type Finding = Literal["summaries", "cleared", "behind", "model", "before"]

_SENTENCES: Final[Mapping[Finding, str]] = {
    "summaries": (
        "SummarizationMiddleware and SessionMemory both shorten the conversation, and the model is sent the summary "
        "beside turns that it covers; remove it and use SessionMemory(memory, compression=Compression())."
    ),
    "cleared": (
        "ContextEditingMiddleware and SessionMemory both shorten old tool results; remove it: SessionMemory keeps each "
        "model call within max_tokens."
    ),
    "behind": (
        "A middleware behind SessionMemory changed the messages of a model call: the change is neither within the "
        "budget nor in the manifest; list SessionMemory behind it."
    ),
    "model": (
        "A middleware behind SessionMemory called another model, and the messages were chosen for the window of the "
        "first one; list SessionMemory behind it."
    ),
    "before": (
        "A middleware before SessionMemory changed the answer in after_agent, when it was stored already; list "
        "SessionMemory before it."
    ),
}


class OtherMiddleware:
    """Gives each warning once."""

    def __init__(self) -> None:
        self._found: set[Finding] = set()

    def look_at_state(self, messages: Sequence[BaseMessage]) -> None:
        """Look for summaries and cleared tool results in what the memory is given."""
        if any(message.additional_kwargs.get("lc_source") == "summarization" for message in messages):
            self._warn("summaries")
        if any(map(_is_cleared, messages)):
            self._warn("cleared")

    def look_at_calls(self, sent: Sequence[BaseMessage], heard: PartialAnswer) -> None:
        """Compare what the memory sent with what models were asked."""
        if len(heard.models) > 1:
            self._warn("model")
        if heard.asked and not any(_is_same(sent, messages) for messages in heard.asked):
            self._warn("cleared" if any(map(_is_cleared, heard.asked[-1])) else "behind")

    def look_at_end(self, state: object, answers: Sequence[AIMessage]) -> None:
        """Compare the answers that were stored with the final state of the agent."""
        messages = state.get("messages") if isinstance(state, Mapping) else None
        last = messages[-1] if isinstance(messages, list) and messages else None
        if not isinstance(last, AIMessage) or not last.id:
            return
        if any(id_of(last) == answer.id and text_of(last) != text_of(answer) for answer in answers):
            self._warn("before")

    def _warn(self, finding: Finding) -> None:
        if finding not in self._found:
            self._found.add(finding)
            warnings.warn(_SENTENCES[finding], MiddlewareWarning, stacklevel=2)


def _is_cleared(message: BaseMessage) -> bool:
    editing = message.response_metadata.get("context_editing") if isinstance(message, ToolMessage) else None
    return bool(editing)


def _is_same(sent: Sequence[BaseMessage], asked: Sequence[BaseMessage]) -> bool:
    if len(sent) != len(asked):
        return False
    return all(a is b or (a.type == b.type and a.text == b.text) for a, b in zip(sent, asked, strict=True))
