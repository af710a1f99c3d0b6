"""The interface of a backend that stores transcripts, and its implementation with Threadkeep's own tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from threadkeep.errors import InvalidSettings, SessionDamaged
from threadkeep.store.address import TranscriptLocation
from threadkeep.store.archive import Archive, Restoring
from threadkeep.store.codec import Counter, GraphTurns
from threadkeep.store.contexts import RecallIndexes, RecallIndexRows
from threadkeep.store.driver import Driver
from threadkeep.store.retention import RetentionRows
from threadkeep.store.search import Search, SearchIndex
from threadkeep.store.statements import load_statements
from threadkeep.store.tables import TableTranscripts
from threadkeep.store.transcripts import Transcripts

VARIABLE: Final = "THREADKEEP_TRANSCRIPTS"
"""The setting that selects the store of transcripts."""

_ELSEWHERE: Final[dict[TranscriptLocation, tuple[str, TranscriptLocation, str]]] = {
    "tables": ("any_indexed", "graph_store", "a graph store"),
    "graph_store": ("any_kept_here", "tables", "its tables"),
}
"""By location: the statement that finds sessions in the other location, the other location, and its description."""


class DamageRegister:
    """A register of errors from reading damaged metadata and messages. A successful read removes its earlier error."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, str], SessionDamaged] = {}

    @contextmanager
    def noting(self, session_id: str, item: str) -> Iterator[None]:
        """Record a `SessionDamaged` that the block raises while it reads `item`. A later success removes the record."""
        try:
            yield
        except SessionDamaged as error:
            self._items[session_id, item] = error
            raise
        if self._items:
            self._items.pop((session_id, item), None)

    def forget(self, session_id: str) -> None:
        """Remove the errors of a session that does not exist any more."""
        for key in [key for key in self._items if key[0] == session_id]:
            del self._items[key]

    def of(self, user_id: str | None = None) -> list[SessionDamaged]:
        """Return the recorded errors, sorted by session; with a `user_id`, only errors in this user's sessions."""
        found = sorted(self._items.items())
        return [error for _, error in found if user_id in (None, error.user_id)]


@dataclass(frozen=True)
class TranscriptBackend:
    """A store of transcripts, with the services that have one implementation for tables and one for graph stores."""

    transcripts: Transcripts
    search: Search
    archive: Restoring
    retention: RetentionRows
    recall_indexes: RecallIndexes
    damages: DamageRegister = field(default_factory=DamageRegister)


@asynccontextmanager
async def open_table_backend(
    driver: Driver, *, count: Counter, clock: Callable[[], datetime], graph_turns: GraphTurns | None
) -> AsyncIterator[TranscriptBackend]:
    """Open the backend that stores transcripts in Threadkeep's own tables, not in a LangGraph store.

    Raises:
        InvalidSettings: the transcripts of this database are in a graph store.
    """
    await check_location(driver, "tables")
    transcripts = TableTranscripts(driver, count=count, clock=clock, graph_turns=graph_turns)
    try:
        yield TranscriptBackend(
            transcripts,
            SearchIndex(driver),
            Archive(driver, count=count, clock=clock),
            RetentionRows(driver, clock=clock),
            RecallIndexRows(driver),
        )
    finally:
        await transcripts.close()


async def check_location(driver: Driver, wanted: TranscriptLocation) -> None:
    """Check that all sessions of a database have their messages in `wanted`: in the tables, or in a graph store.

    Raises:
        InvalidSettings: a session has its messages elsewhere; the error names the setting to change.
    """
    statement, other, location = _ELSEWHERE[wanted]
    if await driver.fetch(load_statements("graph_index.sql")[statement], {}):
        raise InvalidSettings(
            f"The messages of this database's sessions are in {location}: set {VARIABLE}={other}, or export them with "
            "it and import them into another database.",
            variable=VARIABLE,
        )
