"""`SessionMemory`: middleware that adds a memory to an agent of `create_agent` in one line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Self

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Command

from threadkeep.agent.answers import OtherMiddleware
from threadkeep.agent.extras import ExtraSource
from threadkeep.agent.hooks import AgentCall, Step, TurnHooks
from threadkeep.agent.turn_options import IdOf, Limit, QuestionText, Scope, TurnLearning, TurnOptions
from threadkeep.context.manifest import WindowKind
from threadkeep.context.plan import ContextPlan
from threadkeep.context.tokens import TokenCounter, counter_named
from threadkeep.history.compression import Compression
from threadkeep.history.memory import Memory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.memory.sync_memory import SyncMemory

type _Begin[R, T] = Callable[[TurnHooks, AgentCall, R], Coroutine[Any, Any, Step[R, T] | None]]


class SessionMemory(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware that gives an agent the memory of its session.

    ::

        agent = create_agent(model, tools, middleware=[SessionMemory(memory)])

    At each model call, the agent gets the session's earlier turns before the run's own messages, cut to the limits.
    When the run ends, the question and the final answer are in the transcript. Earlier turns do not enter the graph's
    state, checkpoints or streams. The user's message is stored before the first model call. The partial answer of a
    cancelled run, or of a stream that is no longer read, is stored as `interrupted`. If the database does not answer,
    the agent answers without history, and its turn is stored as a pending write.

    The agent may be called asynchronously (`ainvoke`, `astream`) or synchronously (`invoke`, `stream`, `batch`), with
    either kind of memory; the memory's work runs on its own event loop. The session is `configurable["thread_id"]` and
    the user is `configurable["user_id"]`, unless `session_id` and `user_id` functions are given.
    """

    def __init__(
        self,
        memory: Memory | SyncMemory,
        *,
        max_messages: Limit = "auto",
        max_tokens: Limit = "auto",
        counter: TokenCounter | str | None = None,
        session_id: IdOf | None = None,
        user_id: IdOf | None = None,
        keep_originals: bool = False,
        window: WindowKind | None = None,
        plan: ContextPlan | None = None,
        sources: Sequence[ExtraSource] = (),
        compression: Compression | None = None,
        context_window: int | None = None,
        max_output_tokens: int | None = None,
        scope: Scope = "turn",
        question_text: QuestionText = "sent",
        ordered: bool = True,
        tool_memory: int = 1,
        learning: TurnLearning | None = None,
    ) -> None:
        """See `threadkeep.TurnOptions`. `window` replaces the plan's window. `counter` may be a name, like `o200k`."""
        options = TurnOptions(
            max_messages=max_messages,
            max_tokens=max_tokens,
            counter=counter_named(counter) if isinstance(counter, str) else counter,
            session_id=session_id,
            user_id=user_id,
            keep_originals=keep_originals,
            plan=ContextPlan() if plan is None else plan,
            sources=tuple(sources),
            compression=compression,
            context_window=context_window,
            max_output_tokens=max_output_tokens,
            scope=scope,
            question_text=question_text,
            ordered=ordered,
            tool_memory=tool_memory,
            learning=learning,
        )
        if window is not None:
            options = replace(options, plan=replace(options.plan, window=window))
        self._set_up(memory, options)

    @classmethod
    def of(cls, memory: Memory | SyncMemory, options: TurnOptions) -> Self:
        """Create the middleware from one object that has all its options."""
        made = cls.__new__(cls)
        made._set_up(memory, options)  # noqa: SLF001 - it is one of ours
        return made

    def _set_up(self, memory: Memory | SyncMemory, options: TurnOptions) -> None:
        super().__init__()
        others = OtherMiddleware()
        self._hooks = OnLoop(memory, lambda opened: TurnHooks(opened, options, others))

    @property
    def open_runs(self) -> int:
        """The number of agent calls that read or write a session and have not ended; at most 1,000 per event loop."""
        return sum(hooks.open_runs for hooks in self._hooks.made)

    # Use a node hook: it runs even if other middleware rejects the question, which can then be stored as failed.
    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Begin the agent's call. If the session's turns are ordered, wait until the earlier ones have ended."""
        await self._hooks.call(TurnHooks.before_agent, AgentCall(runtime, state["messages"]))
        return None

    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Begin the agent's call. If the session's turns are ordered, wait until the earlier ones have ended."""
        call = AgentCall(runtime, state["messages"])
        self._wait_for(call, lambda hooks: hooks.before_agent(call))
        return None

    # This and `awrap_tool_call` are not coroutine functions, because LangSmith would switch to an OS thread around each
    # call, even while tracing is off.
    def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Coroutine[Any, Any, ModelResponse[Any]]:
        """Call the model with the context of the session. A repeated question gets its stored answer."""
        call = AgentCall(request.runtime, request.messages)
        return self._arun(TurnHooks.begin_model_call, call, request, handler)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the context of the session. A repeated question gets its stored answer."""
        call = AgentCall(request.runtime, request.messages)
        return self._run(TurnHooks.begin_model_call, call, request, handler)

    def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> Coroutine[Any, Any, ToolMessage | Command[Any]]:
        """Run a tool. Agents that the tool calls neither read nor write the session of the calling agent."""
        call = AgentCall(get_runtime(), request.state["messages"])
        return self._arun(TurnHooks.begin_tool_call, call, request, handler)

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Run a tool. Agents that the tool calls neither read nor write the session of the calling agent."""
        call = AgentCall(get_runtime(), request.state["messages"])
        return self._run(TurnHooks.begin_tool_call, call, request, handler)

    # Use a node hook: it runs after other middleware changed the answer, and it can change the state.
    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Store the final answer. If another process stored its answer first, put that answer into the state."""
        return await self._hooks.call(TurnHooks.after_agent, AgentCall(runtime, state["messages"]), state)

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Store the final answer. If another process stored its answer first, put that answer into the state."""
        call = AgentCall(runtime, state["messages"])
        return self._wait_for(call, lambda hooks: hooks.after_agent(call, state))

    async def _arun[R, T](
        self, begin: _Begin[R, T], call: AgentCall, request: R, handler: Callable[[R], Awaitable[T]]
    ) -> T:
        """Call the model or a tool (`handler`) as a step of the turn."""
        step = await self._hooks.call(begin, call, request)
        if step is None:
            return await handler(request)
        if step.answered is not None:
            return step.answered
        try:
            with step.block:
                result = await handler(step.request)
        except (asyncio.CancelledError, Exception) as error:
            # A lambda that uses the error would form a cycle with its traceback, and keep the stream writer alive.
            failing = step.fail(error)
            await self._hooks.call(lambda _: failing)
            raise
        await self._hooks.call(lambda _: step.end(result))
        return result

    def _run[R, T](self, begin: _Begin[R, T], call: AgentCall, request: R, handler: Callable[[R], T]) -> T:
        """Call the model or a tool (`handler`) as a step of the turn, in synchronous code."""
        step = self._wait_for(call, lambda hooks: begin(hooks, call, request))
        if step is None:
            return handler(request)
        if step.answered is not None:
            return step.answered
        try:
            with step.block:
                result = handler(step.request)
        except BaseException as error:
            failing = step.fail(error)
            self._wait_for(call, lambda _: failing)
            raise
        self._wait_for(call, lambda _: step.end(result))
        return result

    def _wait_for[T](self, call: AgentCall, hook: Callable[[TurnHooks], Coroutine[Any, Any, T]]) -> T:
        """Run a hook on the event loop of the agent's call. For the first hook, choose a loop that is not blocked."""
        begun = next((hooks for hooks in self._hooks.made if hooks.knows(call.key)), None)
        return self._hooks.wait_for(hook, begun)
