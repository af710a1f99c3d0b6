"""What the callers of a turn get of how its run ended."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from threadkeep.errors import RunNotFound, StoreError
from threadkeep.graphs.registry import Workflows
from threadkeep.history.memory import Memory
from threadkeep.records.runs import Run, TokenUsage
from threadkeep.runs.chat.failures import error_of
from threadkeep.runs.chat.turns import ChatAnswer, ChatContext, ChatTurn, ChatUsage
from threadkeep.runs.kept_answers import with_own_answer
from threadkeep.runs.outcome import Outcome
from threadkeep.runs.service import RunService


class ChatAnswers:
    """Makes answers of ended runs; what it asks the database for beside them may be missing."""

    def __init__(self, memory: Memory, workflows: Workflows) -> None:
        self._memory = memory
        self._workflows = workflows

    async def of_recorded(self, turn: ChatTurn, ended: Run | Outcome, runs: RunService) -> ChatAnswer:
        """The answer of a run that is recorded, or of what came out of it.

        Raises:
            ModelCallFailed, RunFailed, RunWaits, Interrupted, BudgetTooSmall: it has no answer.
        """
        usage: Sequence[TokenUsage] = ()
        if ended.status == "done":
            # The session may be deleted right after it: then what it took is no longer known.
            with contextlib.suppress(RunNotFound, StoreError, TimeoutError):
                async with self._memory.session(turn.session_id).patience():
                    if isinstance(ended, Run):
                        ended = await with_own_answer(self._memory, ended, turn.message_id)
                    usage = await runs.usage(turn.run_id)
        return self.of(turn, ended, usage)

    def of(self, turn: ChatTurn, ended: Run | Outcome, usage: Sequence[TokenUsage]) -> ChatAnswer:
        """The answer of a run that took so much.

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
            response=known.get("text", ""),
            confidence=known.get("confidence"),
            escalated=bool(known.get("escalated")),
            usage=ChatUsage(sum(each.input_tokens for each in usage), sum(each.output_tokens for each in usage)),
            context=ChatContext(**known.get("context", {})),
        )
