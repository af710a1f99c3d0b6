"""`SessionMemory`: middleware that adds a memory to an agent of `create_agent` in one line.

Its hooks are written once for synchronous and asynchronous runs (`TurnHooks`), and run on the event loop of their
memory. Between two hooks, the caller calls the model or a tool.
"""

from __future__ import annotations

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Self, cast

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, RemoveMessage, ToolMessage
from langchain_core.utils.uuid import uuid7
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Command

from threadkeep.agent.answers import (
    LIMIT_NOTICES,
    OtherMiddleware,
    answered_before,
    final_answer,
    named_as_agent,
    restored,
    storable,
    stream_again,
)
from threadkeep.agent.call_measure import ModelUse, chosen_model
from threadkeep.agent.callbacks import PartialAnswer, RootCall, root_callbacks
from threadkeep.agent.conversion import FORGETS, text_of, typed
from threadkeep.agent.extras import ExtraSource
from threadkeep.agent.invocation import (
    CallKey,
    author_of,
    metadata_of,
    redacted_kinds,
    run_hold,
    run_id_of,
    session_for,
    task_of,
)
from threadkeep.agent.participation import OpenCalls, Participation
from threadkeep.agent.root_runs import calling_tool, own_session, root_run, tool_of_sessions
from threadkeep.agent.turn_options import IdOf, Limit, QuestionText, Scope, TurnLearning, TurnOptions, site_in
from threadkeep.agent.turns import OpenTurn
from threadkeep.context.manifest import WindowKind
from threadkeep.context.plan import ContextPlan
from threadkeep.context.tokens import TokenCounter, counter_named
from threadkeep.errors import StoreClosed
from threadkeep.history.compression import Compression
from threadkeep.history.keys import channel_of
from threadkeep.history.memory import Memory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.memory.sync_memory import SyncMemory
from threadkeep.observe import AgentOutsideTurn, ModelFailed, TurnBegunInTool

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


class TurnHooks:
    """The hooks of a `SessionMemory` for all agents that have this middleware. They run on the memory's event loop."""

    def __init__(self, memory: Memory, options: TurnOptions, others: OtherMiddleware) -> None:
        self.memory = memory
        self._options = options
        self._others = others
        self._open = OpenCalls()
        memory.before_closing(self._open)

    @property
    def open_runs(self) -> int:
        """The number of agent calls that read or write a session and have not ended."""
        return sum(not call.silent for call in self._open.calls.values())

    def knows(self, key: CallKey) -> bool:
        """Return True if the agent call with this key has begun and has not ended."""
        return key in self._open.calls

    async def before_agent(self, call: AgentCall, *, begun_before: bool = False) -> Participation:
        """Begin the agent's call. If the session's turns are ordered, wait until the earlier ones have ended.

        `begun_before` is True if another process or an earlier run of the graph may have begun the call.
        """
        run = root_callbacks.call
        part = self._new_part(call, run, resumed=begun_before and (run is None or run.is_continued))
        if part.silent:
            return part
        if not begun_before:
            part.writer = weakref.ref(call.runtime.stream_writer)
            part.root.writers.append(part.writer)
        if run is not None:
            run.at_end.append(partial(self._run_ended, part))
        # An agent in a tool waits only if it has its own conversation and the tool does not run inside another tool.
        # Otherwise, agents in nested tools could wait for each other.
        tools = len(tool_of_sessions.get())
        may_wait = tools < 2 if part.parent is not None else run_hold.get() is None and not tools
        if self._options.ordered and may_wait:
            await part.root.order.acquire(part.root, self.memory.observers)
        return part

    async def begin_model_call(self, call: AgentCall, request: ModelRequest[Any]) -> ModelStep | None:
        """Store the question. Return the `ModelStep` of the call, or None if the agent does not use the session."""
        part = self._open.calls.get(call.key) or await self.before_agent(call, begun_before=True)
        if part.silent:
            return None
        self._others.check_state(call.messages)
        part.stop_waiting()
        part.redacted = redacted_kinds(call.config)
        messages = part.root.with_question(call.messages)
        turn, asked = part.turn, part.root.question
        if turn is None:
            turn = await part.begin(messages)
        else:
            part.go_on(turn)
        if turn.answered is not None:
            answered = answered_before(turn.answered, request, call.config)
            part.earlier_ids = part.earlier_ids or {message.id for message in call.messages}
            part.told_again = answered.result[-1]
            stream_again(part.told_again)
            return ModelStep(part, call, request, answered=answered, turn=turn, others=self._others)
        if part.root.answers or part.root.question is not asked:
            messages = part.root.with_question(messages)
        state = part.with_question(messages)
        if part.root.answers:
            state = part.root.with_answers(state)
        model, described = chosen_model(request.model, call.config), None
        if (describe := getattr(model, "_get_ls_params", None)) is not None:  # private; see `facts_of`
            described = describe(**request.model_settings)
        sent = await turn.context(state, request.system_message, ModelUse(model, tuple(request.tools), described))
        changed = request.override(messages=cast("list[AnyMessage]", list(sent.messages)), system_message=sent.system)
        part.root.open_calls += 1
        part.partial = partial = PartialAnswer()
        # Add the model for which the messages were chosen: middleware behind `SessionMemory` may call another one.
        if described is not None:
            partial.models.add(described.get("ls_model_name"))
        whole = [*([sent.system] if sent.system else []), *sent.messages]
        listening = partial.listening(call.config)
        return ModelStep(part, call, changed, listening, turn=turn, others=self._others, partial=partial, sent=whole)

    async def begin_tool_call(self, call: AgentCall, request: ToolCallRequest) -> ToolStep | None:
        """Return the `ToolStep` of the call, or None if the agent does not use the session.

        If the run is cut off during the call, the text of the assistant message that made the call is stored.
        """
        part = self._open.calls.get(call.key) or await self.before_agent(call, begun_before=True)
        if part.silent:
            return None
        part.stop_waiting()
        part.root.open_calls += 1
        if request.tool is not None and request.tool.return_direct:
            # Add the id now, because middleware may turn the tool's error into a result, which also ends the run.
            part.direct_calls.add(str(request.tool_call["id"]))
        newest = next((message for message in reversed(call.messages) if isinstance(message, AIMessage)), None)
        part.text = AIMessage(text_of(newest), id=newest.id) if newest else ""
        return ToolStep(part, call, request, calling_tool(part.memory, part.session), text=part.text)

    async def after_agent(self, call: AgentCall, state: AgentState[Any]) -> dict[str, Any] | None:
        """Store the final answer. If another answer was stored first, return a state update with that answer."""
        part = self._open.calls.get(call.key) or await self.before_agent(call, begun_before=True)
        if part.silent:
            part.leave()
            return None
        try:
            turn = part.turn or await part.begin(part.root.with_question(call.messages))
            answer = final_answer({**state, "messages": call.messages}, part.direct_calls, part.root.question)
            if answer is None or (turn.answered is not None and not part.said_ids):
                part.leave()
                if turn.answered is not None:
                    part.root.add_answer(turn.answered, part.author, part.key)
                await turn.settle()
                repeated = part.told_again
                return None if repeated is None else restored(call.messages, repeated, part.earlier_ids)
            limited = answer.id not in part.said_ids and any(notice in text_of(answer) for notice in LIMIT_NOTICES)
            first_stored = await part.end(answer, "failed" if part.model_failed or limited else "complete")
            if (run := root_callbacks.call) is not None:
                # The question is answered, so forget it. If the run still fails, its retry must not get this answer.
                run.asked.pop(part.root.session_id, None)
        finally:
            # A nested agent releases the session now. Other agents do so at the run's end: middleware may call a model.
            if part.key[1] or root_callbacks.call is None:
                part.root.release_session()
        if first_stored is None or first_stored.id == answer.id:
            return None
        return {"messages": [RemoveMessage(id=str(answer.id)), named_as_agent(first_stored, call.config)]}

    def _run_ended(self, part: Participation, state: object, error: BaseException | None) -> Awaitable[None] | None:
        """Let the session's next turn begin. After an error, return a coroutine that first stores the call's texts.

        This method is called in the OS thread of the run.
        """
        # The outer graph of a nested agent may end with its own text. Without a question id, this gives no warning.
        self._others.check_end(state, part.root.answers, None if part.key[1] else part.root.question_id)
        # If a worker executes the run, let it handle a cancelled turn, because another process may continue the run.
        by_owner = run_hold.get() is not None and not isinstance(error, Exception)
        if error is None or by_owner:
            part.root.release_session()
            if part.handed_over or (not part.text and run_hold.get() is None):
                part.leave()
            return None
        return self._settle_from_any_loop(part, error)

    async def _settle_from_any_loop(self, part: Participation, error: BaseException) -> None:
        # If the memory is closed, it has already stored the answers of unfinished calls (`OpenCalls.settle_all`).
        with suppress(StoreClosed):
            await self.memory.loop.run_from_any_loop(part.fail(error))

    def _new_part(self, call: AgentCall, run: RootCall | None, *, resumed: bool) -> Participation:
        session = session_for(self.memory, self._options, call.config, call.runtime)
        site = site_in(self._options, call.config)
        author = author_of(call.config, site)
        parent, shared = None, site is None or site.transcript
        if self._options.scope == "own":
            # Make each call a turn of the agent's own conversation instead of the session.
            parent, session, shared = session, own_session(self.memory, session, author), False
        root = root_run(self.memory, call.runtime.control, session.session_id, shared=shared)
        run_id, metadata = run_id_of(call.config, call.runtime), metadata_of(call.config)
        part = Participation(
            self.memory, session, self._options, root, author, call.key, run_id, metadata, site, self._open
        )
        part.resumed, part.parent = resumed, parent
        part.task = task_of(call.config) if call.key[1] else None
        asked_by_tool = (self.memory.identity, session.session_id) in tool_of_sessions.get()
        if self._options.scope == "none" or asked_by_tool:
            part.silent = True
        else:
            in_tool = "tools" in [node.partition(":")[0] for node in call.key[1].split("|")]
            if in_tool and not root.begun and parent is None:
                self.memory.observers.notify(TurnBegunInTool(session_id=session.session_id))
            begun = root.begun
            part.enter(call.messages)
            if not begun and run is not None and run.outer is not None:
                root.use_first_attempt(run.first)
                run.asked[session.session_id] = [root.question, root.sent]
            if part.silent and not root.outside_notified:
                root.outside_notified = True
                self.memory.observers.notify(AgentOutsideTurn(session_id=session.session_id))
        self._open.add(part)
        return part


class AgentCall:
    """The input of a hook during an agent's call: runtime, messages, config. All hooks of one call share its `key`."""

    def __init__(self, runtime: Runtime[Any], messages: Sequence[BaseMessage]) -> None:
        self.runtime = runtime
        self.messages = typed(messages)
        self.config = get_config()
        namespace = str(self.config.get("configurable", {}).get("checkpoint_ns", "")).rpartition("|")[0]
        self.key: CallKey = id(runtime.control), namespace, id(runtime.stream_writer)


@dataclass(eq=False)
class Step[R, T](ABC):
    """A model or tool call of an agent. If its result is already stored, `answered` has it, and no call is made.

    Otherwise, enter `block`, make the call with `request`, then call `end` or `fail` on the memory's event loop.
    """

    part: Participation
    call: AgentCall
    request: R
    block: AbstractContextManager[None] = nullcontext()
    answered: T | None = None

    @abstractmethod
    async def end(self, result: T) -> None:
        """End the step with the result of the call."""

    @abstractmethod
    async def fail(self, error: BaseException) -> None:
        """End the step of a call that failed or was cancelled."""


@dataclass(eq=False)
class ModelStep(Step[ModelRequest[Any], ModelResponse[Any]]):
    """A model call of an agent. `sent` has the messages that were chosen for the call."""

    _: KW_ONLY
    turn: OpenTurn
    others: OtherMiddleware
    partial: PartialAnswer = field(default_factory=PartialAnswer)
    sent: Sequence[BaseMessage] = ()

    async def end(self, result: ModelResponse[Any]) -> None:
        """Hold a reply without tool calls in memory, so that it is stored as the answer if the run is cut off.

        A reply with the id of an earlier message (for example, from a cache) gets a new id, so that both messages stay.
        """
        part, failed, mark = self.part, self.partial.failed, self.turn.mark
        part.root.call_ends()
        part.partial = None
        known = {message.id for message in (*self.call.messages, *self.sent)}
        for index, one in enumerate(result.result):
            changes: dict[str, Any] = {"id": str(uuid7())} if one.id and one.id in known else {}
            if mark:
                changes["response_metadata"] = {**one.response_metadata, **mark}
            result.result[index] = one.model_copy(update=changes) if changes else one
        final = result.result[-1] if result.result else None
        self.turn.report(final if isinstance(final, AIMessage) else None)
        part.model_failed = failed
        part.said_ids |= {message.id for message in result.result}
        if isinstance(final, AIMessage) and not final.tool_calls:
            answer = storable(final, part.redacted, is_complete=True)
            part.hold(answer, "failed" if failed else "interrupted", self.call.runtime)
        else:
            part.discard()
        self.others.check_calls(self.sent, self.partial)

    async def fail(self, error: BaseException) -> None:
        """Store the text of a cancelled call. Hold the text of a failed call in memory, because a retry may follow."""
        part = self.part
        part.root.call_ends()
        part.partial = None
        answer = storable(self.partial.answer, part.redacted, is_complete=False)
        if not isinstance(error, Exception):
            await part.interrupt(answer)
            return
        part.root.release_session()
        self.turn.keep()
        if not isinstance(error, GraphBubbleUp):
            part.model_failed = True
            part.root.release(part.author, part.key)
            session_id = part.session.session_id
            part.memory.observers.notify(
                ModelFailed(
                    channel=channel_of(session_id),
                    error=type(error).__name__,
                    run_id=self.turn.run_id,
                    session_id=session_id,
                )
            )
            part.hold(answer, "failed", self.call.runtime)


@dataclass(eq=False)
class ToolStep(Step[ToolCallRequest, ToolMessage | Command[Any]]):
    """A tool call of an agent. `text` is the text of the message that made the call."""

    text: BaseMessage | str = ""

    async def end(self, result: ToolMessage | Command[Any]) -> None:
        """End the tool call. Collect it for later turns, unless the result is the answer or a handover to an agent."""
        part, tool = self.part, self.request.tool
        part.root.call_ends()
        if part.turn is not None and tool is not None and FORGETS in (tool.metadata or {}):
            part.turn.read_sources_again()
        if isinstance(result, Command) and result.graph == Command.PARENT:
            part.hand_over()
        elif part.turn is not None and not (tool is not None and tool.return_direct):
            part.turn.steps.add(self.call.messages, result)

    async def fail(self, error: BaseException) -> None:
        """End a call that handed over to an agent, was interrupted, was cancelled or failed."""
        part = self.part
        part.root.call_ends()
        if isinstance(error, ParentCommand):
            part.hand_over()
        elif isinstance(error, Exception):
            part.discard()
            # The run may end or go on after this error. In case it ends, let the session's next turn begin.
            if not isinstance(error, GraphBubbleUp):
                part.root.release(part.author, part.key)
            part.root.release_session()
        else:
            await part.begin(self.call.messages)
            await part.interrupt(self.text)
