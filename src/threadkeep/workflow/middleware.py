"""`SessionMemory`: the memory of an agent made by `create_agent`, in one line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Self, cast

from langchain.agents.middleware import AgentState, ModelRequest, ModelResponse, hook_config
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic_core import to_json

from threadkeep.context.plan import ContextPlan, WindowKind
from threadkeep.context.tokens import TokenCounter, counter_named
from threadkeep.history.compression import Compression
from threadkeep.history.keys import channel_of
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.observe import ModelFailed
from threadkeep.workflow.async_runs import AsyncRunsOnly
from threadkeep.workflow.call_measure import ModelUse
from threadkeep.workflow.conversion import text_of
from threadkeep.workflow.extras import ExtraSource
from threadkeep.workflow.invocation import metadata_of, question_before, question_in, run_id_of, session_for
from threadkeep.workflow.partial import PartialAnswer, listening
from threadkeep.workflow.turn_options import IdOf, TurnOptions, place_in
from threadkeep.workflow.turns import OpenTurn
from threadkeep.workflow.unsettled import Unsettled
from threadkeep.workflow.unsettled_turns import UnsettledTurns


class SessionMemory(AsyncRunsOnly):
    """Gives an agent the memory of its session: `create_agent(model, tools, middleware=[SessionMemory(memory)])`.

    At each model call the agent sees the session's earlier turns before the run's own messages, cut to the limits; when
    the run ends, the question and the final answer are in the transcript. Neither enters the graph's state, checkpoints
    or streams. The user's message is stored before the first model call; an answer that was cut off (a cancelled run,
    a reader that went away) is stored as `interrupted`. If the database does not answer, the agent does: without
    history, and with its turn among the pending writes.

    The agent must be called asynchronously (`ainvoke`, `astream`). The session is `configurable["thread_id"]`, the user
    `configurable["user_id"]`, unless functions of the config are given.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        max_messages: int | None = 20,
        max_tokens: int | None = 4000,
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
    ) -> None:
        """See `threadkeep.TurnOptions` for what each means; `window` is a short way to write that of the plan."""
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
        )
        if window is not None:
            options = replace(options, plan=replace(options.plan, window=window))
        self._begin(memory, options)

    @classmethod
    def of(cls, memory: Memory, options: TurnOptions) -> Self:
        """The memory of agents whose turns have these options."""
        made = cls.__new__(cls)
        made._begin(memory, options)  # noqa: SLF001 - it is one of ours
        return made

    def _begin(self, memory: Memory, options: TurnOptions) -> None:
        super().__init__()
        self._memory = memory
        self._options = options
        self._unsettled = UnsettledTurns()
        memory.before_closing(self._unsettled)

    @property
    def open_runs(self) -> int:
        """How many runs of this process have begun and were not heard of again, at most a thousand."""
        return len(self._unsettled)

    @hook_config(can_jump_to=["end"])
    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Store the question; a question that was answered before gets that answer again, without a model call."""
        config = get_config()
        session = session_for(self._memory, self._options, config)
        messages = state["messages"]
        question = question_in(messages)
        if not question:
            return await self._answered_already(session, messages)
        turn = self._turn(session, question, config)
        await self._unsettled.settle_what_is_over(turn)
        await turn.begin(run_id_of(config), metadata_of(config))
        if turn.answered is not None:
            return {"messages": [turn.answered], "jump_to": "end"}
        self._unsettled.enter(turn).begun_by(runtime)
        return None

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Send the model what the session remembers, and keep what it says in case the run does not end well."""
        config = get_config()
        unsettled = await self._turn_of(request.messages, config)
        unsettled.stop_waiting()
        turn = unsettled.turn
        sent = await turn.context(
            request.messages, request.system_message, ModelUse(request.model, tuple(request.tools))
        )
        told = request.override(messages=cast("list[AnyMessage]", list(sent.messages)), system_message=sent.system)
        partial = PartialAnswer()
        token = var_child_runnable_config.set(listening(config, partial))
        try:
            response = await handler(told)
        except asyncio.CancelledError:
            await self._unsettled.end(unsettled, partial.text, "interrupted")
            raise
        except GraphBubbleUp:
            turn.contexts.keep()
            raise
        except Exception as error:
            turn.contexts.keep()
            self._tell_model_failure(turn, error)
            self._unsettled.hold(unsettled, partial.text, "failed", request.runtime)
            raise
        finally:
            var_child_runnable_config.reset(token)
        self._hear(unsettled, response, request.runtime)
        return response

    def _hear(self, unsettled: Unsettled, response: ModelResponse[Any], runtime: Runtime[Any]) -> None:
        """Keep what a model said; only what calls no tools may be the answer."""
        final = response.result[-1] if response.result else None
        unsettled.turn.contexts.report(final if isinstance(final, AIMessage) else None)
        if isinstance(final, AIMessage) and not final.tool_calls:
            self._unsettled.hold(unsettled, final, "interrupted", runtime)
        else:
            unsettled.let_go()

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """When a run is cancelled in a tool, what the assistant had said before it is kept as interrupted."""
        messages = request.state["messages"]
        if known := self._unsettled.known(messages, session_for(self._memory, self._options, get_config())):
            known.stop_waiting()
        try:
            result = await handler(request)
        except asyncio.CancelledError:
            said = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
            unsettled = await self._turn_of(messages, get_config())
            await self._unsettled.end(unsettled, AIMessage(text_of(said), id=said.id) if said else "", "interrupted")
            raise
        if request.tool is not None and request.tool.return_direct:
            (await self._turn_of(messages, get_config())).direct_calls.add(str(request.tool_call["id"]))
        return result

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Store the final answer; not what another middleware says in the place of a model that failed."""
        unsettled = await self._turn_of(state["messages"], get_config())
        if unsettled.status == "failed":
            await self._unsettled.settle(unsettled)
        else:
            await self._unsettled.end(unsettled, _final_answer(state, unsettled.direct_calls) or "", "complete")
        return None

    async def _turn_of(self, messages: list[Any], config: RunnableConfig) -> Unsettled:
        """The turn that a hook belongs to; one that began in another process (or before an interrupt) is taken up."""
        session = session_for(self._memory, self._options, config)
        if known := self._unsettled.known(messages, session):
            return known
        turn = self._turn(session, question_before(messages), config)
        await turn.go_on()
        return self._unsettled.enter(turn)

    def _turn(self, session: Session, question: Sequence[BaseMessage], config: RunnableConfig) -> OpenTurn:
        return OpenTurn(self._memory, session, self._options, question, place_in(self._options, config))

    async def _answered_already(self, session: Session, messages: list[Any]) -> dict[str, Any] | None:
        """With a checkpointer, a repeated question is merged into its old place: the run ends with its answer."""
        turn = OpenTurn(self._memory, session, self._options, question_before(messages))
        await turn.go_on()
        last = messages[-1] if messages else None
        if isinstance(last, AIMessage) and not last.tool_calls:
            return {"jump_to": "end"} if turn.answered or await turn.is_stored(last) else None
        return {"messages": [turn.answered], "jump_to": "end"} if turn.answered else None

    def _tell_model_failure(self, turn: OpenTurn, error: Exception) -> None:
        self._memory.observers.notify(
            ModelFailed(
                channel=channel_of(turn.session.session_id),
                error=type(error).__name__,
                run_id=turn.run_id,
                session_id=turn.session.session_id,
            )
        )


def _final_answer(state: AgentState[Any], direct_calls: Collection[str]) -> BaseMessage | str | None:
    """The last assistant message after the question; the result of a tool that answers directly; or JSON.

    The answer has the id of the message in the state, so that the two are known to be the same.
    """
    for message in reversed(state["messages"]):
        if message.type == "human":
            return None
        if isinstance(message, ToolMessage) and message.tool_call_id in direct_calls:
            return AIMessage(text_of(message), id=message.id)
        if isinstance(message, AIMessage):
            structured = state.get("structured_response")
            if text_of(message).strip() or structured is None:
                return message
            return AIMessage(to_json(structured).decode(), id=message.id)
    return None
