"""Prepares messages for a provider: merges them, and repairs or removes content that the provider would reject."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolCall, ToolMessage

from threadkeep.agent.conversion import REPEATS, id_of, transcript_text, with_only_text
from threadkeep.agent.counting import call_id_of, is_text
from threadkeep.context.window import ExclusionReason

NO_RESULT = "This tool was not run to its end: the run stopped before it answered."
"""The result that models see for a tool call without a result, because its run stopped."""

UNREAD_RESULT = "This tool ran, but the run stopped before the model read the result."
"""The stored result of a tool that ended, but whose result no model has received."""

NO_ANSWER = "[This message has no answer.]"
"""The answer that models see for a question without an answer."""

OPENING = "[The assistant speaks first.]"
"""The user message that is inserted if a model call would begin with an assistant message."""

CLOSING = "[The assistant speaks next.]"
"""The user message that is appended if a model call would end with an assistant message."""

NOTHING_ADDED = "[The assistant added nothing to this result.]"
"""The answer that models see after a tool's result if the run ended with this result."""

_REASONING = frozenset({"reasoning", "reasoning_content", "thinking", "redacted_thinking"})
_CALL_BLOCKS = frozenset({"tool_use", "tool_call", "function_call", "invalid_tool_call", "input_json_delta"})
# Maps the names that models and answers use for a provider to one name.
_PROVIDERS = {name: name for name in ("anthropic", "bedrock", "groq", "mistral", "ollama", "openai")}
_PROVIDERS |= {"amazon_bedrock": "bedrock", "bedrock_converse": "bedrock", "mistralai": "mistral"}
_PROVIDERS |= {"azure": "openai", "azure_openai": "openai", "google_genai": "google", "google_vertexai": "google"}
_USER_LAST = frozenset({"anthropic", "bedrock", "google", "mistral"})


def merge(history: Sequence[BaseMessage], state: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages in `history` and `state`. If both have a message, use the version in `state`.

    A message that is only in `history` keeps its position after the nearest earlier message that both have. If there is
    no such message, it comes before the first message of `state` that is not a system message.
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
    opening = next((index for index, m in enumerate(state) if not isinstance(m, SystemMessage)), len(state))
    merged: list[BaseMessage] = []
    for index, message in enumerate(state):
        if index == opening:
            merged += after.pop(None, [])
        merged.append(message)
        if (message_id := id_of(message)) is not None:
            merged += after.pop(message_id, [])
    return merged + after.pop(None, [])


@dataclass
class _Calls:
    """An assistant message, and the results of its tool calls by call id."""

    message: AIMessage
    results: dict[str, ToolMessage] = field(default_factory=dict)


@dataclass(frozen=True)
class Repaired:
    """Messages that a provider accepts, and the dropped messages with the reasons."""

    messages: list[BaseMessage]
    dropped: list[tuple[BaseMessage, ExclusionReason]]


def repair(messages: Sequence[BaseMessage]) -> Repaired:
    """Return the messages in a form that providers accept: each tool call is followed by its result.

    A call without a result gets the result `NO_RESULT`. An invalid call with a result (LangChain reports the error to
    the model) becomes a call without arguments. Other invalid calls, results without calls, repeated results, repeated
    answers and empty messages are removed. The newest user message always stays.
    """
    calls, reasons = _calls_of(messages)
    asked = [message for message in messages if isinstance(message, HumanMessage)]
    newest = asked[-1] if asked else None
    repaired = Repaired([], [])
    for index, message in enumerate(messages):
        if REPEATS in message.additional_kwargs:
            repaired.dropped.append((message, "duplicate"))
        elif index in calls:
            answered = _answered(calls[index])
            repaired.messages.extend(answered)
            repaired.dropped.extend([] if answered else [(message, "empty")])
        elif isinstance(message, HumanMessage) and message is not newest and is_blank(message):
            repaired.dropped.append((message, "empty"))
        elif not isinstance(message, ToolMessage):
            repaired.messages.append(without_empty_text(message))
        elif index in reasons:
            repaired.dropped.append((message, reasons[index]))
    return repaired


def _calls_of(messages: Sequence[BaseMessage]) -> tuple[dict[int, _Calls], dict[int, ExclusionReason]]:
    """Return the assistant messages with the results of their calls, and the reasons for dropped results, by index."""
    calls: dict[int, _Calls] = {}
    open_calls: dict[str, _Calls] = {}
    reasons: dict[int, ExclusionReason] = {}
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage):
            calls[index] = _Calls(_with_valid_calls(message, answered))
            open_calls |= {str(call["id"]): calls[index] for call in calls[index].message.tool_calls}
        elif isinstance(message, ToolMessage):
            if (calling := open_calls.get(message.tool_call_id)) is None:
                reasons[index] = "orphan_tool"
            elif calling.results.setdefault(message.tool_call_id, message) is not message:
                reasons[index] = "duplicate"
    return calls, reasons


def plain(messages: Sequence[BaseMessage], provider: str | None = None) -> list[BaseMessage]:
    """Return the messages. Reduce content in another provider's own format to text and tool calls.

    Reasoning with signatures, and searches that a provider ran itself, cannot be sent to another provider. `provider`
    is the called model's provider. If it is unknown, the newest answer that names its provider decides.
    """
    if not [message for message in messages if isinstance(message, AIMessage)]:
        return list(messages)
    spoken = (_provider(message) for message in reversed(messages) if isinstance(message, AIMessage))
    known = _PROVIDERS.get(provider or "")
    target = known or next((name for name in spoken if name), None)
    return [
        with_only_text(m, transcript_text(m)).model_copy(update={"additional_kwargs": {}})
        if isinstance(m, AIMessage) and _is_foreign(m, target)
        else m
        for m in messages
    ]


def mark_between(before: BaseMessage, message: BaseMessage | None, provider: str | None) -> BaseMessage | None:
    """Return the placeholder that the provider requires between two messages, if any. `message` is None at the end.

    Claude, Gemini and Mistral refuse a call that ends with an answer, such as another agent's in this turn. Gemini
    also refuses tool calls after an answer. Mistral refuses a user message after a tool's result, which occurs if a
    structured response ended the earlier turn.
    """
    name = _PROVIDERS.get(provider or "")
    if isinstance(before, AIMessage) and not before.tool_calls:
        calls = message is None or (isinstance(message, AIMessage) and message.tool_calls)
        return HumanMessage(CLOSING) if calls and name in _USER_LAST else None
    asked = isinstance(before, ToolMessage) and isinstance(message, HumanMessage)
    return AIMessage(NOTHING_ADDED) if asked and name == "mistral" else None


def is_blank(message: BaseMessage) -> bool:
    """Return True if the message has no content except blank text."""
    return all(is_text(block) and not _text(block).strip() for block in _blocks(message))


def _is_only_reasoning(message: AIMessage) -> bool:
    """Return True if an answer has nothing but reasoning, which providers refuse."""
    rest = [one for one in _blocks(message) if not (isinstance(one, Mapping) and one.get("type") in _REASONING)]
    blank = all(is_text(one) and not _text(one).strip() for one in rest)
    return blank and _REASONING.issuperset(message.additional_kwargs)


def without_empty_text[M: BaseMessage](message: M) -> M:
    """Return the message without its empty or blank text blocks, because providers reject them."""
    if isinstance(message.content, str):
        empty = isinstance(message, AIMessage) and message.content and not message.content.strip()
        return message.model_copy(update={"content": ""}) if empty else message
    kept = [block for block in message.content if not is_text(block) or _text(block).strip()]
    if len(kept) == len(message.content):
        return message
    return message.model_copy(update={"content": kept}) if kept else with_only_text(message, "")


def _blocks(message: BaseMessage) -> Sequence[object]:
    return [message.content] if isinstance(message.content, str) else message.content


def _text(block: object) -> str:
    return block if isinstance(block, str) else str(block.get("text", "")) if isinstance(block, Mapping) else ""


def _with_valid_calls(message: AIMessage, answered: Collection[str]) -> AIMessage:
    """Remove a message's invalid tool calls. If an id is in `answered`, use a call without arguments instead."""
    message = without_empty_text(message)
    valid = [call for call in message.tool_calls if call["id"]]
    if len(valid) == len(message.tool_calls) and not message.invalid_tool_calls:
        return message
    kept = {str(call["id"]) for call in valid}
    valid += [
        ToolCall(name=call["name"] or "unknown", args={}, id=call["id"], type="tool_call")
        for call in message.invalid_tool_calls
        if call["id"] in answered and call["id"] not in kept
    ]
    extra = {
        key: value for key, value in message.additional_kwargs.items() if key not in {"tool_calls", "function_call"}
    }
    content: str | list[str | dict[str, Any]] = message.content
    if not isinstance(content, str):
        content = [
            block
            for block in content
            if isinstance(block, str) or block.get("type") not in _CALL_BLOCKS or str(call_id_of(block)) in kept
        ]
    return message.model_copy(
        update={"tool_calls": valid, "invalid_tool_calls": [], "additional_kwargs": extra, "content": content}
    )


def _answered(calls: _Calls) -> Sequence[BaseMessage]:
    message = calls.message
    if not message.tool_calls and _is_only_reasoning(message):
        return []
    answers = [
        calls.results.get(str(call["id"]))
        or ToolMessage(NO_RESULT, tool_call_id=str(call["id"]), name=call["name"], status="error")
        for call in message.tool_calls
    ]
    return [message, *map(without_empty_text, answers)]


def _provider(message: AIMessage) -> str | None:
    name = message.response_metadata.get("model_provider")
    return _PROVIDERS.get(name, name) if isinstance(name, str) else None


def _is_foreign(message: AIMessage, target: str | None) -> bool:
    """Return True if the message has content that the provider `target` may not understand."""
    if (said_by := _provider(message)) is not None and said_by == target:
        return False
    if said_by is not None and message.additional_kwargs:
        return True
    if isinstance(message.content, str):
        return False
    blocks = [block for block in message.content if not isinstance(block, str)]
    # In a text block, providers reject keys of other providers, such as `citations`.
    return any(block.get("type") != "text" or (said_by and not {"type", "text"}.issuperset(block)) for block in blocks)


def merged_system(systems: Sequence[BaseMessage]) -> SystemMessage | None:
    """Merge system messages into one, because providers accept only one.

    The result has no id, so that equal system messages have equal digests: LangGraph adds a new id in each turn.
    """
    given = [without_empty_text(message) for message in systems if not is_blank(message)]
    if len(given) == 1 and isinstance(given[0], SystemMessage):
        return given[0] if given[0].id is None else given[0].model_copy(update={"id": None})
    if not given:
        return None
    if all(isinstance(message.content, str) for message in given):
        return SystemMessage("\n\n".join(str(message.content) for message in given))
    blocks: list[str | dict[str, Any]] = []
    for message in given:
        blocks += [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    return SystemMessage(content=blocks)


def superseded_indexes(messages: Sequence[BaseMessage], superseded: Collection[str]) -> set[int]:
    """Return the indexes of the superseded messages, and of the tool calls and results that belong to them."""
    found: set[int] = set()
    for index, message in enumerate(messages):
        if id_of(message) not in superseded:
            continue
        found.add(index)
        if isinstance(message, HumanMessage):
            found.update(_steps(messages, range(index + 1, len(messages))))
        else:
            found.update(_steps(messages, range(index - 1, -1, -1)))
    return found


def first_since(forgotten: Collection[str], before: Sequence[BaseMessage]) -> int:
    """Return the index in `before` of the first question after the last message that a reset hides.

    `forgotten` has the hidden messages' ids. Return 0 if `before` has none of them, its length if no question follows.
    """
    index = max((index for index, message in enumerate(before, start=1) if id_of(message) in forgotten), default=0)
    while 0 < index < len(before) and not isinstance(before[index], HumanMessage):
        index += 1
    return index


def _steps(messages: Sequence[BaseMessage], indexes: range) -> list[int]:
    """Return the `indexes` of tool calls and results, up to the first index of a question or answer."""
    found: list[int] = []
    for index in indexes:
        message = messages[index]
        answer = isinstance(message, AIMessage) and not message.tool_calls
        if answer or isinstance(message, HumanMessage):
            break
        if not isinstance(message, SystemMessage):
            found.append(index)
    return found
