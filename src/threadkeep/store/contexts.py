"""What the next context begins with: where the window begins, and the summaries of what is before it."""

from __future__ import annotations

from dataclasses import dataclass

from threadkeep.records import Summary
from threadkeep.store.driver import Driver
from threadkeep.store.statements import load_statements
from threadkeep.store.summaries import summary_of


@dataclass(frozen=True)
class ContextState:
    """Where the window of one kind of agent begins (0: with the first), and the summaries that count, oldest first.

    `reset_seq` is the place of the session's last reset, 0 if there was none. Places up to `archived_seq` are archived,
    those up to `deleted_seq` are not there any more; summaries of both still count.
    """

    anchor_seq: int = 0
    summaries: tuple[Summary, ...] = ()
    reset_seq: int = 0
    archived_seq: int = 0
    deleted_seq: int = 0


class Contexts:
    """The tables `chat_anchors` and `chat_summaries`, as a model call needs them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sql = load_statements("contexts.sql", f"{driver.backend}/sessions.sql")

    async def state(self, session_id: str, profile: str, *, user_id: str | None = None) -> ContextState:
        """What is kept for the next context; nothing for a session that is not there (or not this user's).

        A summary counts when it was not taken up into another, and stands for what was said since the last reset.
        """
        parameters = {"session_id": session_id, "profile": profile, "user_id": user_id}
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["state"], parameters)
        if not rows:
            return ContextState()
        anchor_seq, *borders = rows[0][:4]
        return ContextState(anchor_seq, tuple(summary_of(row[4:]) for row in rows if row[4] is not None), *borders)

    async def move_anchor(self, session_id: str, profile: str, seq: int) -> None:
        """Let later windows of this kind begin at a message. Forward only, and only where there is such a session."""
        parameters = {"session_id": session_id, "profile": profile, "seq": seq}
        async with self._driver.writing() as connection:
            await connection.fetch(self._sql["keep_session"], {"session_id": session_id})
            await connection.execute(self._sql["move_anchor"], parameters)
