"""Options for the execution and maintenance of runs, besides those of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from threadkeep.errors import InvalidInput
from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.runs.prices import Prices


@dataclass(frozen=True)
class RunServiceOptions:
    """Options of the run service. Times are in seconds.

    Every `watch_seconds` a process checks which of its runs should be stopped, and every `reap_seconds` whether owners
    of runs are dead: by default four times within `engine.dead_seconds`, and at least once a second. If the interval is
    longer than half of `dead_seconds`, no dead process is found on PostgreSQL. A transient failure is retried after
    `pause_seconds`, doubled each time up to `longest_pause_seconds`. A run that processes acquired `max_attempts`
    times, because they died or failed unexpectedly, is set aside for a person.

    Trace events of a run that a caller follows wait `trace_seconds` to be stored in a group, others
    `late_trace_seconds`; progress waits `progress_seconds` if its last steps may be repeated. A run that ends without a
    result waits at most `keep_progress_seconds` for a checkpointer that is down; after that a retry starts from an
    earlier checkpoint. Every `upkeep_seconds`, maintenance starts runs that were not begun for `forgotten_seconds` and
    removes checkpoints of runs that are over: of runs without a result only after `keep_checkpoints_seconds`, because
    they may be retried.
    """

    prices: Prices = field(default_factory=lambda: Prices({}))
    engine: EngineOptions = EngineOptions()
    watch_seconds: float = 0.5
    reap_seconds: float | None = None
    upkeep_seconds: float = 10.0
    max_attempts: int = 3
    forgotten_seconds: float = 30.0
    pause_seconds: float = 0.5
    longest_pause_seconds: float = 20.0
    trace_seconds: float = 0.05
    late_trace_seconds: float = 1.0
    progress_seconds: float = 0.05
    keep_progress_seconds: float = 10.0
    keep_checkpoints_seconds: float = 86_400.0

    def __post_init__(self) -> None:
        """Refuse times that are not positive.

        Raises:
            InvalidInput: the message names the option.
        """
        for name in ("watch_seconds", "reap_seconds", "upkeep_seconds"):
            if (seconds := getattr(self, name)) is not None and not seconds > 0:
                raise InvalidInput(f"{name} of RunServiceOptions is a number above 0.")

    @property
    def reaps_every(self) -> float:
        """Seconds between two checks whether owners of runs are dead."""
        return min(1.0, self.engine.dead_seconds / 4) if self.reap_seconds is None else self.reap_seconds
