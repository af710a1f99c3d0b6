"""The messages of an agent's loop, as a trace has them, in words for people: who spoke, which tools were called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from threadkeep.records import Json

_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}


def spoken(data: Mapping[str, Json]) -> list[tuple[str, str]]:
    """The role and the words of each message; a line for each tool that was called. Nothing where there are none."""
    messages = data.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return []
    return [line for message in messages if isinstance(message, Mapping) for line in _lines(message)]


def _lines(message: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    kind, found = str(message.get("type", "")), message.get("data")
    data = found if isinstance(found, Mapping) else {}
    role = _ROLES.get(kind, kind)
    calls = data.get("tool_calls")
    called = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    text = _text(data.get("content"))
    if kind == "tool" and data.get("name"):
        text = f"{data['name']}: {text}"
    if text or not called:
        yield role, text
    for call in called:
        yield role, f"calls {call.get('name')} {_words(call.get('args'))}".rstrip()


def _text(content: Json) -> str:
    """The text of a message; of what is no text its kind."""
    if not isinstance(content, list):
        return _words(content)
    parts = [_block(block) for block in content]
    return " ".join(filter(None, parts))


def _block(block: Json) -> str:
    if not isinstance(block, Mapping):
        return _words(block)
    text = block.get("text")
    if isinstance(text, str):
        return text
    # Calls have lines of their own.
    return "" if block.get("type") in ("tool_use", "tool_call", "function_call") else f"[{block.get('type')}]"


def _words(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
