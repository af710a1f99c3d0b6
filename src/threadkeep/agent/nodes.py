"""The same memory for plain `StateGraph` users: a turn around any model call, and a ready node."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config

from threadkeep.agent.call_measure import ModelUse
from threadkeep.agent.model_facts import facts_of
from threadkeep.agent.node_turns import NodeTurn, NodeTurns
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.context.budget import input_budget
from threadkeep.history.memory import Memory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.memory.sync_memory import SyncMemory


class _InsideTurn:
    def __init__(self, turns: OnLoop[Memory, NodeTurns], turn: NodeTurn) -> None:
        self._turns = turns
        self._turn = turn

    @property
    def answered(self) -> AIMessage | None:
        """The answer that is stored already when the question is a repeat: hand it on and call no model."""
        return self._turn.answered

    @property
    def reply(self) -> BaseMessage | str | None:
        """The answer that counts: the given one, or that of another process that was first."""
        return self._turn.reply

    def answer(self, reply: BaseMessage | str) -> None:
        """Take the assistant's answer; it is stored when the block ends. A message without an id gets one."""
        self._turn.take(reply)


class SessionTurn(_InsideTurn):
    """A turn inside a node: what to send the model, and where to put its answer."""

    async def messages(
        self, system: SystemMessage | None = None, *, model: BaseChatModel | None = None, tools: Sequence[object] = ()
    ) -> list[BaseMessage]:
        """Return what the model call is sent: the system message, earlier turns, the state's messages.

        With the `model` (and the `tools` that it is told of) its context window counts as a limit too.
        """
        use = ModelUse(model, tools)
        return await self._turns.call(lambda turns: turns.messages(self._turn, system, use))


class SyncSessionTurn(_InsideTurn):
    """A turn inside a node of synchronous code."""

    def messages(
        self, system: SystemMessage | None = None, *, model: BaseChatModel | None = None, tools: Sequence[object] = ()
    ) -> list[BaseMessage]:
        """Return what the model call is sent; see `SessionTurn.messages`."""
        use = ModelUse(model, tools)
        return self._turns.wait_for(lambda turns: turns.messages(self._turn, system, use), self._turn.turns)


class TurnBlock:
    """The block of `session_turn`: `async with` gives a `SessionTurn`, `with` a `SyncSessionTurn`."""

    def __init__(
        self, turns: OnLoop[Memory, NodeTurns], messages: Sequence[BaseMessage], config: RunnableConfig | None
    ) -> None:
        self._turns = turns
        self._messages = messages
        self._config = config
        self._begun: NodeTurn | None = None

    async def __aenter__(self) -> SessionTurn:
        """Store the question."""
        config = ensure_config(self._config)
        self._begun = turn = await self._turns.call(lambda turns: turns.begin(self._messages, config))
        turn.listen(config)
        return SessionTurn(self._turns, turn)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store the answer, or what there is of it."""
        turn = self._ended()
        if isinstance(error, GeneratorExit):
            # The caller was thrown away: it can wait for nothing.
            turn.turns.leave_soon(turn)
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
        """Store the answer, or what there is of it."""
        turn = self._ended()
        self._turns.wait_for(lambda turns: turns.end(turn, error), turn.turns)

    def _ended(self) -> NodeTurn:
        turn, self._begun = self._begun, None
        if turn is None:
            raise RuntimeError("The block of a session_turn has not begun; use it in `with` or `async with`, once.")
        turn.listen_no_more()
        return turn


def session_turn(
    memory: Memory | SyncMemory,
    messages: Sequence[BaseMessage],
    config: RunnableConfig | None = None,
    options: TurnOptions | None = None,
) -> TurnBlock:
    """Return the block of a turn around a model call, in any node or function.

    ::

        async with session_turn(memory, state["messages"], config) as turn:
            reply = turn.answered or await model.ainvoke(await turn.messages())
            turn.answer(reply)

    In synchronous code it is a `with` block, and `turn.messages()` blocks.

    The question (the newest human messages) is stored when the block begins, the answer when it ends; what a model had
    streamed when the block was cancelled or failed is stored as `interrupted` or `failed`. Use it once in a run.
    Questions without an id get one.

    Raises:
        InvalidKey: the config names no session.
        WrongUser: the session is another user's.
    """
    limits = options or TurnOptions()
    return TurnBlock(OnLoop(memory, lambda opened: NodeTurns(opened, limits)), messages, config)


class MessagesUpdate(TypedDict):
    """Return what the node adds to the state."""

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
        return {"messages": [turn.reply if isinstance(turn.reply, AIMessage) else reply]}


def memory_node(
    memory: Memory | SyncMemory,
    model: BaseChatModel,
    *,
    system_prompt: str | None = None,
    options: TurnOptions | None = None,
) -> MemoryNode:
    """Return a node that calls a model with the session's memory: `graph.add_node("chat", memory_node(memory, model))`.

    It reads and writes the state's `messages`, in synchronous and asynchronous runs.

    Raises:
        BudgetTooSmall: the model's context window leaves no room for a prompt; names the three numbers.
    """
    limits = options or TurnOptions()
    facts = facts_of(model, limits.context_window)
    input_budget(facts.name, limits.max_output_tokens, facts.window)
    return MemoryNode(memory, model, SystemMessage(system_prompt) if system_prompt else None, options)
