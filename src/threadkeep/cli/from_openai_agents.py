"""Sessions of the OpenAI Agents SDK: the tables of its SQLite and SQLAlchemy sessions, with or without branches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256

from threadkeep.adapters.openai_agents import item_role, item_text
from threadkeep.cli.foreign import Conversation, LeftOut, Unreadable, open_source_database, utc_time
from threadkeep.history.archive_lines import SessionLine
from threadkeep.records import Message
from threadkeep.store.driver import Row
from threadkeep.store.foreign import ForeignDatabase


@asynccontextmanager
async def open_agent_sessions(source: str, *, branch: str, user_id: str | None) -> AsyncIterator[AgentSessions]:
    """Open the sessions of a SQLite file, or of another database by its URL.

    Raises:
        WrongUse: the database is of another kind.
    """
    async with open_source_database(source, "openai-agents") as (_, database):
        yield AgentSessions(database, await database.rows("agent_sessions"), branch=branch, user_id=user_id)


class AgentSessions:
    """The sessions of a database of the SDK."""

    def __init__(self, database: ForeignDatabase, sessions: Sequence[Row], *, branch: str, user_id: str | None) -> None:
        self.total = len(sessions)
        self.done = 0
        self.left_out: Counter[LeftOut] = Counter()
        self._database = database
        self._sessions = sessions
        self._branch = branch
        self._user_id = user_id

    async def conversations(self) -> AsyncIterator[Conversation | Unreadable]:
        """Yield the sessions by their ids."""
        for session_id, created_at, updated_at in self._sessions:
            line = SessionLine(
                str(session_id), self._user_id, created_at=utc_time(created_at), updated_at=utc_time(updated_at)
            )
            rows = await self._rows(session_id)
            yield Conversation(line, [message for row in rows if (message := self._message(line.session_id, row))])
            self.done += 1

    async def _rows(self, session_id: str) -> list[Row]:
        """Return the items of a session: of one branch, if it has branches."""
        if "message_structure" in self._database.columns and await self._database.rows(
            "agent_branches", session_id=session_id
        ):
            return await self._database.rows("agent_branch_items", session_id=session_id, branch=self._branch)
        return await self._database.rows("agent_items", session_id=session_id)

    def _message(self, session_id: str, row: Row) -> Message | None:
        """Return the message of an item; count other items and return None for them."""
        number, data, created_at = row
        try:
            item = json.loads(data)
        except ValueError:
            item = None
        reason = _left_out(item)
        if reason is not None:
            self.left_out[reason] += 1
            return None
        role, text = item_role(item) or "user", item_text(item["content"])
        # The SDK uses one id for all answers of some models. The row number is unique and stays the same in later
        # imports.
        digest = sha256(f"{session_id}\n{number}\n{role}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
        return Message(role, text, id=f"openai-agents:{digest[:32]}", created_at=utc_time(created_at))


def _left_out(item: object) -> LeftOut | None:
    """Return the reason why an item is not an utterance; None if it is one."""
    if not isinstance(item, dict):
        return "other"
    kind = item.get("type", "message")
    if kind != "message":
        if kind == "reasoning":
            return "reasoning"
        return "tool_result" if str(kind).endswith("_output") else "tool_call" if "call" in str(kind) else "other"
    if item.get("role") in ("system", "developer"):
        return "system"
    if item_role(item) is None:
        return "other"
    return None if item_text(item.get("content")).strip() else "empty"
