"""How runs are carried out and looked after, beside what the engine itself is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from threadkeep.errors import InvalidInput
from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.runs.prices import Prices


@dataclass(frozen=True)
class RunServiceOptions:
    """How runs are carried out. Times in seconds.

    A process says every `heartbeat_seconds` that it lives, and looks every `watch_seconds` what of its runs others want
    stopped. A failure that may pass is tried again after `pause_seconds`, doubled each time up to
    `longest_pause_seconds`. What happens in a run waits `trace_seconds` for more to be stored with it, and how far it
    came `progress_seconds`, where its last steps may be done again; one that ends without a result waits
    `keep_progress_seconds` at most for a checkpointer that is away, and begins earlier if it is tried again. Every
    `upkeep_seconds` runs that nobody has begun for `forgotten_seconds` are seen to, and checkpoints of runs that are
    over are removed: of those without a result after `keep_checkpoints_seconds`, since they may be tried again.
    """

    prices: Prices = field(default_factory=lambda: Prices({}))
    engine: EngineOptions = EngineOptions()
    heartbeat_seconds: float = 5.0
    watch_seconds: float = 0.5
    upkeep_seconds: float = 10.0
    forgotten_seconds: float = 30.0
    pause_seconds: float = 0.5
    longest_pause_seconds: float = 20.0
    trace_seconds: float = 0.05
    progress_seconds: float = 0.05
    keep_progress_seconds: float = 10.0
    keep_checkpoints_seconds: float = 86_400.0

    def __post_init__(self) -> None:
        """Refuse times that are none.

        Raises:
            InvalidInput: names the option.
        """
        for name in ("heartbeat_seconds", "watch_seconds", "upkeep_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} of RunServiceOptions is a number above 0.")
