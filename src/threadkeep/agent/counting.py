"""LangChain messages measured: their texts, tool calls, results and media."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from langchain_core.messages import AIMessage, BaseMessage

from threadkeep.agent.content_blocks import MEDIA_TOKENS, as_json, count_block, is_call
from threadkeep.agent.conversion import text_of
from threadkeep.context.tokens import TokenCounter, counter_for
from threadkeep.records import Message

__all__ = ["MEDIA_TOKENS", "Countable", "count_message", "count_tokens"]

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
        model: the model that it is for, which chooses the counter: exact for OpenAI's models with the extra `tokens`.
        counter: what counts texts, in place of the model's.
    """
    measured = counter or counter_for(model)
    if isinstance(message_or_messages, str):
        return measured(message_or_messages)
    if isinstance(message_or_messages, Message):
        return measured(message_or_messages.content)
    if isinstance(message_or_messages, BaseMessage):
        return count_message(message_or_messages, measured)
    return sum(count_tokens(one, counter=measured) for one in message_or_messages)


def count_message(message: BaseMessage, counter: TokenCounter) -> int:
    """The tokens of one LangChain message; see `count_tokens`. Always the same for the same message and counter."""
    tokens = sum(counter(call) for call in _calls(message))
    if isinstance(message.content, str):
        return tokens + counter(message.content)
    known = _call_ids(message)
    blocks = [block for block in message.content if not isinstance(block, str) and block.get("type") != "text"]
    tokens += sum(count_block(block, counter) for block in blocks if not is_call(block, known))
    return tokens + counter(text_of(message))


def _calls(message: BaseMessage) -> Iterator[str]:
    """Each tool call as name and arguments; those that the model spelt wrongly are sent back too."""
    if isinstance(message, AIMessage):
        yield from (call["name"] + as_json(call["args"]) for call in message.tool_calls)
        yield from ((call["name"] or "") + (call["args"] or "") for call in message.invalid_tool_calls)


def _call_ids(message: BaseMessage) -> frozenset[str]:
    if not isinstance(message, AIMessage):
        return frozenset()
    return frozenset(call["id"] for call in [*message.tool_calls, *message.invalid_tool_calls] if call["id"])
