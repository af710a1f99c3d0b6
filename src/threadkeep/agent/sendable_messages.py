"""Lists of messages made fit to be sent: merged, every tool call answered, without what only another provider knows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from threadkeep.agent.content_blocks import is_text
from threadkeep.agent.conversion import id_of, transcript_text
from threadkeep.context.manifest import ExclusionReason

NO_RESULT = "This tool was not run to its end: the run stopped before it answered."
"""Answers a tool call whose run was cancelled or failed."""

NO_ANSWER = "[This message has no answer.]"
"""Stands in a call after a question whose run failed, was cancelled or said nothing."""

OPENING = "[The assistant speaks first.]"
"""Stands first in a call that would begin with the assistant's words."""

_CALL_BLOCKS = frozenset({"tool_use", "tool_call", "function_call", "invalid_tool_call", "input_json_delta"})
# The names under which models and their answers say who their provider is, and one of them for each provider.
_PROVIDERS = {
    "amazon_bedrock": "bedrock",
    "anthropic": "anthropic",
    "azure": "openai",
    "azure_openai": "openai",
    "bedrock": "bedrock",
    "bedrock_converse": "bedrock",
    "google_genai": "google",
    "google_vertexai": "google",
    "groq": "groq",
    "openai": "openai",
}


def merge(history: Sequence[BaseMessage], state: Sequence[BaseMessage]) -> list[BaseMessage]:
    """History and the messages in state as one list: each id once, the state's version of it, the state's order.

    A message that only history has stands right after the one that it follows there; if it follows none that state has,
    before the state's first message (but after the system messages that the state begins with).
    """
    in_state = {id_of(message) for message in state}
    after: dict[str | None, list[BaseMessage]] = {}
    anchor: str | None = None
    seen: set[str] = set()
    for message in history:
        message_id = id_of(message)
        if message_id is not None and message_id in in_state:
            anchor = message_id
        elif message_id is None or message_id not in seen:
            after.setdefault(anchor, []).append(message)
        if message_id is not None:
            seen.add(message_id)
    opening = next((place for place, m in enumerate(state) if not isinstance(m, SystemMessage)), len(state))
    merged: list[BaseMessage] = []
    for place, message in enumerate(state):
        if place == opening:
            merged += after.pop(None, [])
        merged.append(message)
        if (message_id := id_of(message)) is not None:
            merged += after.pop(message_id, [])
    return merged + after.pop(None, [])


@dataclass
class _Calls:
    """The tool calls of one assistant message, and the results that were found for them."""

    message: AIMessage
    results: dict[str, ToolMessage] = field(default_factory=dict)


@dataclass(frozen=True)
class Repaired:
    """Messages that a provider takes, and those that have no place among them, with the reason."""

    messages: list[BaseMessage]
    dropped: list[tuple[BaseMessage, ExclusionReason]]


def repair(messages: Sequence[BaseMessage]) -> Repaired:
    """The messages with every tool call answered right after it, no result without its call, and no empty text.

    A call without a result is answered with `NO_RESULT`; a call that the model spelt wrongly or without an id goes; a
    result that answers nothing, or the same call again, goes. Empty text blocks go, and messages in which nothing is,
    except the newest user message.
    """
    calls, reasons = _calls_of(messages)
    newest = next((m for m in reversed(messages) if isinstance(m, HumanMessage)), None)
    repaired = Repaired([], [])
    for place, message in enumerate(messages):
        if place in calls:
            answered = _answered(calls[place])
            repaired.messages.extend(answered)
            repaired.dropped.extend([] if answered else [(message, "empty")])
        elif isinstance(message, HumanMessage) and message is not newest and is_blank(message):
            repaired.dropped.append((message, "empty"))
        elif not isinstance(message, ToolMessage):
            repaired.messages.append(without_empty_text(message))
        elif place in reasons:
            repaired.dropped.append((message, reasons[place]))
    return repaired


def _calls_of(messages: Sequence[BaseMessage]) -> tuple[dict[int, _Calls], dict[int, ExclusionReason]]:
    """Assistant messages with the results of their calls, by place, and why other results belong to none."""
    calls: dict[int, _Calls] = {}
    open_calls: dict[str, _Calls] = {}
    reasons: dict[int, ExclusionReason] = {}
    for place, message in enumerate(messages):
        if isinstance(message, AIMessage):
            calls[place] = _Calls(_with_valid_calls(message))
            open_calls |= {str(call["id"]): calls[place] for call in calls[place].message.tool_calls}
        elif isinstance(message, ToolMessage):
            if (said := open_calls.get(message.tool_call_id)) is None:
                reasons[place] = "orphan_tool"
            elif said.results.setdefault(message.tool_call_id, message) is not message:
                reasons[place] = "duplicate"
    return calls, reasons


def plain(messages: Sequence[BaseMessage], provider: str | None = None) -> list[BaseMessage]:
    """The messages with what only another provider understands reduced to text and tool calls.

    Reasoning with its signatures, and searches that a provider ran itself, cannot be sent to another one. The provider
    is that of the model which is called. Of one that is none of those whose messages LangChain knows by name, that of
    the newest assistant message is taken which names one (`response_metadata["model_provider"]`).
    """
    spoken = (_provider(message) for message in reversed(messages) if isinstance(message, AIMessage))
    known = _PROVIDERS.get(provider or "")
    target = known or next((name for name in spoken if name), None)
    return [_as_text(m) if isinstance(m, AIMessage) and _is_foreign(m, target) else m for m in messages]


def is_blank(message: BaseMessage) -> bool:
    """Return whether the content is empty: no text but white space, and no other block."""
    return all(is_text(block) and not _text(block).strip() for block in _blocks(message))


def without_empty_text[M: BaseMessage](message: M) -> M:
    """The message without text blocks of white space alone, which providers refuse; the same one if it has none."""
    if isinstance(message.content, str):
        empty = isinstance(message, AIMessage) and message.content and not message.content.strip()
        return message.model_copy(update={"content": ""}) if empty else message
    kept = [block for block in message.content if not is_text(block) or _text(block).strip()]
    if len(kept) == len(message.content):
        return message
    return message.model_copy(update={"content": kept or ""})


def _blocks(message: BaseMessage) -> Sequence[object]:
    return [message.content] if isinstance(message.content, str) else message.content


def _text(block: object) -> str:
    return block if isinstance(block, str) else str(block.get("text", "")) if isinstance(block, Mapping) else ""


def _with_valid_calls(message: AIMessage) -> AIMessage:
    message = without_empty_text(message)
    valid = [call for call in message.tool_calls if call["id"]]
    if len(valid) == len(message.tool_calls) and not message.invalid_tool_calls:
        return message
    kept = {str(call["id"]) for call in valid}
    extra = {
        key: value for key, value in message.additional_kwargs.items() if key not in {"tool_calls", "function_call"}
    }
    return message.model_copy(
        update={
            "tool_calls": valid,
            "invalid_tool_calls": [],
            "additional_kwargs": extra,
            "content": _without_calls(message.content, kept),
        }
    )


def _without_calls(
    content: str | list[str | dict[str, object]], kept: Collection[str]
) -> str | list[str | dict[str, object]]:
    if isinstance(content, str):
        return content
    return [
        block
        for block in content
        if isinstance(block, str)
        or block.get("type") not in _CALL_BLOCKS
        or str(block.get("call_id") or block.get("id")) in kept
    ]


def _answered(calls: _Calls) -> Sequence[BaseMessage]:
    said = calls.message
    if is_blank(said) and not (said.tool_calls or said.additional_kwargs):
        return []
    answers = [
        calls.results.get(str(call["id"]))
        or ToolMessage(NO_RESULT, tool_call_id=str(call["id"]), name=call["name"], status="error")
        for call in said.tool_calls
    ]
    return [said, *map(without_empty_text, answers)]


def _provider(message: AIMessage) -> str | None:
    name = message.response_metadata.get("model_provider")
    return _PROVIDERS.get(name, name) if isinstance(name, str) else None


def _is_foreign(message: AIMessage, target: str | None) -> bool:
    """Return whether the message has parts that the target may not understand."""
    if (said_by := _provider(message)) is not None and said_by == target:
        return False
    if isinstance(message.content, str):
        return said_by is not None and bool(message.additional_kwargs)
    return any(not isinstance(block, str) and block.get("type") != "text" for block in message.content)


def _as_text(message: AIMessage) -> AIMessage:
    return message.model_copy(update={"content": transcript_text(message), "additional_kwargs": {}})
