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
from threadkeep.history.run_retention import RunRetention
from threadkeep.records.graphiti import GraphitiOptions
from threadkeep.store.address import DatabaseAddress, TranscriptLocation
from threadkeep.store.codec import utc_now
from threadkeep.store.driver import StoreOptions
from threadkeep.store.runs.trace import TraceLimits

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore


@dataclass(frozen=True)
class MemoryOptions:
    """Options of a memory, besides its database.

    `counter` counts the tokens of a message when it is stored. `manifest_retention_days` is the number of days to keep
    records of model calls: None is forever, 0 is not at all. `context_cache_bytes` limits the messages of windows that
    the process remembers; 0 remembers none. `retention` limits messages, `run_retention` runs that are over, and
    `run_trace_limits` the stored trace of a run. `background` keeps the search index up to date, delivers pending
    writes, writes manifests and applies retention while the memory is open; short-lived commands turn it off.
    `transcripts` selects the store of messages: with `graph_store` it is the LangGraph store of a database, by default
    this one, or a given store that stays open. With `graphiti` messages go to a Graphiti server, as far as the person
    has consented.
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
        """Refuse options that would fail at the first message.

        Raises:
            InvalidInput: the message names the option.
        """
        for name, function in (("counter", self.counter), ("clock", self.clock)):
            if not callable(function):
                raise InvalidInput(f"The {name} of MemoryOptions is a function.")
        cache = self.context_cache_bytes
        if isinstance(cache, bool) or not isinstance(cache, int) or cache < 0:
            raise InvalidInput("context_cache_bytes of MemoryOptions is a whole number from 0; 0 turns the cache off.")
        if self.transcripts not in get_args(TranscriptLocation.__value__):
            raise InvalidInput(f"transcripts is one of {', '.join(get_args(TranscriptLocation.__value__))}.")
