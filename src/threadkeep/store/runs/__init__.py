"""Runs of workflows in the tables: their order, ends, traces and retention.

`Runs` is the entry point; it manages the owners and ends of runs. Its attributes are `order` (how runs arrive and
begin), `positions` (their order in agents' conversations), `trace` (events, usage, tool calls), `records` (lists and
trees), `finished` (retention), `workflows` (definitions by version) and `sessions` (the session that a user continues).
"""

from threadkeep.records.runs import Run, RunEnd, RunStatus
from threadkeep.store.runs.runs import Outcome, Runs

__all__ = ["Outcome", "Run", "RunEnd", "RunStatus", "Runs"]
