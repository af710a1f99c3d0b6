"""Counts the tokens of LangChain messages and of their content blocks, in the block formats of all providers."""

from __future__ import annotations

import binascii
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import BytesIO

from langchain_core.messages import AIMessage, BaseMessage

from threadkeep.boundary import ErrorBoundary
from threadkeep.context.tokens import TokenCounter, counter_for
from threadkeep.records import Message

MEDIA_TOKENS = 1_000
"""The tokens counted for an image, a recording or a file, regardless of the length of its data."""

PDF_PAGE_TOKENS = 2_300
"""The tokens counted for a page of a PDF. Claude charges about this number, Gemini 560."""

LOW_DETAIL_TOKENS = 100
"""The tokens counted for an image that is sent with `detail: low`."""

_OPAQUE_CHARACTERS = 6  # characters of encrypted base64 text that count as one token
_MEDIA = frozenset(
    {"image", "image_url", "input_image", "audio", "input_audio", "video", "file", "input_file", "document", "media"}
)
_MEDIA_NAMES = {"video": "video"} | dict.fromkeys(("image", "image_url", "input_image"), "image")
_MEDIA_NAMES |= dict.fromkeys(("audio", "input_audio"), "recording")
_TEXTS = {"thinking": "thinking", "reasoning": "reasoning", "refusal": "refusal"} | dict.fromkeys(
    ("text", "text-plain", "input_text", "output_text", "summary_text", "reasoning_text"), "text"
)
_PARTS = {"tool_result": "content", "reasoning": "summary", "document": "source", "content": "content"}
_CALLS = frozenset({"tool_use", "tool_call", "function_call", "invalid_tool_call"})
_BLOBS = frozenset({"data", "base64", "bytes", "b64_json", "file_data", "image_data", "audio_data"})
_SIGNATURES = frozenset({"signature", "thought_signature"})  # providers charge nothing for them
_BASE64 = re.compile(r"[A-Za-z0-9+/_=\s-]{64,}")
_DATA_ADDRESS = re.compile(r"data:[^,]{0,200};base64,")
_LONG = 1_024
_PDF = re.compile(r"(?:data:application/pdf[^,]{0,200};base64,)?(?=JVBERi)")  # "%PDF-" in base64
_MOST_PDF_PAGES = 1_000


def is_call(block: Mapping[str, object], known: frozenset[str]) -> bool:
    """Return True if a content block duplicates one of its message's tool calls, which have the ids `known`."""
    if block.get("type") not in _CALLS or not known:
        return False
    given = call_id_of(block)
    return given is None or given in known


def call_id_of(block: Mapping[str, object]) -> object:
    """Return the id of the tool call that a content block contains."""
    return block.get("call_id") or block.get("id")


def media_name(block: object) -> str:
    """Return the name of a content block's kind, such as `image`, for the mark (`[image]`) that replaces the block."""
    kind = str(block.get("type")) if isinstance(block, Mapping) else ""
    return _MEDIA_NAMES.get(kind, "file" if kind in _MEDIA else "part")


def media_indexes(message: BaseMessage) -> list[int]:
    """Return the indexes of the content blocks that can be left out: all blocks except text.

    In an assistant's message, only media can be left out, because providers require its blocks of reasoning and
    searches.
    """
    if isinstance(message.content, str):
        return []
    blocks = ((index, block) for index, block in enumerate(message.content) if not is_text(block))
    spoken = isinstance(message, AIMessage)
    return [index for index, block in blocks if not spoken or media_name(block) != "part"]


def media_type(mime_type: object) -> str:
    """Return the type of a content block for data of a MIME type, such as `image`."""
    kind = str(mime_type).partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "file"


def media_mark(blocks: Sequence[object], fate: str = "") -> str:
    """Return the marks that replace blocks, one for each kind: `[image] [2 files]`. `fate` is put into each mark."""
    names = Counter(media_name(block) for block in blocks)
    return " ".join(f"[{name if n == 1 else f'{n} {name}s'}{fate}]" for name, n in names.items())


def is_text(block: object) -> bool:
    """Return True if a block is text: a string, or a mapping of type `text`."""
    return isinstance(block, str) or (isinstance(block, Mapping) and block.get("type") == "text")


def count_block(block: object, counter: TokenCounter) -> int:
    """Return the number of tokens of one content block. Media and PDF pages have fixed numbers of tokens.

    A block of unknown shape is counted as JSON, except its base64 data, which count as media.
    """
    if isinstance(block, str):
        return counter(block)
    if isinstance(block, Mapping) and (tokens := _count_known(block, counter)) is not None:
        return tokens
    rest, extra = _without_blobs(block, "")
    return counter(as_json(rest)) + extra


def as_json(value: object) -> str:
    """Return a value as JSON in which non-ASCII characters are not escaped."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _count_known(block: Mapping[str, object], counter: TokenCounter) -> int | None:
    kind = str(block.get("type"))
    if isinstance(text := block.get(_TEXTS.get(kind, "")), str):
        return counter(text)
    if kind in _PARTS and (parts := _parts(block.get(_PARTS[kind]))) is not None:
        return sum(count_block(part, counter) for part in parts) + _opaque(block.get("encrypted_content"))
    if kind in _MEDIA:
        inner = block.get("image_url")
        if (inner if isinstance(inner, Mapping) else block).get("detail") == "low":
            return LOW_DETAIL_TOKENS
        return _pdf_pages(block) * PDF_PAGE_TOKENS or MEDIA_TOKENS
    return _opaque(block.get("data")) if kind == "redacted_thinking" else None


def _parts(value: object) -> list[object] | None:
    """Return the texts or blocks in a field of a content block; None if the field has another form."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, Mapping) and value.get("type") == "text":
        return [value.get("data", "")]
    if isinstance(value, Mapping) and value.get("type") == "content":
        return [value]
    return None


def _pdf_pages(value: object) -> int:
    """Return the number of pages of a block's PDF, or 0 if it cannot be read."""
    if isinstance(value, Mapping):
        return max(map(_pdf_pages, value.values()), default=0)
    with ErrorBoundary():  # a broken file may raise anything
        if isinstance(value, str) and (start := _PDF.match(value)) is not None:
            value = binascii.a2b_base64(value[start.end() :])
        if isinstance(value, bytes) and value.startswith(b"%PDF-"):
            pages: int = import_module("pypdf").PdfReader(BytesIO(value)).get_num_pages()
            return max(0, min(pages, _MOST_PDF_PAGES))
    return 0


def _opaque(value: object) -> int:
    return -(-len(value) // _OPAQUE_CHARACTERS) if isinstance(value, str) else 0


def _without_blobs(value: object, key: str) -> tuple[object, int]:
    """Return a pair: the value without binary and encrypted data, and the number of tokens of the removed data."""
    if isinstance(value, Mapping):
        found = {str(name): _without_blobs(item, str(name)) for name, item in value.items() if name not in _SIGNATURES}
        kept = {name: item for name, (item, extra) in found.items() if item is not None or not extra}
        return kept, sum(extra for _, extra in found.values())
    if isinstance(value, list | tuple):
        items = [_without_blobs(item, key) for item in value]
        return [item for item, extra in items if item is not None or not extra], sum(extra for _, extra in items)
    if key == "encrypted_content" and value:
        return None, _opaque(value)
    return (None, MEDIA_TOKENS) if _is_blob(value, key) else (value, 0)


def _is_blob(value: object, key: str) -> bool:
    if isinstance(value, bytes | bytearray | memoryview):
        return True
    if not isinstance(value, str):
        return False
    if _DATA_ADDRESS.match(value):
        return True
    return (key in _BLOBS or len(value) >= _LONG) and _BASE64.fullmatch(value) is not None


type Countable = str | Message | BaseMessage


def count_tokens(
    message_or_messages: Countable | Sequence[Countable],
    model: str | None = None,
    *,
    counter: TokenCounter | None = None,
) -> int:
    """Return the number of tokens of a text, of a message, or of several of them.

    Text blocks, reasoning, tool calls (name and JSON arguments) and tool results are counted. An image, a recording or
    a file counts as `MEDIA_TOKENS`, regardless of the length of its base64 text; an image of low detail counts as 100.
    With the extra `pdf`, each page of a PDF counts as `PDF_PAGE_TOKENS`. The tokens that a provider adds to each
    message are not counted: `input_budget` reserves tokens for them.

    Args:
        message_or_messages: a text, a message, or a sequence of them.
        model: the name of the model, which selects the counter. The counter is exact for OpenAI's models with the extra
            `tokens`.
        counter: the counter of texts, used instead of the model's counter.
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
    """Return the number of tokens of one LangChain message; see `count_tokens`."""
    tokens = sum(map(counter, _calls(message))) if isinstance(message, AIMessage) else 0
    if isinstance(message.content, str):
        return tokens + counter(message.content)
    calls = [*message.tool_calls, *message.invalid_tool_calls] if isinstance(message, AIMessage) else []
    known = frozenset([call["id"] for call in calls if call["id"]])
    blocks = [block for block in message.content if not isinstance(block, str) and block.get("type") != "text"]
    tokens += sum(count_block(block, counter) for block in blocks if not is_call(block, known))
    return tokens + counter(str(message.text))


def _calls(message: AIMessage) -> list[str]:
    """Return the name and arguments of each tool call, even of invalid ones, as models receive them."""
    calls = [call["name"] + as_json(call["args"]) for call in message.tool_calls]
    return calls + [(call["name"] or "") + (call["args"] or "") for call in message.invalid_tool_calls]
