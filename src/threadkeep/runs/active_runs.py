"""A run that this process executes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from threadkeep.agent.holding import RunHold
from threadkeep.records.runs import Run
from threadkeep.runs.engine.engine import Stop
from threadkeep.runs.progress import RunProgress
from threadkeep.runs.streams import Outcome, RunStream
from threadkeep.runs.tracing import RunTracer
from threadkeep.runs.usage import RunLedger

type RunStop = Stop | Literal["cancelled"]
"""The reason why a run was stopped: by the engine, or by a request to cancel it."""


@dataclass(eq=False)
class ActiveRun:
    """A run that this process is executing.

    `stop` is the reason for which it is being stopped. `begins` is true if no process has executed it before. `over` is
    the run after it ended here. `has_following` is false if no run waited for this one when it ended.
    """

    run: Run
    owner: str
    stream: RunStream
    tracer: RunTracer
    progress: RunProgress
    begins: bool
    task: asyncio.Task[Outcome] | None = None
    stop: RunStop | None = None
    ledger: RunLedger | None = None
    over: Run | None = None
    has_following: bool = True
    hold: RunHold = field(default_factory=RunHold)

    def cancel(self, stop: RunStop) -> None:
        """Cancel the run once. A later `lost` replaces another reason; `lost` itself is final."""
        if self.stop is None or stop == "lost":
            self.stop = stop
            self.hold.lost = stop == "lost"
            if self.task is not None:
                self.task.cancel()
