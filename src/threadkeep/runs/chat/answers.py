"""Answers to callers of a turn, or the errors of a turn that ended without one, made from the end of its run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from threadkeep.agent.holding import RunHold
from threadkeep.errors import (
    BudgetTooSmall,
    Interrupted,
    ModelCallFailed,
    RunFailed,
    RunNotFound,
    RunWaits,
    SessionNotFound,
    StoreError,
    StoreUnavailable,
    ThreadkeepError,
    WrongUser,
)
from threadkeep.history.memory import Memory
from threadkeep.records import Message
from threadkeep.records.runs import ROLLED_BACK, Run, TokenUsage
from threadkeep.runs.chat.turns import ChatAnswer, ChatContext, ChatTurn, ChatUsage
from threadkeep.runs.failures import RUN_ERRORS
from threadkeep.runs.kept_answers import with_own_answer
from threadkeep.runs.live import Outcome
from threadkeep.runs.requests import Submitted
from threadkeep.runs.service import RunService
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.registry import Workflows

STOPPED = "The turn was stopped before the answer was complete; what there is of it is kept as interrupted."

TAKEN_BACK = "A newer message of the session came before the answer was complete; this one was taken back."

_TOO_SMALL = "The message does not fit beside the system prompt; raise the limit of tokens, or shorten the prompt."
_NO_DATABASE = "The database is away, and this cannot be answered without it; send the message again."


def error_of(ended: Run | Outcome, turn: ChatTurn, workflow: Workflow) -> ThreadkeepError:
    """Return the error of a turn whose run is not done: a known error of that kind, else the run's own."""
    kind = ended.error or "NoAnswer"
    if ended.status in ("waiting", "cancelled"):
        rolled_back = isinstance(ended, Run) and ended.cancel_reason == ROLLED_BACK
        stopped = Interrupted(TAKEN_BACK if rolled_back else STOPPED)
        return RunWaits(turn.run_id) if ended.status == "waiting" else stopped
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


class ChatAnswers:
    """A builder of answers from ended runs; it leaves out details that the database cannot return."""

    def __init__(self, memory: Memory, workflows: Workflows) -> None:
        self._memory = memory
        self._workflows = workflows

    async def of_recorded(
        self, turn: ChatTurn, ended: Run | Outcome, runs: RunService, submitted: Submitted
    ) -> ChatAnswer:
        """Return the answer of a recorded run or of its outcome, and mark the answer as delivered.

        An answer that was stored for this caller is marked already; the hold of its live run names it.

        Raises:
            ModelCallFailed, RunFailed, RunWaits, Interrupted, BudgetTooSmall: it has no answer.
        """
        live = submitted.live
        # An answer that this process told when the run ended may have given way since.
        hold, usage = None if submitted.over else live.hold, live.usage or ()
        told: Message | None = None
        if ended.status == "done":
            # The session may be deleted right after the run; then its usage is no longer known.
            with contextlib.suppress(RunNotFound, StoreError, TimeoutError):
                async with self._memory.session(turn.session_id).patience():
                    if isinstance(ended, Run):
                        ended = await with_own_answer(self._memory, ended, turn.message_id)
                    if live.usage is None:
                        usage = await runs.usage(turn.run_id)
                    told = await self._tell(turn, ended, hold)
        answer = self.of(turn, ended, usage)
        if told is not None:
            answer = replace(answer, answer_id=told.id, response=told.content)
            answer = replace(answer, confidence=told.confidence, escalated=told.escalated)
        return replace(answer, replaced=told is not None or (hold is not None and hold.replaced))

    async def _tell(self, turn: ChatTurn, ended: Run | Outcome, hold: RunHold | None) -> Message | None:
        """Mark the answer of a run as delivered; return the answer that has replaced it, or None if there is none."""
        message_id = (ended.result or {}).get("message_id")
        if not isinstance(message_id, str) or (hold is not None and hold.told_id == message_id):
            return None
        told = await self._memory.session(turn.session_id).tell(message_id)
        return None if told is None or told.id == message_id else told

    def of(self, turn: ChatTurn, ended: Run | Outcome, usage: Sequence[TokenUsage]) -> ChatAnswer:
        """Return the answer of a run, with its token usage.

        Raises:
            ModelCallFailed, RunFailed, RunWaits, Interrupted, BudgetTooSmall: it has no answer.
        """
        if ended.status != "done":
            raise error_of(ended, turn, self._workflows.get(turn.request.workflow))
        known: Mapping[str, Any] = ended.result or {}
        return ChatAnswer(
            session_id=turn.session_id,
            run_id=turn.run_id,
            message_id=turn.message_id,
            answer_id=known.get("message_id"),
            response=known.get("text", ""),
            confidence=known.get("confidence"),
            escalated=bool(known.get("escalated")),
            usage=ChatUsage(
                input_tokens=sum(each.input_tokens for each in usage),
                output_tokens=sum(each.output_tokens for each in usage),
                estimated=any(each.estimated for each in usage),
            ),
            context=ChatContext(**known.get("context", {})),
        )
