"""Nodes that store the turn if no other node does: the question at the start, the answer at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from pydantic import Field

from threadkeep.agent.conversion import refused_message, text_of
from threadkeep.agent.invocation import metadata_of, question_before
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.agent.turns import OpenTurn
from threadkeep.history.session import Session
from threadkeep.records import Json
from threadkeep.workflows.nodes.base import Again, Node, NodeKind, Step
from threadkeep.workflows.nodes.history_fields import is_reset
from threadkeep.workflows.nodes.places import place_of_session
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState, answer_of


class RecordingNode(Node):
    """The base of both nodes: access to the turn of the run's session. A run without a session has none."""

    reset_commands: tuple[str, ...] = Field((), description="Messages that are not stored: they begin anew.")

    @property
    def again(self) -> Again:
        """Return nothing: a message is stored once by its id."""
        return "nothing"

    def turn(self, step: Step, question: Sequence[BaseMessage], session: Session | None = None) -> OpenTurn | None:
        """Return the turn of the run's session, or of another; None if there is nothing to store."""
        place = place_of_session(step)
        texts = [text_of(message) for message in question]
        if session is None and place.kind == "session":
            session = place.memory.session(place.session_id, user_id=place.user_id)
        if session is None or not question or any(is_reset(one, texts) for one in self.reset_commands):
            return None
        given = step.context.resources.turn_options
        options = TurnOptions(keep_originals=given.keep_originals)
        return OpenTurn(place.memory, session, options, question)


class RecordQuestionNode(RecordingNode):
    """Stores the run's question before all other nodes, so that no failure loses it.

    A node that `waits` leaves the question to the first model call behind middleware, which may redact it, and to the
    `RecordAnswerNode` if there is no such call. Until then only the request of the run has the words.
    """

    node_kind: ClassVar[NodeKind] = "record_question"

    waits: bool = Field(False, description="Whether the question is stored when middleware has seen it.")

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> WorkflowState:
        """Store the question unless it is already stored."""
        if self.waits:
            return {}
        await self.store(Step.of(config, runtime), state.get("messages") or (), metadata_of(config))
        return {}

    async def store(
        self,
        step: Step,
        messages: Sequence[BaseMessage],
        metadata: Mapping[str, Json] | None,
        session: Session | None = None,
        *,
        received: Sequence[BaseMessage] = (),
    ) -> None:
        """Store the question at the end of messages, in the run's session or in another.

        `received` is the question as it came, if middleware has changed it.
        """
        turn = self.turn(step, question_before(messages), session)
        if turn is not None:
            await turn.begin(step.context.run_id, metadata, received=received)

    async def refuse(self, step: Step, messages: Sequence[BaseMessage], metadata: Mapping[str, Json] | None) -> None:
        """Store the question as `failed` without its text, unless it is stored: middleware may have refused it."""
        turn = self.turn(step, question_before(messages))
        if turn is not None and not await turn.is_stored(turn.question[-1]):
            refused = refused_message(turn.question[-1], step.context.run_id, metadata)
            await step.context.resources.memory.finish(turn.session.record, [refused])


class RecordAnswerNode(RecordingNode):
    """Stores the run's last message as the answer to its question, unless a node has already done so."""

    node_kind: ClassVar[NodeKind] = "record_answer"

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> WorkflowState:
        """Store the answer, and the question unless it is stored."""
        step = Step.of(config, runtime)
        answer = answer_of(state)
        turn = self.turn(step, question_before(state.get("messages") or ()))
        if turn is not None:
            await turn.begin(step.context.run_id, metadata_of(config))
            first = None if answer is None else turn.answered or await turn.close(answer)
            if answer is not None and first is not None and first.id != answer.id:
                # Another process has answered the same question; its answer becomes the run's answer.
                return {"messages": [first]}
        return {}
