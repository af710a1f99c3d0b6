"""Base classes of nodes that call a model, and the node `model`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langgraph.errors import GraphBubbleUp
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from threadkeep.agent.conversion import text_of
from threadkeep.agent.nodes import session_turn
from threadkeep.agent.questions import question_before
from threadkeep.agent.summarizer import ModelSummarizer
from threadkeep.agent.turn_options import ModelFacts, NodeTurnOptions, TurnOptions, facts_of
from threadkeep.boundary import ErrorBoundary
from threadkeep.context.tokens import context_window, input_budget
from threadkeep.errors import BudgetTooSmall, InvalidInput
from threadkeep.history.compression import Compression, Summarizer, read_size
from threadkeep.history.keys import channel_of
from threadkeep.observe import ModelFailed
from threadkeep.workflows.nodes.base import Again, Node, NodeKind, PythonOnly, Step, found, rendered
from threadkeep.workflows.nodes.conversations import Conversation, run_conversation, session_conversation
from threadkeep.workflows.nodes.retrieve import FoundPassages, passages_in
from threadkeep.workflows.state import WorkflowState


def _size(text: str) -> str:
    read_size(text)
    return text


type ModelName = Annotated[str, Field(min_length=1)] | SkipJsonSchema[Annotated[BaseChatModel, PythonOnly()]]
type SizeText = Annotated[str, AfterValidator(_size)]


class NodeCompression(BaseModel):
    """The options of the summaries that replace older messages in the model calls of one node."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    trigger: SizeText = Field(
        "tokens:20000",
        description="Size of unsummarised messages that starts a summary: tokens:20000, messages:40 or fraction:0.5.",
    )
    keep: SizeText = Field("messages:20", description="The size of the newest messages that are not summarised.")
    max_summary_tokens: int = Field(2_000, ge=100, description="The most tokens of all summaries together.")
    model: ModelName | None = Field(
        None, description="The model for summaries; by default THREADKEEP_SUMMARY_MODEL, or the node's own model."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.options(None)
        return self

    def options(self, summarizer: Summarizer | None) -> Compression:
        """Return these options as a `Compression` with the given summarizer."""
        return Compression(read_size(self.trigger), read_size(self.keep), self.max_summary_tokens, summarizer)


class AskingNode(Node):
    """A node that calls a model, by default the model of the service."""

    model: ModelName | None = Field(None, description="The model, as in THREADKEEP_MODEL; by default the service's.")
    context_window: int | None = Field(
        None,
        ge=1,
        description="Tokens of the model's context window. The default is the known size for the model, and "
        "THREADKEEP_CONTEXT_WINDOW for the service's own model.",
    )
    timeout_seconds: float = Field(60.0, gt=0, description="The time limit of a model call in seconds.")

    def window_in(self, given: TurnOptions) -> int | None:
        """Return the context window, in tokens, of the node or the service; None means the model's own."""
        if self.context_window is not None or self.model is not None:
            return self.context_window
        return given.context_window

    async def ask(
        self,
        step: Step,
        conversation: Conversation,
        messages: Sequence[BaseMessage],
        system: SystemMessage | None,
        options: TurnOptions,
    ) -> AIMessage:
        """Call the model in a turn of a conversation; return its reply, or the answer that is stored already."""
        model = step.model(self.model)
        named = replace(
            NodeTurnOptions.of(options, lambda _: conversation.call),
            session_id=lambda _: conversation.session_id,
            user_id=lambda _: conversation.user_id,
        )
        async with session_turn(conversation.memory, messages, step.config, named) as turn:
            if turn.answered is not None:
                return turn.answered
            sent = await turn.messages(system, model=model)
            async with asyncio.timeout(self.timeout_seconds):
                reply: AIMessage = await model.ainvoke(sent)
            turn.answer(reply)
        return turn.reply if isinstance(turn.reply, AIMessage) else reply


class SpeakingNode(AskingNode):
    """A node that calls a model and adds its final message to the state.

    The model gets the earlier turns of the session, messages of other nodes in this run, and the run's newest question.
    With an `input`, it gets only this text. With `answers`, the final message is stored as the turn's answer. Messages
    of intermediate steps are not stored.
    """

    speaks: ClassVar[bool] = True
    template_options: ClassVar[tuple[str, ...]] = ("system_prompt", "input")

    max_output_tokens: int | None = Field(None, ge=1, description="Tokens that are reserved for the reply.")
    compression: NodeCompression | Literal[False] | None = Field(
        None, description="Options for summaries of older messages; false for none; by default the service's options."
    )
    system_prompt: str = Field("", description="Instructions for the model; a template.")
    input: str | None = Field(None, description="The input, instead of the run's question; a template.")
    max_messages: int = Field(30, ge=0, description="The maximum number of earlier messages in a call; 0 means none.")
    max_tokens: int | None = Field(None, ge=0, description="The token limit of a call; by default the service's limit.")
    snippets: bool = Field(True, description="True to add the passages that earlier retrieve nodes found.")
    answers: bool = Field(True, description="True to store the node's message as the answer to the question.")

    @model_validator(mode="after")
    def _check_room(self) -> Self:
        """Reject a reply size that leaves no tokens for the prompt."""
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
        """Return the options of the summaries that replace older messages in this node's model calls, or None."""
        given = step.context.resources.turn_options.compression
        if self.compression is None:
            return given
        if self.compression is False:
            return None
        summarizer = None if given is None else given.summarizer
        if self.compression.model is not None:
            summarizer = ModelSummarizer(step.model(self.compression.model), timeout_seconds=self.timeout_seconds)
        return self.compression.options(summarizer)

    def turn_options(self, step: Step) -> TurnOptions:
        """Return the options of the node's turn: the options of the service, changed by the options of this node."""
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
        """Return the prompt, rendered with the values of this run; None if the text is blank."""
        text = rendered(self.system_prompt, state)
        return SystemMessage(text) if text.strip() else None

    def asked(self, state: WorkflowState, step: Step) -> list[BaseMessage]:
        """Return the messages to answer, with the question last, or only the `input` if it is set.

        Messages that other nodes added later are placed before the question: models answer the newest user message.

        Raises:
            InvalidInput: the run has no question, or the rendered `input` is blank.
        """
        if self.input is not None:
            text = rendered(self.input, state)
            if not text.strip():
                raise InvalidInput(f"The input of node {step.name!r} is empty in this run; use a value that exists.")
            return [HumanMessage(text, id=f"{step.message_id}:input")]
        messages: list[BaseMessage] = list(state.get("messages") or ())
        question = question_before(messages)
        if not question:
            raise InvalidInput(f"Node {step.name!r} has no question to answer in this run; set its `input`.")
        asked = {message.id for message in question}
        return [message for message in messages if message.id not in asked] + question


def reply_update(step: Step, message: AIMessage) -> WorkflowState:
    """Return the state update of a node whose model has replied with `message`."""
    text = text_of(message)
    return {"messages": [message], **found(step, text, {"text": text})}


class ModelNode(SpeakingNode):
    """A single model call with the memory of the run's session and without tools."""

    node_kind: ClassVar[NodeKind] = "model"
    repetition: ClassVar[Again] = "a model call"

    on_error: Literal["raise", "continue"] = Field(
        "raise", description="What to do if the model fails: end the run, or put `error` in the node's result."
    )

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Answer the run's question. If the model fails, raise its error or continue, as the option `on_error` says."""
        messages = self.asked(state, step)
        conversation = run_conversation(step) if self.input is not None else session_conversation(step)
        with ErrorBoundary(raising=(GraphBubbleUp,)) as attempt:
            options, system = self._options_for(step, conversation, state), self.system_message(state)
            return reply_update(step, await self.ask(step, conversation, messages, system, options))
        error = attempt.caught
        notify_model_failure(step, error)
        if self.on_error == "raise":
            raise error
        return found(step, "", {"text": "", "error": type(error).__name__})

    def _options_for(self, step: Step, conversation: Conversation, state: WorkflowState) -> TurnOptions:
        options = self.turn_options(step)
        found_before = (FoundPassages(passages_in(state)),) if self.snippets else ()
        if conversation.kind == "session":
            return replace(options, sources=(*options.sources, *found_before))
        return replace(options, sources=found_before, compression=None)


def notify_model_failure(step: Step, error: Exception) -> None:
    """Report as an event that the model call of a node failed."""
    context = step.context
    context.resources.observer.notify(
        ModelFailed(
            channel=channel_of(context.session_id or ""),
            error=type(error).__name__,
            run_id=context.run_id,
            session_id=context.session_id,
        )
    )
