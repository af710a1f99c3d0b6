"""The vectors of turns, which an embedding model computes once for each message."""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import Sequence
from contextvars import Context
from itertools import batched

from threadkeep.boundary import ErrorBoundary
from threadkeep.context.recall.embedding import Embedder, dot_products, unit_vector
from threadkeep.errors import SessionDamaged, StoreError
from threadkeep.history.conversation_index import ConversationIndex, Vectors, id_at, position_of
from threadkeep.observe import EmbeddingsSkipped, ExtraNotFound, Observer
from threadkeep.store.contexts import EmbeddingRows
from threadkeep.store.transcripts import Transcripts

_BATCH = 64
_COMPARED_AT_ONCE = 500
_MOST_CHARACTERS = 8_000
_QUERY_SECONDS = 2.0
_MOST_FAILURES = 12
"""After so many failures in a row, assume that the model fails. One bad text in a batch of 64 causes seven."""


class TurnVectors:
    """A service that computes and compares the vectors of turns, normalised to length 1."""

    def __init__(self, transcripts: Transcripts, rows: EmbeddingRows, observer: Observer) -> None:
        self._transcripts = transcripts
        self._rows = rows
        self._observer = observer

    async def similarities(self, index: ConversationIndex, query: str, embedder: Embedder) -> dict[str, float]:
        """Return the cosine similarity of the query to every embedded turn, and embed missing turns later.

        The result is empty if no turn is embedded yet, or if the model fails, which is reported.
        """
        vectors = index.vectors.setdefault(embedder.name, {})
        if index.embedding is None or index.embedding.done():
            work = self._embed(index, vectors, embedder)
            index.embedding = asyncio.create_task(work, context=Context(), name="threadkeep-embeddings")
        if not vectors:
            return {}
        wanted: array[float] | None = None
        with ErrorBoundary(self._report):
            async with asyncio.timeout(_QUERY_SECONDS):
                wanted = unit_vector(await embedder.embed_query(index.words.meaningful(query)))
        if wanted is None:
            return {}
        similar: dict[str, float] = {}
        known = [(turn_id, vector) for turn_id, vector in vectors.items() if len(vector) == len(wanted)]
        for some in batched(known, _COMPARED_AT_ONCE):
            products = dot_products(wanted, [vector for _, vector in some])
            similar |= zip((turn_id for turn_id, _ in some), products, strict=True)
            await asyncio.sleep(0)
        return similar

    async def _embed(self, index: ConversationIndex, vectors: Vectors, embedder: Embedder) -> None:
        """Read the stored vectors of indexed turns, and compute missing ones; report a failure."""
        with ErrorBoundary(self._report):
            for session_id in list(index.read):
                if (embedder.name, session_id) not in index.embedded:
                    after = index.first.get(session_id, 1) - 1
                    for seq, vector in await self._rows.of_session(session_id, embedder.name, after):
                        vectors.setdefault(id_at(session_id, seq), array("f", vector))
                    index.embedded.add((embedder.name, session_id))
            index.refusals.round += 1
            missing = [
                position_of(turn_id)
                for turn_id in index.tokens
                if turn_id not in vectors and turn_id not in index.superseded and index.refusals.is_due(turn_id)
            ]
            for session_id in dict.fromkeys(session_id for session_id, _ in missing):
                seqs = [seq for key, seq in missing if key == session_id]
                with contextlib.suppress(SessionDamaged):
                    await self._embed_session(session_id, seqs, index, embedder)

    async def _embed_session(
        self, session_id: str, seqs: Sequence[int], index: ConversationIndex, embedder: Embedder
    ) -> None:
        """Embed turns in batches; halve a failing batch to find and skip the failing text."""
        batches = [seqs[start : start + _BATCH] for start in range(0, len(seqs), _BATCH)][::-1]
        refused, in_a_row = 0, 0
        last: Exception | None = None
        while batches and in_a_row < _MOST_FAILURES:
            batch = batches.pop()
            with ErrorBoundary(raising=(StoreError,)) as attempt:
                await self._embed_some(session_id, batch, index, embedder)
            if attempt.error is None:
                in_a_row = 0
                continue
            last = attempt.error
            in_a_row += 1
            if len(batch) == 1:
                index.refusals.add(id_at(session_id, batch[0]))
                refused += 1
            else:
                batches += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
        if last is not None:
            skipped = EmbeddingsSkipped(
                count=refused + sum(map(len, batches)), error=type(last).__name__, session_id=session_id
            )
            self._observer.notify(skipped)

    async def _embed_some(
        self, session_id: str, seqs: Sequence[int], index: ConversationIndex, embedder: Embedder
    ) -> None:
        """Embed messages and summaries. Store the vectors of the messages; the summaries' vectors are only cached."""
        summaries = {seq: one for seq in seqs if (one := index.summaries.get(id_at(session_id, seq))) is not None}
        messages = await self._transcripts.at(session_id, [seq for seq in seqs if seq not in summaries])
        texts = {message.seq or 0: message.content for message in messages}
        texts |= {seq: summary.text for seq, summary in summaries.items()}
        made = await embedder.embed([text[:_MOST_CHARACTERS] for text in texts.values()])
        vectors = {seq: unit_vector(vector) for seq, vector in zip(texts, made, strict=True)}
        if messages:
            kept = [(seq, vector.tobytes()) for seq, vector in vectors.items() if seq not in summaries]
            await self._rows.add(session_id, embedder.name, kept, last_id=messages[-1].id)
        index.vectors[embedder.name] |= {id_at(session_id, seq): vector for seq, vector in vectors.items()}

    def _report(self, error: Exception) -> None:
        self._observer.notify(ExtraNotFound(section="selected", error=type(error).__name__))
