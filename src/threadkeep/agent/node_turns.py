"""The turns of nodes: what `session_turn` does when its block begins and ends, on the event loop of the memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from dataclasses import dataclass, field

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.utils.uuid import uuid7
from langgraph.errors import GraphBubbleUp

from threadkeep.agent.agent_calls import control_of, node_of
from threadkeep.agent.call_measure import ModelUse
from threadkeep.agent.holding import run_hold
from threadkeep.agent.invocation import metadata_of, question_before, run_id_of, session_for
from threadkeep.agent.partial import PartialAnswer, listening
from threadkeep.agent.participation import Caller, Participation
from threadkeep.agent.root_runs import RootRun, root_run, tool_of_session
from threadkeep.agent.session_order import order_of
from threadkeep.agent.turn_options import TurnOptions, place_in
from threadkeep.agent.turns import OpenTurn
from threadkeep.history.memory import Memory


class NodeTurns:
    """The turns of nodes on the event loop of one memory."""

    def __init__(self, memory: Memory, options: TurnOptions) -> None:
        self._memory = memory
        self._options = options

    async def begin(self, messages: Sequence[BaseMessage], config: RunnableConfig) -> NodeTurn:
        """Store the question, after the turns of the session that came before."""
        identify(question_before(messages))
        part = self._enter(messages, config)
        ordered = self._options.ordered and not part.silent and run_hold.get() is None
        if ordered and tool_of_session.get() is None:
            await order_of(self._memory).enter(part.session.session_id, part.root)
        try:
            state = part.root.with_question(messages)
            caller = Caller(run_id_of(config), metadata_of(config), place_in(self._options, config))
            turn = await part.begin(state, caller)
        except BaseException:
            self._leave(part)
            raise
        part.root.call_begins()
        return NodeTurn(self, part, turn, part.root.with_answers(state), turn.answered)

    async def messages(self, turn: NodeTurn, system: SystemMessage | None, use: ModelUse) -> list[BaseMessage]:
        """Return what a model call is sent."""
        turn.report()
        sent = await turn.open.context(turn.state, system, use)
        return [*([sent.system] if sent.system else []), *sent.messages]

    async def end(self, turn: NodeTurn, error: BaseException | None) -> None:
        """Store the answer, or what the model had said before the error."""
        turn.part.root.call_ends()
        try:
            turn.report()
            if error is None:
                await self._close(turn)
            elif isinstance(error, GraphBubbleUp):
                turn.open.contexts.keep()
            else:
                await turn.open.close(turn.partial.text, "failed" if isinstance(error, Exception) else "interrupted")
        finally:
            self._leave(turn.part)

    def leave_soon(self, turn: NodeTurn) -> None:
        """Let the next turn of the session begin, from any thread."""
        self._memory.loop.post(lambda: self._leave(turn.part))

    async def _close(self, turn: NodeTurn) -> None:
        if turn.reply is not None and turn.answered is None:
            turn.reply = await turn.open.close(turn.reply) or turn.reply
        if isinstance(turn.reply, BaseMessage):
            turn.part.root.add_answer(turn.reply, turn.part.author)

    def _leave(self, part: Participation) -> None:
        order_of(self._memory).leave(part.session.session_id, part.root)

    def _enter(self, messages: Sequence[BaseMessage], config: RunnableConfig) -> Participation:
        """Take part in the turn of the run; what a program asks of its own is answered without memory."""
        memory, options = self._memory, self._options
        session = session_for(memory, options, config)
        place = place_in(options, config)
        root = root_run(memory, control_of(), session.session_id, place)
        author = node_of(config, place)
        part = Participation(memory, session, options, root, author, (id(root.control), "", id(messages)))
        part.silent = options.scope == "none" or tool_of_session.get() == (memory.identity, session.session_id)
        if not part.silent:
            part.enter(messages)
        if part.silent:
            nowhere = memory.forgetting()
            part.memory, part.session = nowhere, nowhere.session(session.session_id)
            part.root = RootRun(object())
            part.root.begin(question_before(messages))
        return part


@dataclass(eq=False)
class NodeTurn:
    """The turn of a node: the state that its calls are made of, and the reply."""

    turns: NodeTurns
    part: Participation
    open: OpenTurn
    state: Sequence[BaseMessage]
    answered: AIMessage | None
    reply: BaseMessage | str | None = None
    partial: PartialAnswer = field(default_factory=PartialAnswer)
    _unreported: bool = False
    _token: Token[RunnableConfig | None] | None = None

    def take(self, reply: BaseMessage | str) -> None:
        """Take the answer. A message without an id gets one."""
        if isinstance(reply, BaseMessage):
            identify([reply])
        self.reply, self._unreported = reply, True

    def report(self) -> None:
        """Keep what the provider counted for the newest call, on the event loop of the memory."""
        if self._unreported:
            self._unreported = False
            self.open.contexts.report(self.reply if isinstance(self.reply, AIMessage) else None)

    def listen(self, config: RunnableConfig) -> None:
        """Listen to the models of the caller's block."""
        self._token = var_child_runnable_config.set(listening(config, self.partial))

    def listen_no_more(self) -> None:
        """End what `listen` began."""
        if self._token is not None:
            var_child_runnable_config.reset(self._token)
            self._token = None


def identify(messages: Sequence[BaseMessage]) -> None:
    """Give ids to messages that have none, in place as LangGraph does: state and transcript hold the same messages."""
    for message in messages:
        message.id = message.id or str(uuid7())
