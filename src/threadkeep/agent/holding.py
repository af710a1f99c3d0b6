"""The part of a process in a run that it executes, as the agents of the run see it."""

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
    """An answer that is stored in the transaction that ends its run.

    `anchor` returns the statement that moves the anchor of the window, if it moves. `store` stores the answer alone, if
    that fails; `settle` is called when it is stored.
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
    """The hold of one process on a run.

    `lost` when another one has the run by now; `told` if a caller waits in this process for the answer. `told_id` is
    the answer that was stored for that caller; `replaced` says that the answer of another process was adopted.
    `sessions` are the conversations that its agents keep under keys of their own, as far as it came to them.

    A run with one speaker ends with its answer in one transaction: `joins` is its session, and `answer` and `manifests`
    wait for that end. `begun` is the question that was stored when the run began.
    """

    lost: bool = False
    told: bool = False
    told_id: str | None = None
    replaced: bool = False
    sessions: list[Session] = field(default_factory=list)
    joins: str | None = None
    answer: HeldAnswer | None = None
    manifests: list[NotedManifest] = field(default_factory=list)
    begun: BegunTurn | None = None

    def stored(self, question: Sequence[Message]) -> Receipt | None:
        """Return the receipt of a question, if it was stored when the run began."""
        if self.begun is None or [(one.id, one.content) for one in question] != [
            (one.id, one.content) for one in self.begun.question
        ]:
            return None
        return self.begun.receipt

    def takes(self, session: Session) -> bool:
        """Return whether an answer in a session may wait for the end of the run."""
        return session.session_id == self.joins and not session.waiting()

    async def store(self) -> AIMessage | None:
        """Store the answer that waits, if there is one; return the answer of another process that was first."""
        answer, self.answer = self.answer, None
        if answer is None or self.lost:
            return None
        winner = await answer.store()
        await answer.settle(adopted=winner is not None)
        return winner


run_hold: ContextVar[RunHold | None] = ContextVar("threadkeep_run_hold", default=None)
"""The hold on the run that the present task belongs to; None outside of runs."""
