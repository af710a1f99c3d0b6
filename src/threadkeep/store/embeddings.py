"""Vectors of messages, stored so that each text is embedded once."""

from __future__ import annotations

from collections.abc import Sequence

from threadkeep.store.driver import Driver
from threadkeep.store.statements import load_statements


class EmbeddingRows:
    """The table `chat_embeddings`; a vector is bytes in the format of the caller."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sql = load_statements("embeddings.sql", f"{driver.backend}/sessions.sql")

    async def of_session(self, session_id: str, model: str, after_seq: int = 0) -> list[tuple[int, bytes]]:
        """Return the `seq` and vector of embedded messages after a `seq`, in order."""
        parameters = {"session_id": session_id, "model": model, "after_seq": after_seq}
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["of_session"], parameters)
        return [(int(seq), bytes(vector)) for seq, vector in rows]

    async def add(
        self, session_id: str, model: str, rows: Sequence[tuple[int, bytes]], *, last_id: str | None = None
    ) -> None:
        """Store vectors of messages; skip messages that do not exist.

        `last_id` is the id of the last row's message. If another message has that `seq`, the session was replaced by
        another one of this name, and nothing is stored.
        """
        if not rows:
            return
        place = {"session_id": session_id}
        async with self._driver.writing() as connection:
            await connection.fetch(self._sql["keep_session"], place)
            if last_id is not None:
                there = await connection.fetch(self._sql["message_at"], {**place, "seq": rows[-1][0]})
                if there != [(last_id,)]:
                    return
            vectors = [{**place, "model": model, "seq": seq, "vector": vector} for seq, vector in rows]
            await connection.execute_many(self._sql["insert_vector"], vectors)
