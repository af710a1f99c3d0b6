"""LangChain messages trimmed to the budget of one model call."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from threadkeep.context.cut import CUT_MARK, cut_end, cut_middle, middle_mark
from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.context.trim import Item, Size, plan
from threadkeep.errors import InvalidInput
from threadkeep.workflow.conversion import role_of, text_of
from threadkeep.workflow.counting import count_message


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
    before the older. A tool result that is too big is cut in the middle. `repair` the messages first.

    Args:
        messages: everything that could be sent, in order.
        budget: the most tokens that what is sent may have.
        counter: what counts texts; the estimate by default.
        max_messages: the most user messages, and assistant messages without tool calls, before the newest user message.

    Raises:
        BudgetTooSmall: the system messages, or they and the newest user message cut to its mark, are over the budget.
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


def size_of(message: BaseMessage, counter: TokenCounter) -> Size:
    """The tokens of a message, and of what it can be cut to."""
    tokens = count_message(message, counter)
    text = text_of(message)
    if role_of(message) == "system" or (isinstance(message, AIMessage) and message.tool_calls):
        return Size(tokens, tokens)
    if isinstance(message, ToolMessage):
        return Size(tokens, min(tokens, count_message(with_text(message, middle_mark(len(text))), counter)))
    if isinstance(message.content, str):
        return Size(tokens, min(tokens, counter(CUT_MARK)))
    return Size(tokens, min(tokens, count_message(with_text(message, CUT_MARK), counter)))


def shortened(message: BaseMessage, tokens: int, counter: TokenCounter) -> BaseMessage:
    """A copy of the message with so much of its text that it has at most so many tokens."""
    text = text_of(message)
    fixed = count_message(with_text(message, ""), counter)
    cut = cut_middle if isinstance(message, ToolMessage) else cut_end
    return with_text(message, cut(text, tokens - fixed, counter))


def with_text(message: BaseMessage, text: str) -> BaseMessage:
    """A copy with another text; blocks that are not text stay behind it."""
    if isinstance(message.content, str):
        return message.model_copy(update={"content": text})
    others = [block for block in message.content if not isinstance(block, str) and block.get("type") != "text"]
    return message.model_copy(update={"content": [{"type": "text", "text": text}, *others] if others else text})
