"""Runs as a service has them, on a database of the bench's own: the built-in chat with a model that answers at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from pydantic import PrivateAttr

from bench.chat_texts import chats
from bench.contenders import TurnTexts
from threadkeep import Memory, open_memory
from threadkeep.graphs.built_in import CHAT
from threadkeep.graphs.compiling import CompiledWorkflow, Compiler
from threadkeep.graphs.registry import Workflows
from threadkeep.graphs.resources import Resources, RunContext
from threadkeep.graphs.state import initial_state
from threadkeep.runs.engine import EngineOptions
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService, open_runs
from threadkeep.runs.service_options import RunServiceOptions
from threadkeep.store.address import parse_address
from threadkeep.store.driver import StoreOptions
from threadkeep.store.graphs import open_checkpointer
from threadkeep.workflow.offline_model import OfflineModel


class AnsweringModel(OfflineModel):
    """A chat model that answers at once, each time something else."""

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


@dataclass
class RunDesk:
    """A memory, the runs of its database, and the same graph to be called without them."""

    memory: Memory
    service: RunService
    saver: BaseCheckpointSaver[str]
    graph: CompiledWorkflow
    resources: Resources

    async def wait_for(self, session_id: str, text: str, message_id: str) -> str:
        """A turn as a run, waited for: what it says."""
        request = RunRequest(workflow=CHAT, text=text, session_id=session_id, message_id=message_id)
        submitted = await self.service.submit(request)
        result = await self.service.result(submitted.run_id)
        return result.text

    async def call_plainly(self, session_id: str, text: str, message_id: str) -> str:
        """The same turn as a plain call of the same graph, with the same checkpointer and memory."""
        config: RunnableConfig = {"configurable": {"thread_id": message_id, "session_id": session_id}}
        context = RunContext(message_id, CHAT, self.resources, session_id=session_id, message_id=message_id)
        state = await self.graph.ainvoke(initial_state(text, message_id=message_id), config, context=context)
        return str(state["messages"][-1].text)


@asynccontextmanager
async def open_desk(
    url: str, *, engine: EngineOptions | None = None, options: RunServiceOptions | None = None
) -> AsyncIterator[RunDesk]:
    """A desk over a database, with the defaults of a service."""
    address, kept = parse_address(url), StoreOptions()
    async with AsyncExitStack() as stack:
        memory = await stack.enter_async_context(open_memory(url))
        saver = await stack.enter_async_context(open_checkpointer(address, kept))
        model = AnsweringModel()
        resources = Resources(memory=memory, model=lambda _: model, observer=memory.observers)
        workflows = Workflows()
        options = replace(options or RunServiceOptions(), engine=engine or EngineOptions())
        opening = open_runs(memory, address, workflows, resources, checkpointer=saver, store=None, options=options)
        service = await stack.enter_async_context(opening)
        graph = Compiler(checkpointer=saver, store=None).compiled(workflows.get(CHAT))
        yield RunDesk(memory, service, saver, graph, resources)
