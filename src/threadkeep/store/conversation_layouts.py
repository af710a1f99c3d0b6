"""Layouts of conversations that agents keep in the graph store, registered for all processes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from threadkeep.store.driver import Driver
from threadkeep.store.graph_transcripts.layout import GraphLayout
from threadkeep.store.statements import load_statements
from threadkeep.store.times import time_text


class ConversationLayouts:
    """The table `chat_conversation_layouts`. The chunk size belongs to each conversation and is not stored here."""

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime]) -> None:
        self._driver = driver
        self._clock = clock
        self._sql = load_statements("conversation_layouts.sql")

    async def add(self, layout: GraphLayout) -> None:
        """Register a layout."""
        row = {
            "namespace": ".".join(layout.namespace),
            "meta_key_suffix": layout.meta_key_suffix,
            "value_field": layout.value_field,
            "now": time_text(self._clock()),
        }
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["add_layout"], row)

    async def all(self) -> list[GraphLayout]:
        """Return all registered layouts, in a fixed order."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["layouts"], {})
        return [
            GraphLayout(tuple(namespace.split(".")), suffix, value_field=field) for namespace, suffix, field in rows
        ]
