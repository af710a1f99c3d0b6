"""LangChain messages measured: their texts, tool calls, results and media."""

from __future__ import annotations

import json
from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage

from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.records import Message
from threadkeep.workflow.conversion import text_of

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
        return count_message(message_or_messages, measured)
    return sum(count_tokens(one, counter=counter) for one in message_or_messages)


def count_message(message: BaseMessage, counter: TokenCounter) -> int:
    """The tokens of one LangChain message; see `count_tokens`."""
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
