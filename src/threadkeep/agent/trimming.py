"""LangChain messages trimmed to the budget of one model call."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from threadkeep.agent.conversion import role_of
from threadkeep.agent.short_forms import shortened, size_of, with_text
from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.context.trim import Item, Size, plan
from threadkeep.errors import InvalidInput

__all__ = ["items_of", "shortened", "size_of", "trim", "with_text"]


def trim(
    messages: Sequence[BaseMessage],
    budget: int,
    *,
    counter: TokenCounter | None = None,
    max_messages: int | None = None,
) -> list[BaseMessage]:
    """The messages that fit into the budget of one model call, by the counter.

    System messages stand first, whole; the newest user message is always there, cut with a mark if it must be; tool
    calls stay with their results; what came after the newest user message goes before history, and the newest of each
    before the older. Tool results and arguments that are too big are cut in the middle, the older ones first; media
    that have no room are replaced by a mark. `repair` the messages first.

    Args:
        messages: everything that could be sent, in order.
        budget: the most tokens that what is sent may have.
        counter: what counts texts; the estimate by default.
        max_messages: the most user messages, and assistant messages without tool calls, before the newest user message.

    Raises:
        BudgetTooSmall: the system messages are over the budget, or they with the newest user message and the newest
            tool call, both cut as short as can be.
        InvalidInput: max_messages is below zero.
    """
    if max_messages is not None and max_messages < 0:
        raise InvalidInput("max_messages is a whole number from 0 (0 means none), or None for no such limit.")
    measured = counter or estimate
    sizes: dict[int, Size] = {}

    def measure(index: int) -> Size:
        if index not in sizes:
            sizes[index] = size_of(messages[index], measured)
        return sizes[index]

    chosen = plan(items_of(messages), measure, budget, max_messages=max_messages)
    return [
        shortened(messages[index], chosen.cuts[index], measured) if index in chosen.cuts else messages[index]
        for index in chosen.kept
    ]


def items_of(messages: Sequence[BaseMessage]) -> list[Item]:
    """The kinds of messages, and which tool calls and results belong together."""
    callers: dict[str, int] = {}
    items: list[Item] = []
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage) and message.tool_calls:
            callers |= {call["id"]: index for call in message.tool_calls if call["id"]}
            items.append(Item("assistant", group=index))
        elif isinstance(message, ToolMessage):
            items.append(Item("tool", group=callers.get(message.tool_call_id)))
        else:
            items.append(Item(role_of(message) or "assistant"))
    return items
