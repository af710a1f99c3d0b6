"""In-run memory: a LangGraph reducer that bounds the messages in state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from langchain_core.messages import BaseMessage, MessageLikeRepresentation, ToolMessage
from langgraph.graph.message import add_messages

from threadkeep.agent.conversion import text_of
from threadkeep.agent.shortening import items_of, with_text
from threadkeep.context.cut import cut_end, cut_middle
from threadkeep.context.reducers import Bounded, TrimReport, bound

type Messages = Sequence[MessageLikeRepresentation] | MessageLikeRepresentation


class BoundedMessages:
    """A reducer that appends and updates as LangGraph's `add_messages` does, then limits the result.

    It is deterministic. Like `add_messages`, it gives an id to messages that have none.
    """

    def __init__(self, max_messages: int, max_chars: int) -> None:
        self.__name__ = "bounded_messages"  # LangGraph asks every reducer for its name
        self.max_messages = max_messages
        self.max_chars = max_chars
        self._last = TrimReport(0, 0, 0, 0)

    def __call__(self, left: Messages, right: Messages) -> list[BaseMessage]:
        """Return the bounded messages of the state after an update."""
        messages = _added(left, right)
        chosen = self._bound(messages)
        self._last = chosen.report
        return [
            _cut(messages[index], chosen.cuts[index]) if index in chosen.cuts else messages[index]
            for index in chosen.kept
        ]

    def trim_report(self, left: Messages | None = None, right: Messages | None = None) -> TrimReport:
        """Return the report of a reduction; without arguments, the report of the last one in this process."""
        if left is None and right is None:
            return self._last
        return self._bound(_added(left or [], right or [])).report

    def _bound(self, messages: Sequence[BaseMessage]) -> Bounded:
        lengths = [len(text_of(message)) for message in messages]
        return bound(items_of(messages), lengths, max_messages=self.max_messages, max_chars=self.max_chars)


def bounded_messages(max_messages: int = 8, max_chars: int = 8000) -> BoundedMessages:
    """Return a reducer for `messages: Annotated[list[AnyMessage], bounded_messages(...)]`.

    It drops the oldest messages, first by characters, then by number. System messages stay. The newest user message is
    cut with a mark instead of being dropped. Tool calls stay with their results.

    Args:
        max_messages: the maximum number of messages, including system messages; values below 1 count as 1.
        max_chars: the maximum number of characters of their texts; 0 means no limit.
    """
    return BoundedMessages(max_messages, max_chars)


def _added(left: Messages, right: Messages) -> list[BaseMessage]:
    return cast("list[BaseMessage]", add_messages(_listed(left), _listed(right)))


def _cut(message: BaseMessage, characters: int) -> BaseMessage:
    cut = cut_middle if isinstance(message, ToolMessage) else cut_end
    return with_text(message, cut(text_of(message), characters, len))


def _listed(messages: Messages) -> list[MessageLikeRepresentation]:
    if isinstance(messages, BaseMessage | str | dict | tuple):
        return [messages]
    return list(messages)
