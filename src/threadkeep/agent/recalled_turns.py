"""The section `selected`: older turns that bear on the new input, quoted with their days and speakers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from langchain_core.embeddings import Embeddings

from threadkeep.agent.conversion import digest_of, dump_message
from threadkeep.agent.counting import count_message
from threadkeep.agent.extras import Extra, ExtraRequest
from threadkeep.agent.quoted_sections import turns_message
from threadkeep.agent.turn_options import kept_name
from threadkeep.context.manifest import Entry, QuoteReference
from threadkeep.context.quotation import QuotedTurn
from threadkeep.context.recall.embedding import Embedder, installed_word_vectors
from threadkeep.errors import InvalidInput
from threadkeep.history.memory import Memory
from threadkeep.history.older_turns import FoundTurn, RecallScope, Search
from threadkeep.memory.on_loop import OnLoop
from threadkeep.memory.sync_memory import SyncMemory
from threadkeep.observe import ExtraSection

_PATIENCE_SECONDS = 3.0


class RecalledTurns:
    """A source of older turns of the session, or of all sessions of its user, that matter for the input.

    No model is needed. With the extra `meaning`, or with `embeddings` (any of LangChain's), turns are also found that
    mean the same in other words: each message is embedded once, in the background. `embeddings_name` distinguishes the
    vectors of different models.
    """

    def __init__(
        self,
        memory: Memory | SyncMemory,
        *,
        scope: RecallScope = "session",
        embeddings: Embeddings | None = None,
        embeddings_name: str | None = None,
    ) -> None:
        """Raises `InvalidInput` when the scope is neither `session` nor `user`."""
        if scope not in ("session", "user"):
            raise InvalidInput("The scope of recalled turns is 'session' or 'user'.")
        self._memory = OnLoop(memory, lambda opened: opened)
        self._scope = scope
        self._embedder = embedder_of(embeddings, embeddings_name)

    @property
    def section(self) -> ExtraSection:
        """The section `selected`."""
        return "selected"

    async def find(self, request: ExtraRequest, room: int) -> Extra | None:
        """Return the block of turns that fits; None if no turn is relevant.

        Raises:
            StoreError, TimeoutError: the database does not answer in time.
        """
        session = request.session
        known = [m.seq for m in request.earlier if m.id in request.known_ids and m.seq is not None]
        search = Search(
            session.session_id,
            session.user_id,
            request.text,
            recent=request.recent,
            known=known,
            before=request.question_seq,
            scope=self._scope if session.user_id is not None else "session",
            now=request.now,
            asker=request.asker,
        )
        async with asyncio.timeout(_PATIENCE_SECONDS):
            found = await self._memory.call(lambda memory: memory.older_turns.find(search, room, self._embedder))
        return _block(_without_copies(found, request), request, room)


class _LangChainEmbedder:
    def __init__(self, embeddings: Embeddings, name: str | None) -> None:
        self._embeddings = embeddings
        told = name or getattr(embeddings, "model", None) or getattr(embeddings, "model_name", None)
        self.name = kept_name(told if isinstance(told, str) else type(embeddings).__name__)

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each text."""
        return await self._embeddings.aembed_documents(list(texts))

    async def embed_query(self, text: str) -> Sequence[float]:
        """Return the vector of a query."""
        return await self._embeddings.aembed_query(text)


def embedder_of(embeddings: Embeddings | None, name: str | None) -> Embedder | None:
    """Return an embedder over a model of LangChain, with a name or else the model's.

    Without a model it is the built-in one, or None if the extra `meaning` is not installed.
    """
    return installed_word_vectors() if embeddings is None else _LangChainEmbedder(embeddings, name)


def _without_copies(found: Sequence[FoundTurn], request: ExtraRequest) -> list[FoundTurn]:
    """Return the turns whose message is in the prompt once: a branch has copies of messages, with the same ids."""
    seen = set(request.known_ids)
    first: list[FoundTurn] = []
    for turn in found:
        if (message_id := turn.message.id) is None or message_id not in seen:
            first.append(turn)
            seen.update(() if message_id is None else (message_id,))
    return first


def _time_of(turn: FoundTurn) -> datetime:
    """Return when a turn was said."""
    return turn.message.sent_at or turn.message.created_at or datetime.min.replace(tzinfo=UTC)


def _block(found: Sequence[FoundTurn], request: ExtraRequest, room: int) -> Extra | None:
    """Return the best turns that fit, as one message: session by session in chronological order, this one last.

    A manifest refers to messages. With summaries of archived ones it has the whole text.
    """
    home = request.session.session_id

    def block_of(count: int) -> Extra:
        begins: dict[str, datetime] = {}
        for turn in sorted(found[:count], key=_time_of):
            begins.setdefault(turn.session_id, _time_of(turn))
        ordered = sorted(
            found[:count],
            key=lambda one: (one.session_id == home, begins[one.session_id], one.session_id, one.message.seq or 0),
        )
        message = turns_message([QuotedTurn(turn.session_id, turn.message, turn.part) for turn in ordered], home=home)
        references = tuple(
            QuoteReference(turn.session_id, turn.message.seq or 0, turn.part)
            for turn in ordered
            if turn.summary_id is None
        )
        entry = Entry("selected", count_message(message, request.counter), "turns", turns=references)
        if len(references) == len(ordered):
            return Extra(message, entry)
        body = dump_message(message)
        return Extra(message, replace(entry, source="text", digest=digest_of(body)), {digest_of(body): body})

    count = least = len(found)
    block = block_of(count)
    # Drop the least relevant turns, about as many as exceed the room; then take back those that fit after all.
    while count and block.entry.tokens > room:
        least = count
        count = max(min(count - 1, count * room // block.entry.tokens), 0)
        block = block_of(count)
    while count + 1 < least and (larger := block_of(count + 1)).entry.tokens <= room:
        count, block = count + 1, larger
    return block if count else None
