"""Stored data for model calls: anchors (the first messages of windows), tool calls, token factors, vectors, indexes."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Protocol, Self

from threadkeep.errors import StoreError
from threadkeep.records import SessionInfo, Summary
from threadkeep.store.codec import clean_text, time_text
from threadkeep.store.compressed_json import compress, decompress
from threadkeep.store.driver import Driver, Row, Statement
from threadkeep.store.manifests import ManifestRows
from threadkeep.store.statements import ClockedTables, Tables
from threadkeep.store.summaries import Summaries, summary_of


@dataclass(frozen=True)
class ContextState:
    """The stored state for a model call: the anchor (where its messages begin), and the active summaries, oldest first.

    - `anchor_seq`: the `seq` where the windows of the profile (a set of limits) begin; 0 at first.
    - `reset_seq`: the `seq` of the last reset; 0 without a reset.
    - `archived_seq` and `deleted_seq`: messages up to these are archived or deleted; their summaries stay active.
    - `revision`: a number that grows when stored messages are changed, for example superseded.
    """

    anchor_seq: int = 0
    summaries: tuple[Summary, ...] = ()
    reset_seq: int = 0
    archived_seq: int = 0
    deleted_seq: int = 0
    revision: int = 0


@dataclass(frozen=True)
class Steps:
    """The tool calls and results of an agent's answer, as JSON text. `seq` is the number of the answered question."""

    seq: int
    body: str


class Contexts(Tables, sql=("contexts.sql", "{backend}/sessions.sql")):
    """The tables `chat_anchors`, `chat_summaries` and `chat_steps`, from which model calls are built."""

    async def state(self, session_id: str, profile: str, *, user_id: str | None = None) -> ContextState:
        """Return the state for the next model call; it is empty if the session is missing or belongs to another user.

        A summary is active if it was not merged into another summary and covers messages since the last reset.
        """
        sql, parameters = self.state_statement(session_id, profile, user_id=user_id)
        return state_of(await self._driver.fetch(sql, parameters))

    def state_statement(self, session_id: str, profile: str, *, user_id: str | None = None) -> Statement:
        """Return the SQL statement that `state` executes; `state_of` turns its rows into a `ContextState`."""
        return self._sql["state"], {"session_id": session_id, "profile": profile, "user_id": user_id}

    async def move_anchor(self, session_id: str, profile: str, seq: int, *, revision: int | None = None) -> None:
        """Move a profile's anchor forward to `seq`. The message windows of the profile's model calls begin there.

        Do nothing if the session no longer has this `revision`: superseded messages change where windows begin.
        """
        parameters = {"session_id": session_id, "profile": profile, "seq": seq, "revision": revision}
        await self._driver.write([(self._sql["keep_session"], parameters), (self._sql["move_anchor"], parameters)])

    def anchor_statement(
        self, session_id: str, profile: str, seq: int, *, revision: int | None = None
    ) -> Statement | None:
        """Return the statement of `move_anchor`; its transaction must lock the session. A null store returns None."""
        parameters = {"session_id": session_id, "profile": profile, "seq": seq, "revision": revision}
        return self._sql["move_anchor"], parameters

    async def steps(self, session_id: str, author: str, *, since: int) -> list[Steps]:
        """Return an agent's tool calls for questions whose `seq` is at least `since`, oldest first."""
        parameters = {"session_id": session_id, "author": author, "since": since}
        rows = await self._driver.fetch(self._sql["steps"], parameters)
        return [Steps(int(seq), decompress(body)) for seq, body in rows]

    async def keep_steps(
        self, session_id: str, steps: Steps, *, question_id: str, author: str, ordinal: int = 1, turns: int = 1
    ) -> None:
        """Store tool calls of an answer to an active question. Drop calls before the author's last `turns` turns."""
        turn = {"session_id": session_id, "author": author, "turns": turns}
        row = {**turn, "seq": steps.seq, "ordinal": ordinal, "question_id": question_id}
        async with self._driver.writing() as connection:
            await connection.fetch(self._sql["keep_session"], {"session_id": session_id})
            await connection.execute(self._sql["keep_steps"], {**row, "body": compress(clean_text(steps.body))})
            await connection.execute(self._sql["forget_steps"], turn)


def state_of(rows: Sequence[Row]) -> ContextState:
    """Return the `ContextState` in the rows that the statement from `state_statement` has returned."""
    if not rows:
        return ContextState()
    anchor_seq, *borders = rows[0][:5]
    return ContextState(anchor_seq, tuple([summary_of(row[5:]) for row in rows if row[5] is not None]), *borders)


class TokenFactors(ClockedTables, sql=("token_factors.sql",)):
    """The table `chat_token_factors`, with learned factors by which each model's token estimates are corrected."""

    async def all(self) -> dict[str, tuple[float, int, float | None]]:
        """Return for each model: the factor, the number of samples, and the factor for non-Latin scripts or None."""
        rows = await self._driver.fetch(self._sql["all"], {})
        return {str(model): (float(factor), int(samples), other) for model, factor, samples, other in rows}

    async def save(self, model: str, factor: float, samples: int, other: float | None = None) -> None:
        """Store a model's factor in place of the previous one; `other` is the factor for non-Latin scripts."""
        row = {
            "model": clean_text(model),
            "factor": float(factor),
            "samples": samples,
            "other_factor": other,
            "now": time_text(self._clock()),
        }
        await self._driver.write([(self._sql["save"], row)])


class EmbeddingRows(Tables, sql=("embeddings.sql", "{backend}/sessions.sql")):
    """The table `chat_embeddings` with a vector for each embedded message; the caller defines the vectors' format."""

    async def of_session(self, session_id: str, model: str, after_seq: int = 0) -> list[tuple[int, bytes]]:
        """Return the `seq` and the vector of each embedded message after `after_seq`, in the order of `seq`."""
        parameters = {"session_id": session_id, "model": model, "after_seq": after_seq}
        rows = await self._driver.fetch(self._sql["of_session"], parameters)
        return [(int(seq), bytes(vector)) for seq, vector in rows]

    async def add(
        self, session_id: str, model: str, rows: Sequence[tuple[int, bytes]], *, last_id: str | None = None
    ) -> None:
        """Store vectors of messages by `seq`; vectors of missing or superseded messages are skipped.

        `last_id` is the id of the message of the last row. If another message has that `seq`, nothing is stored,
        because the session was deleted and created again.
        """
        if not rows:
            return
        parameters = {"session_id": session_id}
        async with self._driver.writing() as connection:
            await connection.fetch(self._sql["keep_session"], parameters)
            if last_id is not None:
                stored = await connection.fetch(self._sql["message_at"], {**parameters, "seq": rows[-1][0]})
                if stored != [(last_id,)]:
                    return
            vectors = [{**parameters, "model": model, "seq": seq, "vector": vector} for seq, vector in rows]
            await connection.execute_many(self._sql["insert_vector"], vectors)


@dataclass(frozen=True)
class IndexedState:
    """A session's state when a process began to index its turns. If it has changed since, the index is not saved."""

    created_at: datetime
    begin: int
    revision: int

    @classmethod
    def of(cls, info: SessionInfo) -> Self:
        """Return the current state of a session."""
        begin = max(info.reset_seq, info.archived_seq, info.deleted_seq) + 1
        return cls(info.created_at, begin, info.revision)

    @property
    def begins(self) -> tuple[datetime, int]:
        """The time when the session was created, and the first `seq` that may be indexed."""
        return self.created_at, self.begin


@dataclass
class IndexedTexts:
    """The `seq` values of the messages in a session's index, in order, and a digest of their texts."""

    seqs: array[int] = field(default_factory=lambda: array("Q"))
    digest: str = ""

    def add(self, seq: int, text: str) -> None:
        """Add the next message; its `seq` must be higher than those of all earlier messages."""
        self.seqs.append(seq)
        self.digest = sha256(f"{self.digest} {text}".encode("utf-8", "surrogatepass")).hexdigest()

    def copy(self) -> IndexedTexts:
        """Return a copy, which does not change when messages are added to this object."""
        return replace(self, seqs=self.seqs[:])


class RecallIndexes(Protocol):
    """The stored indexes that find relevant older turns of a session; the caller defines the format of an index.

    When indexed messages are deleted or erased, the index of their session is deleted too.
    """

    async def of_session(self, session_id: str, version: str, last_seq: int) -> bytes | None:
        """Return a session's stored index if its format is `version` and it has no message after `last_seq`."""

    async def save(self, session_id: str, version: str, data: bytes, last_seq: int, state: IndexedState) -> None:
        """Store an index of the messages up to `last_seq` for a session, unless the session differs from `state`."""

    async def remove(self, session_id: str) -> None:
        """Delete the index of a session; errors of the store are ignored."""

    async def has_texts(self, session_id: str, texts: IndexedTexts) -> bool:
        """Return False if another program has changed or deleted an indexed text."""


class RecallIndexRows(Tables, sql=("{backend}/sessions.sql", "recall_indexes.sql")):
    """The table of stored indexes that find relevant older turns of a session; the caller defines their format."""

    async def of_session(self, session_id: str, version: str, last_seq: int) -> bytes | None:
        """Return a session's stored index if its format is `version` and it has no message after `last_seq`."""
        parameters = {"session_id": session_id, "version": version, "last_seq": last_seq}
        rows = await self._driver.fetch(self._sql["index_of"], parameters)
        return bytes(rows[0][0]) if rows else None

    async def save(self, session_id: str, version: str, data: bytes, last_seq: int, state: IndexedState) -> None:
        """Store `data` as the index of a session, unless the session has changed since `state`."""
        row = {"session_id": session_id, "version": version, "data": data, "last_seq": last_seq, **asdict(state)}
        # Use one statement. The server then locks the session only after it has received the index, which may be large.
        await self._driver.write([(self._sql["save_index"], {**row, "created_at": time_text(state.created_at)})])

    async def remove(self, session_id: str) -> None:
        """Delete the index of a session; errors of the database are ignored."""
        with contextlib.suppress(StoreError):
            await self._driver.write([(self._sql["delete_index"], {"session_id": session_id})])

    async def has_texts(self, session_id: str, texts: IndexedTexts) -> bool:
        """Return True: the texts are as they were indexed, because other programs never change these tables."""
        return True


@dataclass(frozen=True)
class ContextTables:
    """The tables with the data for model calls, except the transcripts."""

    contexts: Contexts
    summaries: Summaries
    manifests: ManifestRows
    token_factors: TokenFactors
    embeddings: EmbeddingRows

    @classmethod
    def over(cls, driver: Driver, *, clock: Callable[[], datetime]) -> Self:
        """Return an object that accesses these tables through `driver`."""
        return cls(
            contexts=Contexts(driver),
            summaries=Summaries(driver, clock=clock),
            manifests=ManifestRows(driver, clock=clock),
            token_factors=TokenFactors(driver, clock=clock),
            embeddings=EmbeddingRows(driver),
        )
