"""Conversations in databases of other systems: sessions of the OpenAI Agents SDK, and items of a LangGraph store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from hashlib import sha256

from threadkeep.adapters.openai_agents import item_role, item_text
from threadkeep.cli.foreign import Conversation, LeftOut, Unreadable, open_source_database, utc_time
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.archive_lines import SessionLine
from threadkeep.records import SPEAKERS, Message
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


@asynccontextmanager
async def open_histories(source: str, layout: GraphLayout, *, as_sessions: bool) -> AsyncIterator[StoredHistories]:
    """Open the store of a SQLite file or a PostgreSQL database.

    Raises:
        WrongUse: the database is of another kind.
    """
    async with open_source_database(source, "graph-store") as (_, database):
        keys = [str(key) for (key,) in await database.rows("store_keys", prefix=".".join(layout.namespace))]
        yield StoredHistories(database, keys, layout, as_sessions=as_sessions)


class StoredHistories:
    """The histories of a namespace. Other items of the namespace are skipped."""

    def __init__(
        self, database: ForeignDatabase, keys: Sequence[str], layout: GraphLayout, *, as_sessions: bool
    ) -> None:
        self.total = len(keys)
        self.done = 0
        self.left_out: Counter[LeftOut] = Counter()
        self._database = database
        self._keys = keys
        self._layout = layout
        self._namespace = () if as_sessions else layout.namespace

    async def conversations(self) -> AsyncIterator[Conversation | Unreadable]:
        """Yield the histories by their keys."""
        prefix = ".".join(self._layout.namespace)
        for key in self._keys:
            for row in await self._database.rows("store_item", prefix=prefix, key=key):
                if (found := self._conversation(key, row)) is not None:
                    yield found
            self.done += 1

    def _conversation(self, key: str, row: Row) -> Conversation | Unreadable | None:
        """Return the history of an item; None for other items, such as chunks of Threadkeep's own layout."""
        value, created_at, updated_at = row
        try:
            item = json.loads(value) if isinstance(value, str | bytes) else value
        except ValueError:
            return Unreadable(key, "Its item is not JSON.")
        if not isinstance(item, dict) or "start_seq" in item or not isinstance(item.get("messages"), list):
            return None
        changed = utc_time(updated_at)
        line = SessionLine(
            key,
            created_at=utc_time(created_at),
            updated_at=changed,
            namespace=self._namespace,
            value_field=self._layout.value_field,
        )
        return Conversation(line, [found for one in item["messages"] if (found := self._message(one, changed))])

    def _message(self, value: object, moment: datetime | None) -> Message | None:
        """Return the message of an entry; count other entries and return None for them."""
        if not isinstance(value, dict) or value.get("role") not in SPEAKERS:
            system = isinstance(value, dict) and value.get("role") == "system"
            self.left_out["system" if system else "other"] += 1
            return None
        text = value.get(self._layout.value_field, value.get("content"))
        if not isinstance(text, str) or not text.strip():
            self.left_out["empty"] += 1
            return None
        return Message(value["role"], text, created_at=moment)
