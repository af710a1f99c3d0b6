"""The ends of a turn where no single node is the turn: the question before all nodes, the answer after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from pydantic import Field

from threadkeep.graphs.nodes.base import Again, Node, NodeKind, Step
from threadkeep.graphs.nodes.history_fields import is_reset
from threadkeep.graphs.nodes.places import place_of_session
from threadkeep.graphs.resources import RunContext
from threadkeep.graphs.state import WorkflowState, answer_of
from threadkeep.records import Json
from threadkeep.workflow.conversion import text_of
from threadkeep.workflow.invocation import metadata_of, question_before
from threadkeep.workflow.turn_options import TurnOptions
from threadkeep.workflow.turns import OpenTurn


class RecordingNode(Node):
    """What both have in common: the turn of the run's session. A run without a session has none."""

    reset_commands: tuple[str, ...] = Field((), description="Messages that are not stored: they begin anew.")

    @property
    def again(self) -> Again:
        """Nothing: a message is stored once by its id."""
        return "nothing"

    def turn(self, step: Step, question: Sequence[BaseMessage]) -> OpenTurn | None:
        """The run's turn; None where there is nothing to store."""
        place = place_of_session(step)
        texts = [text_of(message) for message in question]
        if place.kind != "session" or not question or any(is_reset(one, texts) for one in self.reset_commands):
            return None
        session = place.memory.session(place.session_id, user_id=place.user_id)
        given = step.context.resources.turn_options
        options = TurnOptions(keep_originals=given.keep_originals)
        return OpenTurn(place.memory, session, options, question)


class RecordQuestionNode(RecordingNode):
    """Stores the run's question before anything else is done, so that no failure loses it."""

    node_kind: ClassVar[NodeKind] = "record_question"

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> WorkflowState:
        """Store the question; one that is there already is not stored again."""
        await self.store(Step.of(config, runtime), state.get("messages") or (), metadata_of(config))
        return {}

    async def store(self, step: Step, messages: Sequence[BaseMessage], metadata: Mapping[str, Json] | None) -> None:
        """Store the question that messages end with."""
        turn = self.turn(step, question_before(messages))
        if turn is not None:
            await turn.begin(step.context.run_id, metadata)


class RecordAnswerNode(RecordingNode):
    """Stores what the run said last as the answer to its question, if no node has done so."""

    node_kind: ClassVar[NodeKind] = "record_answer"

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> WorkflowState:
        """Store the answer."""
        step = Step.of(config, runtime)
        answer = answer_of(state)
        turn = self.turn(step, question_before(state.get("messages") or ()))
        if turn is not None and answer is not None:
            await turn.begin(step.context.run_id, metadata_of(config))
            if turn.answered is None:
                await turn.close(answer)
        return {}
