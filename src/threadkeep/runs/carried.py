"""One run while it is carried out in this process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from threadkeep.records.runs import Run
from threadkeep.runs.engine import Stop
from threadkeep.runs.ledger import RunLedger
from threadkeep.runs.live import LiveRun
from threadkeep.runs.outcome import Outcome
from threadkeep.runs.tracing import RunTracer
from threadkeep.workflow.holding import RunHold


@dataclass(eq=False)
class Carried:
    """A run that is being carried out here; `stop` says why it is being stopped.

    `begins` says that it has no life behind it; `over` is the run as it ended here.
    """

    run: Run
    owner: str
    live: LiveRun
    tracer: RunTracer
    begins: bool
    task: asyncio.Task[Outcome] | None = None
    stop: Stop | None = None
    ledger: RunLedger | None = None
    over: Run | None = None
    hold: RunHold = field(default_factory=RunHold)

    def cancel(self, stop: Stop) -> None:
        """Stop it, once; what is lost to another process stays lost."""
        if self.stop is None or stop == "lost":
            self.stop = stop
            self.hold.lost = stop == "lost"
            if self.task is not None:
                self.task.cancel()
