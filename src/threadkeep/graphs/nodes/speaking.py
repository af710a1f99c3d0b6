"""What nodes that ask a model to speak have in common: the model, the prompt, what is asked, the context's limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, ClassVar, Self

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic import Field, InstanceOf, model_validator
from pydantic.json_schema import SkipJsonSchema

from threadkeep.context.budget import context_window, input_budget
from threadkeep.errors import BudgetTooSmall, InvalidInput
from threadkeep.graphs.nodes.base import Node, Step, found, rendered
from threadkeep.graphs.state import WorkflowState
from threadkeep.workflow.conversion import text_of
from threadkeep.workflow.invocation import question_before
from threadkeep.workflow.model_facts import ModelFacts, facts_of
from threadkeep.workflow.turn_options import TurnOptions

type ModelName = Annotated[str, Field(min_length=1)] | SkipJsonSchema[InstanceOf[BaseChatModel]]


class SpeakingNode(Node):
    """A node that asks a model and puts its final message into the state.

    It is asked the run's newest question, with the earlier turns of the session before it, and what other nodes have
    said in this run. With an `input` it is asked that text alone, without earlier turns. `model` is the service's own
    unless it is named. With `answers` what it says is stored as the turn's answer; a step on the way is not.
    """

    speaks: ClassVar[bool] = True

    model: ModelName | None = Field(None, description="As THREADKEEP_MODEL names models; the service's own if not set.")
    system_prompt: str = Field("", description="Instructions for the model; a template.")
    input: str | None = Field(None, description="What to ask in the place of the run's question; a template.")
    max_messages: int = Field(30, ge=0, description="Earlier messages in a call at most; 0 means none.")
    max_tokens: int | None = Field(None, ge=0, description="Tokens of a call at most; the service's limit if not set.")
    max_output_tokens: int | None = Field(None, ge=1, description="Tokens that are kept free for the reply.")
    timeout_seconds: float = Field(60.0, gt=0, description="Seconds that a model call may take.")
    snippets: bool = Field(True, description="Whether it sees the passages that retrieve nodes found before.")
    answers: bool = Field(True, description="Whether what it says is stored as the answer to the question.")

    @model_validator(mode="after")
    def _check_room(self) -> Self:
        """Refuse a reply that leaves no room for a prompt, when the node is made; the service checks its own model."""
        if self.max_output_tokens is not None and self.model is not None:
            model = self.model
            facts = ModelFacts(model, context_window(model)) if isinstance(model, str) else facts_of(model)
            try:
                input_budget(facts.name, self.max_output_tokens, facts.window)
            except BudgetTooSmall as error:
                raise ValueError(str(error)) from None
        return self

    def templates(self) -> Iterable[tuple[str, str]]:
        """The prompt, and what is asked."""
        yield "system_prompt", self.system_prompt
        if self.input is not None:
            yield "input", self.input

    def chat_model(self, step: Step) -> BaseChatModel:
        """The model that is asked."""
        return self.model if isinstance(self.model, BaseChatModel) else step.context.resources.model(self.model)

    def turn_options(self, step: Step) -> TurnOptions:
        """The limits of a call, without what is found anew for each question."""
        given = step.context.resources.turn_options
        return replace(
            given,
            max_messages=self.max_messages,
            max_tokens=given.max_tokens if self.max_tokens is None else self.max_tokens,
            max_output_tokens=self.max_output_tokens or given.max_output_tokens,
            answers=self.answers,
        )

    def system_message(self, state: WorkflowState) -> SystemMessage | None:
        """The prompt in this run."""
        text = rendered(self.system_prompt, state)
        return SystemMessage(text) if text.strip() else None

    def asked(self, state: WorkflowState, step: Step) -> list[BaseMessage]:
        """What was said in the run, the question last.

        What other nodes said after the question stands before it: models answer the newest user message.

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
    """What a speaking node adds to the state: one final message, and its text."""
    text = text_of(message)
    return {"messages": [message], **found(step, text, {"text": text})}
