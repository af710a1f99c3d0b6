"""Nodes that write messages without a model, and the nodes that store a run's question and answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, SystemMessage
from pydantic import AfterValidator, Field, model_validator

from threadkeep.agent.conversion import refused_message, text_of
from threadkeep.agent.invocation import metadata_of
from threadkeep.agent.questions import question_before
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.agent.turns import OpenTurn
from threadkeep.errors import InvalidInput, InvalidKey
from threadkeep.history.keys import Reason, channel_of, check_session_id, resolve_key
from threadkeep.history.session import Session
from threadkeep.observe import KeyResolutionFailed
from threadkeep.records import Json, Message
from threadkeep.workflows.nodes.base import Again, Node, NodeKind, Step, found, rendered
from threadkeep.workflows.nodes.conversations import (
    ConversationFields,
    is_reset,
    session_conversation,
    store_conversation,
)
from threadkeep.workflows.state import WorkflowState, answer_of, check_template, paths_of, scope_of


class RecordingNode(Node):
    """A base class of the nodes that store the question or the answer in the run's session, if it has one."""

    repetition: ClassVar[Again] = "nothing"

    reset_commands: tuple[str, ...] = Field((), description="Messages that reset the conversation; not stored.")

    def turn(self, step: Step, question: Sequence[BaseMessage], session: Session | None = None) -> OpenTurn | None:
        """Return the turn to store in `session`, by default the run's session; None if there is nothing to store."""
        conversation = session_conversation(step)
        texts = [text_of(message) for message in question]
        if session is None and conversation.kind == "session":
            session = conversation.memory.session(conversation.session_id, user_id=conversation.user_id)
        if session is None or not question or any(is_reset(one, texts) for one in self.reset_commands):
            return None
        given = step.context.resources.turn_options
        options = TurnOptions(keep_originals=given.keep_originals)
        return OpenTurn(conversation.memory, session, options, question, run_id=step.context.run_id)


class RecordQuestionNode(RecordingNode):
    """A node that stores the run's question before all other nodes, so that no failure loses it.

    If `waits` is true, middleware may redact the question first. The question is then stored just before the first
    model call or, without a call, by the `RecordAnswerNode`. Until then, only the run's request has the text.
    """

    node_kind: ClassVar[NodeKind] = "record_question"

    waits: bool = Field(False, description="True to store the question after middleware has seen it.")

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Store the question unless it is already stored; do nothing if `waits` is true."""
        if self.waits:
            return {}
        await self.store(step, state.get("messages") or (), metadata_of(step.config))
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
        """Store the newest question of `messages` in `session`, by default the run's session.

        `received` is the question before middleware changed it.
        """
        turn = self.turn(step, question_before(messages), session)
        if turn is not None:
            await turn.begin(metadata, received=received)

    async def refuse(self, step: Step, messages: Sequence[BaseMessage], metadata: Mapping[str, Json] | None) -> None:
        """Store the question as `failed`, unless it is stored. Leave out its text: middleware may have rejected it."""
        turn = self.turn(step, question_before(messages))
        if turn is not None and not await turn.is_stored(turn.question[-1]):
            refused = refused_message(turn.question[-1], step.context.run_id, metadata)
            await step.context.resources.memory.finish(turn.session.record, [refused])


class RecordAnswerNode(RecordingNode):
    """A node that stores the run's last message as the answer, unless an answer is stored."""

    node_kind: ClassVar[NodeKind] = "record_answer"

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Store the answer, if there is one, and the question if it is not stored yet."""
        answer = answer_of(state)
        turn = self.turn(step, question_before(state.get("messages") or ()))
        if turn is not None:
            await turn.begin(metadata_of(step.config))
            first = None if answer is None else turn.answered or await turn.close(answer)
            if answer is not None and first is not None and first.id != answer.id:
                # Another process answered first, so its answer becomes the answer of this run.
                return {"messages": [first]}
        return {}


def _session_template(template: str) -> str:
    check_template(template, whole=True)
    if not paths_of(template):
        check_session_id(template)
    return template


type SessionTemplate = Annotated[str, AfterValidator(_session_template)]


class AppendMessageNode(Node, ConversationFields):
    """A node that stores a message in `session` (by default the run's session), once even if the node is repeated.

    With `use_graph_chat_history`, the message is stored in the graph's store instead, in the conversation of an agent
    with the same options. With `deliver`, it is also sent to the person, through the channel of the session. A blank
    text is neither stored nor sent.
    """

    node_kind: ClassVar[NodeKind] = "append_message"
    # The option `session` is a template too, but other placeholders are allowed in it.
    template_options: ClassVar[tuple[str, ...]] = ("text",)

    text: str = Field(min_length=1, description="The message; a template.")
    role: Literal["assistant", "system"] = Field("assistant", description="The role of the message.")
    session: SessionTemplate | None = Field(
        None, description="The session, by default the run's own: an id, or a template of a key."
    )
    deliver: bool = Field(
        False, description="Also send it to the person, on the channel of their last message in this session."
    )

    @model_validator(mode="after")
    def _check_place(self) -> AppendMessageNode:
        if self.deliver and (self.role != "assistant" or self.use_graph_chat_history):
            raise ValueError("Only a message of the assistant in a session can be delivered; leave out `deliver`.")
        if self.session is not None and self.use_graph_chat_history:
            raise ValueError("A message goes to a session or to a conversation in the graph's store; leave one out.")
        return self

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Store the message and add it to the run's messages; do neither if its text is blank."""
        session = await self._session(step, state)
        text = rendered(self.text, state)
        result = {"text": text, "session_id": session.session_id, "message_id": step.message_id}
        update = found(step, text, result)
        if not text.strip():
            return update
        message = Message(role=self.role, content=text, id=step.message_id, run_id=step.context.run_id)
        await session.record([message])
        if self.deliver:
            # The message is stored already, so the agent knows every sent message, even after a crash.
            outbox = step.context.resources.memory.channels.outbox
            await outbox.send(session.session_id, step.message_id, text)
            is_known = await outbox.recipient(session.session_id) is not None
            update = found(step, text, {**result, "delivery": "queued" if is_known else "none"})
        reply: AnyMessage = (
            AIMessage(text, id=step.message_id) if self.role == "assistant" else SystemMessage(text, id=step.message_id)
        )
        return {**update, "messages": [reply]}

    async def _session(self, step: Step, state: WorkflowState) -> Session:
        """Return the session in which the message is stored.

        Raises:
            InvalidKey: the run has no session, or the template gives no valid key.
            InvalidInput: the message must be stored in the graph's store, but the graph has no store.
        """
        context = step.context
        if not self.use_graph_chat_history:
            session_id, memory = self._session_id(step, state), context.resources.memory
            user_id = context.user_id if self.session is None else None
            if self.deliver and (recipient := await memory.channels.outbox.recipient(session_id)) is not None:
                user_id = recipient.user_id  # the session belongs to this user, but may not be stored yet
            return memory.session(session_id, user_id=user_id)
        resolution = self.resolve_in(state, step)
        if resolution.key is None:
            raise _no_key(step, resolution.reason or "empty")
        conversation = await store_conversation(step, self.layout, resolution.key)
        if conversation.kind == "run":
            raise InvalidInput(f"Node {step.name!r} has no store to write to; compile the graph with one.")
        return conversation.memory.session(conversation.session_id, user_id=conversation.user_id)

    def _session_id(self, step: Step, state: WorkflowState) -> str:
        context = step.context
        if self.session is None:
            if context.session_id is None:
                raise InvalidKey(
                    f"Node {step.name!r} has no session to append to: run it in a session, or set its `session`.",
                    reason="empty",
                )
            return context.session_id
        if not paths_of(self.session):
            return self.session
        resolution = resolve_key([self.session], scope_of(state))
        if resolution.key is None:
            reason = resolution.reason or "empty"
            context.resources.observer.notify(
                KeyResolutionFailed(
                    channel=channel_of(self.session), reason=reason, candidates=1, run_id=context.run_id
                )
            )
            raise _no_key(step, reason)
        return resolution.key


def _no_key(step: Step, reason: Reason) -> InvalidKey:
    return InvalidKey(f"The session of node {step.name!r} is not a valid key in this run ({reason}).", reason=reason)


class TemplateNode(Node):
    """A node that renders a template, for use by later nodes or as a message of the run."""

    node_kind: ClassVar[NodeKind] = "template"
    template_options: ClassVar[tuple[str, ...]] = ("text",)
    repetition: ClassVar[Again] = "nothing"

    text: str = Field(min_length=1, description="The text; a template.")
    as_message: bool = Field(False, description="True to add the text as an assistant message of the run.")

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Render the text; with `as_message`, also add it as an assistant message unless it is blank."""
        text = rendered(self.text, state)
        update = found(step, text, {"text": text})
        if self.as_message and text.strip():
            update["messages"] = [AIMessage(text, id=step.message_id)]
        return update
