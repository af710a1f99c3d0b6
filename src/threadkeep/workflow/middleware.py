"""`SessionMemory`: the memory of an agent made by `create_agent`, in one line."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Collection
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
from pydantic_core import to_json

from threadkeep.context.tokens import TokenCounter, counter_named
from threadkeep.history.keys import channel_of
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.observe import ModelFailed
from threadkeep.records import Status
from threadkeep.workflow.conversion import text_of
from threadkeep.workflow.invocation import metadata_of, question_before, question_in, run_id_of, session_for
from threadkeep.workflow.partial import PartialAnswer, listening
from threadkeep.workflow.turns import IdOf, OpenTurn, TurnOptions

_ABANDONED_SECONDS = 5.0
"""How long an answer waits for its run to end before it is stored all the same."""

_MOST_RUNS = 1_000
"""How many runs are remembered; one that is forgotten (interrupted, say) is taken up again from the transcript."""


@dataclass(eq=False)
class _Unsettled:
    """A turn in this process, and what it has said that is not stored yet."""

    turn: OpenTurn
    text: BaseMessage | str = ""
    status: Status = "interrupted"
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    direct_calls: set[str] = field(default_factory=set)

    def stop_waiting(self) -> None:
        """Somebody else takes care of what was said."""
        if self.timer is not None:
            self.timer.cancel()

    def let_go(self) -> None:
        """What was said before counts no more: the run goes on."""
        self.stop_waiting()
        self.text, self.status = "", "interrupted"


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
        memory.before_closing(_settling(weakref.ref(self)))

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
        turn = OpenTurn(self._memory, session, self._options, question)
        await turn.begin(run_id_of(config), metadata_of(config))
        if turn.answered is not None:
            return {"messages": [turn.answered], "jump_to": "end"}
        self._enter(turn)
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
            await self._end(unsettled, partial.text, "interrupted")
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
        else:
            unsettled.let_go()
        return response

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """When a run is cancelled in a tool, what the assistant had said before it is kept as interrupted."""
        messages = request.state["messages"]
        try:
            result = await handler(request)
        except asyncio.CancelledError:
            said = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
            unsettled = await self._turn_of(messages, get_config())
            await self._end(unsettled, AIMessage(text_of(said), id=said.id) if said else "", "interrupted")
            raise
        if request.tool is not None and request.tool.return_direct:
            (await self._turn_of(messages, get_config())).direct_calls.add(str(request.tool_call["id"]))
        return result

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Store the final answer; not what another middleware says in the place of a model that failed."""
        unsettled = await self._turn_of(state["messages"], get_config())
        if unsettled.status == "failed":
            await self._settle(unsettled)
        else:
            await self._end(unsettled, _final_answer(state, unsettled.direct_calls) or "", "complete")
        return None

    async def _turn_of(self, messages: list[Any], config: RunnableConfig) -> _Unsettled:
        """The turn that a hook belongs to; one that began in another process (or before an interrupt) is taken up."""
        session = session_for(self._memory, self._options, config)
        question = question_before(messages)
        for message in reversed(messages) if question else ():
            # Not simply the newest: a tool may have put a human message (an image, say) after the question.
            if message.type == "human" and (known := self._unsettled.get((session.session_id, message.id))):
                return known
        turn = OpenTurn(self._memory, session, self._options, question)
        await turn.go_on()
        return self._enter(turn)

    def _enter(self, turn: OpenTurn) -> _Unsettled:
        """Remember the turn of a run. A question that is asked again takes the place of its run that failed."""
        key = (turn.session.session_id, turn.question_id)
        unsettled = self._unsettled.pop(key, None) or _Unsettled(turn)
        unsettled.turn = turn
        if unsettled.status == "failed":
            unsettled.let_go()
        self._unsettled[key] = unsettled
        if len(self._unsettled) > _MOST_RUNS:
            del self._unsettled[next(iter(self._unsettled))]
        return unsettled

    async def _answered_already(self, session: Session, messages: list[Any]) -> dict[str, Any] | None:
        """With a checkpointer, a repeated question is merged into its old place: the run ends with its answer."""
        turn = OpenTurn(self._memory, session, self._options, question_before(messages))
        await turn.go_on()
        last = messages[-1] if messages else None
        if isinstance(last, AIMessage) and not last.tool_calls:
            return {"jump_to": "end"} if turn.answered or await turn.is_stored(last) else None
        return {"messages": [turn.answered], "jump_to": "end"} if turn.answered else None

    def _hold(self, unsettled: _Unsettled, said: BaseMessage | str, status: Status) -> None:
        """Remember what was said until the run ends; a run that is never heard of again has it stored by the timer."""
        unsettled.stop_waiting()
        unsettled.text, unsettled.status = said, status
        loop = asyncio.get_running_loop()
        unsettled.timer = loop.call_later(_ABANDONED_SECONDS, lambda: loop.create_task(self._settle(unsettled)))

    async def _settle(self, unsettled: _Unsettled) -> None:
        await self._end(unsettled, unsettled.text, unsettled.status)

    async def _end(self, unsettled: _Unsettled, said: BaseMessage | str, status: Status) -> None:
        """The run is over for this turn."""
        unsettled.stop_waiting()
        key = (unsettled.turn.session.session_id, unsettled.turn.question_id)
        if self._unsettled.get(key) is unsettled:
            del self._unsettled[key]
        await unsettled.turn.close(said, status)

    async def settle_all(self) -> None:
        """Store what was said by runs that did not end; the memory asks for it when it closes."""
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


def _settling(middleware: weakref.ref[SessionMemory]) -> Callable[[], Awaitable[None]]:
    """The last work of a middleware that need not be there any more: some make an agent for each request."""

    async def settle() -> None:
        if (here := middleware()) is not None:
            await here.settle_all()

    return settle


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
