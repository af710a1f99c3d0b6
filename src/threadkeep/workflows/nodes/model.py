"""`model`: a single model call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import ClassVar, Literal

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from pydantic import Field

from threadkeep.agent.nodes import session_turn
from threadkeep.agent.turn_options import NodeTurnOptions, TurnOptions
from threadkeep.history.keys import channel_of
from threadkeep.observe import ModelFailed
from threadkeep.workflows.nodes.base import Again, NodeKind, Step, found
from threadkeep.workflows.nodes.passages import FoundPassages, passages_in
from threadkeep.workflows.nodes.places import Place, place_of_run, place_of_session
from threadkeep.workflows.nodes.speaking import SpeakingNode, said
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState


class ModelNode(SpeakingNode):
    """A single model call in the memory of the run's session, without tools."""

    node_kind: ClassVar[NodeKind] = "model"

    on_error: Literal["raise", "continue"] = Field(
        "raise", description="What a failing model does: end the run, or leave `error` in the node's result."
    )

    @property
    def again(self) -> Again:
        """Return its model call."""
        return "a model call"

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> WorkflowState:
        """Answer the run's question."""
        step = Step.of(config, runtime)
        messages = self.asked(state, step)
        place = place_of_run(step) if self.input is not None else place_of_session(step)
        try:
            reply = await self._ask(step, place, state, messages, config)
        except GraphBubbleUp:
            raise
        except Exception as error:
            tell_model_failure(step, error)
            if self.on_error == "raise":
                raise
            return found(step, "", {"text": "", "error": type(error).__name__})
        return said(step, reply)

    async def _ask(
        self, step: Step, place: Place, state: WorkflowState, messages: list[BaseMessage], config: RunnableConfig
    ) -> AIMessage:
        model = self.chat_model(step)
        options = self._options_for(step, place, state)
        async with session_turn(place.memory, messages, config, options) as turn:
            if turn.answered is not None:
                return turn.answered
            sent = await turn.messages(self.system_message(state), model=model)
            async with asyncio.timeout(self.timeout_seconds):
                reply: AIMessage = await model.ainvoke(sent)
            turn.answer(reply)
        return turn.reply if isinstance(turn.reply, AIMessage) else reply

    def _options_for(self, step: Step, place: Place, state: WorkflowState) -> TurnOptions:
        options = self.turn_options(step)
        found_before = (FoundPassages(passages_in(state)),) if self.snippets else ()
        kept = options.sources if place.kind == "session" else ()
        return replace(
            NodeTurnOptions.of(options, lambda _: place.call),
            sources=(*kept, *found_before),
            session_id=lambda _: place.session_id,
            user_id=lambda _: place.user_id,
            compression=options.compression if place.kind == "session" else None,
        )


def tell_model_failure(step: Step, error: Exception) -> None:
    """Report that the model of a node failed."""
    context = step.context
    context.resources.observer.notify(
        ModelFailed(
            channel=channel_of(context.session_id or ""),
            error=type(error).__name__,
            run_id=context.run_id,
            session_id=context.session_id,
        )
    )
