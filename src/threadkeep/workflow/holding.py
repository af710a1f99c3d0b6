"""Whether whoever carries a run out still has it: half an answer of a process that lost its run is not stored."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(eq=False)
class RunHold:
    """One process's hold on a run; `lost` when another one has the run by now."""

    lost: bool = False


run_hold: ContextVar[RunHold | None] = ContextVar("threadkeep_run_hold", default=None)
"""The hold on the run that the present task belongs to; None outside of runs."""
