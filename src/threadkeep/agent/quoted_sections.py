"""Sections of a context that are not part of the conversation: quoted older turns, passages of a knowledge base."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.retrievers import BaseRetriever

from threadkeep.agent.conversion import digest_of, dump_message
from threadkeep.agent.counting import count_message
from threadkeep.agent.extras import Extra, ExtraRequest
from threadkeep.context.manifest import Entry, Section
from threadkeep.context.quotation import SNIPPETS_HEADER, Quote, QuotedTurn, fitting, render, turns_text
from threadkeep.errors import InvalidInput
from threadkeep.observe import ExtraSection

SECTION_KEY = "threadkeep_section"
"""The key in a message's `additional_kwargs` for the section of the message. It is not sent to providers."""


def turns_message(turns: Sequence[QuotedTurn], *, home: str) -> HumanMessage:
    """Return a message that quotes turns in order, for a prompt of the session `home`."""
    return section_message("selected", turns_text(turns, home=home))


def section_message(section: Section, text: str) -> HumanMessage:
    """Return a message with a section of the context."""
    return HumanMessage(text, additional_kwargs={SECTION_KEY: section})


_RECENT_CHARACTERS = 1_000


class RetrievedSnippets:
    """A source of passages from any LangChain retriever.

    The query includes the last turns before the input, to resolve words such as "it" and "that". If the retriever fails
    or takes longer than `timeout_seconds`, an event reports it, and the model is called without passages.
    """

    def __init__(self, retriever: BaseRetriever, *, timeout_seconds: float = 5.0) -> None:
        """Raise `InvalidInput` if `timeout_seconds` is not above 0."""
        if not timeout_seconds > 0:
            raise InvalidInput("timeout_seconds of retrieved snippets is a number above 0.")
        self._retriever = retriever
        self._timeout_seconds = timeout_seconds

    @property
    def section(self) -> ExtraSection:
        """The section `snippets`."""
        return "snippets"

    async def find(self, request: ExtraRequest, room: int) -> Extra | None:
        """Return the passages that fit, best first; the last one may be cut with a mark."""
        async with asyncio.timeout(self._timeout_seconds):
            documents = await self._retriever.ainvoke(query_of(request))
        return snippets_block(documents, request, room)


def query_of(request: ExtraRequest) -> str:
    """Return the query for a knowledge base: the last turns, then the input."""
    return query_with(request.recent, request.text)


def query_with(recent: Sequence[str], text: str) -> str:
    """Return a question, preceded by the end of the messages before it."""
    before = "\n".join(recent)[-_RECENT_CHARACTERS:]
    return f"{before}\n{text}".strip()


def snippets_block(documents: Sequence[Document], request: ExtraRequest, room: int) -> Extra | None:
    """Return the passages that fit as one block of a prompt; None if there are none."""
    quotes = [
        Quote(f"passage {number}", document.page_content)
        for number, document in enumerate(documents, start=1)
        if document.page_content.strip()
    ]
    kept = fitting(SNIPPETS_HEADER, quotes, room, request.counter)
    if not kept:
        return None
    message = section_message("snippets", render(SNIPPETS_HEADER, kept))
    body = dump_message(message)
    names = tuple(_name(document) for document in documents if document.page_content.strip())[: len(kept)]
    tokens = count_message(message, request.counter)
    return Extra(message, Entry("snippets", tokens, digest=digest_of(body), snippets=names), {digest_of(body): body})


def _name(document: Document) -> str:
    """Return the key of a passage: its id, or a hash of its text."""
    return document.id or f"sha256-{digest_of(document.page_content)[:16]}"
