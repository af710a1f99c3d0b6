"""How a memory is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, get_args

from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.errors import InvalidInput
from threadkeep.history.pending import PendingOptions
from threadkeep.history.retention import RetentionOptions
from threadkeep.history.run_retention import RunRetention
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import StoreOptions
from threadkeep.store.keeping import Keeping
from threadkeep.store.runs.runs import STALE_SECONDS
from threadkeep.store.runs.trace import TraceLimits

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore


def utc_now() -> datetime:
    """The time of this machine."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class MemoryOptions:
    """How a memory is opened, beyond its database.

    `counter` counts the tokens of a message when it is stored. `manifest_retention_days` says how long the records of
    model calls are kept: None is for good, 0 is not at all. `retention` says how long messages are, `run_retention` how
    long runs that are over; what happens in a run is kept within `run_trace_limits`, and a process that has runs and is
    not heard of for `run_stale_seconds` is taken for dead. `background` keeps the search index up to date, delivers
    pending writes, writes manifests and carries out retention while the memory is open; short-lived commands turn it
    off. `transcripts` says where messages are kept: with `graph_store` it is the LangGraph store of a database, of this
    one if none is named, or one that is handed in and stays open.
    """

    store: StoreOptions = StoreOptions()
    pending: PendingOptions = PendingOptions()
    counter: TokenCounter = estimate
    clock: Callable[[], datetime] = utc_now
    manifest_retention_days: float | None = 30.0
    retention: RetentionOptions = RetentionOptions()
    run_retention: RunRetention = RunRetention()
    run_stale_seconds: float = STALE_SECONDS
    run_trace_limits: TraceLimits = TraceLimits()
    background: bool = True
    transcripts: Keeping = "tables"
    graph_store: DatabaseAddress | BaseStore | None = None

    def __post_init__(self) -> None:
        """Refuse what would fail at the first message.

        Raises:
            InvalidInput: names the option.
        """
        for name, function in (("counter", self.counter), ("clock", self.clock)):
            if not callable(function):
                raise InvalidInput(f"The {name} of MemoryOptions is a function.")
        if not self.run_stale_seconds > 0:
            raise InvalidInput("run_stale_seconds of MemoryOptions is a number above 0.")
        if self.transcripts not in get_args(Keeping.__value__):
            raise InvalidInput(f"transcripts is one of {', '.join(get_args(Keeping.__value__))}.")
