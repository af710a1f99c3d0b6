"""Session memory for graphs without agents: `session_turn`, a block around any model call, and `memory_node`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    MessageLikeRepresentation,
    SystemMessage,
    convert_to_messages,
)
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphBubbleUp

from threadkeep.agent.answers import repeated, stream_again
from threadkeep.agent.call_measure import ModelUse, chosen_model
from threadkeep.agent.callbacks import PartialAnswer, RootCall, with_callback
from threadkeep.agent.conversion import identify
from threadkeep.agent.holding import run_hold
from threadkeep.agent.invocation import control_of, metadata_of, node_of, run_id_of, session_for
from threadkeep.agent.participation import Participation
from threadkeep.agent.questions import question_before
from threadkeep.agent.root_runs import root_run, tool_of_sessions
from threadkeep.agent.turn_options import TurnOptions, facts_of, site_in
from threadkeep.agent.turns import OpenTurn
from threadkeep.context.tokens import input_budget
from threadkeep.history.memory import Memory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.memory.sync_memory import SyncMemory

_numbers = count()
"""The numbers of the calls of nodes in this process."""


class NodeTurns:
    """Begins and ends the turns of nodes, on the event loop of one memory."""

    def __init__(self, memory: Memory, options: TurnOptions) -> None:
        self._memory = memory
        self._options = options

    async def begin(self, given: Sequence[MessageLikeRepresentation], config: RunnableConfig) -> NodeTurn:
        """If turns are ordered, wait for the earlier turns of the session. Then store the question."""
        messages = convert_to_messages(RootCall({"messages": given}).sent)
        identify(question_before(messages))
        part = self._enter(messages, config)
        ordered = self._options.ordered and not part.silent and run_hold.get() is None
        if ordered and not tool_of_sessions.get():
            await part.root.order.acquire(part.root, self._memory.observers)
        state = part.root.with_question(messages)
        turn = await part.begin(state)
        part.root.open_calls += 1
        state = part.root.with_answers(part.root.with_question(state))
        answered = None if turn.answered is None else repeated(turn.answered, messages)
        return NodeTurn(self, part, turn, state, answered)

    async def messages(self, turn: NodeTurn, system: SystemMessage | None, use: ModelUse) -> list[BaseMessage]:
        """Return the messages for a model call."""
        turn.report()
        sent = await turn.open.context(turn.state, system, use)
        return [*([sent.system] if sent.system else []), *sent.messages]

    async def end(self, turn: NodeTurn, error: BaseException | None) -> None:
        """Store the answer, or the text that the model streamed before an error. After an interrupt, store nothing."""
        part, reply = turn.part, turn.reply
        part.root.call_ends()
        try:
            turn.report()
            calls_tools = turn.answered is None and isinstance(reply, AIMessage) and bool(reply.tool_calls)
            if error is not None or calls_tools:
                # The next call of the node gives the answer that this number is for.
                part.root.release(part.author, part.key)
            if error is None:
                await (turn.open.close("") if calls_tools else self._close(turn))
            elif isinstance(error, GraphBubbleUp):
                turn.open.keep()
            else:
                await turn.open.close(turn.partial.text, "failed" if isinstance(error, Exception) else "interrupted")
        finally:
            part.root.release_session()

    async def _close(self, turn: NodeTurn) -> None:
        if turn.reply is not None and turn.answered is None:
            turn.reply = await turn.open.close(turn.reply) or turn.reply
        if isinstance(answer := turn.open.answered or turn.reply, BaseMessage):
            turn.part.root.add_answer(answer, turn.part.author)

    def _enter(self, messages: Sequence[BaseMessage], config: RunnableConfig) -> Participation:
        """Take part in the turn of the run. A node that cannot take part gets a memory that stores nothing."""
        memory, options = self._memory, self._options
        session = session_for(memory, options, config)
        site = site_in(options, config)
        shared = site is None or site.transcript
        root = root_run(memory, control_of(), session.session_id, shared=shared)
        key = id(root.control), str(config.get("configurable", {}).get("checkpoint_ns", "")), next(_numbers)
        run_id, metadata = run_id_of(config), metadata_of(config)
        part = Participation(memory, session, options, root, node_of(config, site), key, run_id, metadata, site)
        part.silent = options.scope == "none" or (memory.identity, session.session_id) in tool_of_sessions.get()
        if not part.silent:
            part.enter(messages)
        if part.silent:
            nowhere = memory.null_memory()
            part.memory, part.session = nowhere, nowhere.session(session.session_id)
            part.root = root_run(memory, object(), session.session_id, shared=False)
            part.root.begin(question_before(messages))
        return part


@dataclass(eq=False)
class NodeTurn:
    """The turn of a node: the state's messages, the stored answer if the question is a repeat, and the reply."""

    turns: NodeTurns
    part: Participation
    open: OpenTurn
    state: Sequence[BaseMessage]
    answered: AIMessage | None
    reply: BaseMessage | str | None = None
    partial: PartialAnswer = field(default_factory=PartialAnswer)
    _unreported: bool = False

    def take(self, reply: BaseMessage | str) -> None:
        """Set the answer of the turn. Give a message an id, if it has none, and the id of an older question."""
        if isinstance(reply, BaseMessage):
            identify([reply])
            reply.response_metadata |= self.open.mark
        self.reply, self._unreported = reply, True

    def report(self) -> None:
        """Report the token usage of the newest model call; must be called on the event loop of the memory."""
        if self._unreported:
            self._unreported = False
            self.open.report(self.reply if isinstance(self.reply, AIMessage) else None)

    def listen(self, config: RunnableConfig) -> None:
        """Start collecting the text of the model calls that are made in the caller's block."""
        self._token = var_child_runnable_config.set(with_callback(config, self.partial, inherit=True))

    def stop_listening(self) -> None:
        """Undo `listen`."""
        var_child_runnable_config.reset(self._token)


@dataclass(eq=False, repr=False)
class _InsideTurn:
    _turns: OnLoop[Memory, NodeTurns]
    _turn: NodeTurn

    @property
    def answered(self) -> AIMessage | None:
        """The stored answer if the question is a repeat, otherwise None. If it is set, no model call is needed."""
        return self._turn.answered

    @property
    def reply(self) -> BaseMessage | str | None:
        """The answer that was given, if any; after the block, the answer of another process if it was stored first."""
        return self._turn.reply

    def answer(self, reply: BaseMessage | str) -> None:
        """Set the assistant's answer, which is stored when the block ends. A message without an id gets one."""
        self._turn.take(reply)


class SessionTurn(_InsideTurn):
    """The open turn of an `async with` block. It returns the messages for the model and accepts the answer."""

    async def messages(
        self, system: SystemMessage | None = None, *, model: BaseChatModel | None = None, tools: Sequence[object] = ()
    ) -> list[BaseMessage]:
        """Return the messages for the model call: the system message, earlier turns, the state's messages.

        With a `model` (and its `tools`), the model's context window is also a limit. Raises `BudgetTooSmall`.
        """
        use = ModelUse(chosen_model(model), tools)
        return await self._turns.call(lambda turns: turns.messages(self._turn, system, use))


class SyncSessionTurn(_InsideTurn):
    """The open turn of a `with` block, for synchronous code."""

    def messages(
        self, system: SystemMessage | None = None, *, model: BaseChatModel | None = None, tools: Sequence[object] = ()
    ) -> list[BaseMessage]:
        """Return the messages for the model call; see `SessionTurn.messages`."""
        use = ModelUse(chosen_model(model), tools)
        return self._turns.wait_for(lambda turns: turns.messages(self._turn, system, use), self._turn.turns)


@dataclass(eq=False, repr=False)
class TurnBlock:
    """The block of `session_turn`: `async with` returns a `SessionTurn`, `with` a `SyncSessionTurn`."""

    _turns: OnLoop[Memory, NodeTurns]
    _messages: Sequence[MessageLikeRepresentation]
    _config: RunnableConfig | None
    _begun: NodeTurn | None = None

    async def __aenter__(self) -> SessionTurn:
        """Store the question."""
        config = ensure_config(self._config)
        self._begun = turn = await self._turns.call(lambda turns: turns.begin(self._messages, config))
        turn.listen(config)
        return SessionTurn(self._turns, turn)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store the answer, or the part of it that arrived."""
        turn = self._ended()
        if isinstance(error, GeneratorExit):
            # The caller's coroutine is being closed, so it cannot await.
            turn.part.root.release_session()
        else:
            await self._turns.call(lambda turns: turns.end(turn, error))

    def __enter__(self) -> SyncSessionTurn:
        """Store the question."""
        config = ensure_config(self._config)
        self._begun = turn = self._turns.wait_for(lambda turns: turns.begin(self._messages, config))
        turn.listen(config)
        return SyncSessionTurn(self._turns, turn)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store the answer, or the part of it that arrived."""
        turn = self._ended()
        self._turns.wait_for(lambda turns: turns.end(turn, error), turn.turns)

    def _ended(self) -> NodeTurn:
        turn, self._begun = self._begun, None
        if turn is None:
            raise RuntimeError("The block of a session_turn has not begun; use it in `with` or `async with`, once.")
        turn.stop_listening()
        return turn


def session_turn(
    memory: Memory | SyncMemory,
    messages: Sequence[MessageLikeRepresentation],
    config: RunnableConfig | None = None,
    options: TurnOptions | None = None,
) -> TurnBlock:
    """Return a block for a turn around a model call, in any node or function.

    ::

        async with session_turn(memory, state["messages"], config) as turn:
            reply = turn.answered or await model.ainvoke(await turn.messages())
            turn.answer(reply)

    In synchronous code use a `with` block; `turn.messages()` then blocks.

    The question (the newest human messages) is stored when the block begins, and the answer when the block ends. If the
    block is cancelled or fails, the streamed part of the answer is stored as `interrupted` or `failed`. Use one block
    per run. Questions without an id get one.

    Raises:
        InvalidKey: on entering, if the config names no session.
        InvalidInput: on entering, if the config names a user that is not a valid id.
        WrongUser: on entering, if the session belongs to another user.
    """
    limits = options or TurnOptions()
    return TurnBlock(OnLoop(memory, lambda opened: NodeTurns(opened, limits)), messages, config)


class MessagesUpdate(TypedDict):
    """The update of the graph's state that `MemoryNode` returns."""

    messages: list[BaseMessage]


class MemoryNode(Runnable[dict[str, Any], MessagesUpdate]):
    """A node that calls a model with the session's memory; see `memory_node`."""

    def __init__(
        self,
        memory: Memory | SyncMemory,
        model: BaseChatModel,
        system: SystemMessage | None,
        options: TurnOptions | None,
    ) -> None:
        self._memory = memory
        self._model = model
        self._system = system
        self._options = options

    async def ainvoke(
        self,
        input: dict[str, Any],  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> MessagesUpdate:
        """Call the model; return its answer as an update of the state."""
        async with session_turn(self._memory, input["messages"], config, self._options) as turn:
            reply = turn.answered or await self._model.ainvoke(await turn.messages(self._system, model=self._model))
            turn.answer(reply)
            if turn.answered is not None:
                stream_again(turn.answered)
        return {"messages": [turn.reply if isinstance(turn.reply, AIMessage) else reply]}

    def invoke(
        self,
        input: dict[str, Any],  # noqa: A002 - as above
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> MessagesUpdate:
        """Call the model; return its answer as an update of the state."""
        with session_turn(self._memory, input["messages"], config, self._options) as turn:
            reply = turn.answered or self._model.invoke(turn.messages(self._system, model=self._model))
            turn.answer(reply)
            if turn.answered is not None:
                stream_again(turn.answered)
        return {"messages": [turn.reply if isinstance(turn.reply, AIMessage) else reply]}


def memory_node(
    memory: Memory | SyncMemory,
    model: BaseChatModel,
    *,
    system_prompt: str | SystemMessage | None = None,
    options: TurnOptions | None = None,
) -> MemoryNode:
    """Return a node that calls a model with the session's memory: `graph.add_node("chat", memory_node(memory, model))`.

    The node reads and writes the state's `messages`, in synchronous and asynchronous runs.

    Raises:
        BudgetTooSmall: the model's context window has no room for a prompt.
    """
    limits = options or TurnOptions()
    facts = facts_of(model, limits.context_window)
    input_budget(facts.name, limits.max_output_tokens, facts.window)
    if isinstance(system_prompt, str):
        system_prompt = SystemMessage(system_prompt) if system_prompt else None
    return MemoryNode(memory, model, system_prompt, options)
