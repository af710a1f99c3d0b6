"""Runs of workflows: their order, how they end, their traces, and what is kept of them.

`Runs` is all of it: who carries a run out and how it ends, with `order` (arriving and beginning), `trace` (events,
usage, calls of tools), `records` (lists and trees), `finished` (what goes in the end), `workflows` (definitions by
version) and `sessions` (which session a user goes on with).
"""

from threadkeep.records.runs import Run, RunEnd, RunStatus
from threadkeep.store.runs.runs import Runs

__all__ = ["Run", "RunEnd", "RunStatus", "Runs"]
