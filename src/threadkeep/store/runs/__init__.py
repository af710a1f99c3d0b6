"""Runs of workflows: their order, their ends, their traces, and their retention.

`Runs` is the entry point: owners and ends of runs, with `order` (arrival and start), `trace` (events, usage, tool
calls), `records` (lists and trees), `finished` (retention), `workflows` (definitions by version) and `sessions` (the
session that a user continues).
"""

from threadkeep.records.runs import Run, RunEnd, RunStatus
from threadkeep.store.runs.runs import Runs

__all__ = ["Run", "RunEnd", "RunStatus", "Runs"]
