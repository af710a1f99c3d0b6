"""Finds the question in the messages of a run, and earlier messages that a client sends again."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from typing import Final

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.runnables.config import var_child_runnable_config

from threadkeep.agent.callbacks import RootCall, root_callbacks
from threadkeep.agent.conversion import id_of, is_utterance, role_of, text_of, to_langchain, transcript_text, typed
from threadkeep.history.memory import Memory
from threadkeep.history.session import LONGEST_PAGE, Session, in_time
from threadkeep.records import Message, Role


def messages_in(state: object) -> list[BaseMessage]:
    """Return the messages in the input of a graph, in LangChain's classes."""
    return typed(convert_to_messages(RootCall(state).sent))


def is_question(message: BaseMessage) -> bool:
    """Return True if a message is a human message and no summary."""
    return isinstance(message, HumanMessage) and message.additional_kwargs.get("lc_source") != "summarization"


def question_before(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the question that a run is answering: the newest block of human messages.

    Return an empty list if a system message, but no question, follows the last answer: the agent speaks unasked.
    """
    end = len(messages)
    instructed = False
    while end and not is_question(message := messages[end - 1]):
        instructed = instructed or isinstance(message, SystemMessage)
        if instructed and isinstance(message, AIMessage) and not message.tool_calls:
            return []
        end -= 1
    start = end
    while start and is_question(messages[start - 1]):
        start -= 1
    return list(messages[start:end])


def questions_back(messages: Sequence[BaseMessage]) -> Iterator[tuple[int, list[BaseMessage]]]:
    """Yield each block of consecutive human messages with the index of its first one, newest block first."""
    end = len(messages)
    while block := question_before(messages[:end]):
        end = next(index for index, message in enumerate(messages) if message is block[0])
        yield end, block


def steps_begin(messages: Sequence[BaseMessage], said_ids: Container[str | None]) -> int:
    """Return the index of a turn's first step. `messages` ends with the turn's steps, but does not have its question.

    Steps are tool calls and results, the model's replies (`said_ids`), and human messages that tools added.
    """
    begin = len(messages)
    for index in range(begin - 1, -1, -1):
        message = messages[index]
        is_step = isinstance(message, AIMessage) and (message.tool_calls or message.id in said_ids)
        if is_step or isinstance(message, ToolMessage):
            begin = index
        elif not is_question(message):
            break
    return begin


_MORE_ROWS: Final = 50
"""The number of rows that are read in addition to one row per message, because some rows are superseded."""


async def unanswered_question(session: Session, run_id: str | None) -> list[BaseMessage]:
    """Return the stored question of the run or, if it has none, the newest unanswered question.

    Only the newest 10,000 rows are searched.
    """
    page = await in_time(session, session.page(limit=LONGEST_PAGE))
    rows = () if page is None else page.messages
    answered = {row.run_id for row in rows if _is_answer(row)}
    asked = [row.run_id for row in rows if row.role == "user" and row.run_id is not None]
    found = run_id if run_id in asked else next((one for one in reversed(asked) if one not in answered), None)
    return [to_langchain(row) for row in rows if row.role == "user" and found is not None and row.run_id == found]


@dataclass(frozen=True)
class SentHistory:
    """The result of comparing a caller's messages with the transcript: the new question and changed human messages.

    `rows` are the transcript's rows that were compared. If the transcript already has the answer, `sent` has the
    caller's messages with their stored ids; otherwise, it is empty.
    """

    question: tuple[BaseMessage, ...]
    changed: tuple[BaseMessage, ...] = ()
    rows: tuple[Message, ...] = ()
    sent: tuple[BaseMessage, ...] = ()


def sent_by_caller(messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """Return the agent's messages that the caller of the root run sent. All others are from a checkpoint.

    If all sent messages have ids, find them by id, because a checkpointer keeps a repeated message at its old position.
    Otherwise, return as many messages as were sent, up to the newest one with the text of the last sent message.
    """
    call = root_callbacks.call
    if call is None or call.input is None:
        return messages if var_child_runnable_config.get() is None else ()
    ids = {one.get("id") if isinstance(one, Mapping) else getattr(one, "id", None) for one in call.sent}
    if None not in ids:
        return [one for one in messages if one.id in ids]
    last = [text_of(one) for one in _sent_messages()[-1:]]
    end = max((at for at, one in enumerate(messages, start=1) if text_of(one) in last), default=len(messages))
    return messages[max(end - len(call.sent), 0) : end]


def question_asked(messages: Sequence[BaseMessage]) -> list[BaseMessage] | None:
    """Return the question with which an agent begins a turn: the newest human messages, up to the caller's last one.

    If the caller sent none of these messages, return the caller's own question if the agent has it. Otherwise, return
    None in a branch of `Send` if the caller sent a question, and else all of the newest human messages.
    """
    question, own = question_before(messages), callers_question(messages)
    if ends := [at for at, message in enumerate(question, start=1) if id(message) in map(id, own)]:
        return question[: ends[-1]]
    return own or (None if root_callbacks.branch.get() is not None and question_before(_sent_messages()) else question)


def callers_question(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the agent's messages that have the id or the text of the question in the root run's input."""
    asked = question_before(_sent_messages())
    ids, texts = {one.id for one in asked if one.id}, {text_of(one) for one in asked}
    own = [one for one in messages if is_question(one) and (one.id in ids or text_of(one) in texts)]
    return own[-len(asked) :] if asked else []


def _sent_messages() -> list[BaseMessage]:
    """Return the messages in the input of the root run; an empty list if there are none."""
    call = root_callbacks.call
    try:
        return [] if call is None else typed(convert_to_messages(call.sent))
    except (TypeError, ValueError, NotImplementedError):
        return []  # the `messages` of this graph are no LangChain messages


async def compare_history(
    memory: Memory, session: Session, sent: Sequence[BaseMessage], question: Sequence[BaseMessage]
) -> SentHistory:
    """Compare the messages that a caller sent before its question with the newest rows of a session.

    If the database fails or does not answer in time, nothing is compared.
    """
    asked = [id(message) for message in question]
    before = [message for message in sent if id(message) not in asked]
    utterances = sum(map(is_utterance, before)) + len(question) - 1
    if utterances < 1:
        return SentHistory(tuple(question))
    limit = min(utterances + _MORE_ROWS, LONGEST_PAGE)
    page = await in_time(session, session.page(limit=limit, view="history"))
    if page is None:
        return SentHistory(tuple(question))
    digest = await digest_for(memory, page.messages)
    rows = [row for row in page.messages if row.role != "system"]
    if sent and id(sent[-1]) not in asked and (stored := _stored_turn(sent, question, rows, digest)) is not None:
        return stored
    found = known_messages(before, rows, digest)
    last = max((index for index, row in enumerate(rows, start=1) if row in found.rows.values()), default=0)
    known = known_beginning(question, rows[last:], from_start=last == 0, digest=digest)
    changed = tuple(before[index] for index in sorted(found.changed))
    return SentHistory(tuple(question[len(known) :]), changed, tuple(rows))


def _stored_turn(
    sent: Sequence[BaseMessage], question: Sequence[BaseMessage], rows: Sequence[Message], digest: Digest | None
) -> SentHistory | None:
    """Return the sent messages in their stored form if the question and a message after it are stored, else None."""
    found = known_messages(sent, rows, digest, by_position=False).rows
    known = {index: row for index, row in found.items() if row.superseded_at is None}
    asked = [index for index, message in enumerate(sent) if any(message is one for one in question)]
    if not asked or not {*asked} <= {*known} or max(known) <= asked[-1]:
        return None
    named = [one.model_copy(update={"id": known[at].id}) if at in known else one for at, one in enumerate(sent)]
    return SentHistory(tuple(to_langchain(known[at]) for at in asked), rows=tuple(rows), sent=tuple(named))


RECEIVED: Final = "threadkeep:received"
"""The key in a question's metadata for the keyed digest of its text before middleware changed it."""

type Digest = Callable[[str], str]
"""A function that returns the digest of a text, keyed with a key that the database stores."""

type _Pair = tuple[int, int]
"""The index of a message and the index of its row."""


@dataclass
class KnownMessages:
    """The stored rows of sent messages, by the message's index, and the indexes of changed human messages."""

    rows: dict[int, Message] = field(default_factory=dict)
    changed: list[int] = field(default_factory=list)


async def digest_for(memory: Memory, rows: Sequence[Message]) -> Digest | None:
    """Return the function that computes digests with the database's key; None if no row has a digest to compare."""
    return await memory.text_digests.digest() if any(RECEIVED in row.metadata for row in rows) else None


def known_messages(
    messages: Sequence[BaseMessage], rows: Sequence[Message], digest: Digest | None = None, *, by_position: bool = True
) -> KnownMessages:
    """Find the row of each message among the newest `rows` of a transcript. Messages and rows are in order.

    A message is known if a row has its id, or if a row at a matching position has its text (or the digest of the text
    before middleware changed it). With `by_position`, an answer at the position of a stored answer is also known,
    because clients may change answers. A human message that is not known counts as changed, unless it precedes the
    first row: it may be older, or from the graph's code. If no message is known, none counts as changed.
    """
    sent = _sent(messages, rows, digest)
    pairs = _aligned(sent, rows)
    found = KnownMessages({sent[at].index: rows[row] for at, row in pairs})
    if not pairs:
        return found
    free = [row for index, row in enumerate(rows) if index not in {row for _, row in pairs}]
    for gap, beside in _gaps(pairs, len(sent), len(rows)):
        opposite = _rows_between([sent[at] for at in gap], rows, beside) if by_position else []
        for at, answer in zip_longest(gap, opposite):
            one = sent[at]
            row = next((row for row in free if one.is_row(row)), None)
            if row is not None:
                free.remove(row)
            elif one.role == "user":
                found.changed.append(one.index)
            elif answer is not None and _is_answer(answer):
                row = answer
            if row is not None:
                found.rows[one.index] = row
    return found


def _rows_between(gap: Sequence[_Sent], rows: Sequence[Message], beside: range) -> Sequence[Message]:
    """Return rows from the index range `beside`: one for each unknown message in `gap`, in the same order.

    If the numbers differ, match only the answers directly after a known message: clients join, split or omit answers.
    """
    if len(gap) == len(beside):
        return rows[beside.start : beside.stop]
    replies = [*takewhile(lambda one: one.role == "assistant", gap)]
    spoken = takewhile(lambda row: row.role == "assistant", rows[beside.start : beside.stop] if beside.start else ())
    answers = [row for row in spoken if _is_answer(row)]
    return [answers[min(at, len(answers) - 1)] for at in range(len(replies))] if answers else []


def known_beginning(
    question: Sequence[BaseMessage], rows: Sequence[Message], *, from_start: bool, digest: Digest | None = None
) -> list[Message]:
    """Return the rows of those first messages of a question that are already stored.

    The question's last message is always new. `rows` follow the last known message before the question. If no message
    before it is known (`from_start`), compare only rows after the last answer, unless the first messages equal all
    user rows.
    """
    first = _sent(question[:-1], rows, digest)
    asked = [row for row in rows if row.role == "user"]
    if from_start and not (
        len(asked) == len(first) and all(one.is_row(row) for one, row in zip(first, asked, strict=True))
    ):
        answered = max((at for at, row in enumerate(rows, start=1) if _is_answer(row)), default=0)
        asked = [row for row in rows[answered:] if row.role == "user"]
    known: list[Message] = []
    for one, row in zip(first, asked, strict=False):
        if not one.is_row(row):
            break
        known.append(row)
    return known


def in_order(messages: Sequence[BaseMessage], known: Mapping[int, Message]) -> list[BaseMessage]:
    """Return the messages; replace each `known` message by its stored form.

    A known message is removed if its row comes later in the transcript than the row of a following message.
    """
    found: list[BaseMessage] = []
    before = None
    for index in range(len(messages) - 1, -1, -1):
        message, row = messages[index], known.get(index)
        if row is None:
            found.append(message)
        elif row.seq is None or before is None or row.seq < before:
            before = row.seq or before
            same = transcript_text(message) == row.content
            found.append(message.model_copy(update={"id": row.id}) if same else to_langchain(row))
    return found[::-1]


@dataclass(frozen=True)
class _Sent:
    """A message that a client sent, with the values that are compared with stored rows."""

    index: int
    role: Role | None
    text: str
    received: str | None
    row_id: str | None

    def is_row(self, row: Message) -> bool:
        """Return True if `row` stores this message: same id or, if no row has the message's id, same role and text."""
        if self.row_id is not None:
            return row.id == self.row_id
        if row.role != self.role:
            return False
        return row.content == self.text or (self.received is not None and row.metadata.get(RECEIVED) == self.received)


def _sent(messages: Sequence[BaseMessage], rows: Sequence[Message], digest: Digest | None) -> list[_Sent]:
    ids = {row.id for row in rows if row.id}
    found: list[_Sent] = []
    for index, message in enumerate(messages):
        if is_utterance(message):
            message_id, text = id_of(message), transcript_text(message)
            received = digest(text) if digest else None
            row_id = message_id if message_id in ids else None
            found.append(_Sent(index, role_of(message), text, received, row_id))
    return found


def _is_answer(row: Message) -> bool:
    return row.role == "assistant" and row.status == "complete"


def _aligned(sent: Sequence[_Sent], rows: Sequence[Message]) -> list[_Pair]:
    """Match sent messages with rows, in order. Return as many pairs as possible, and prefer newer pairs."""
    ids, texts = {row.id for row in rows}, {(row.role, row.content) for row in rows}
    received = {row.metadata.get(RECEIVED) for row in rows}
    some = [
        at
        for at, one in enumerate(sent)
        if one.row_id in ids or (one.role, one.text) in texts or (one.received and one.received in received)
    ]
    end = 0
    while end < min(len(some), len(rows)) and sent[some[-1 - end]].is_row(rows[-1 - end]):
        end += 1
    pairs = [(some[-back], len(rows) - back) for back in range(1, end + 1)]
    begin = some[: len(some) - end]
    same = [[sent[at].is_row(row) for row in rows[: len(rows) - end]] for at in begin]
    return [*((begin[at], row_at) for at, row_at in _longest(same)), *pairs[::-1]]


def _longest(same: Sequence[Sequence[bool]]) -> list[_Pair]:
    """Return the longest common subsequence of two lists as pairs of indexes."""
    count, width = len(same), len(same[0]) if same else 0
    best = [[0] * (width + 1) for _ in range(count + 1)]
    for at in range(1, count + 1):
        for row_at in range(1, width + 1):
            longest = max(best[at - 1][row_at], best[at][row_at - 1])
            best[at][row_at] = best[at - 1][row_at - 1] + 1 if same[at - 1][row_at - 1] else longest
    pairs: list[_Pair] = []
    at, row_at = count, width
    while at and row_at:
        if same[at - 1][row_at - 1]:
            at, row_at = at - 1, row_at - 1
            pairs.append((at, row_at))
        elif best[at - 1][row_at] > best[at][row_at - 1]:
            at -= 1
        else:
            row_at -= 1
    return pairs[::-1]


def _gaps(pairs: Sequence[_Pair], sent: int, rows: int) -> Iterator[tuple[range, range]]:
    """Yield the unmatched ranges of messages and of rows between the matched `pairs`."""
    before: _Pair = (-1, -1)
    for end in (*pairs, (sent, rows)):
        gap, beside = range(before[0] + 1, end[0]), range(before[1] + 1, end[1])
        if before == (-1, -1):
            gap = gap[max(len(gap) - len(beside), 0) :]
        yield gap, beside
        before = end
