"""The section `selected` of a model call's context: quotes of older turns that are relevant to the new input."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from langchain_core.embeddings import Embeddings

from threadkeep.agent.conversion import digest_of, dump_message
from threadkeep.agent.counting import count_message
from threadkeep.agent.extras import Extra, ExtraRequest, turns_message
from threadkeep.agent.turn_options import kept_name
from threadkeep.context.manifest import Entry, QuoteReference
from threadkeep.context.quotation import TURNS_HEADER, QuotedTurn, attribution
from threadkeep.context.recall.embedding import Embedder, installed_word_vectors
from threadkeep.context.tokens import TokenCounter
from threadkeep.errors import InvalidInput
from threadkeep.history.memory import Memory
from threadkeep.history.older_turns import FoundTurn, RecallScope, Search
from threadkeep.memory.on_loop import OnLoop
from threadkeep.memory.sync_memory import SyncMemory
from threadkeep.observe import ExtraSection

_PATIENCE_SECONDS = 3.0
_DAY_TOKENS = 11
"""The tokens of the line with the date above all quotes of one day."""
_OTHER_COUNTS = 16
"""If stored messages were counted by another counter, the token limit of a search is 1/16 above `room`."""
_UNUSED, _MARGIN = 0.04, 0.01
"""If more than the share `_UNUSED` of the tokens is left, turns are selected again, with the share `_MARGIN` left."""


class RecalledTurns:
    """A source of older turns that are relevant to the input, from the session or from all sessions of its user.

    Without a user, a session has only its own turns. With the extra `meaning`, or with LangChain `embeddings`, turns
    that say the same in other words are also found. Each message is embedded once, in the background. The vectors
    are stored under `embeddings_name`. No chat model is needed.
    """

    section: ExtraSection = "selected"

    def __init__(
        self,
        memory: Memory | SyncMemory,
        *,
        scope: RecallScope = "session",
        embeddings: Embeddings | None = None,
        embeddings_name: str | None = None,
    ) -> None:
        """Raise `InvalidInput` if the scope is neither `session` nor `user`."""
        if scope not in ("session", "user"):
            raise InvalidInput("The scope of recalled turns is 'session' or 'user'.")
        self._memory = OnLoop(memory, lambda opened: opened)
        self._scope = scope
        self._embedder = embedder_of(embeddings, embeddings_name)

    async def find(self, request: ExtraRequest, room: int) -> Extra | None:
        """Return a message that quotes the relevant older turns that fit into `room` tokens; None if there are none."""
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
            found = await self._memory.call(
                lambda memory: memory.older_turns.find(search, _room_of(memory, request, room), self._embedder)
            )
        return _block(_without_copies(found, request), request, room)


class _LangChainEmbedder:
    def __init__(self, embeddings: Embeddings, name: str | None) -> None:
        self._embeddings = embeddings
        model = name or getattr(embeddings, "model", None) or getattr(embeddings, "model_name", None)
        self.name = kept_name(model if isinstance(model, str) else type(embeddings).__name__)

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return await self._embeddings.aembed_documents(list(texts))

    async def embed_query(self, text: str) -> Sequence[float]:
        return await self._embeddings.aembed_query(text)


def embedder_of(embeddings: Embeddings | None, name: str | None) -> Embedder | None:
    """Return an embedder that uses LangChain embeddings, or else the built-in embedder if it is installed."""
    return installed_word_vectors() if embeddings is None else _LangChainEmbedder(embeddings, name)


def _room_of(memory: Memory, request: ExtraRequest, room: int) -> int:
    """Return the token limit of the search. Make it higher if the stored messages were counted by another counter."""
    alike = request.counter in (memory.counter, memory.remembered_counts.remembering(memory.counter))
    return room if alike else room + room // _OTHER_COUNTS


def _without_copies(found: Sequence[FoundTurn], request: ExtraRequest) -> list[FoundTurn]:
    """Remove turns that the prompt already has, and all but the first copy of a message (copies have the same id)."""
    seen = set(request.known_ids)
    first: list[FoundTurn] = []
    for turn in found:
        if (message_id := turn.message.id) is None or message_id not in seen:
            first.append(turn)
            seen.update(() if message_id is None else (message_id,))
    return first


def _block(found: Sequence[FoundTurn], request: ExtraRequest, room: int) -> Extra | None:
    """Return one message that quotes the best of the found turns, up to `room` tokens; None if none fits."""
    quoted = [QuotedTurn(turn.session_id, turn.message, turn.part) for turn in found]
    sizes = _sizes(quoted, request.counter)
    budget = room - request.counter(TURNS_HEADER)
    indexes = _fitting(quoted, sizes, budget)
    block = _block_of(found, quoted, indexes, request)
    tokens = block.entry.tokens
    if tokens > room or (tokens < (1 - _UNUSED) * room and len(indexes) < len(found)):
        # The sizes were estimates: another counter may have counted the messages. Correct them, and select again.
        indexes = _fitting(quoted, sizes, budget * (1 - _MARGIN) * room / max(tokens, 1))
        other = _block_of(found, quoted, indexes, request)
        block = other if other.entry.tokens <= room or tokens > room else block
    while indexes and block.entry.tokens > room:
        indexes = indexes[:-1]
        block = _block_of(found, quoted, indexes, request)
    return block if block.entry.turns or block.texts else None


def _fitting(quoted: Sequence[QuotedTurn], sizes: Sequence[int], budget: float) -> list[int]:
    """Return the indexes of the best turns whose `sizes` (in tokens) fit into the budget together, best first."""
    left = budget
    days: set[object] = set()
    taken: list[int] = []
    for index, (turn, size) in enumerate(zip(quoted, sizes, strict=True)):
        tokens = size if turn.day in days else size + _DAY_TOKENS
        if tokens <= left:
            left -= tokens
            days.add(turn.day)
            taken.append(index)
    return taken


def _sizes(quoted: Sequence[QuotedTurn], counter: TokenCounter) -> list[int]:
    """Return the approximate tokens of each turn, from the stored counts of the messages."""
    speakers: dict[str, int] = {}
    sizes: list[int] = []
    for turn in quoted:
        message, part = turn.message, turn.part
        tokens = message.tokens or counter(message.content)
        if part is not None:
            tokens = tokens * (part[1] - part[0]) // len(message.content)
        speaker = attribution(message.role, message.author)
        if speaker not in speakers:
            speakers[speaker] = counter(f"{speaker}: ")
        sizes.append(tokens + speakers[speaker])
    return sizes


def _block_of(
    found: Sequence[FoundTurn], quoted: Sequence[QuotedTurn], indexes: Sequence[int], request: ExtraRequest
) -> Extra:
    """Return the turns at `indexes` as one message. They are grouped by session; the current session is last."""
    home = request.session.session_id
    begins: dict[str, datetime] = {}
    for index in indexes:
        turn, said = found[index], found[index].message
        time = said.sent_at or said.created_at or datetime.min.replace(tzinfo=UTC)
        begins[turn.session_id] = min(begins.get(turn.session_id, time), time)

    def position(index: int) -> tuple[bool, datetime, str, int]:
        session_id = found[index].session_id
        return session_id == home, begins[session_id], session_id, found[index].message.seq or 0

    order = sorted(indexes, key=position)
    message = turns_message([quoted[index] for index in order], home=home)
    references = tuple(
        QuoteReference(found[index].session_id, found[index].message.seq or 0, found[index].part)
        for index in order
        if found[index].summary_id is None
    )
    entry = Entry("selected", count_message(message, request.counter), "turns", turns=references)
    if len(references) == len(order):
        return Extra(message, entry)
    body = dump_message(message)
    return Extra(message, replace(entry, source="text", digest=digest_of(body)), {digest_of(body): body})
