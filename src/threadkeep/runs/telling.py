"""What observers are told when a run has ended."""

from __future__ import annotations

from threadkeep.history.keys import channel_of
from threadkeep.observe import Observer, RunFinished, TurnFinished, TurnStatus
from threadkeep.records.runs import OWN_NAMES, Run
from threadkeep.runs.metering import Account
from threadkeep.runs.outcome import Outcome


def tell_run(observer: Observer, run: Run, outcome: Outcome, *, milliseconds: float) -> None:
    """Tell that a run ended, or waits for a person."""
    observer.notify(
        RunFinished(
            workflow=run.workflow,
            status=outcome.status,
            error=outcome.error,
            milliseconds=milliseconds,
            set_aside=outcome.set_aside,
            run_id=run.run_id,
            session_id=run.session_id,
        )
    )


def tell_turn(observer: Observer, run: Run, outcome: Outcome, ledger: Account | None, *, milliseconds: float) -> None:
    """Tell that a turn of a session ended, if the run is one; a turn that waits for a person goes on."""
    if run.session_id is None or run.parent_run_id is not None or outcome.status == "waiting":
        return
    if run.workflow in OWN_NAMES:
        return  # nobody said anything
    status: TurnStatus = "interrupted"
    if outcome.status in ("done", "failed"):
        status = "complete" if outcome.status == "done" else "failed"
    observer.notify(
        TurnFinished(
            channel=channel_of(run.session_id, default="http" if run.trigger == "http" else "other"),
            status=status,
            milliseconds=milliseconds,
            input_tokens=ledger.input_tokens if ledger is not None else 0,
            output_tokens=ledger.output_tokens if ledger is not None else 0,
            run_id=run.run_id,
            session_id=run.session_id,
        )
    )
