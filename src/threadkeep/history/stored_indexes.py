"""Stored data of the search for older turns: an index for each session, and a vector for each message.

A new process need not build the indexes. An embedding model computes each vector once.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextvars import Context
from itertools import batched

from threadkeep.boundary import ErrorBoundary
from threadkeep.context.recall.embedding import Embedder, dot_products, unit_vector
from threadkeep.context.recall.packing import pack, unpack
from threadkeep.errors import SessionDamaged, StoreError
from threadkeep.history.conversation_index import (
    MOST_TURNS,
    ConversationIndex,
    Vectors,
    id_at,
    index_version,
    messages_of,
    position_of,
)
from threadkeep.observe import EmbeddingsSkipped, ExtraNotFound, Observer, RecallIndexNotStored
from threadkeep.records import SessionInfo, Summary
from threadkeep.store.contexts import EmbeddingRows, RecallIndexes
from threadkeep.store.driver import RightsMissing
from threadkeep.store.summaries import Summaries
from threadkeep.store.transcripts import Transcripts

_LEAST_STORED, _LEAST_JOINED = 1_000, 50
"""The least number of turns for which a session's index is stored; `_LEAST_JOINED` is for use in a user's index."""

_UNREADABLE = (zlib.error, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""The errors that invalid stored data raise. Such data are deleted, and the index is built again."""
_BATCH = 64
_COMPARED_AT_ONCE = 500
_MOST_CHARACTERS = 8_000
_QUERY_SECONDS = 2.0
_MOST_FAILURES = 12
"""After so many failures in a row, assume that the model fails. One bad text in a batch of 64 causes seven."""


class StoredIndexes:
    """The stored search indexes of sessions, which can be joined into one index of all sessions of a user."""

    def __init__(
        self, rows: RecallIndexes, transcripts: Transcripts, summaries: Summaries | None, observer: Observer
    ) -> None:
        self._rows = rows
        self._transcripts = transcripts
        self._summaries = summaries
        self._observer = observer

    async def load(self, info: SessionInfo, summaries: Sequence[Summary]) -> ConversationIndex | None:
        """Return the stored index of a session; delete it if it is outdated.

        Also return None if the database role lacks rights on the stored indexes.
        """
        session_id, found = info.session_id, ConversationIndex()
        with contextlib.suppress(RightsMissing):
            data = await self._rows.of_session(session_id, index_version(), info.last_seq)
            if data is None:
                return None
            with contextlib.suppress(*_UNREADABLE):
                usable = await found.load(await asyncio.to_thread(unpack, data), info, summaries)
                usable = usable and await found.leave_out_superseded({session_id: info}, self._transcripts)
                if usable and await self._rows.has_texts(session_id, found.texts_of(session_id)):
                    return found
            await self._rows.remove(session_id)
        return None

    async def save(self, index: ConversationIndex, session_id: str) -> None:
        """Store the index of one session, and report a failure.

        If another program has changed indexed texts, delete the stored index instead.
        """
        state = await index.dump()
        extent, texts = index.extent_of(session_id), index.texts_of(session_id)
        try:
            if not await self._rows.has_texts(session_id, texts):
                await self._rows.remove(session_id)
                return
            await self._rows.save(session_id, index_version(), await asyncio.to_thread(pack, state), *extent)
        except StoreError as error:
            self._observer.notify(RecallIndexNotStored(error=type(error).__name__, session_id=session_id))

    async def join(self, infos: Mapping[str, SessionInfo], allowed: Mapping[str, int]) -> ConversationIndex:
        """Return one index of several sessions, each with its `allowed` number of newest messages.

        For a session of at least 50 turns, all of which are allowed, the stored index is used; if it is missing or
        outdated, it is built and stored. Damaged sessions are left out.
        """
        joined = ConversationIndex()
        summaries = await self._summaries_of([infos[session_id] for session_id in reversed(list(allowed))])
        for session_id, most in allowed.items():
            info, of_archived = infos[session_id], summaries.get(session_id, ())
            with contextlib.suppress(SessionDamaged):
                if len(of_archived) + most >= _LEAST_JOINED and most == min(messages_of(info), MOST_TURNS):
                    index = await self._current(info, of_archived)
                    # This runs in an OS thread, because it takes tenths of a second for a long session.
                    await asyncio.to_thread(joined.extend if joined.read else joined.take_over, index)
                else:
                    await joined.catch_up(info, self._transcripts, of_archived, most)
        return joined

    def grown(self, index: ConversationIndex, infos: Iterable[SessionInfo], *, of_user: bool) -> list[SessionInfo]:
        """Return the sessions whose index must be stored: long sessions whose index is new, or grew by an eighth."""
        if len(index.tokens) < _LEAST_STORED:
            return []
        by_id = {info.session_id: info for info in infos}
        grown = index.grown(by_id, _LEAST_JOINED if of_user else _LEAST_STORED)
        return [info for session_id, info in by_id.items() if session_id in grown]

    async def renew(self, infos: Iterable[SessionInfo]) -> None:
        """Update the stored search indexes of sessions; skip a session with unreadable items."""
        for info in infos:
            summaries = await self._summaries_of([info])
            with contextlib.suppress(SessionDamaged):
                await self._current(info, summaries.get(info.session_id, ()))

    async def _summaries_of(self, infos: Sequence[SessionInfo]) -> Mapping[str, Sequence[Summary]]:
        if self._summaries is None:
            return {}
        return await ConversationIndex().new_summaries(infos, self._summaries, MOST_TURNS)

    async def _current(self, info: SessionInfo, summaries: Sequence[Summary]) -> ConversationIndex:
        """Load or create a session's index, bring it up to date, and store it if it has grown."""
        index = await self.load(info, summaries) or ConversationIndex()
        await index.catch_up(info, self._transcripts, summaries)
        if index.grown([info.session_id], _LEAST_JOINED):
            index.stored |= index.read
            await self.save(index, info.session_id)
        return index


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
