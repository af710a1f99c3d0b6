"""Messages that a client sends again with every turn, recognised in the transcript.

A message is known by its id, else by its position and its text: the stored text, or the text as it was received, of
which the transcript has a keyed digest if other middleware changed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from langchain_core.messages import BaseMessage

from threadkeep.agent.conversion import id_of, is_utterance, role_of, to_langchain, transcript_text
from threadkeep.history.memory import Memory
from threadkeep.records import Message, Role

RECEIVED: Final = "threadkeep:received"
"""The metadata of a stored question that has the digest of its text as it was received."""

type Digest = Callable[[str], str]
"""The keyed digest of a text; the key is the database's."""

type _Pair = tuple[int, int]
"""The positions of a message and of its row."""


@dataclass
class KnownMessages:
    """The rows of known messages by their places, and the places where a person's words differ from the transcript."""

    rows: dict[int, Message] = field(default_factory=dict)
    changed: list[int] = field(default_factory=list)


async def digest_for(memory: Memory, rows: Sequence[Message]) -> Digest | None:
    """Return the digest of the database, if some of the rows have one."""
    return await memory.text_digests.digest() if any(RECEIVED in row.metadata for row in rows) else None


def known_messages(
    messages: Sequence[BaseMessage], rows: Sequence[Message], digest: Digest | None = None, *, by_place: bool = True
) -> KnownMessages:
    """Compare messages with the newest rows of a transcript, both in order.

    Between known messages, a message of the person has changed if no row has its text, and an answer in the place of
    one answer is known `by_place`: clients may show it in other words. Messages from before the first row are older
    than it, or the program's own. Nothing has changed if no message is known.
    """
    told = _told(messages, rows, digest)
    pairs = _aligned(told, rows)
    found = KnownMessages({told[at].place: rows[row] for at, row in pairs})
    if not pairs:
        return found
    free = [row for place, row in enumerate(rows) if place not in {row for _, row in pairs}]
    for gap, beside in _gaps(pairs, len(told), len(rows)):
        opposite = [rows[at] for at in beside] if by_place and len(gap) == len(beside) else []
        for at, there in zip_longest(gap, opposite):
            one = told[at]
            row = next((row for row in free if one.is_row(row)), None)
            if row is not None:
                free.remove(row)
            elif one.role == "user":
                found.changed.append(one.place)
            elif there is not None and _is_answer(there):
                row = there
            if row is not None:
                found.rows[one.place] = row
    return found


def known_beginning(
    question: Sequence[BaseMessage], rows: Sequence[Message], *, whole: bool, digest: Digest | None = None
) -> list[Message]:
    """Return the rows of the leading messages of a question that the transcript has; the last one is always new.

    `rows` are those after the last known message before the question. Without such a message (`whole` says that they
    are all of the session), the leading messages are known if they are all that the person has said, or what has no
    answer yet.
    """
    told = _told(question[:-1], rows, digest)
    asked = [row for row in rows if row.role == "user"]
    if whole and not (len(asked) == len(told) and all(one.is_row(row) for one, row in zip(told, asked, strict=True))):
        answered = max((at for at, row in enumerate(rows, start=1) if _is_answer(row)), default=0)
        asked = [row for row in rows[answered:] if row.role == "user"]
    known: list[Message] = []
    for one, row in zip(told, asked, strict=False):
        if not one.is_row(row):
            break
        known.append(row)
    return known


def in_order(messages: Sequence[BaseMessage], known: Mapping[int, Message]) -> list[BaseMessage]:
    """Return the messages, the known ones as they are stored.

    A known message whose row stands behind that of a later one is left out: the transcript has it at its own place.
    """
    found: list[BaseMessage] = []
    before = None
    for place in range(len(messages) - 1, -1, -1):
        message, row = messages[place], known.get(place)
        if row is None:
            found.append(message)
        elif row.seq is None or before is None or row.seq < before:
            before = row.seq or before
            same = transcript_text(message) == row.content
            found.append(message.model_copy(update={"id": row.id}) if same else to_langchain(row))
    return found[::-1]


@dataclass(frozen=True)
class _Told:
    """A message that a client sent, with what is compared of it; `row_id` is its id if a row has that."""

    place: int
    role: Role | None
    text: str
    received: str | None
    row_id: str | None

    def is_row(self, row: Message) -> bool:
        """Return whether a row has the message."""
        if self.row_id is not None:
            return row.id == self.row_id
        if row.role != self.role:
            return False
        return row.content == self.text or (self.received is not None and row.metadata.get(RECEIVED) == self.received)


def _told(messages: Sequence[BaseMessage], rows: Sequence[Message], digest: Digest | None) -> list[_Told]:
    ids = {row.id for row in rows if row.id}
    found: list[_Told] = []
    for place, message in enumerate(messages):
        if is_utterance(message):
            message_id, text = id_of(message), transcript_text(message)
            received = digest(text) if digest else None
            row_id = message_id if message_id in ids else None
            found.append(_Told(place, role_of(message), text, received, row_id))
    return found


def _is_answer(row: Message) -> bool:
    return row.role == "assistant" and row.status == "complete"


def _aligned(told: Sequence[_Told], rows: Sequence[Message]) -> list[_Pair]:
    """Return the longest list of pairs that is in order on both sides, the newest ones of several."""
    ids, texts = {row.id for row in rows}, {(row.role, row.content) for row in rows}
    received = {row.metadata.get(RECEIVED) for row in rows}
    some = [
        at
        for at, one in enumerate(told)
        if one.row_id in ids or (one.role, one.text) in texts or (one.received and one.received in received)
    ]
    end = 0
    while end < min(len(some), len(rows)) and told[some[-1 - end]].is_row(rows[-1 - end]):
        end += 1
    pairs = [(some[-back], len(rows) - back) for back in range(1, end + 1)]
    begin = some[: len(some) - end]
    same = [[told[at].is_row(row) for row in rows[: len(rows) - end]] for at in begin]
    return [*((begin[at], row_at) for at, row_at in _longest(same)), *pairs[::-1]]


def _longest(same: Sequence[Sequence[bool]]) -> list[_Pair]:
    """Return the longest common subsequence of two lists, by what is the same in them."""
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


def _gaps(pairs: Sequence[_Pair], told: int, rows: int) -> Iterator[tuple[range, range]]:
    """Yield the messages and the rows between the pairs; before the first pair no more messages than rows."""
    before: _Pair = (-1, -1)
    for end in (*pairs, (told, rows)):
        gap, beside = range(before[0] + 1, end[0]), range(before[1] + 1, end[1])
        if before == (-1, -1):
            gap = gap[max(len(gap) - len(beside), 0) :]
        yield gap, beside
        before = end
