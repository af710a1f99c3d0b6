"""Histories in a LangGraph store, one item each: `{"version", "messages": [{"role", "content"}]}`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from threadkeep.cli.foreign import Conversation, LeftOut, Unreadable, open_source_database, utc_time
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.archive_lines import SessionLine
from threadkeep.records import SPEAKERS, Message
from threadkeep.store.driver import Row
from threadkeep.store.foreign import ForeignDatabase


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
