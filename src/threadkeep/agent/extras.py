"""Extra sections of a prompt, such as recalled turns and results of a knowledge base, and their sources."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from langchain_core.messages import BaseMessage, HumanMessage

from threadkeep.agent.conversion import text_of
from threadkeep.boundary import ErrorBoundary
from threadkeep.context.manifest import Entry, FactsLeftOut, ScopeRecall, Section
from threadkeep.context.tokens import TokenCounter
from threadkeep.errors import StoreClosed
from threadkeep.history.session import Session
from threadkeep.observe import ExtraNotFound, ExtraSection, Observer
from threadkeep.records import Message

_RECENT_TURNS = 4
_LEAST_ROOM = 64


@dataclass(frozen=True)
class Extra:
    """A block that a source found: its message, its entry, and the texts for the digests in the entry."""

    message: HumanMessage
    entry: Entry
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExtraRequest:
    """The input to search for, and the messages before it.

    `earlier` are the messages before the input, oldest first. `known_ids` are ids of messages in the prompt.
    `question_seq` is the `seq` of the input; None if it has none yet. A source that queries Graphiti adds the outcome
    to `graph`. A source of facts adds the facts that it omits to `facts_left_out`. Sections without room are added to
    `notes`.
    """

    session: Session
    question: Sequence[BaseMessage]
    earlier: Sequence[Message]
    known_ids: Collection[str]
    question_seq: int | None
    counter: TokenCounter
    now: datetime
    graph: list[ScopeRecall] = field(default_factory=list)
    facts_left_out: list[FactsLeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of the question."""
        return "\n".join(text_of(message) for message in self.question)

    @property
    def asker(self) -> str | None:
        """The name of the person who asks; None if the question has no name."""
        return next((message.name for message in reversed(self.question) if message.name), None)

    @property
    def last_messages(self) -> Sequence[Message]:
        """The last messages before the input, to resolve words like "it" and "that"."""
        return self.earlier[-_RECENT_TURNS:]

    @property
    def recent(self) -> list[str]:
        """The texts of the last messages before the input."""
        return [message.content for message in self.last_messages]


class ExtraSource(Protocol):
    """A source of one section of a prompt, searched for each input. If it raises, the section is left out."""

    @property
    def section(self) -> ExtraSection:
        """The section of its results."""
        ...

    async def find(self, request: ExtraRequest, room: int) -> Extra | None:
        """Return a block that is relevant to the input, within `room` tokens; None if nothing is relevant."""
        ...


async def find_all(
    sources: Sequence[ExtraSource], request: ExtraRequest, rooms: Mapping[Section, int], observer: Observer
) -> list[Extra]:
    """Return the results of the sources within their budgets; report a failure and leave its section out."""

    async def found_by(source: ExtraSource) -> Extra | None:
        if not request.text.strip():
            return None
        room = rooms.get(source.section, 0)
        if room < _LEAST_ROOM:
            request.notes.append(f"no_room_for_{source.section}")
            return None
        # After a failure, the agent answers without the section.
        with ErrorBoundary(raising=(StoreClosed,)) as attempt:
            return await source.find(request, room)
        error = type(attempt.caught).__name__
        observer.notify(ExtraNotFound(section=source.section, error=error, session_id=request.session.session_id))
        return None

    # Await a single source directly: a task would cost time in each turn.
    found = [await found_by(sources[0])] if len(sources) == 1 else await asyncio.gather(*map(found_by, sources))
    return [extra for extra in found if extra is not None]
