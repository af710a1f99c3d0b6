"""Regeneration: a new run answers a question of a session again and replaces everything that followed the question."""

from __future__ import annotations

from dataclasses import dataclass

from threadkeep.errors import InvalidInput, MessageSuperseded
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records import Message
from threadkeep.records.runs import RunTrigger
from threadkeep.runs.chat.chat import Chat
from threadkeep.runs.chat.turns import ChatRequest, ChatTurn
from threadkeep.workflows.built_in import CHAT
from threadkeep.workflows.registry import Workflows


@dataclass(frozen=True)
class AgainRequest:
    """The question to answer again: the one of `run_id`, the one with `message_id`, or else the newest one.

    Without a `workflow`, the workflow that answered the question before answers it again.
    """

    run_id: str | None = None
    message_id: str | None = None
    workflow: str | None = None
    trigger: RunTrigger = "http"

    def __post_init__(self) -> None:
        """Refuse a request that names both a run and a message.

        Raises:
            InvalidInput: both a run and a message are named.
        """
        if self.run_id is not None and self.message_id is not None:
            raise InvalidInput("Name the run or the message, not both.")


class Again:
    """A service that answers questions of the chat again."""

    def __init__(self, chat: Chat, memory: Memory, workflows: Workflows) -> None:
        self._chat = chat
        self._memory = memory
        self._workflows = workflows

    async def begin(self, session: Session, request: AgainRequest, *, stream: bool = True) -> ChatTurn:
        """Supersede everything after a question and start the turn that answers it; join that turn if it runs already.

        Raises:
            MessageNotFound: the session has no such question.
            MessageSuperseded: the question itself was superseded.
            WorkflowNotFound: no workflow of that name is registered.
            StoreUnavailable: the database did not take it; a repeat is safe.
        """
        return self._chat.begin(await self.release(session, request), stream=stream)

    async def release(self, session: Session, request: AgainRequest) -> ChatRequest:
        """Supersede everything after a question and return the request that has it answered by a new run.

        Raises: as for `begin`.
        """
        question = await session.question(request.message_id or await self._asked_by(session, request.run_id))
        question_id = str(question.id)
        if question.superseded_at is not None:
            raise MessageSuperseded(session.session_id, question_id, question.superseded_by)
        workflow = self._workflows.get(request.workflow or await self._workflow_of(question, request.run_id))
        # Read before the release: the answer of a concurrent regeneration must not be superseded.
        info = await session.info()
        if await self._memory.runs.order.release(session.session_id, question_id):
            await session.regenerate(question_id, upto=info.last_seq)
        return ChatRequest(
            question.content,
            session_id=session.session_id,
            user_id=info.user_id,  # for any caller: the owner's repeat of the message joins this run
            message_id=question_id,
            metadata=question.metadata,
            workflow=workflow.name,
            trigger=request.trigger,
        )

    async def _asked_by(self, session: Session, run_id: str | None) -> str | None:
        """Return the id of the message that a run answers; the run's own id if the run is no longer stored."""
        run = await self._memory.runs.run(run_id) if run_id is not None else None
        if run is None or run.session_id != session.session_id:
            return run_id
        return (run.inputs[-1].message_id if run.inputs else run.message_id) or run_id

    async def _workflow_of(self, question: Message, run_id: str | None) -> str:
        """Return the name of the workflow that answered a question."""
        for known in filter(None, (run_id, question.run_id)):
            if (run := await self._memory.runs.run(known)) is not None:
                return run.workflow
        return CHAT
