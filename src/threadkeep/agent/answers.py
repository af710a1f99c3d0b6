"""The final answers of agents: finding, redacting and repeating them, and warnings about other middleware."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

from langchain.agents.middleware import ModelRequest, ModelResponse, PIIMiddleware
from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
from langchain_core.callbacks import BaseCallbackManager
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.utils.uuid import uuid7
from langgraph.runtime import Runtime
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from threadkeep.agent.callbacks import PartialAnswer
from threadkeep.agent.conversion import ANSWERS, REPEATS, STRUCTURED, id_of, text_of
from threadkeep.errors import MiddlewareWarning

LIMIT_NOTICES = ("Model call limits exceeded: ", " call limit reached: ")
"""Texts that occur in the notices with which LangChain's call-limit middleware ends a run."""


def answered_before(answer: AIMessage, request: ModelRequest[Any], config: RunnableConfig) -> ModelResponse[Any]:
    """Return a stored answer as the response of a model call; parse it if the agent has a `response_format`."""
    data = answer.additional_kwargs.get(STRUCTURED)
    structured = _structured(text_of(answer) if data is None else data, request.response_format)
    reply = repeated(named_as_agent(answer, config), request.messages, is_data=structured is not None)
    return ModelResponse(result=[reply], structured_response=structured)


def repeated(answer: AIMessage, messages: Sequence[BaseMessage], *, is_data: bool = False) -> AIMessage:
    """Return the message to add to the state's `messages`, so that the state ends with a stored answer.

    If the state already has a message with the answer's id, LangGraph would replace that message in place. So return
    a copy with a new id (linked by `REPEATS`) if another turn, a repeated answer or a tool call follows that message,
    or if it is a tool's result. `is_data` is True for a structured response, which may be a tool call.
    """
    position = next((index for index, one in enumerate(messages) if one.id == answer.id), None)
    if position is None:
        return answer
    known, later = messages[position], messages[position + 1 :]
    question = known.response_metadata.get(ANSWERS)
    others = [
        one
        for one in later
        if isinstance(one, HumanMessage)
        or REPEATS in one.additional_kwargs
        or one.response_metadata.get(ANSWERS, question) != question
    ]
    # If the newest reply calls tools, LangChain would call the model again, so the answer must come after that reply.
    calls = next((one.tool_calls for one in reversed(later) if isinstance(one, AIMessage)), [])
    if not isinstance(known, AIMessage) or others or (calls and not is_data):
        return answer.model_copy(update={"id": str(uuid7()), "additional_kwargs": {REPEATS: answer.id}})
    return answer if known.tool_calls and not is_data else known


def named_as_agent(answer: AIMessage, config: RunnableConfig) -> AIMessage:
    """Return a copy of a stored answer for the graph's state, with the agent's name and without `additional_kwargs`."""
    name = config.get("metadata", {}).get("lc_agent_name")
    named = {"name": str(name)} if name else {}
    return answer.model_copy(update={**named, "additional_kwargs": {}})


def restored(
    messages: Sequence[BaseMessage], stored: BaseMessage, earlier_ids: Collection[str | None]
) -> dict[str, Any] | None:
    """Return a state update that restores the `stored` answer and removes other AI messages not in `earlier_ids`."""
    known = {stored.id, *earlier_ids}
    added = [RemoveMessage(str(one.id)) for one in messages if isinstance(one, AIMessage) and one.id not in known]
    current = next((_as_sent(message) for message in messages if message.id == stored.id), None)
    return {"messages": [*added, stored]} if added or current != _as_sent(stored) else None


def stream_again(answer: BaseMessage) -> None:
    """Make LangGraph stream a stored answer, even if the node's input already has it."""
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
    for handler in callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else ():
        # LangGraph does not stream a message id twice, so forget the id.
        if isinstance(seen := getattr(handler, "seen", None), set):
            seen.discard(answer.id)


def _as_sent(message: BaseMessage) -> tuple[str, bool]:
    return text_of(message), REPEATS in message.additional_kwargs


def _structured(text: str, wanted: object) -> object:
    if not isinstance(wanted, AutoStrategy | ProviderStrategy | ToolStrategy):
        return None
    try:
        data = json.loads(text)
        # Return plain data for a JSON schema, as LangChain does.
        schema: Any = wanted.schema
        return data if isinstance(schema, Mapping) else TypeAdapter(schema).validate_python(data)
    except (ValueError, ValidationError):
        return None


def final_answer(
    state: Mapping[str, Any], direct_calls: Collection[str], question: Sequence[BaseMessage] = ()
) -> AIMessage | None:
    """Return the answer that follows the question in a state.

    The answer is an assistant message, the structured response as JSON, or the joined results of tools with
    `return_direct` (`direct_calls` has the ids of their calls). If the state lacks the `question`, the newest human
    message is used.
    """
    direct: list[ToolMessage] = []
    asked = {id_of(message) for message in question} & {id_of(message) for message in state["messages"]} - {None}
    for message in reversed(state["messages"]):
        if isinstance(message, ToolMessage) and message.tool_call_id in direct_calls:
            direct.insert(0, message)
            continue
        if direct:
            return answer_of(direct)
        if message.type == "human" and (not asked or id_of(message) in asked):
            return None
        if isinstance(message, AIMessage):
            structured = state.get("structured_response")
            # The structured response in the state may come from an earlier turn, so prefer a text without tool calls.
            if structured is None or (text_of(message).strip() and not message.tool_calls):
                return message
            data = to_json(structured).decode()
            if not text_of(message).strip():
                return AIMessage(data, id=message.id)
            return message.model_copy(update={"additional_kwargs": {**message.additional_kwargs, STRUCTURED: data}})
    return answer_of(direct) if direct else None


def answer_of(results: Sequence[ToolMessage]) -> AIMessage:
    """Join the results of tools that end a run into one answer, with the id of the last result."""
    return AIMessage("\n\n".join(filter(None, map(text_of, results))), id=results[-1].id)


HELD_BACK_CHARACTERS: Final = 128
"""The number of characters that are removed from the end of an incomplete text.

The text may end inside an address or a number. LangChain holds back the same number.
"""


def has_detector(kind: str) -> bool:
    """Return True if `PIIMiddleware` has a built-in detector for a kind of data."""
    try:
        PIIMiddleware(kind)
    except ValueError:
        return False
    return True


def storable(answer: BaseMessage | str, kinds: Collection[str], *, is_complete: bool) -> BaseMessage | str:
    """Return an answer without personal data of these kinds. If a kind has no built-in detector, return "".

    Args:
        answer: the answer of the model, or its text.
        kinds: the kinds of all `PIIMiddleware` of the agent, including those that do not redact answers.
        is_complete: False for a partial answer. The end of a partial answer is removed (`HELD_BACK_CHARACTERS`).
    """
    if not kinds:
        return answer
    text = received = answer if isinstance(answer, str) else text_of(answer)
    for kind in kinds:
        try:
            middleware = PIIMiddleware(kind, apply_to_input=False, apply_to_output=True)
        except ValueError:
            return ""
        update = middleware.after_model({"messages": [AIMessage(text)]}, Runtime())
        if update is not None:
            text = text_of(update["messages"][-1])
    if not is_complete:
        text = text[:-HELD_BACK_CHARACTERS]
    if text == received or isinstance(answer, str):
        return answer if text == received else text
    return AIMessage(text, id=answer.id) if text else ""


type Finding = Literal["summaries", "cleared", "behind", "model", "before"]

_SENTENCES: Final[Mapping[Finding, str]] = {
    "summaries": (
        "SummarizationMiddleware and SessionMemory both shorten the conversation, so the model receives the summary "
        "beside turns that it covers; remove the former and use SessionMemory(memory, compression=Compression())."
    ),
    "cleared": (
        "ContextEditingMiddleware and SessionMemory both shorten old tool results; remove the former: SessionMemory "
        "keeps each model call within max_tokens."
    ),
    "behind": (
        "A middleware behind SessionMemory changed the messages of a model call: the change is not counted in the "
        "budget and not recorded in the manifest; list SessionMemory behind it."
    ),
    "model": (
        "A middleware behind SessionMemory called another model, and the messages were chosen for the window of the "
        "first one; list SessionMemory behind it."
    ),
    "before": (
        "A middleware before SessionMemory changed the answer in after_agent, after it was stored; list "
        "SessionMemory before it."
    ),
}


class OtherMiddleware:
    """Warnings about the other middleware of an agent; each warning is given once.

    `SessionMemory` cannot see which other middleware an agent has, but the messages show the effects of it.
    """

    def __init__(self) -> None:
        self._found: set[Finding] = set()

    def check_state(self, messages: Sequence[BaseMessage]) -> None:
        """Warn if other middleware has put summaries into the state, or has cleared tool results there."""
        for message in messages:
            if message.additional_kwargs.get("lc_source") == "summarization":
                self._warn("summaries")
            if isinstance(message, ToolMessage) and _is_cleared(message):
                self._warn("cleared")

    def check_calls(self, sent: Sequence[BaseMessage], partial: PartialAnswer) -> None:
        """Warn if other middleware called another model, or if no model call received the messages `sent` unchanged."""
        if len(partial.models) > 1:
            self._warn("model")
        for asked in partial.asked:
            # Compare the identities first, because most messages are the same objects.
            same = [*map(id, sent)] == [*map(id, asked)]
            if same or [(one.type, text_of(one)) for one in sent] == [(one.type, text_of(one)) for one in asked]:
                return
        if partial.asked:
            self._warn("cleared" if any(map(_is_cleared, partial.asked[-1])) else "behind")

    def check_end(self, state: object, answers: Sequence[AIMessage], question_id: str | None) -> None:
        """Warn if other middleware changed the last answer of the final state after the answer was stored."""
        found = state.get("messages") if isinstance(state, Mapping) else None
        messages = found if isinstance(found, list) else []
        last = messages[-1] if messages else None
        if not isinstance(last, AIMessage) or not last.id:
            return
        last_id, text = id_of(last), text_of(last)
        changed = [answer for answer in answers if answer.id == last_id and text_of(answer) != text]
        is_other = bool(answers) and bool(text.strip()) and text not in map(text_of, answers)
        if changed or (is_other and question_id is not None and question_id in map(id_of, messages)):
            self._warn("before")

    def _warn(self, finding: Finding) -> None:
        if finding not in self._found:
            self._found.add(finding)
            warnings.warn(_SENTENCES[finding], MiddlewareWarning, stacklevel=2)


def _is_cleared(message: BaseMessage) -> bool:
    editing = message.response_metadata.get("context_editing") if isinstance(message, ToolMessage) else None
    return bool(editing)
