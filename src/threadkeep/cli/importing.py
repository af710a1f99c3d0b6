"""The lines of an export brought into a memory, some hundred messages in one transaction."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from threadkeep.cli.jsonl import BadLine, MessageLine, SessionLine, SummaryLine, parse_line
from threadkeep.cli.wording import counted
from threadkeep.errors import InvalidInput, WrongUser
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.memory import Memory
from threadkeep.records import Message
from threadkeep.store.archive import ArchivedPart, Restored
from threadkeep.store.graph_transcripts.layout import GraphLayout
from threadkeep.store.summaries import ArchivedSummary

type _Place = tuple[str, GraphLayout | None]

BATCH_MESSAGES = 500


@dataclass
class Imported:
    """What became of the lines so far.

    `skipped` are messages that were left out because of their session: its line is bad, or it is another user's here.
    `summaries` were stored; `summaries_left_out` stand for what is not here as it was, or is summarised already.
    """

    sessions: int = 0
    stored: int = 0
    known: int = 0
    moved: int = 0
    cleaned: int = 0
    bad_lines: int = 0
    skipped: int = 0
    summaries: int = 0
    summaries_left_out: int = 0

    def add(self, restored: Restored) -> None:
        """Count what became of a part."""
        self.stored += restored.stored
        self.known += restored.known
        self.moved += restored.moved
        self.cleaned += restored.cleaned
        self.summaries += restored.summaries
        self.summaries_left_out += restored.summaries_left_out

    def __str__(self) -> str:
        return f"{counted(self.stored, 'message')} stored, {self.known:,} there already"


@dataclass
class _Part:
    """Messages that stand together in the file, and the line at which they begin."""

    line: SessionLine
    number: int
    messages: list[Message] = field(default_factory=list)
    summaries: list[ArchivedSummary] = field(default_factory=list)


class Importer:
    """Takes lines one by one and stores them in batches. `told` is called for each bad line, with its number.

    With `strict`, `take` answers False at the first bad line; what came before it is stored.
    """

    def __init__(self, memory: Memory, told: Callable[[int, str], None], *, strict: bool) -> None:
        self.done = Imported()
        self._memory = memory
        self._everything = AllSessions(memory)
        self._told = told
        self._strict = strict
        self._session: SessionLine | None = None
        self._parts: list[_Part] = []
        self._waiting = 0
        self._refused: set[_Place] = set()
        self._nameless: Counter[str] = Counter()

    async def take(self, number: int, line: bytes) -> bool:
        """Take one line; False when no more should follow."""
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            return True
        try:
            self._accept(number, parse_line(line))
        except BadLine as error:
            if error.session_id is not None:
                self._session = None
            self._refuse(number, str(error), None if error.session_id is None else (error.session_id, None))
        if self._waiting >= BATCH_MESSAGES or len(self._parts) >= BATCH_MESSAGES:
            await self.store()
        return not (self._strict and self.done.bad_lines)

    async def store(self) -> None:
        """Store what was taken since the last time."""
        waiting, self._parts, self._waiting = self._parts, [], 0
        for layout in dict.fromkeys(part.line.layout for part in waiting):
            keeper = await self._everything.keeper(layout)
            await self._store(keeper, [part for part in waiting if part.line.layout == layout])

    async def _store(self, keeper: Memory, parts: Sequence[_Part]) -> None:
        """Store parts of one place."""
        now = self._memory.clock()
        archived = [
            ArchivedPart(part.line.info(part.messages, now), tuple(part.messages), tuple(part.summaries))
            for part in parts
        ]
        for part, outcome in zip(parts, await keeper.restore(archived), strict=True):
            if isinstance(outcome, WrongUser):
                self.done.skipped += len(part.messages)
                self._refuse(part.number, str(outcome), (part.line.session_id, part.line.layout))
            else:
                self.done.add(outcome)

    def _accept(self, number: int, parsed: SessionLine | MessageLine | SummaryLine) -> None:
        if isinstance(parsed, SessionLine):
            self._begin(parsed)
            self._parts.append(_Part(parsed, number))
            return
        session = self._session
        if session is not None and session.session_id != parsed.session_id:
            session = None
        if (parsed.session_id, None if session is None else session.layout) in self._refused:
            self.done.skipped += isinstance(parsed, MessageLine)
            return
        if isinstance(parsed, SummaryLine):
            self._accept_summary(number, parsed)
            return
        session = session or self._begin(SessionLine(parsed.session_id))
        if not self._parts or self._parts[-1].line is not session:
            self._parts.append(_Part(session, number))
        self._parts[-1].messages.append(self._identified(parsed))
        self._waiting += 1

    def _accept_summary(self, number: int, parsed: SummaryLine) -> None:
        session = self._session
        if session is None or session.session_id != parsed.session_id:
            raise BadLine("A summary stands behind the lines of its session.")
        if not self._parts or self._parts[-1].line is not session:
            self._parts.append(_Part(session, number))
        self._parts[-1].summaries.append(parsed.archived)
        self._waiting += 1

    def _begin(self, line: SessionLine) -> SessionLine:
        try:
            self._memory.session(line.session_id, user_id=line.user_id)
        except InvalidInput as error:
            raise BadLine(str(error), session_id=line.session_id) from error
        self._refused.discard((line.session_id, line.layout))
        self._session = line
        self.done.sessions += 1
        return line

    def _identified(self, parsed: MessageLine) -> Message:
        """The message with an id: one that has none gets that of its place and words, the same at every import."""
        message = parsed.message
        if message.id is not None:
            return message
        self._nameless[parsed.session_id] += 1
        words = f"{parsed.session_id}\n{self._nameless[parsed.session_id]}\n{message.role}\n{message.content}"
        digest = hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()
        return message.with_fields(id=f"import:{digest[:32]}")

    def _refuse(self, number: int, sentence: str, place: _Place | None) -> None:
        self.done.bad_lines += 1
        if place is not None:
            self._refused.add(place)
            sentence += " The messages of this session are left out."
        self._told(number, sentence)
