"""Protection of tools that must not run twice: each call is recorded before the tool runs, or rejected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage, messages_from_dict
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command, interrupt

from threadkeep.boundary import without_exit
from threadkeep.errors import RunNotFound, StoreUnavailable
from threadkeep.records import Json
from threadkeep.records.runs import ToolCall
from threadkeep.runs.tracing import jsonable
from threadkeep.store.runs.trace import RunTrace
from threadkeep.workflows.resources import RunContext, is_idempotent

type _Result = ToolMessage | Command[Any]
type _Handler = Callable[[ToolCallRequest], Awaitable[_Result]]

AGAIN: Final = "again"
SKIP: Final = "skip"
_LEASE_SECONDS, _POLL_SECONDS = 30.0, 0.05
"""Seconds to wait for another process to renew its lease (for example after an outage), and between two checks."""
_ASKED: Final[Mapping[str, Json]] = {"asked_a_person": True}
"""The stored result of a part of a tool call that ended with a question to a person."""

_SKIPPED = "This tool call was started before, and its outcome is unknown; a person decided not to run it again."
_UNKNOWN = "This tool call finished before, but its result was not stored."
_NOT_NOW = "This tool cannot be used at the moment: it must not run twice, and its call cannot be recorded."


class _Part(NamedTuple):
    """A part of a tool call. Each question to a person ends a part; `asked` counts the questions before this part."""

    id: str
    call: ToolCall
    asked: int


class RecordedTools(AgentMiddleware[AgentState[Any], Any, Any]):
    """A middleware for tools that must not run twice: it executes each call at most once in a run, across processes.

    If a call was started but its outcome is unknown, a person is asked, and replies `again`, `skip`, or the result.
    Both callbacks get a run's id. `keep` stores the run's checkpoints, so that a process that resumes the run makes the
    same tool call. `holds` returns True if this process surely still owns the run. If `holds` returns False for half a
    minute, `StoreUnavailable` is raised before the tool runs.
    """

    def __init__(
        self, trace: RunTrace, *, keep: Callable[[str], Awaitable[None]], holds: Callable[[str], bool]
    ) -> None:
        super().__init__()
        self._trace = trace
        self._keep = keep
        self._holds = holds

    async def awrap_tool_call(self, request: ToolCallRequest, handler: _Handler) -> _Result:
        """Run the tool, or return its stored result. If an earlier start of the call did not finish, ask a person."""
        handler = without_exit(handler)
        context: object = request.runtime.context
        if not isinstance(context, RunContext) or request.tool is None or is_idempotent(request.tool):
            return await handler(request)
        part = await self._begin(context.run_id, request)
        if part.call.status == "finished":
            return _again(part.call.result, request)
        if part.call.status == "begun_before":
            asked = {"kind": "tool_begun_before", "tool": _name(request), "args": jsonable(request.tool_call["args"])}
            answer = last_answer({**asked, "answers": [AGAIN, SKIP, "what it gave"]}, part.asked + 1)
            if answer != AGAIN:
                given = _message(_SKIPPED if answer == SKIP else answer, request)
                await self._trace.finish_tool(context.run_id, part.id, jsonable(given))
                return given
            await self._trace.finish_tool(context.run_id, part.id, dict(_ASKED))
            part = await self._begin(context.run_id, request)
        return await self._run(context.run_id, part.id, request, handler)

    async def _begin(self, run_id: str, request: ToolCallRequest) -> _Part:
        """Record that a call begins or, after a question to a person, that its next part begins."""
        await self._keep(run_id)
        until = time.monotonic() + _LEASE_SECONDS
        while not self._holds(run_id):
            if time.monotonic() > until:
                raise StoreUnavailable("This process cannot tell whether it still owns the run; the call is retried.")
            await asyncio.sleep(_POLL_SECONDS)
        step = get_config()["metadata"].get("langgraph_checkpoint_ns", "")
        asked = 0
        while True:
            call_id = f"{step}/{request.tool_call['id']}/{asked}"
            call = await self._trace.begin_tool(run_id, call_id, _name(request))
            if call.status == "gone":
                raise RunNotFound(run_id)
            if call.result != _ASKED:
                return _Part(call_id, call, asked)
            asked += 1

    async def _run(self, run_id: str, call_id: str, request: ToolCallRequest, handler: _Handler) -> _Result:
        try:
            result = await handler(request)
        except GraphBubbleUp:
            await self._trace.finish_tool(run_id, call_id, dict(_ASKED))
            raise
        stored = jsonable(result) if isinstance(result, ToolMessage) else None
        await self._trace.finish_tool(run_id, call_id, stored)
        return result


class IdempotentToolsOnly(AgentMiddleware[AgentState[Any], Any, Any]):
    """A middleware that blocks tools that must not run twice, for runs whose tool calls cannot be recorded."""

    async def awrap_tool_call(self, request: ToolCallRequest, handler: _Handler) -> _Result:
        """Run the tool if it is idempotent; return an error message otherwise."""
        if request.tool is None or is_idempotent(request.tool):
            return await handler(request)
        call_id = str(request.tool_call["id"])
        return ToolMessage(_NOT_NOW, name=_name(request), tool_call_id=call_id, status="error")


def last_answer(question: dict[str, Json], number: int) -> Json:
    """Ask a person question number `number` of a step, and return the answer.

    When a step is resumed, LangGraph runs it again from the beginning, and returns the earlier answers in order.
    """
    answer: Json = None
    for _ in range(number):
        answer = interrupt(question)
    return answer


def _name(request: ToolCallRequest) -> str:
    return str(request.tool_call["name"])


def _again(result: Json, request: ToolCallRequest) -> ToolMessage:
    """Return the stored result of an earlier call of the tool, or a message that says that no result was stored."""
    if isinstance(result, Mapping):
        [message] = messages_from_dict([dict(result)])
        if isinstance(message, ToolMessage):
            return message
    return _message(_UNKNOWN, request)


def _message(answer: Json, request: ToolCallRequest) -> ToolMessage:
    return ToolMessage(str(answer), name=_name(request), tool_call_id=str(request.tool_call["id"]))
