"""A cache of the rows of sessions that this process has read.

Stored messages never change, so cached rows stay valid while the marks of their session (reset, archiving, revision and
so on) are unchanged. For a model call, one statement reads the marks and all later rows, so changes by other processes
are noticed at once.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from threadkeep.context.tokens import TokenCounter
from threadkeep.records import Message, dump_json
from threadkeep.store.codec import message_of
from threadkeep.store.driver import Row
from threadkeep.store.tables import marks_in
from threadkeep.store.transcripts import Marks

_SPARE_ROWS: Final = 200
_MESSAGE_BYTES: Final = 3_000  # the Python objects of a message, without its text


@dataclass(frozen=True)
class SessionRows:
    """The newest active messages of users and assistants in a session, oldest first.

    The rows are complete from `first_seq` on; 0 means since the last reset or archiving. `superseded` (None until read)
    is a pair: a `seq`, and the ranges of superseded messages after it. `forgotten` (None until read) has the ids of the
    newest messages before the last reset. `derived` has objects that callers computed from the messages for a model
    call; they are valid while the `marks` are unchanged.
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
        """Return the messages whose `seq` is at least `begin` and less than `before`."""
        return self.messages[_index(self.messages, begin) : _index(self.messages, before)]

    def counted(
        self, begin: int, before: int, most: int | None, counter: TokenCounter
    ) -> tuple[tuple[Message, ...], int] | None:
        """Return the result of `between` and its tokens, or None if it has more than `most` messages."""
        start = _index(self.messages, begin)
        end = max(start, _index(self.messages, before))
        if most is not None and end - start > most:
            return None
        found = self.derived.get("sums")
        if not isinstance(found, _TokenSums) or found.counter != counter or found.first is not self.messages[0]:
            found = self.derived["sums"] = _TokenSums(counter, self.messages[0])
        for message in self.messages[len(found.sums) - 1 : end]:
            found.sums.append(found.sums[-1] + counter(message.content))
        return self.messages[start:end], found.sums[end] - found.sums[start]

    def with_older(self, older: Sequence[Message], first_seq: int) -> SessionRows:
        """Return a copy that begins with `older` (passed newest first), and is complete from `first_seq` on."""
        return replace(self, messages=(*reversed(older), *self.messages), first_seq=first_seq)

    def superseded_between(self, after: int, before: int) -> list[tuple[int, int]]:
        """Return the ranges of superseded messages between two `seq` values, both excluded."""
        _, ranges = self.superseded or (0, ())
        inside = [(first, last) for first, last in ranges if first < before and last > after]
        return [(max(first, after + 1), min(last, before - 1)) for first, last in inside]

    def newest(self, count: int) -> SessionRows:
        """Return a copy with only the newest `count` messages."""
        if len(self.messages) <= count:
            return self
        kept = self.messages[-count:]
        return replace(self, messages=kept, first_seq=kept[0].seq or 0)


@dataclass(eq=False)
class _TokenSums:
    """Running sums of the tokens of messages from `first` on, so that each message is counted once."""

    counter: TokenCounter
    first: Message
    sums: list[int] = field(default_factory=lambda: [0])


def rows_of(found: Sequence[Row], limit: int, known: SessionRows | None = None) -> SessionRows | None:
    """Append the rows that the statement `recent` has found (newest first) to the cached rows in `known`.

    The statement must begin with the newest cached row. If its limit has cut it off before this row, return only the
    found rows. Return None if there are no rows, or if the cached rows are no longer valid.
    """
    if not found:
        return None
    marks = marks_in(found[0])
    messages = tuple([message_of(row) for row in reversed(found)])
    if known is not None and messages[0].seq == known.last_seq:
        if messages[0] != known.messages[-1] or marks != known.marks:
            return None
        every = known.messages + messages[1:]
        return SessionRows(known.marks, every, known.first_seq, known.superseded, known.forgotten, known.derived)
    if len(found) == limit:
        return SessionRows(marks, messages, messages[0].seq or 0)
    return SessionRows(marks, messages, 0) if known is None else None


class SessionCache:
    """A cache of the rows of the last used sessions, up to `most_bytes`; 0 turns the cache off.

    `bytes` is the estimated size of all entries.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.bytes = 0
        self._entries: OrderedDict[str, tuple[SessionRows, int]] = OrderedDict()

    def get(self, session_id: str) -> SessionRows | None:
        """Return the cached rows of a session, or None if the session is not in the cache."""
        found = self._entries.get(session_id)
        if found is None:
            return None
        self._entries.move_to_end(session_id)
        return found[0]

    def put(self, session_id: str, rows: SessionRows, *, window: int) -> None:
        """Cache a session's rows, or only the newest rows if there are far more than `window`.

        If the cache is full, drop the sessions that were not used for the longest time.
        """
        if len(rows.messages) > 4 * window + _SPARE_ROWS:
            rows = rows.newest(2 * window + _SPARE_ROWS)
        known, size = self._entries.pop(session_id, (None, 0))
        self.bytes -= size
        # Do not measure the rows again that are cached already.
        measured = 0 if known is None else len(known.messages)
        if known is None or len(rows.messages) < measured or rows.messages[0] is not known.messages[0]:
            measured = size = 0
        size += sum(map(_size_of, rows.messages[measured:]))
        self._entries[session_id] = rows, size
        self.bytes += size
        while self.bytes > self._most_bytes:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.bytes -= dropped

    def forget(self, session_id: str) -> None:
        """Drop the cached rows of a session."""
        found = self._entries.pop(session_id, None)
        if found is not None:
            self.bytes -= found[1]


def _index(messages: Sequence[Message], seq: int) -> int:
    """Return the position in `messages` of the first message with at least this `seq`."""
    if not messages or seq <= (messages[0].seq or 0):
        return 0
    if seq >= (last := messages[-1].seq or 0):
        return len(messages) - (seq == last)
    return bisect_left(messages, seq, key=attrgetter("seq"))


def _size_of(message: Message) -> int:
    """Return the estimated bytes of a message, with the objects that are derived from it."""
    size = _MESSAGE_BYTES + sys.getsizeof(message.content)
    for extra in (message.original, message.metadata):
        size += 4 * len(dump_json(extra)) if extra else 0
    return size
