"""Messages in LangChain's JSON: those of a transcript, and those that a client sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages

from threadkeep.agent.conversion import as_data, id_of, to_langchain, transcript_text
from threadkeep.errors import InvalidInput
from threadkeep.records import Json, Message
from threadkeep.store.codec import clean_text
from threadkeep.web.schemas import MAX_MESSAGE_CHARACTERS

MESSAGES = "messages"


@dataclass(frozen=True)
class Question:
    """The new message of a client, and what else is in the input of its run."""

    text: str
    message_id: str | None
    inputs: Mapping[str, Json]


def message_json(message: Message) -> dict[str, Json]:
    """Return a stored message as LangGraph's server sends it."""
    found = to_langchain(message)
    if found.name is None and message.author is not None and message.role == "assistant":
        found = found.model_copy(update={"name": message.author})
    data = as_data(found)["data"]
    return {"type": found.type, **data} if isinstance(data, dict) else {}


def question_of(given: object) -> Question:
    """Return what the input of a run asks: the human messages at its end, which the thread does not have yet.

    Raises:
        InvalidInput: the input is no object, or its messages cannot be read.
    """
    if given is None:
        return Question("", None, {})
    if not isinstance(given, Mapping):
        raise InvalidInput('The input is an object, such as {"messages": [{"role": "user", "content": "Hello"}]}.')
    asked = new_messages(messages_of(given.get(MESSAGES)))
    text = asked_text(asked)
    inputs = {str(name): value for name, value in given.items() if name != MESSAGES}
    return Question(text, id_of(asked[-1]) if asked else None, inputs)


def asked_text(asked: Sequence[BaseMessage]) -> str:
    """Return the text of new messages.

    Raises:
        InvalidInput: it is too long.
    """
    text = clean_text("\n".join(transcript_text(one) for one in asked))
    if len(text) > MAX_MESSAGE_CHARACTERS:
        raise InvalidInput(f"A message has at most {MAX_MESSAGE_CHARACTERS:,} characters; send a shorter one.")
    return text


def messages_of(given: object) -> Sequence[BaseMessage]:
    """Return messages in any form that LangChain takes.

    Raises:
        InvalidInput: they have none of these forms.
    """
    if given is None:
        return []
    try:
        return convert_to_messages(given if isinstance(given, list) else [given])  # type: ignore[list-item]
    except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError):
        # From None: the original error quotes the message.
        raise InvalidInput(
            'Each of the messages is an object with role (or type) and content: {"role": "user", "content": "Hello"}.'
        ) from None


def new_messages(messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """Return the human messages at the end."""
    first = len(messages)
    while first and isinstance(messages[first - 1], HumanMessage):
        first -= 1
    return messages[first:]
