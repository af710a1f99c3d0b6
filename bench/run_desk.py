"""Runs as in a service, on a database of the bench: the built-in chat and others, with models that answer at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from pydantic import PrivateAttr

from bench.chat_texts import chats
from bench.contenders import TurnTexts
from threadkeep import Memory, not_idempotent, open_memory
from threadkeep.agent.demo import OfflineModel
from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService, open_runs
from threadkeep.store.address import parse_address
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.driver import StoreOptions
from threadkeep.workflows.built_in import CHAT
from threadkeep.workflows.definition import CompiledWorkflow, Compiler, Workflow, python_workflow
from threadkeep.workflows.loading import read_workflow
from threadkeep.workflows.nodes import AgentNode
from threadkeep.workflows.registry import Workflows
from threadkeep.workflows.resources import Resources, RunContext
from threadkeep.workflows.state import WorkflowState, initial_state

STEPS = "steps"
_STEPS = """\
schema: 1
name: steps
nodes:
  greeting: {kind: template, text: Hello, next: answer}
  answer: {kind: agent, tools: ["bench.context_reuse:look_up"], next: end}
"""
TILL = "till"
_TILL = """\
schema: 1
name: till
nodes:
  greeting: {kind: template, text: Hello, next: answer}
  answer: {kind: agent, model: paying, tools: ["bench.run_desk:pay"], next: end}
"""

OWN_STEPS = "own_steps"


@not_idempotent
@tool
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def own_steps() -> Workflow:
    """Return a workflow of two custom steps and an agent."""

    async def step(state: WorkflowState) -> WorkflowState:
        return {}

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    answer: Any = AgentNode()
    builder.add_sequence([("first", step), ("second", step), ("answer", answer)])
    builder.add_edge(START, "first")
    return python_workflow(OWN_STEPS, builder)


class AnsweringModel(OfflineModel):
    """A chat model that answers at once, with a different answer each time."""

    _answers: Iterator[TurnTexts] = PrivateAttr(default_factory=chats)

    @property
    def _llm_type(self) -> str:
        return "threadkeep-answering"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(next(self._answers).assistant))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._generate(messages)


class PayingModel(AnsweringModel):
    """An answering model that first calls a tool that may not be run twice."""

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if messages[-1].type != "human":
            return super()._generate(messages)
        call = ToolCall(name=pay.name, args={"amount": 7}, id=str(uuid4()))
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])


@dataclass
class RunDesk:
    """A memory, the runs of its database, and the graphs of the same workflows for calls without runs."""

    memory: Memory
    service: RunService
    saver: BaseCheckpointSaver[str]
    graphs: Mapping[str, CompiledWorkflow]
    resources: Resources

    async def wait_for(self, session_id: str, text: str, message_id: str, workflow: str = CHAT) -> str:
        """Execute a turn as a run, wait for it, and return its answer."""
        request = RunRequest(workflow=workflow, text=text, session_id=session_id, message_id=message_id)
        submitted = await self.service.submit(request)
        result = await self.service.result(submitted.run_id)
        return result.text

    async def call_plainly(self, session_id: str, text: str, message_id: str, workflow: str = CHAT) -> str:
        """Execute the same turn as a plain call of the same graph, with the same checkpointer and memory."""
        config: RunnableConfig = {"configurable": {"thread_id": message_id, "session_id": session_id}}
        context = RunContext(message_id, workflow, self.resources, session_id=session_id, message_id=message_id)
        given = initial_state(text, message_id=message_id)
        state = await self.graphs[workflow].ainvoke(given, config, context=context)
        return str(state["messages"][-1].text)


@asynccontextmanager
async def open_desk(
    url: str, *, engine: EngineOptions | None = None, options: RunServiceOptions | None = None
) -> AsyncIterator[RunDesk]:
    """Open a desk on a database, with the defaults of a service."""
    address, kept = parse_address(url), StoreOptions()
    async with AsyncExitStack() as stack:
        memory = await stack.enter_async_context(open_memory(url))
        saver = await stack.enter_async_context(open_checkpointer(address, kept))
        models = {None: AnsweringModel(), "paying": PayingModel()}
        resources = Resources(memory=memory, model=models.__getitem__, observer=memory.observers)
        workflows = Workflows([read_workflow(_STEPS), read_workflow(_TILL), own_steps()])
        options = replace(options or RunServiceOptions(), engine=engine or EngineOptions())
        opening = open_runs(memory, address, workflows, resources, checkpointer=saver, store=None, options=options)
        service = await stack.enter_async_context(opening)
        compiler = Compiler(checkpointer=saver, store=None)
        graphs = {name: compiler.compiled(workflows.get(name)) for name in (CHAT, STEPS, TILL, OWN_STEPS)}
        yield RunDesk(memory, service, saver, graphs, resources)
