"""The import of exported lines of JSON into a memory, in transactions of several hundred messages."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from threadkeep.errors import InvalidInput, WrongUser
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.archive_lines import BadLine, MessageLine, SessionLine, SummaryLine, parse_line
from threadkeep.history.memory import Memory
from threadkeep.records import Message
from threadkeep.store.archive import ArchivedPart, Restored
from threadkeep.store.summaries import ArchivedSummary

type Position = int | str
"""A line number, or the name of a conversation in another system's export."""
type _Location = tuple[str, GraphLayout | None]

BATCH_MESSAGES = 500


@dataclass
class Imported:
    """The counts of an import so far; `restored` has the sums of the counts for all sessions.

    `skipped` counts messages that were left out because the line of their session is invalid, or because the session
    belongs to another user.
    """

    sessions: int = 0
    bad_lines: int = 0
    skipped: int = 0
    restored: Restored = Restored()

    def add(self, restored: Restored) -> None:
        """Add the counts for messages and summaries of one session."""
        sums = {name: count + getattr(restored, name) for name, count in vars(self.restored).items()}
        self.restored = Restored(**sums)


@dataclass
class _Part:
    """Consecutive messages and summaries of one session, and the position of the first in the imported data."""

    line: SessionLine
    position: Position
    messages: list[Message] = field(default_factory=list)
    summaries: list[ArchivedSummary] = field(default_factory=list)


class Importer:
    """An importer that stores lines in batches and reports each rejected line to `on_refusal`.

    If `strict` is true, `take` returns False once a line or session was rejected; `store` can then still store the
    accepted lines.
    """

    def __init__(self, memory: Memory, on_refusal: Callable[[Position, str], None], *, strict: bool = False) -> None:
        self.done = Imported()
        self._memory = memory
        self._everything = AllSessions(memory)
        self._on_refusal = on_refusal
        self._strict = strict
        self._session: SessionLine | None = None
        self._parts: list[_Part] = []
        self._waiting = 0
        self._refused: set[_Location] = set()
        self._nameless: Counter[str] = Counter()

    async def take(self, number: int, line: bytes) -> bool:
        """Process line `number` of an exported file; return False if the import must stop."""
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            return True
        try:
            parsed = parse_line(line)
        except BadLine as error:
            self._refuse_line(number, error)
        else:
            await self.accept(number, parsed)
        return not (self._strict and self.done.bad_lines)

    async def accept(self, position: Position, parsed: SessionLine | MessageLine | SummaryLine) -> None:
        """Process a parsed line of an export; store all accepted lines once they fill a batch."""
        try:
            self._accept(position, parsed)
        except BadLine as error:
            self._refuse_line(position, error)
        if self._waiting >= BATCH_MESSAGES or len(self._parts) >= BATCH_MESSAGES:
            await self.store()

    def refuse(self, position: Position, sentence: str) -> None:
        """Count an invalid line of the export, and report it to `on_refusal`."""
        self.done.bad_lines += 1
        self._on_refusal(position, sentence)

    async def store(self) -> None:
        """Store the lines that were accepted since the last call of this method."""
        waiting, self._parts, self._waiting = self._parts, [], 0
        for layout in dict.fromkeys(part.line.layout for part in waiting):
            home = await self._everything.memory_of(layout)
            await self._store(home, [part for part in waiting if part.line.layout == layout])

    async def _store(self, home: Memory, parts: Sequence[_Part]) -> None:
        """Store parts of sessions in a memory; skip and report parts whose session belongs to another user."""
        now = self._memory.clock()
        archived = [
            ArchivedPart(part.line.info(part.messages, now), tuple(part.messages), tuple(part.summaries))
            for part in parts
        ]
        for part, outcome in zip(parts, await home.restore(archived), strict=True):
            if isinstance(outcome, WrongUser):
                self.done.skipped += len(part.messages)
                self._refuse_session(part.position, str(outcome), (part.line.session_id, part.line.layout))
            else:
                self.done.add(outcome)

    def _accept(self, position: Position, parsed: SessionLine | MessageLine | SummaryLine) -> None:
        if isinstance(parsed, SessionLine):
            self._begin(parsed)
            self._parts.append(_Part(parsed, position))
            return
        session = self._session
        if session is not None and session.session_id != parsed.session_id:
            session = None
        if (parsed.session_id, None if session is None else session.layout) in self._refused:
            self.done.skipped += isinstance(parsed, MessageLine)
            return
        if isinstance(parsed, SummaryLine):
            if session is None:
                raise BadLine("A summary must follow the lines of its session.")
            self._part_of(session, position).summaries.append(parsed.archived)
            self._waiting += 1
            return
        session = session or self._begin(SessionLine(parsed.session_id))
        self._part_of(session, position).messages.append(self._identified(parsed))
        self._waiting += 1

    def _part_of(self, session: SessionLine, position: Position) -> _Part:
        if not self._parts or self._parts[-1].line is not session:
            self._parts.append(_Part(session, position))
        return self._parts[-1]

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
        """Return the message. If it has no id, give it an id that is the same in each import of the file."""
        message = parsed.message
        if message.id is not None:
            return message
        self._nameless[parsed.session_id] += 1
        words = f"{parsed.session_id}\n{self._nameless[parsed.session_id]}\n{message.role}\n{message.content}"
        digest = hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()
        return message.with_fields(id=f"import:{digest[:32]}")

    def _refuse_line(self, position: Position, error: BadLine) -> None:
        if error.session_id is None:
            self.refuse(position, str(error))
            return
        self._session = None
        self._refuse_session(position, str(error), (error.session_id, None))

    def _refuse_session(self, position: Position, sentence: str, location: _Location) -> None:
        self._refused.add(location)
        self.refuse(position, f"{sentence} The messages of this session are skipped.")
