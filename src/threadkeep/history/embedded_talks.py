"""Vectors of conversations: computed once per message by an embedding model, stored in the database, compared here."""

from __future__ import annotations

import asyncio
import contextlib
import math
from array import array
from collections.abc import Sequence
from contextvars import Context

from threadkeep.context.recall.embedding import Embedder, unit_vector
from threadkeep.errors import SessionDamaged, StoreError
from threadkeep.history.talk_index import TalkIndex, Vectors, id_at, place_of
from threadkeep.observe import EmbeddingsSkipped, ExtraNotFound, Observer
from threadkeep.store.context_tables import EmbeddingRows
from threadkeep.store.transcripts import Transcripts

_BATCH = 64
_COMPARED_AT_ONCE = 500
_MOST_CHARACTERS = 8_000
_QUERY_SECONDS = 2.0
_MOST_FAILURES = 12
"""After so many failures in a row the model is at fault, not the input; a batch with one bad text has seven."""


class EmbeddedTalks:
    """A service that computes and compares the vectors of turns, normalised to length 1."""

    def __init__(self, transcripts: Transcripts, rows: EmbeddingRows, observer: Observer) -> None:
        self._transcripts = transcripts
        self._rows = rows
        self._observer = observer

    async def likeness(self, talk: TalkIndex, query: str, embedder: Embedder) -> dict[str, float]:
        """Return the cosine similarity of the query to every embedded turn; schedule the missing embeddings.

        If the model fails, return an empty result and report the failure.
        """
        vectors = talk.vectors.setdefault(embedder.name, {})
        if talk.embedding is None or talk.embedding.done():
            work = self._embed(talk, vectors, embedder)
            talk.embedding = asyncio.create_task(work, context=Context(), name="threadkeep-embeddings")
        if not vectors:
            return {}
        try:
            async with asyncio.timeout(_QUERY_SECONDS):
                wanted = unit_vector(await embedder.embed_query(query))
        except Exception as error:  # noqa: BLE001 - a model may raise anything; words alone find turns too
            self._tell(error)
            return {}
        alike: dict[str, float] = {}
        for number, (turn_id, vector) in enumerate(list(vectors.items())):
            if len(vector) == len(wanted):
                alike[turn_id] = math.sumprod(wanted, vector)
            if number % _COMPARED_AT_ONCE == _COMPARED_AT_ONCE - 1:
                await asyncio.sleep(0)
        return alike

    async def _embed(self, talk: TalkIndex, vectors: Vectors, embedder: Embedder) -> None:
        """Read the stored vectors, and compute the missing ones."""
        try:
            for session_id in list(talk.read):
                if (embedder.name, session_id) not in talk.embedded:
                    for seq, vector in await self._rows.of_session(session_id, embedder.name):
                        vectors.setdefault(id_at(session_id, seq), array("f", vector))
                    talk.embedded.add((embedder.name, session_id))
            talk.refusals.round += 1
            missing = [
                place_of(turn_id) for turn_id in talk.tokens if turn_id not in vectors and talk.refusals.is_due(turn_id)
            ]
            for session_id in dict.fromkeys(session_id for session_id, _ in missing):
                seqs = [seq for place, seq in missing if place == session_id]
                with contextlib.suppress(SessionDamaged):
                    await self._embed_session(session_id, seqs, talk, embedder)
        except Exception as error:  # noqa: BLE001 - it is tried again at the next question
            self._tell(error)

    async def _embed_session(self, session_id: str, seqs: Sequence[int], talk: TalkIndex, embedder: Embedder) -> None:
        """Embed in batches. A batch that fails is halved until the text that the model rejects is found and skipped."""
        batches = [seqs[start : start + _BATCH] for start in range(0, len(seqs), _BATCH)]
        batches.reverse()
        refused, in_a_row = 0, 0
        last: Exception | None = None
        while batches and in_a_row < _MOST_FAILURES:
            batch = batches.pop()
            try:
                await self._embed_some(session_id, batch, talk.vectors[embedder.name], embedder)
                in_a_row = 0
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - a model may raise anything; other batches go on
                last = error
                in_a_row += 1
                if len(batch) == 1:
                    talk.refusals.add(id_at(session_id, batch[0]))
                    refused += 1
                else:
                    batches += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
        if last is not None:
            skipped = EmbeddingsSkipped(
                count=refused + sum(map(len, batches)), error=type(last).__name__, session_id=session_id
            )
            self._observer.notify(skipped)

    async def _embed_some(self, session_id: str, seqs: Sequence[int], vectors: Vectors, embedder: Embedder) -> None:
        messages = await self._transcripts.at(session_id, seqs)
        made = await embedder.embed([message.content[:_MOST_CHARACTERS] for message in messages])
        rows = [(message.seq or 0, unit_vector(vector)) for message, vector in zip(messages, made, strict=True)]
        if messages:
            kept = [(seq, vector.tobytes()) for seq, vector in rows]
            await self._rows.add(session_id, embedder.name, kept, last_id=messages[-1].id)
        vectors |= {id_at(session_id, seq): vector for seq, vector in rows}

    def _tell(self, error: Exception) -> None:
        self._observer.notify(ExtraNotFound(section="selected", error=type(error).__name__))
