"""`retrieve`: searches a knowledge base for passages, and adds them to later model calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Final

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from threadkeep.agent.conversion import text_of
from threadkeep.agent.extras import Extra, ExtraRequest, query_with, snippets_block
from threadkeep.agent.questions import question_before
from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import InvalidInput, StoreClosed, StoreError
from threadkeep.observe import ExtraNotFound, ExtraSection
from threadkeep.records import Json
from threadkeep.records.json_values import as_json
from threadkeep.workflows.nodes.base import (
    Again,
    Node,
    NodeKind,
    PythonOnly,
    Reference,
    Step,
    found,
    import_named,
    made_by,
    rendered,
)
from threadkeep.workflows.nodes.conversations import step_context
from threadkeep.workflows.state import WorkflowState

type Passage = tuple[str | None, str]
"""The id of a passage (None if it has none), and its text."""


class FoundPassages:
    """A source for the section `snippets` of a model call: `passages` or, if None, those in the `StepContext`."""

    section: Final[ExtraSection] = "snippets"

    def __init__(self, passages: Sequence[Passage] | None = None) -> None:
        self._passages = passages

    async def find(self, request: ExtraRequest, room: int) -> Extra | None:
        """Return the passages that fit into `room` tokens, in the order in which they were found."""
        passages = self._passages
        if passages is None:
            context = step_context()
            passages = context.passages if context is not None else ()
        return snippets_block([Document(text, id=name) for name, text in passages], request, room)


def passages_in(state: WorkflowState) -> tuple[Passage, ...]:
    """Return the passages that the run's `retrieve` nodes have found, each once."""
    found: dict[Passage, None] = {}
    for result in (state.get("results") or {}).values():
        listed = result.get("passages") if isinstance(result, Mapping) else None
        for passage in listed if isinstance(listed, Sequence) and not isinstance(listed, str) else ():
            if isinstance(passage, Mapping) and isinstance(text := passage.get("text"), str):
                name = passage.get("id")
                found[name if isinstance(name, str) else None, text] = None
    return tuple(found)


_MOST_CHARACTERS = 20_000


class RetrieveNode(Node):
    """A node that queries a retriever with the run's question.

    Recent messages are part of the query, because they explain words such as "it". The results are in the state
    (`results.<node>.passages`, `.text`), and in a separate section of later model calls. If the retriever fails or
    takes too long, an event is emitted and the run continues without results.
    """

    node_kind: ClassVar[NodeKind] = "retrieve"
    repetition: ClassVar[Again] = "nothing"
    template_options: ClassVar[tuple[str, ...]] = ("query",)

    retriever: Reference | SkipJsonSchema[Annotated[BaseRetriever, PythonOnly()]] = Field(
        description="Import string of a LangChain retriever, or of a function that returns one."
    )
    query: str | None = Field(None, description="The query, instead of the question; a template.")
    recent_messages: int = Field(4, ge=0, le=50, description="The number of messages before the question in the query.")
    max_passages: int = Field(8, ge=1, le=100, description="The maximum number of passages.")
    timeout_seconds: float = Field(5.0, gt=0, description="The time limit of the retriever in seconds.")

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Query the retriever; report a failure and return no passages."""
        query = await self._query(step, state)
        documents = []
        with ErrorBoundary() as attempt:
            async with asyncio.timeout(self.timeout_seconds):
                documents = await self.made_retriever.ainvoke(query) if query else []
        if attempt.error is not None:
            error = type(attempt.error).__name__
            step.context.resources.observer.notify(
                ExtraNotFound(section="snippets", error=error, session_id=step.context.session_id)
            )
        passages = [_passage(one) for one in documents if one.page_content.strip()][: self.max_passages]
        text = "\n\n".join(str(passage["text"]) for passage in passages)
        return found(step, text, {"passages": passages, "text": text, "count": len(passages)})

    @cached_property
    def made_retriever(self) -> BaseRetriever:
        """The retriever. A function that creates it is called only once.

        Raises:
            InvalidInput: the retriever cannot be imported or created, or is not a retriever.
        """
        given: object = self.retriever
        if isinstance(self.retriever, str):
            given = import_named(self.retriever)
            if not isinstance(given, BaseRetriever) and callable(given):
                given = made_by(given, self.retriever)
        if not isinstance(given, BaseRetriever):
            raise InvalidInput(f"{self.retriever!r} is not a LangChain retriever or a function that returns one.")
        return given

    async def _query(self, step: Step, state: WorkflowState) -> str:
        if self.query is not None:
            return rendered(self.query, state)
        messages = list(state.get("messages") or ())
        question = question_before(messages)
        asked = {message.id for message in question}
        text = "\n".join(map(text_of, question)) or state.get("text") or ""
        # The question may be stored already, so leave it out of the earlier messages.
        earlier = [text for text_id, text in await self._earlier(step) if text_id not in asked]
        return query_with(earlier[-self.recent_messages :] if self.recent_messages else [], text)

    async def _earlier(self, step: Step) -> Sequence[tuple[str | None, str]]:
        """Return the ids and texts of the session's newest messages, or none if the database fails."""
        context = step.context
        if context.session_id is None or not self.recent_messages:
            return []
        session = context.resources.memory.session(context.session_id, user_id=context.user_id)
        try:
            async with session.timeout():
                return [(one.id, one.content) for one in await session.tail(self.recent_messages + 2)]
        except StoreClosed:
            raise
        except (StoreError, TimeoutError):
            return []


def _passage(document: Document) -> dict[str, Json]:
    """Return a passage as JSON. Metadata that JSON cannot represent is left out."""
    known: dict[str, Json] = {}
    for name, value in document.metadata.items():
        try:
            known[str(name)] = as_json(value)
        except InvalidInput:
            continue
    return {"id": document.id, "text": document.page_content[:_MOST_CHARACTERS], "metadata": known}
