"""State that a run shares with its agents, in the process that executes the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from langchain_core.messages import AIMessage

from threadkeep.history.session import BegunTurn, Session
from threadkeep.records import Message, Receipt
from threadkeep.store.driver import Statement
from threadkeep.store.manifests import NotedManifest


@dataclass(frozen=True)
class HeldAnswer:
    """An answer that waits to be stored in the transaction that ends its run.

    - `told`: True if a caller in this process waits for the answer.
    - `anchor`: returns the statement that moves the stored start of the window in this transaction, or None if it
      stays.
    - `store`: stores the answer alone, without ending the run.
    - `settle`: ends the turn (`TurnContext.settle`); it must be called when the answer is stored.
    """

    session: Session
    message: Message
    question_id: str | None
    told: bool
    anchor: Callable[[], Statement | None]
    store: Callable[[], Awaitable[AIMessage | None]]
    settle: Callable[..., Awaitable[None]]


@dataclass(eq=False)
class RunHold:
    """The state of a run that this process executes.

    - `lost`: True if another process owns the run.
    - `told`: True if a caller in this process waits for the answer.
    - `told_id`: the id of the answer that was stored for this caller.
    - `replaced`: True if another process stored an answer first, which is used instead.
    - `was_pending`: True if the database did not accept the answer at once. Then another answer may become valid.
    - `sessions`: the conversations that agents of the run store under their own keys.
    - `joins`: if the run has one speaker, the id of its session. The transaction that ends the run stores the answer
      there.
    - `answer`, `manifests`: the data that this transaction also stores.
    - `begun`: the question that was stored when the run began.
    """

    lost: bool = False
    told: bool = False
    told_id: str | None = None
    replaced: bool = False
    was_pending: bool = False
    sessions: list[Session] = field(default_factory=list)
    joins: str | None = None
    answer: HeldAnswer | None = None
    manifests: list[NotedManifest] = field(default_factory=list)
    begun: BegunTurn | None = None

    def stored(self, question: Sequence[Message]) -> Receipt | None:
        """Return the receipt of this question if it was stored when the run began."""
        if self.begun is None or [(one.id, one.content) for one in question] != [
            (one.id, one.content) for one in self.begun.question
        ]:
            return None
        return self.begun.receipt

    def takes(self, session: Session) -> bool:
        """Return True if the transaction that ends the run can store an answer in this session."""
        return session.session_id == self.joins and not session.waiting()

    async def store(self) -> AIMessage | None:
        """Store the waiting answer if this process still owns the run. Return an answer stored instead."""
        answer, self.answer = self.answer, None
        if answer is None or self.lost:
            return None
        winner = await answer.store()
        await answer.settle()
        return winner


run_hold: ContextVar[RunHold | None] = ContextVar("threadkeep_run_hold", default=None)
"""The state of the current task's run; None outside of runs."""
