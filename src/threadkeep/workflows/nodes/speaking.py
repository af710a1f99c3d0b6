"""Shared parts of nodes whose model call produces a message: model, prompt, question, and limits of the context."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic import Field

from threadkeep.agent.conversion import text_of
from threadkeep.agent.invocation import question_before
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.errors import InvalidInput
from threadkeep.workflows.nodes.asking import ContextNode
from threadkeep.workflows.nodes.base import Step, found, rendered
from threadkeep.workflows.state import WorkflowState


class SpeakingNode(ContextNode):
    """A node that calls a model and adds its final message to the state.

    The model gets the run's newest question, the earlier turns of the session before it, and messages of other nodes
    in this run. With an `input` the model gets only that text. `model` is the service's own unless it is named. With
    `answers` the message is stored as the turn's answer; messages of intermediate steps are not stored.
    """

    speaks: ClassVar[bool] = True

    system_prompt: str = Field("", description="Instructions for the model; a template.")
    input: str | None = Field(None, description="What to ask in the place of the run's question; a template.")
    max_messages: int = Field(30, ge=0, description="Earlier messages in a call at most; 0 means none.")
    max_tokens: int | None = Field(None, ge=0, description="Tokens of a call at most; the service's limit if not set.")
    snippets: bool = Field(True, description="Whether it sees the passages that retrieve nodes found before.")
    answers: bool = Field(True, description="Whether what it says is stored as the answer to the question.")

    def templates(self) -> Iterable[tuple[str, str]]:
        """Return the prompt and the input."""
        yield "system_prompt", self.system_prompt
        if self.input is not None:
            yield "input", self.input

    def turn_options(self, step: Step) -> TurnOptions:
        """Return the limits of a call, without the extras for each question."""
        given = step.context.resources.turn_options
        return replace(
            given,
            max_messages=self.max_messages,
            max_tokens=given.max_tokens if self.max_tokens is None else self.max_tokens,
            max_output_tokens=self.max_output_tokens or given.max_output_tokens,
            context_window=self.window_in(given),
            compression=self.compression_in(step),
            answers=self.answers,
        )

    def system_message(self, state: WorkflowState) -> SystemMessage | None:
        """Return the prompt rendered for this run."""
        text = rendered(self.system_prompt, state)
        return SystemMessage(text) if text.strip() else None

    def asked(self, state: WorkflowState, step: Step) -> list[BaseMessage]:
        """Return the messages of the run, the question last.

        Messages that other nodes added after the question are moved before it, because models answer the newest user
        message.

        Raises:
            InvalidInput: there is nothing to answer.
        """
        if self.input is not None:
            text = rendered(self.input, state)
            if not text.strip():
                raise InvalidInput(
                    f"The input of node {step.name!r} is empty in this run; name something that is there."
                )
            return [HumanMessage(text, id=f"{step.message_id}:input")]
        messages: list[BaseMessage] = list(state.get("messages") or ())
        question = question_before(messages)
        if not question:
            raise InvalidInput(f"Node {step.name!r} has no question to answer in this run; give it an input.")
        asked = {message.id for message in question}
        return [*(message for message in messages if message.id not in asked), *question]


def said(step: Step, message: AIMessage) -> WorkflowState:
    """Return the state update of a speaking node: one final message, and its text."""
    text = text_of(message)
    return {"messages": [message], **found(step, text, {"text": text})}
