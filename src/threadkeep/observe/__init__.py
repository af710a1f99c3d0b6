"""What happened: frozen event records, and observers that are told of them.

Code emits events and knows no sink. The sinks are `threadkeep.observe.log` and `threadkeep.observe.prometheus`,
imported by whoever opens them, since each needs a library of its own.
"""

from threadkeep.observe.events import (
    BACKENDS,
    CHANNELS,
    OUTCOMES,
    TURN_STATUSES,
    Backend,
    Channel,
    ContextBuilt,
    Event,
    HistoryTruncated,
    KeyResolutionFailed,
    ModelFailed,
    Outcome,
    PendingWrites,
    ReadFailed,
    StoreRead,
    StoreWrite,
    TurnFinished,
    TurnStatus,
    WriteDeferred,
    WriteDropped,
    WriteFailed,
    WriteRecovered,
)
from threadkeep.observe.observer import FromChannel, Observer, Observers

__all__ = [
    "BACKENDS",
    "CHANNELS",
    "OUTCOMES",
    "TURN_STATUSES",
    "Backend",
    "Channel",
    "ContextBuilt",
    "Event",
    "FromChannel",
    "HistoryTruncated",
    "KeyResolutionFailed",
    "ModelFailed",
    "Observer",
    "Observers",
    "Outcome",
    "PendingWrites",
    "ReadFailed",
    "StoreRead",
    "StoreWrite",
    "TurnFinished",
    "TurnStatus",
    "WriteDeferred",
    "WriteDropped",
    "WriteFailed",
    "WriteRecovered",
]
