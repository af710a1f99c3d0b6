"""`agent`: a model with tools, asked until it needs no more of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, messages_to_dict
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime
from pydantic import Field, InstanceOf, PrivateAttr
from pydantic.json_schema import SkipJsonSchema

from threadkeep.errors import InvalidInput
from threadkeep.graphs.nodes.base import Again, NodeKind, Step
from threadkeep.graphs.nodes.history_fields import HistoryFields, is_reset
from threadkeep.graphs.nodes.passages import FoundPassages, passages_in
from threadkeep.graphs.nodes.places import (
    Place,
    PlaceKind,
    StepContext,
    place_in_store,
    place_of_run,
    place_of_session,
    step_context,
)
from threadkeep.graphs.nodes.references import Reference, import_named
from threadkeep.graphs.nodes.speaking import SpeakingNode, said
from threadkeep.graphs.resources import RunContext
from threadkeep.graphs.state import WorkflowState
from threadkeep.graphs.tool_marks import is_idempotent
from threadkeep.workflow.conversion import text_of
from threadkeep.workflow.lookup_tools import history_tools
from threadkeep.workflow.middleware import SessionMemory
from threadkeep.workflow.model_deadline import ModelDeadline
from threadkeep.workflow.turn_options import CallPlace, NodeTurnOptions, TurnOptions

type Tool = BaseTool | Callable[..., Any]
type ToolReference = Reference | SkipJsonSchema[InstanceOf[BaseTool]]

RESET_ANSWER = "The conversation begins anew."
"""What is answered to a reset command; like the command it is not stored."""

_MOST_AGENTS = 8
_STEPS_A_CALL = 4


class AgentNode(SpeakingNode, HistoryFields):
    """An agent with tools, in the memory of the run's session.

    Only its final message enters the shared state. The whole loop is in the agent's own state, and goes to the stream
    `custom` as `agent_messages`, for whoever keeps the run's trace. With `use_graph_chat_history` the earlier turns are
    those of a conversation in the graph's store, under a key that each run resolves anew; without a key the agent works
    in memory only. A run without a session works in memory only, too.
    """

    node_kind: ClassVar[NodeKind] = "agent"

    tools: tuple[ToolReference, ...] = Field(
        (), max_length=64, description="Import strings of tools, of functions, or of lists of them."
    )
    history_tools: bool = Field(
        False, description="Whether it may look up what is not in its context: older messages, results that were cut."
    )
    max_steps: int = Field(25, ge=1, le=500, description="Model calls of one turn at most.")

    _agents: dict[object, tuple[object, Any]] = PrivateAttr(default_factory=dict)

    @property
    def again(self) -> Again:
        """Its model's calls, with tools that may not run twice, too; unknown with those that cannot be looked at."""
        if not self.tools:
            return "model calls" if self.history_tools else "a model call"
        try:
            harmless = all(map(is_idempotent, self.tool_objects()))
        except InvalidInput:
            return "unknown"
        return "model calls" if harmless else "marked tools"

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> WorkflowState:
        """Answer the run's question."""
        step = Step.of(config, runtime)
        messages = self.asked(state, step)
        place = await self.place(step, state, config)
        question = [message for message in messages if message.type == "human"]
        if is_reset(self.reset_command, [text_of(message) for message in question[-1:]]):
            await place.memory.session(place.session_id, user_id=place.user_id).reset()
            return said(step, AIMessage(RESET_ANSWER, id=step.message_id))
        system = self.system_message(state)
        given = [*([system] if system else []), *messages]
        context = _of_step(step.context, place, passages_in(state) if self.snippets else ())
        limit: RunnableConfig = {"recursion_limit": self.max_steps * _STEPS_A_CALL + 2}
        result = await self._agent(step, place).ainvoke({"messages": given}, limit, context=context)
        loop = result["messages"][len(given) :]
        runtime.stream_writer(
            {"kind": "agent_messages", "node": step.name, "data": {"messages": messages_to_dict(loop)}}
        )
        # An answer that was stored before takes its old place among what was said, and nothing is new.
        return said(step, _final(loop or result["messages"]))

    def tool_objects(self) -> list[Tool]:
        """The tools.

        Raises:
            InvalidInput: one of them cannot be imported, or is no tool.
        """
        return [tool for reference in self.tools for tool in _tools_of(reference)]

    async def place(self, step: Step, state: WorkflowState, config: RunnableConfig) -> Place:
        """Where this turn belongs, resolved for this run alone."""
        if self.input is not None:
            return place_of_run(step)
        if not self.use_graph_chat_history:
            return place_of_session(step)
        resolution = self.resolve_in(state, step.context, config)
        if resolution.key is None:
            return place_of_run(step)
        return await place_in_store(step, self.layout, resolution.key)

    def _agent(self, step: Step, place: Place) -> Any:
        """The compiled agent for a memory and a model: made once, since it holds nothing of a run."""
        resources = step.context.resources
        model = self.chat_model(step)
        # The node too: copies of a node share what is private to it.
        parts = (self, place.memory, model, resources.turn_options, *resources.middleware)
        # By their ids, which are theirs as long as the parts are kept beside the agent.
        key = (place.kind, *map(id, parts))
        if key not in self._agents:
            if len(self._agents) >= _MOST_AGENTS:
                del self._agents[next(iter(self._agents))]
            options = self._options_for(place.kind, self.turn_options(step))
            self._agents[key] = (parts, self._make(model, place, options, resources.middleware))
        return self._agents[key][1]

    def _make(
        self,
        model: BaseChatModel,
        place: Place,
        options: TurnOptions,
        middleware: Sequence[AgentMiddleware[Any, Any, Any]],
    ) -> Any:
        memory = SessionMemory.of(place.memory, options)
        lookups = history_tools(place.memory, session_id=_session_of, user_id=_user_of) if self.history_tools else []
        return create_agent(
            model,
            [*self.tool_objects(), *lookups],
            middleware=[memory, *middleware, ModelDeadline(self.timeout_seconds)],
            context_schema=RunContext,
        )

    def _options_for(self, kind: PlaceKind, options: TurnOptions) -> TurnOptions:
        found_before = (FoundPassages(),) if self.snippets else ()
        sources = (*(options.sources if kind == "session" else ()), *found_before)
        placed = NodeTurnOptions.of(options, _call_of)
        named = replace(placed, sources=sources, session_id=_session_of, user_id=_user_of)
        if kind == "session":
            return named
        # Anchors and summaries are kept in tables, which know nothing of other places.
        return replace(named, plan=replace(options.plan, window="sliding"), compression=None)


def check_tools(reference: str | BaseTool) -> None:
    """Let what names tools pass if they are there.

    Raises:
        InvalidInput: it cannot be imported, or is no tool.
    """
    for _ in _tools_of(reference):
        pass


def _of_step(context: RunContext, place: Place, passages: tuple[tuple[str | None, str], ...]) -> StepContext:
    run = {one.name: getattr(context, one.name) for one in fields(RunContext)}
    return StepContext(**run, place=place, passages=passages)


def _session_of(_: RunnableConfig) -> str | None:
    context = step_context()
    return context.place.session_id if context is not None else None


def _user_of(_: RunnableConfig) -> str | None:
    context = step_context()
    return context.place.user_id if context is not None else None


def _call_of(_: RunnableConfig) -> CallPlace | None:
    context = step_context()
    return context.place.call if context is not None else None


def _tools_of(reference: str | BaseTool) -> Iterator[Tool]:
    found = import_named(reference) if isinstance(reference, str) else reference
    for tool in found if isinstance(found, list | tuple) else (found,):
        if not isinstance(tool, BaseTool) and not (callable(tool) and getattr(tool, "__doc__", None)):
            raise InvalidInput(
                f"{reference!r} is no tool: name a LangChain tool, a function with a docstring, or a list of them."
            )
        yield tool


def _final(loop: Sequence[BaseMessage]) -> AIMessage:
    """The last message of an agent as an answer: without tool calls, or what a tool answered directly."""
    last = next((message for message in reversed(loop) if isinstance(message, AIMessage | ToolMessage)), None)
    if last is None:
        return AIMessage("")
    if isinstance(last, AIMessage) and not last.tool_calls:
        return last
    return AIMessage(text_of(last), id=last.id)
