"""Children whose parent is over while nobody carries them out any more: their process died with their parent's."""

from __future__ import annotations

from threadkeep.records.runs import Run, RunQuery
from threadkeep.store.runs import Runs

_AT_ONCE = 200


async def end_orphans(runs: Runs, parent_run_id: str) -> None:
    """End what is still marked as at work below a run that has ended here."""
    children, _ = await runs.records.runs(RunQuery(parent_run_id=parent_run_id, status="running", limit=_AT_ONCE))
    for child in children:
        await end_orphan(runs, child)


async def end_orphan(runs: Runs, child: Run) -> None:
    """End a run that is nobody's, and those below it."""
    if child.owner is not None:
        await runs.finish(child.run_id, child.owner, "cancelled", error="ParentOver")
    else:
        await runs.request_cancel(child.run_id, reason="parent_over")
    await end_orphans(runs, child.run_id)
