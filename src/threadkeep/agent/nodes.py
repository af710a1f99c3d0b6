"""Session memory for graphs without agents: the block `session_turn`, and `memory_node`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any, Self

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, MessageLikeRepresentation, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langgraph.errors import GraphBubbleUp

from threadkeep.agent.answers import repeated, stream_again
from threadkeep.agent.call_measure import ModelUse, chosen_model
from threadkeep.agent.callbacks import PartialAnswer
from threadkeep.agent.conversion import identify
from threadkeep.agent.invocation import control_of, metadata_of, node_of, run_hold, run_id_of, session_for
from threadkeep.agent.participation import Participation
from threadkeep.agent.questions import messages_in, question_before
from threadkeep.agent.root_runs import root_run, tool_of_sessions
from threadkeep.agent.turn_options import TurnOptions, facts_of, site_in
from threadkeep.boundary import OnFailure
from threadkeep.context.tokens import input_budget
from threadkeep.history.memory import Memory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.memory.sync_memory import SyncMemory

_numbers = count()
"""A counter that gives each call of a node in this process its own number."""


class NodeTurn:
    """The turn of a graph's node that calls a model. Its methods run on the event loop of the memory.

    `answered` is the stored answer of a repeated question. `reply` is the caller's answer; after the turn's end, it is
    the answer of another process if that answer was stored first.
    """

    def __init__(self, memory: Memory, options: TurnOptions, given: Sequence[MessageLikeRepresentation]) -> None:
        self._memory = memory
        self._options = options
        self._given = given

    async def begin(self, config: RunnableConfig) -> Self:
        """Store the question. If turns are ordered, first wait for the session's earlier turns."""
        self.reply: BaseMessage | str | None = None
        self.partial = PartialAnswer()
        self._unreported = False
        messages = messages_in({"messages": self._given})
        identify(question_before(messages))
        self.part = part = self._enter(messages, config)
        ordered = self._options.ordered and not part.silent and run_hold.get() is None
        if ordered and not tool_of_sessions.get():
            await part.root.order.acquire(part.root, self._memory.observers)
        state = part.root.with_question(messages)
        self._turn = await part.begin(state)
        self._turn.read_sources_again()
        part.root.open_calls += 1
        self._state = part.root.with_answers(part.root.with_question(state))
        self.answered = None if self._turn.answered is None else repeated(self._turn.answered, messages)
        return self

    def _enter(self, messages: Sequence[BaseMessage], config: RunnableConfig) -> Participation:
        """Return the node's participation in the run's turn. A `silent` one gets a memory that stores nothing."""
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

    async def messages(self, system: SystemMessage | None, use: ModelUse) -> list[BaseMessage]:
        """Return the messages for a model call of the node. First report the token usage of the previous call."""
        self._report()
        sent = await self._turn.context(self._state, system, use)
        return [*([sent.system] if sent.system else []), *sent.messages]

    def take(self, reply: BaseMessage | str) -> None:
        """Set the answer of the turn, which `end` stores."""
        if isinstance(reply, BaseMessage):
            identify([reply])
            reply.response_metadata |= self._turn.mark
        self.reply, self._unreported = reply, True

    def _report(self) -> None:
        """Add the token usage to the record of the newest model call (its manifest), unless that was done before."""
        if self._unreported:
            self._unreported = False
            self._turn.report(self.reply if isinstance(self.reply, AIMessage) else None)

    async def end(self, error: BaseException | None) -> None:
        """Store the answer, or the text that the model streamed before an error."""
        part, turn, reply = self.part, self._turn, self.reply
        part.root.call_ends()
        try:
            self._report()
            calls_tools = self.answered is None and isinstance(reply, AIMessage) and bool(reply.tool_calls)
            if error is not None or calls_tools:
                # This call gives no answer, so release the answer number that it has claimed (see `RootRun`).
                part.root.release(part.author, part.key)
            if error is None:
                await (turn.close("") if calls_tools else self._close())
            elif isinstance(error, GraphBubbleUp):
                turn.keep()
            else:
                await turn.close(self.partial.answer, "failed" if isinstance(error, Exception) else "interrupted")
        finally:
            part.root.release_session()

    async def _close(self) -> None:
        if self.reply is not None and self.answered is None:
            self.reply = await self._turn.close(self.reply) or self.reply
        if isinstance(answer := self._turn.answered or self.reply, BaseMessage):
            self.part.root.add_answer(answer, self.part.author)


class _TurnOfBlock:
    def __init__(self, on_loop: OnLoop[Memory, NodeTurn], turn: NodeTurn) -> None:
        self._on_loop = on_loop
        self._turn = turn

    @property
    def answered(self) -> AIMessage | None:
        """The stored answer, if the question was sent and answered before; then no model call is needed."""
        return self._turn.answered

    @property
    def reply(self) -> BaseMessage | str | None:
        """The reply passed to `answer`. After the block, it is another process's answer if that was stored first."""
        return self._turn.reply

    def answer(self, reply: BaseMessage | str) -> None:
        """Set the assistant's answer, which is stored when the block ends. A message without an id gets a new id."""
        if self.answered is not None:
            stream_again(self.answered)
        self._turn.take(reply)


class SessionTurn(_TurnOfBlock):
    """The turn that `async with session_turn(...)` begins; it ends with the block."""

    async def messages(
        self, system: SystemMessage | None = None, *, model: BaseChatModel | None = None, tools: Sequence[object] = ()
    ) -> list[BaseMessage]:
        """Return the messages for the model call: the system message, earlier turns, the state's messages.

        The context window of `model` (with its `tools`) is also a limit. Raises `BudgetTooSmall`.
        """
        use = ModelUse(chosen_model(model), tools)
        return await self._on_loop.call(lambda _: self._turn.messages(system, use))


class SyncSessionTurn(_TurnOfBlock):
    """The turn that `with session_turn(...)` begins, for synchronous code; it ends with the block."""

    def messages(
        self, system: SystemMessage | None = None, *, model: BaseChatModel | None = None, tools: Sequence[object] = ()
    ) -> list[BaseMessage]:
        """Return the messages for the model call; see `SessionTurn.messages`."""
        use = ModelUse(chosen_model(model), tools)
        return self._on_loop.wait_for(lambda turn: turn.messages(system, use), self._turn)


class TurnBlock:
    """The context manager of `session_turn`: `async with` returns a `SessionTurn`, `with` a `SyncSessionTurn`."""

    def __init__(self, on_loop: OnLoop[Memory, NodeTurn], config: RunnableConfig | None) -> None:
        self._on_loop = on_loop
        self._config = config
        self._begun: NodeTurn | None = None
        self._block = ExitStack()

    async def __aenter__(self) -> SessionTurn:
        """Store the question."""
        config = ensure_config(self._config)
        turn = await self._on_loop.call(NodeTurn.begin, config)
        return SessionTurn(self._on_loop, self._listening(turn, config))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Store the answer, or the part of it that arrived."""
        turn = self._ended()
        if isinstance(error, GeneratorExit):
            # Store nothing, because a coroutine that is being closed cannot await. Let the session's next turn begin.
            turn.part.root.release_session()
        else:
            await self._on_loop.call(lambda _: turn.end(error))

    def __enter__(self) -> SyncSessionTurn:
        """Store the question."""
        config = ensure_config(self._config)
        turn = self._on_loop.wait_for(lambda turn: turn.begin(config))
        return SyncSessionTurn(self._on_loop, self._listening(turn, config))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Store the answer, or the part of it that arrived."""
        turn = self._ended()
        with OnFailure(turn.part.root.release_session):
            self._on_loop.wait_for(lambda _: turn.end(error), turn)

    def _listening(self, turn: NodeTurn, config: RunnableConfig) -> NodeTurn:
        """Start collecting the text that models stream in the `with` block, in case the block is cut off."""
        self._begun = turn
        self._block.enter_context(turn.partial.listening(config))
        return turn

    def _ended(self) -> NodeTurn:
        turn, self._begun = self._begun, None
        if turn is None:
            raise RuntimeError("The block of a session_turn has not begun; use it in `with` or `async with`, once.")
        self._block.close()
        return turn


def session_turn(
    memory: Memory | SyncMemory,
    messages: Sequence[MessageLikeRepresentation],
    config: RunnableConfig | None = None,
    options: TurnOptions | None = None,
) -> TurnBlock:
    """Return a context manager for a turn around a model call, in any node or function.

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
    return TurnBlock(OnLoop(memory, lambda opened: NodeTurn(opened, limits, messages)), config)


type MessagesUpdate = dict[str, list[BaseMessage]]
"""The update of the graph's state that `MemoryNode` returns."""


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
