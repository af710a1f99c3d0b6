"""A conversation as a client sends it with its question, compared with the transcript before the question is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.runnables.config import var_child_runnable_config

from threadkeep.agent.conversion import is_utterance, text_of
from threadkeep.agent.invocation import is_question, question_before
from threadkeep.agent.known_messages import digest_for, known_beginning, known_messages
from threadkeep.agent.root_callbacks import root_callbacks
from threadkeep.errors import StoreClosed, StoreError
from threadkeep.history.memory import Memory
from threadkeep.history.session import LONGEST_PAGE, Session
from threadkeep.records import Message

_MORE_ROWS: Final = 50
"""Rows that are read beyond the number of messages: failed and superseded ones, and answers that a client lost."""


@dataclass(frozen=True)
class SentHistory:
    """The current question, earlier messages that the transcript lacks, and the rows that were compared."""

    question: tuple[BaseMessage, ...]
    changed: tuple[BaseMessage, ...] = ()
    rows: tuple[Message, ...] = ()


def sent_by_caller(messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """Return those of an agent's messages that the caller of its root run sent; others are a checkpoint's."""
    given = root_callbacks.input
    if given is None:
        return messages if var_child_runnable_config.get() is None else ()
    sent = given.get("messages") if isinstance(given, Mapping) else None
    count = len(sent) if isinstance(sent, list | tuple) and not _is_pair(sent) else int(sent is not None)
    return messages[max(len(messages) - count, 0) :]


def question_asked(messages: Sequence[BaseMessage]) -> list[BaseMessage] | None:
    """Return the question that an agent's input begins a turn with; None if a branch has an input of the program alone.

    It is the newest block of human messages, unless a program wrote that and the person's own is among the messages.
    """
    question = question_before(messages)
    asked = _asked_by_caller()
    own = [message for message in messages if is_question(message) and _is_one_of(message, asked)]
    if not asked or any(message in own for message in question):
        return question
    if own:
        return own[-len(asked) :]
    return None if root_callbacks.in_branch else question


def _asked_by_caller() -> list[BaseMessage]:
    """Return the question in the input of the root run; nothing if it has none."""
    given = root_callbacks.input
    sent = given.get("messages") if isinstance(given, Mapping) else None
    if not sent:
        return []
    try:
        return question_before(convert_to_messages([sent] if isinstance(sent, str) or _is_pair(sent) else sent))
    except (TypeError, ValueError, NotImplementedError):
        return []  # whatever a program calls messages


def _is_one_of(message: BaseMessage, asked: Sequence[BaseMessage]) -> bool:
    return any((message.id is not None and message.id == one.id) or text_of(message) == text_of(one) for one in asked)


async def compare_history(
    memory: Memory, session: Session, sent: Sequence[BaseMessage], question: Sequence[BaseMessage]
) -> SentHistory:
    """Compare what a caller sent, up to its question, with the newest rows of a session.

    Nothing is known if the database does not answer in time.
    """
    asked = [id(message) for message in question]
    before = [message for message in sent if id(message) not in asked]
    utterances = sum(map(is_utterance, before)) + len(question) - 1
    if utterances < 1:
        return SentHistory(tuple(question))
    limit = min(utterances + _MORE_ROWS, LONGEST_PAGE)
    try:
        async with session.patience():
            page = await session.page(limit=limit, view="history")
            digest = await digest_for(memory, page.messages)
    except StoreClosed:
        raise
    except (StoreError, TimeoutError):
        return SentHistory(tuple(question))
    rows = [row for row in page.messages if row.role != "system"]
    found = known_messages(before, rows, digest)
    last = max((place for place, row in enumerate(rows, start=1) if row in found.rows.values()), default=0)
    known = known_beginning(question, rows[last:], whole=last == 0, digest=digest)
    changed = tuple(before[place] for place in sorted(found.changed))
    return SentHistory(tuple(question[len(known) :]), changed, tuple(rows))


def _is_pair(sent: Sequence[object]) -> bool:
    """Return whether a message is given as its role and its text."""
    return isinstance(sent, tuple) and len(sent) == 2 and all(isinstance(part, str) for part in sent)
