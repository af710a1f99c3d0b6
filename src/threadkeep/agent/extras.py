"""Extra sections of a prompt, such as quotes of older turns and passages of a knowledge base, and their sources."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from langchain_core.messages import BaseMessage, HumanMessage

from threadkeep.agent.conversion import digest_of, dump_message, text_of
from threadkeep.agent.counting import count_message
from threadkeep.boundary import ErrorBoundary
from threadkeep.context.manifest import Entry, FactsLeftOut, ScopeRecall, Section
from threadkeep.context.quotation import SNIPPETS_HEADER, Quote, QuotedTurn, fitting, render, turns_text
from threadkeep.context.tokens import TokenCounter
from threadkeep.errors import InvalidInput, StoreClosed
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.observe import ExtraNotFound, ExtraSection, Observer
from threadkeep.records import Message
from threadkeep.store.driver import Row, Statement

if TYPE_CHECKING:
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

_RECENT_TURNS = 4
_LEAST_ROOM = 64
_RECENT_CHARACTERS = 1_000


@dataclass(frozen=True)
class Extra:
    """A prompt message with texts that a source found. `entry` records the message; `texts` has its JSON by digest."""

    message: HumanMessage
    entry: Entry
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExtraRequest:
    """The user's new input, for which sources find relevant texts, and the messages before it.

    - `earlier`: the messages before the input, oldest first.
    - `known_ids`: the ids of messages that the prompt already has.
    - `question_seq`: the `seq` of the input; None if the input is not stored yet.
    - `graph`: a list to which a source adds the outcome of its Graphiti query.
    - `facts_left_out`: a list to which a source of facts adds the facts that it omits.
    - `reads`: maps a `JoinedSource` to a pair: its scopes, and the rows that were read when the question was stored.
    - `notes`: a list to which a remark is added for each section that has too few tokens to be searched.
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
    reads: Mapping[object, tuple[Any, Sequence[Row]]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text of the question."""
        return "\n".join(text_of(message) for message in self.question)

    @property
    def asker(self) -> str | None:
        """The name of the person who asks; None if no message of the question has a name."""
        return next((message.name for message in reversed(self.question) if message.name), None)

    @property
    def last_messages(self) -> Sequence[Message]:
        """The last messages before the input; they help to resolve words like "it" and "that"."""
        return self.earlier[-_RECENT_TURNS:]

    @property
    def recent(self) -> list[str]:
        """The texts of `last_messages`."""
        return [message.content for message in self.last_messages]


class JoinedSource:
    """A base class of sources that can read their rows in the transaction that stores the user's question."""

    def joined(self, memory: Memory, session: Session) -> tuple[Any, Sequence[Statement]] | None:
        """Return the scopes to read for a question (such as the user) and SQL that reads them; None to read nothing."""


class ExtraSource(Protocol):
    """A source of the texts in one section of a prompt. If it raises an error, the section is left out."""

    @property
    def section(self) -> ExtraSection:
        """The section of the prompt in which the results are sent."""
        ...

    async def find(self, request: ExtraRequest, room: int) -> Extra | None:
        """Return a message with texts relevant to the input, of at most `room` tokens; None if nothing is relevant."""
        ...


async def find_all(
    sources: Sequence[ExtraSource], request: ExtraRequest, rooms: Mapping[Section, int], observer: Observer
) -> list[Extra]:
    """Search all sources. `rooms` has the token limit of each section. Report failing sources, and leave them out."""

    async def found_by(source: ExtraSource) -> Extra | None:
        if not request.text.strip():
            return None
        room = rooms.get(source.section, 0)
        if room < _LEAST_ROOM:
            request.notes.append(f"no_room_for_{source.section}")
            return None
        with ErrorBoundary(raising=(StoreClosed,)) as attempt:
            return await source.find(request, room)
        error = type(attempt.caught).__name__
        observer.notify(ExtraNotFound(section=source.section, error=error, session_id=request.session.session_id))
        return None

    # Await a single source directly: a task would cost time in each turn.
    found = [await found_by(sources[0])] if len(sources) == 1 else await asyncio.gather(*map(found_by, sources))
    return [extra for extra in found if extra is not None]


SECTION_KEY = "threadkeep_section"
"""The key in `additional_kwargs` for a message's section. Providers do not receive it."""


def block_of(section: ExtraSection, text: str, counter: TokenCounter, **references: Any) -> Extra:
    """Return a message with the text of a section. `references` are additional fields of its manifest entry."""
    message, (body, digest) = section_message(section, text), _body_of(section, text)
    return Extra(message, Entry(section, count_message(message, counter), digest=digest, **references), {digest: body})


@lru_cache(maxsize=500)
def _body_of(section: ExtraSection, text: str) -> tuple[str, str]:
    """Return the JSON of a message with this text, and its digest; cached, because many turns send the same text."""
    body = dump_message(section_message(section, text))
    return body, digest_of(body)


def turns_message(turns: Sequence[QuotedTurn], *, home: str) -> HumanMessage:
    """Return a message that quotes older turns, for a prompt of the session `home`."""
    return section_message("selected", turns_text(turns, home=home))


def section_message(section: Section, text: str) -> HumanMessage:
    """Return a message with the text of a section, marked with the section's name."""
    return HumanMessage(text, additional_kwargs={SECTION_KEY: section})


class RetrievedSnippets:
    """A source of passages from any LangChain retriever.

    The query includes the last messages before the input, to resolve words such as "it" and "that". If the retriever
    fails or is too slow, an event reports that, and the model is called without passages.
    """

    section: ExtraSection = "snippets"

    def __init__(self, retriever: BaseRetriever, *, timeout_seconds: float = 5.0) -> None:
        """Raise `InvalidInput` if `timeout_seconds` is not above 0."""
        if not timeout_seconds > 0:
            raise InvalidInput("timeout_seconds of retrieved snippets is a number above 0.")
        self._retriever = retriever
        self._timeout_seconds = timeout_seconds

    async def find(self, request: ExtraRequest, room: int) -> Extra | None:
        """Return the passages that fit into `room` tokens, best first. The last passage may be cut."""
        async with asyncio.timeout(self._timeout_seconds):
            documents = await self._retriever.ainvoke(query_with(request.recent, request.text))
        return snippets_block(documents, request, room)


def query_with(recent: Sequence[str], text: str) -> str:
    """Return the query for a knowledge base: the end of the recent messages, then the question."""
    before = "\n".join(recent)[-_RECENT_CHARACTERS:]
    return f"{before}\n{text}".strip()


def snippets_block(documents: Sequence[Document], request: ExtraRequest, room: int) -> Extra | None:
    """Return one prompt message with the passages that fit into `room` tokens; None if none fits."""
    given = [(number, one) for number, one in enumerate(documents, start=1) if one.page_content.strip()]
    quotes = [Quote(f"passage {number}", document.page_content) for number, document in given]
    kept = fitting(SNIPPETS_HEADER, quotes, room, request.counter)
    if not kept:
        return None
    names = tuple(one.id or f"sha256-{digest_of(one.page_content)[:16]}" for _, one in given[: len(kept)])
    return block_of("snippets", render(SNIPPETS_HEADER, kept), request.counter, snippets=names)
