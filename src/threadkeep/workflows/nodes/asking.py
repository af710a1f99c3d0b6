"""Shared parts of nodes that call a model: the choice of the model, and its limits."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from langchain_core.language_models import BaseChatModel
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, InstanceOf, model_validator
from pydantic.json_schema import SkipJsonSchema

from threadkeep.agent.model_facts import ModelFacts, facts_of
from threadkeep.agent.summarizer import ModelSummarizer
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.context.budget import context_window, input_budget
from threadkeep.errors import BudgetTooSmall
from threadkeep.history.compression import Compression, Summarizer, read_size
from threadkeep.workflows.nodes.base import Node, Step


def _size(text: str) -> str:
    read_size(text)
    return text


type ModelName = Annotated[str, Field(min_length=1)] | SkipJsonSchema[InstanceOf[BaseChatModel]]
type SizeText = Annotated[str, AfterValidator(_size)]


class NodeCompression(BaseModel):
    """The summarisation of older messages in calls of one node."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    trigger: SizeText = Field(
        "tokens:20000",
        description="How much there is without a summary when one is made: tokens:20000, messages:40 or fraction:0.5.",
    )
    keep: SizeText = Field("messages:20", description="How much stays as it was said.")
    max_summary_tokens: int = Field(2_000, ge=100, description="Tokens that all summaries may have together.")
    model: ModelName | None = Field(
        None, description="Who writes the summaries; by default THREADKEEP_SUMMARY_MODEL, or the node's own model."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.options(None)
        return self

    def options(self, summarizer: Summarizer | None) -> Compression:
        """Return the compression with the given summarizer."""
        return Compression(read_size(self.trigger), read_size(self.keep), self.max_summary_tokens, summarizer)


class AskingNode(Node):
    """A node that calls a model: the service's own unless it names another."""

    model: ModelName | None = Field(None, description="As THREADKEEP_MODEL names models; the service's own if not set.")
    context_window: int | None = Field(
        None,
        ge=1,
        description="Tokens of the model's context window; by default what its profile or its name says, and for the "
        "service's own model THREADKEEP_CONTEXT_WINDOW.",
    )
    timeout_seconds: float = Field(60.0, gt=0, description="Seconds that a model call may take.")

    def chat_model(self, step: Step) -> BaseChatModel:
        """Return the model to call."""
        return _model_of(self.model, step)

    def window_in(self, given: TurnOptions) -> int | None:
        """Return the context window that overrides the known one of the model; None without an override."""
        if self.context_window is not None or self.model is not None:
            return self.context_window
        return given.context_window


class ContextNode(AskingNode):
    """A node that calls a model in the memory of the run's session."""

    max_output_tokens: int | None = Field(None, ge=1, description="Tokens that are kept free for the reply.")
    compression: NodeCompression | Literal[False] | None = Field(
        None, description="When older messages become summaries; false for never, the service's options if not set."
    )

    @model_validator(mode="after")
    def _check_room(self) -> Self:
        """Reject a reply size that leaves no tokens for a prompt; the service checks its own model."""
        if self.model is None and self.context_window is None:
            return self
        model = self.model
        facts = facts_of(model) if isinstance(model, BaseChatModel) else ModelFacts(model, context_window(model))
        if self.max_output_tokens is not None or self.context_window is not None:
            try:
                input_budget(facts.name, self.max_output_tokens, self.context_window or facts.window)
            except BudgetTooSmall as error:
                raise ValueError(str(error)) from None
        return self

    def compression_in(self, step: Step) -> Compression | None:
        """Return the compression settings that apply after a call of this node."""
        given = step.context.resources.turn_options.compression
        if self.compression is None:
            return given
        if self.compression is False:
            return None
        summarizer = None if given is None else given.summarizer
        if self.compression.model is not None:
            model = _model_of(self.compression.model, step)
            summarizer = ModelSummarizer(model, timeout_seconds=self.timeout_seconds)
        return self.compression.options(summarizer)


def _model_of(model: str | BaseChatModel | None, step: Step) -> BaseChatModel:
    return model if isinstance(model, BaseChatModel) else step.context.resources.model(model)
