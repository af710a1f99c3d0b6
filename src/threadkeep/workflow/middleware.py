"""`SessionMemory`: the memory of an agent made by `create_agent`, in one line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse, hook_config
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import Command

from threadkeep.context.tokens import TokenCounter, counter_named
from threadkeep.history.keys import channel_of
from threadkeep.history.memory import Memory
from threadkeep.observe import ModelFailed
from threadkeep.records import Status
from threadkeep.workflow.conversion import text_of
from threadkeep.workflow.turns import (
    IdOf,
    OpenTurn,
    PartialAnswer,
    TurnOptions,
    listening,
    metadata_of,
    question_before,
    question_in,
    run_id_of,
    session_for,
)

_ABANDONED_SECONDS = 5.0
"""How long an answer waits for its run to end before it is stored all the same."""


@dataclass
class _Unsettled:
    """A turn in this process, and what it has said that is not stored yet."""

    turn: OpenTurn
    text: BaseMessage | str = ""
    status: Status = "interrupted"
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)


class SessionMemory(AgentMiddleware[AgentState[Any], Any, Any]):
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
    ) -> None:
        """See `threadkeep.workflow.turns.TurnOptions` for what each limit means."""
        super().__init__()
        self._memory = memory
        self._options = TurnOptions(
            max_messages=max_messages,
            max_tokens=max_tokens,
            counter=counter_named(counter) if isinstance(counter, str) else counter,
            session_id=session_id,
            user_id=user_id,
            keep_originals=keep_originals,
        )
        self._unsettled: dict[tuple[str, str | None], _Unsettled] = {}
        memory.before_closing(self._settle_all)

    @hook_config(can_jump_to=["end"])
    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Store the question; a question that was answered before gets that answer again, without a model call."""
        config = get_config()
        session = session_for(self._memory, self._options, config)
        messages = state["messages"]
        question = question_in(messages)
        if not question:
            return await self._answered_already(OpenTurn(self._memory, session, self._options, []), messages)
        turn = OpenTurn(self._memory, session, self._options, question)
        await turn.begin(run_id_of(config), metadata_of(config))
        if turn.answered is not None:
            return {"messages": [turn.answered], "jump_to": "end"}
        self._unsettled[session.session_id, turn.question_id] = _Unsettled(turn)
        return None

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Send the model what the session remembers, and keep what it says in case the run does not end well."""
        config = get_config()
        unsettled = await self._turn_of(request.messages, config)
        turn = unsettled.turn
        messages = await turn.context(request.messages, request.system_message)
        partial = PartialAnswer()
        token = var_child_runnable_config.set(listening(config, partial))
        try:
            response = await handler(request.override(messages=cast("list[AnyMessage]", messages)))
        except asyncio.CancelledError:
            self._forget(unsettled)
            await turn.close(partial.text, "interrupted")
            raise
        except GraphBubbleUp:
            raise
        except Exception as error:
            self._tell_model_failure(turn, error)
            self._hold(unsettled, partial.text, "failed")
            raise
        finally:
            var_child_runnable_config.reset(token)
        final = response.result[-1] if response.result else None
        if isinstance(final, AIMessage) and not final.tool_calls:
            self._hold(unsettled, final, "interrupted")
        return response

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """When a run is cancelled in a tool, what the assistant had said before it is kept as interrupted."""
        try:
            return await handler(request)
        except asyncio.CancelledError:
            messages = request.state["messages"]
            unsettled = await self._turn_of(messages, get_config())
            said = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
            if self._forget(unsettled) and said is not None:
                await unsettled.turn.close(text_of(said), "interrupted")
            raise

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Store the final answer."""
        messages = state["messages"]
        unsettled = await self._turn_of(messages, get_config())
        self._forget(unsettled)
        if unsettled.turn.question and (answer := _final_answer(state)) is not None:
            await unsettled.turn.close(answer)
        return None

    async def _turn_of(self, messages: list[Any], config: RunnableConfig) -> _Unsettled:
        """The turn that a hook belongs to; one that began in another process (or before an interrupt) is taken up."""
        session = session_for(self._memory, self._options, config)
        question = question_before(messages)
        key = (session.session_id, question[-1].id if question else None)
        if key not in self._unsettled:
            turn = OpenTurn(self._memory, session, self._options, question)
            await turn.go_on()
            self._unsettled[key] = _Unsettled(turn)
        return self._unsettled[key]

    async def _answered_already(self, turn: OpenTurn, messages: list[Any]) -> dict[str, Any] | None:
        """With a checkpointer, a repeated question is merged into its old place: the state ends with its answer."""
        last = messages[-1] if messages else None
        if isinstance(last, AIMessage) and not last.tool_calls and await turn.is_stored(last):
            return {"jump_to": "end"}
        return None

    def _hold(self, unsettled: _Unsettled, said: BaseMessage | str, status: Status) -> None:
        """Remember what was said until the run ends; a run that is never heard of again has it stored by the timer."""
        unsettled.text, unsettled.status = said, status
        if unsettled.timer is not None:
            unsettled.timer.cancel()
        loop = asyncio.get_running_loop()
        unsettled.timer = loop.call_later(_ABANDONED_SECONDS, lambda: loop.create_task(self._settle(unsettled)))

    def _forget(self, unsettled: _Unsettled) -> bool:
        """The run is over for this turn; False when it was before."""
        if unsettled.timer is not None:
            unsettled.timer.cancel()
        turn = unsettled.turn
        return self._unsettled.pop((turn.session.session_id, turn.question_id), None) is not None

    async def _settle(self, unsettled: _Unsettled) -> None:
        if self._forget(unsettled):
            await unsettled.turn.close(unsettled.text, unsettled.status)

    async def _settle_all(self) -> None:
        for unsettled in list(self._unsettled.values()):
            await self._settle(unsettled)

    def _tell_model_failure(self, turn: OpenTurn, error: Exception) -> None:
        self._memory.observers.notify(
            ModelFailed(
                channel=channel_of(turn.session.session_id),
                error=type(error).__name__,
                run_id=turn.run_id,
                session_id=turn.session.session_id,
            )
        )


def _final_answer(state: AgentState[Any]) -> BaseMessage | str | None:
    """The last assistant message after the question; of a structured answer without words, its JSON."""
    messages = state["messages"]
    for message in reversed(messages):
        if message.type == "human":
            return None
        if isinstance(message, AIMessage):
            structured = state.get("structured_response")
            if text_of(message).strip() or structured is None:
                return message
            return structured.model_dump_json() if hasattr(structured, "model_dump_json") else str(structured)
    return None
