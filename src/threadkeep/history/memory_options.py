"""Options of a memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, get_args

from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.errors import InvalidInput
from threadkeep.history.pending import PendingOptions
from threadkeep.history.retention import RetentionOptions
from threadkeep.history.retention_rounds import RunRetention
from threadkeep.records.graphiti import GraphitiOptions
from threadkeep.store.address import DatabaseAddress, TranscriptLocation
from threadkeep.store.codec import utc_now
from threadkeep.store.driver import StoreOptions
from threadkeep.store.runs.trace import TraceLimits

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore


@dataclass(frozen=True)
class MemoryOptions:
    """Options of a memory, apart from its database.

    Attributes:
        counter: counts the tokens of a message when it is stored.
        manifest_retention_days: the number of days for which records of model calls are kept. None keeps them forever;
            0 stores none.
        retention, run_retention: the limits for stored messages and for stored finished runs.
        run_trace_limits: the limits for the stored trace of each run.
        context_cache_bytes: the limit for the cache of window messages in this process; 0 turns the cache off.
        background: while the memory is open, run tasks that index messages for search, write pending turns and
            manifests, and apply retention. Short-lived commands turn these tasks off.
        transcripts: the store of messages: the tables, or a LangGraph store.
        graph_store: an open LangGraph store, which stays open, or the database of one; by default, this memory's
            database.
        graphiti: the Graphiti server to which messages are sent if consent was given.
    """

    store: StoreOptions = StoreOptions()
    pending: PendingOptions = PendingOptions()
    counter: TokenCounter = estimate
    clock: Callable[[], datetime] = utc_now
    manifest_retention_days: float | None = 30.0
    retention: RetentionOptions = RetentionOptions()
    run_retention: RunRetention = RunRetention()
    run_trace_limits: TraceLimits = TraceLimits()
    context_cache_bytes: int = 64 * 2**20
    background: bool = True
    transcripts: TranscriptLocation = "tables"
    graph_store: DatabaseAddress | BaseStore | None = None
    graphiti: GraphitiOptions | None = None

    def __post_init__(self) -> None:
        """Reject invalid options here, because they would otherwise fail only later."""
        for name, function in (("counter", self.counter), ("clock", self.clock)):
            if not callable(function):
                raise InvalidInput(f"The {name} of MemoryOptions must be a function.")
        cache = self.context_cache_bytes
        if isinstance(cache, bool) or not isinstance(cache, int) or cache < 0:
            raise InvalidInput("context_cache_bytes of MemoryOptions must be a whole number from 0; 0 turns it off.")
        if self.transcripts not in get_args(TranscriptLocation.__value__):
            raise InvalidInput(f"transcripts must be one of {', '.join(get_args(TranscriptLocation.__value__))}.")
