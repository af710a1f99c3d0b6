"""LangChain messages as they are sent: told apart by a hash, written down as JSON, and read again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, messages_from_dict

from threadkeep.agent.conversion import as_data, to_langchain
from threadkeep.agent.sendable_messages import is_blank, without_empty_text
from threadkeep.records import Message, dump_json


def merged_system(systems: Sequence[BaseMessage]) -> SystemMessage | None:
    """Several system messages as one, in order: providers take one, and at the beginning only."""
    given = [without_empty_text(message) for message in systems if not is_blank(message)]
    if len(given) == 1 and isinstance(given[0], SystemMessage):
        return given[0]
    if not given:
        return None
    if all(isinstance(message.content, str) for message in given):
        return SystemMessage("\n\n".join(str(message.content) for message in given))
    blocks: list[str | dict[str, Any]] = []
    for message in given:
        blocks += [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    return SystemMessage(content=blocks)


def is_plain(message: BaseMessage) -> bool:
    """Return whether a message is only role, text and id: what the transcript keeps."""
    if type(message) not in (HumanMessage, AIMessage) or not isinstance(message.content, str):
        return False
    if isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
        return False
    return not message.name and not message.additional_kwargs and _is_storable(message.content)


def is_stored_as(row: Message, message: BaseMessage) -> bool:
    """Return whether a sent message equals the stored one as it is read; plain messages only."""
    read = to_langchain(row)
    same = (read.type, read.id, read.content) == (message.type, message.id, message.content)
    return same and is_plain(message) and is_plain(read)


def dump_message(message: BaseMessage) -> str:
    """The whole message as JSON, which `load_message` reads."""
    return dump_json(as_data(message))


def load_message(body: str) -> BaseMessage:
    """The message that `dump_message` wrote. Raises `ValueError` for anything else."""
    (message,) = messages_from_dict([json.loads(body)])
    return message


def digest_of(text: str) -> str:
    """SHA-256 of a text, in hexadecimal digits."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_of_all(messages: Iterable[BaseMessage]) -> str:
    """SHA-256 of messages in order: speaker, text and id of plain ones, all of others."""
    return digests_of([(message, None) for message in messages], 0)[1]


def digests_of(messages: Sequence[tuple[BaseMessage, str | None]], leading: int) -> tuple[str, str]:
    """The digest of so many leading messages, and of all; what `dump_message` gave of one may stand beside it."""
    running = sha256()
    beginning = running.hexdigest()
    for number, (message, body) in enumerate(messages, start=1):
        plain = is_plain(message)
        written = f"{message.type}\0{message.id}\0{message.content}" if plain else body or dump_message(message)
        running.update(written.encode("utf-8", "surrogatepass"))
        running.update(b"\0\0")
        if number == leading:
            beginning = running.hexdigest()
    return beginning, running.hexdigest()


def _is_storable(text: str) -> bool:
    """Return whether a database can store the text: no NUL, no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
