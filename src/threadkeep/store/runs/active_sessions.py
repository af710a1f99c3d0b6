"""The session that a user continues, per workflow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from threadkeep.store.codec import time_text
from threadkeep.store.driver import Driver
from threadkeep.store.statements import load_statements


class ActiveSessions:
    """The table `chat_active_sessions`: at most one session per user and workflow."""

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime]) -> None:
        self._driver = driver
        self._clock = clock
        self._sql = load_statements("runs_order.sql")

    async def active_session(self, user_id: str, workflow: str, *, otherwise: str) -> str:
        """Return the session that a user continues; set it to `otherwise` if there is none.

        Two concurrent first messages get the same session. A session that is inactive or not the user's is not
        continued; a deleted one is forgotten.
        """
        parameters = {"user_id": user_id, "workflow": workflow, "session_id": otherwise}
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["begin_active_session"], {**parameters, "now": time_text(self._clock())})
            [(session_id,)] = await connection.fetch(self._sql["active_session"], parameters)
        return str(session_id)
