"""What the callers of a turn are told that ended without an answer."""

from __future__ import annotations

from threadkeep.errors import (
    BudgetTooSmall,
    Interrupted,
    ModelCallFailed,
    RunFailed,
    RunWaits,
    SessionNotFound,
    StoreUnavailable,
    ThreadkeepError,
    WrongUser,
)
from threadkeep.graphs.definition import Workflow
from threadkeep.records.runs import Run
from threadkeep.runs.chat.turns import ChatTurn
from threadkeep.runs.failures import RUN_ERRORS
from threadkeep.runs.outcome import Outcome

STOPPED = "The turn was stopped before the answer was complete; what there is of it is kept as interrupted."

_TOO_SMALL = "The message does not fit beside the system prompt; raise the limit of tokens, or shorten the prompt."
_NO_DATABASE = "The database is away, and this cannot be answered without it; send the message again."


def error_of(ended: Run | Outcome, turn: ChatTurn, workflow: Workflow) -> ThreadkeepError:
    """The error of a turn whose run is not done: one of the errors that its kind names, else the run's own."""
    kind = ended.error or "NoAnswer"
    if ended.status in ("waiting", "cancelled"):
        return RunWaits(turn.run_id) if ended.status == "waiting" else Interrupted(STOPPED)
    known: dict[str, ThreadkeepError] = {
        WrongUser.__name__: SessionNotFound(turn.session_id),
        StoreUnavailable.__name__: StoreUnavailable(_NO_DATABASE),
        BudgetTooSmall.__name__: BudgetTooSmall(_TOO_SMALL),
    }
    if kind in known:
        return known[kind]
    if kind in RUN_ERRORS or workflow.source != "built-in":
        return RunFailed(turn.run_id, kind, RUN_ERRORS.get(kind))
    return ModelCallFailed(kind)
