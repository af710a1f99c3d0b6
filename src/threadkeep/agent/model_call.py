"""The stages of a model call: its inputs, the kept window of its session, the selection, and the sent messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from langchain_core.messages import BaseMessage, SystemMessage

from threadkeep.agent.conversion import add_to_digest, id_of, is_plain, to_langchain
from threadkeep.agent.extras import Extra
from threadkeep.context.manifest import Entry, LeftOut, Section, StablePrefix
from threadkeep.context.tokens import TokenCounter
from threadkeep.context.trim import Plan
from threadkeep.context.window import Exclusion, ExclusionReason
from threadkeep.records import Message, Summary

if TYPE_CHECKING:
    from _hashlib import HASH


@dataclass(frozen=True)
class Call:
    """The inputs of a model call, apart from the earlier turns.

    `messages` are the run's own, including the `question`. `budget` is in tokens of `counter`. `max_messages` limits
    the messages of earlier turns. `provider` is the provider of the model. `forgotten` are messages of the run from
    before a reset, `superseded` messages that were superseded in the transcript. `question_as_stored` is True if the
    transcript has the same text of the question. `shared` is the number of tokens to which shares apply.
    """

    messages: Sequence[BaseMessage]
    question: Sequence[BaseMessage]
    system: SystemMessage | None
    counter: TokenCounter
    budget: int
    max_messages: int | None = None
    forgotten: Sequence[BaseMessage] = ()
    superseded: Sequence[BaseMessage] = ()
    question_as_stored: bool = True
    provider: str | None = None
    shared: int | None = None


class Piece(NamedTuple):
    """A message that may be sent, and the id with which it is stored.

    A `mark` exists only in this call and was not written by anyone; it is kept or excluded with the message before it.
    """

    message: BaseMessage
    section: Section
    id: str | None
    mark: bool = False


class KeptWindow:
    """The earlier messages of a session in the form of model calls, cached between calls; it only grows.

    All values are derived from the rows and the counter. `plain` is False if a message has more than role, text and id,
    is empty, or has no answer. Such a window is added to a call message by message instead of as a whole.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self.counter = counter
        self.plain = True
        self.rows: list[Message] = []
        self.rows_by_id: dict[str | None, Message] = {}
        self.messages: list[BaseMessage] = []
        self.entries: list[Entry] = []
        self.sums = [0]
        self.answered_runs: set[str | None] = set()
        self._digest: tuple[bytes, HASH, int] | None = None

    def extend(self, rows: Sequence[Message]) -> bool:
        """Add new rows of a session's window; return False if they do not begin with the rows that are already here."""
        shared = min(len(rows), len(self.rows))
        if shared and (rows[0] is not self.rows[0] or rows[shared - 1] is not self.rows[shared - 1]):
            return False
        for row in rows[len(self.rows) :]:
            self._add(row)
        return bool(rows)

    def digest(self, front: HASH, count: int) -> HASH:
        """Return the digest of the messages in `front` and of the first `count` messages of the window."""
        key = front.digest()
        state, done = front.copy(), 0
        if self._digest is not None and self._digest[0] == key and self._digest[2] <= count:
            _, state, done = self._digest
        for message in self.messages[done:count]:
            add_to_digest(state, message)
        self._digest = key, state, count
        return state.copy()

    def _add(self, row: Message) -> None:
        message = to_langchain(row)
        tokens = self.counter(row.content)
        before = self.rows[-1] if self.rows else None
        if row.role == "assistant":
            self.answered_runs.add(row.run_id)
        answered = before is None or row.role != "user" or self.has_answer(before, row)
        plain = row.original is None and row.seq is not None and bool(row.content.strip()) and is_plain(message)
        self.plain = self.plain and plain and answered
        self.rows.append(row)
        if row.id:
            self.rows_by_id[row.id] = row
        self.messages.append(message)
        self.entries.append(Entry("window", tokens, "transcript", seq=row.seq, id=id_of(message)))
        self.sums.append(self.sums[-1] + tokens)

    def has_answer(self, asked: Message, following: Message | None) -> bool:
        """Return False if a row is an unanswered question that is followed by a question of another run."""
        if asked.role != "user" or asked.run_id is None or asked.run_id in self.answered_runs:
            return True
        return following is not None and following.run_id == asked.run_id


@dataclass(frozen=True)
class Draft:
    """A model call with a chosen window.

    `chosen` has indexes of `pieces`. `window` is the number of messages of the kept window if it is sent as a whole;
    they are not in `pieces`. `rooms` are the tokens for each extra that is still to be searched. `unsendable` are
    messages that no provider accepts, and `summaries` are the summaries that are sent.
    """

    call: Call
    pieces: tuple[Piece, ...]
    chosen: Plan
    unsendable: Sequence[tuple[BaseMessage, ExclusionReason]] = ()
    rooms: Mapping[Section, int] = field(default_factory=dict)
    extras: tuple[Extra, ...] = ()
    summaries: tuple[Summary, ...] = ()
    window: int = 0

    @property
    def reserved(self) -> int:
        """The tokens of the extras, found or not."""
        return sum(self.rooms.values()) + sum([extra.entry.tokens for extra in self.extras])


@dataclass(frozen=True)
class Assembled:
    """The messages of a model call, with reasons; `texts` maps the digests in the entries to texts.

    `begin_seq` is the new start of the window, None if it is unchanged. `marks` is the number of messages that were
    added only for this call. `texts_only` is True if no message has tool calls or media.
    """

    system: SystemMessage | None
    messages: tuple[BaseMessage, ...]
    entries: tuple[Entry, ...]
    tokens: int
    excluded: tuple[Exclusion, ...]
    left_out: tuple[LeftOut, ...]
    dropped: int
    prefix: StablePrefix
    digest: str
    begin_seq: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    marks: int = 0
    texts_only: bool = True

    @property
    def chat(self) -> list[BaseMessage]:
        """The messages of the window and of the input: not the prompt, summaries, facts or quotes."""
        entries = self.entries[len(self.entries) - len(self.messages) :]
        sent = zip(self.messages, entries, strict=True)
        return [message for message, entry in sent if entry.section in ("window", "input")]
