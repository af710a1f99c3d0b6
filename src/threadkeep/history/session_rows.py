"""Rows of sessions that a process has read: a cache of the log that transcripts are.

Appended messages never change, so rows that were read once stay valid while the marks of their session do. A read for a
model call returns the marks, the newest known row and what came after it in one statement, so changes by other
processes are seen at once.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from threadkeep.context.tokens import TokenCounter
from threadkeep.records import Message, dump_json
from threadkeep.store.codec import message_of
from threadkeep.store.driver import Row
from threadkeep.store.tables import marks_in
from threadkeep.store.transcripts import Marks

_SPARE_ROWS: Final = 200
_MESSAGE_BYTES: Final = 3_000  # the objects of a message, besides its text


@dataclass(frozen=True)
class SessionRows:
    """The newest active messages of users and assistants in a session, oldest first.

    None is missing from `first_seq` on; 0 means that all since the last reset and archive are there. As far as they
    were read, `superseded` has a `seq` and the ranges of superseded messages after it, and `forgotten` the ids on the
    newest page before the last reset. `derived` has objects that callers have made of these messages for a model call;
    they are valid as long as the marks are.
    """

    marks: Marks
    messages: tuple[Message, ...]
    first_seq: int
    superseded: tuple[int, Sequence[tuple[int, int]]] | None = None
    forgotten: frozenset[str] | None = None
    derived: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    @property
    def last_seq(self) -> int:
        """The `seq` of the newest message."""
        return self.messages[-1].seq or 0

    def between(self, begin: int, before: int) -> tuple[Message, ...]:
        """Return the messages from a `seq` on and before another one."""
        return self.messages[_index(self.messages, begin) : _index(self.messages, before)]

    def counted(
        self, begin: int, before: int, most: int | None, counter: TokenCounter
    ) -> tuple[tuple[Message, ...], int] | None:
        """Return the messages from a `seq` on and before another one, and their tokens; None if there are too many."""
        start, end = _index(self.messages, begin), _index(self.messages, before)
        if most is not None and end - start > most:
            return None
        sums = self.derived.get("sums")
        if not isinstance(sums, _TokenSums) or sums.counter != counter or sums.first is not self.messages[0]:
            sums = self.derived["sums"] = _TokenSums(counter, self.messages[0])
        return self.messages[start:end], sums.between(self.messages, start, end)

    def with_older(self, older: Sequence[Message], first_seq: int) -> SessionRows:
        """Return the rows with earlier ones, which were read newest first."""
        return replace(self, messages=(*reversed(older), *self.messages), first_seq=first_seq)

    def superseded_between(self, after: int, before: int) -> list[tuple[int, int]]:
        """Return the ranges of superseded messages between two `seq` values, both excluded."""
        _, ranges = self.superseded or (0, ())
        inside = [(first, last) for first, last in ranges if first < before and last > after]
        return [(max(first, after + 1), min(last, before - 1)) for first, last in inside]

    def newest(self, count: int) -> SessionRows:
        """Return the newest messages alone."""
        if len(self.messages) <= count:
            return self
        kept = self.messages[-count:]
        return replace(self, messages=kept, first_seq=kept[0].seq or 0)


class _TokenSums:
    """Running sums of the tokens of a session's messages, so that each message is counted once."""

    def __init__(self, counter: TokenCounter, first: Message) -> None:
        self.counter = counter
        self.first = first
        self._sums = [0]

    def between(self, messages: Sequence[Message], start: int, end: int) -> int:
        """Return the tokens of the messages with these indexes; the first message must be the same in each call."""
        for message in messages[len(self._sums) - 1 : end]:
            self._sums.append(self._sums[-1] + self.counter(message.content))
        return self._sums[end] - self._sums[start]


def rows_of(found: Sequence[Row], limit: int, known: SessionRows | None = None) -> SessionRows | None:
    """Return the rows that the statement `recent` found, newest first, joined to the known ones.

    With known rows, the statement began at their newest row. None: there are no rows, or the known ones have
    changed.
    """
    if not found:
        return None
    marks = marks_in(found[0])
    messages = tuple([message_of(row) for row in reversed(found)])
    if known is not None and messages[0].seq == known.last_seq:
        if messages[0] != known.messages[-1] or marks != known.marks:
            return None
        return replace(known, messages=known.messages + messages[1:])
    if len(found) == limit:
        return SessionRows(marks, messages, messages[0].seq or 0)
    return SessionRows(marks, messages, 0) if known is None else None


class SessionCache:
    """The rows of the sessions that were used last, limited in bytes; `most_bytes` of 0 turns it off.

    `bytes` is the estimated size of all entries.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.bytes = 0
        self._entries: OrderedDict[str, tuple[SessionRows, int]] = OrderedDict()

    def get(self, session_id: str) -> SessionRows | None:
        """Return the rows of a session that were read last."""
        found = self._entries.get(session_id)
        if found is None:
            return None
        self._entries.move_to_end(session_id)
        return found[0]

    def put(self, session_id: str, rows: SessionRows, *, window: int) -> None:
        """Replace the rows of a session; drop the sessions that were not used for longest."""
        if len(rows.messages) > 4 * window + _SPARE_ROWS:
            rows = rows.newest(2 * window + _SPARE_ROWS)
        size = self._size(session_id, rows)
        self.forget(session_id)
        self._entries[session_id] = rows, size
        self.bytes += size
        while self.bytes > self._most_bytes:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.bytes -= dropped

    def forget(self, session_id: str) -> None:
        """Drop the rows of a session."""
        found = self._entries.pop(session_id, None)
        if found is not None:
            self.bytes -= found[1]

    def _size(self, session_id: str, rows: SessionRows) -> int:
        """Return the size of rows; only of those after the known ones, if nothing else has changed."""
        known = self._entries.get(session_id)
        count = 0 if known is None else len(known[0].messages)
        if known is not None and len(rows.messages) >= count and rows.messages[0] is known[0].messages[0]:
            return known[1] + sum(map(_size_of, rows.messages[count:]))
        return sum(map(_size_of, rows.messages))


def _index(messages: Sequence[Message], seq: int) -> int:
    """Return the index of the first message from a `seq` on, which is mostly at one of the ends."""
    if not messages or seq <= (messages[0].seq or 0):
        return 0
    if seq >= (last := messages[-1].seq or 0):
        return len(messages) - (seq == last)
    return bisect_left(messages, seq, key=lambda message: message.seq or 0)


def _size_of(message: Message) -> int:
    """Estimate the bytes of a message with the objects that are made of it for a model call."""
    size = _MESSAGE_BYTES + sys.getsizeof(message.content)
    for extra in (message.original, message.metadata):
        size += 4 * len(dump_json(extra)) if extra else 0
    return size
