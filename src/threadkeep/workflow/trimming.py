"""LangChain messages measured, and trimmed to the budget of one model call."""

from __future__ import annotations

import json
from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from threadkeep.context.cut import CUT_MARK, cut_end, cut_middle, middle_mark
from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.context.trim import Item, Size, plan
from threadkeep.errors import InvalidInput
from threadkeep.records import Message
from threadkeep.workflow.conversion import role_of, text_of

MEDIA_TOKENS = 1_000
"""What an image, a recording or a file counts: providers charge by size, not by the length of its base64 text."""

_MEDIA = frozenset(
    {"image", "image_url", "input_image", "audio", "input_audio", "video", "file", "input_file", "document", "media"}
)
_TEXTS = {"text": "text", "thinking": "thinking", "reasoning": "reasoning", "text-plain": "text"}
_CALLS = frozenset({"tool_use", "tool_call", "function_call"})
_BASE64_FIELDS = frozenset({"data", "base64", "bytes", "encrypted_content", "signature"})

type Countable = str | Message | BaseMessage


def count_tokens(
    message_or_messages: Countable | Sequence[Countable],
    model: str | None = None,
    *,
    counter: TokenCounter | None = None,
) -> int:
    """The tokens of a text, a message, or several of them.

    Text blocks, reasoning, tool calls (name and JSON arguments) and tool results are counted; an image, a recording
    or a file counts `MEDIA_TOKENS`, never the length of its base64 text. What a provider adds as frame of each
    message is not counted: `input_budget` keeps room for it.

    Args:
        message_or_messages: what to count.
        model: the model that it is for; the offline estimate is the same for all.
        counter: what counts texts; the estimate by default.
    """
    del model
    measured = counter or estimate
    if isinstance(message_or_messages, str):
        return measured(message_or_messages)
    if isinstance(message_or_messages, Message):
        return measured(message_or_messages.content)
    if isinstance(message_or_messages, BaseMessage):
        return _count(message_or_messages, measured)
    return sum(count_tokens(one, counter=counter) for one in message_or_messages)


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
            sizes[index] = _size(messages[index], measured)
        return sizes[index]

    chosen = plan(items_of(messages), measure, budget, max_messages=max_messages)
    return [
        _cut(messages[index], chosen.cuts[index], measured) if index in chosen.cuts else messages[index]
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


def _size(message: BaseMessage, counter: TokenCounter) -> Size:
    tokens = _count(message, counter)
    text = text_of(message)
    if role_of(message) == "system" or (isinstance(message, AIMessage) and message.tool_calls):
        return Size(tokens, tokens)
    mark = middle_mark(len(text)) if isinstance(message, ToolMessage) else CUT_MARK
    return Size(tokens, min(tokens, _count(with_text(message, mark), counter)))


def _cut(message: BaseMessage, tokens: int, counter: TokenCounter) -> BaseMessage:
    """A copy of the message with so much of its text that it has at most so many tokens."""
    text = text_of(message)
    fixed = _count(with_text(message, ""), counter)
    cut = cut_middle if isinstance(message, ToolMessage) else cut_end
    return with_text(message, cut(text, tokens - fixed, counter))


def with_text(message: BaseMessage, text: str) -> BaseMessage:
    """A copy with another text; blocks that are not text stay behind it."""
    if isinstance(message.content, str):
        return message.model_copy(update={"content": text})
    others = [block for block in message.content if not isinstance(block, str) and block.get("type") != "text"]
    return message.model_copy(update={"content": [{"type": "text", "text": text}, *others] if others else text})


def _count(message: BaseMessage, counter: TokenCounter) -> int:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    tokens = sum(counter(call["name"] + _json(call["args"])) for call in calls)
    if isinstance(message.content, str):
        return tokens + counter(message.content)
    tokens += counter(text_of(message))
    for block in message.content:
        if not isinstance(block, str) and block.get("type") != "text" and not (calls and block.get("type") in _CALLS):
            tokens += _count_block(block, counter)
    return tokens


def _count_block(block: dict[str, object], counter: TokenCounter) -> int:
    kind = str(block.get("type"))
    if kind in _MEDIA:
        return MEDIA_TOKENS
    if kind in _TEXTS and isinstance(text := block.get(_TEXTS[kind]), str):
        return counter(text)
    blobs = [key for key, value in block.items() if key in _BASE64_FIELDS and isinstance(value, str)]
    rest = {key: value for key, value in block.items() if key not in blobs}
    return counter(_json(rest)) + MEDIA_TOKENS * len(blobs)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
