"""The workflows of the chaos runs, which take a short time and record their actions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from pydantic import ConfigDict

from bench.chaos_notes import Notes
from threadkeep import not_idempotent
from threadkeep.records.runs import DoubleTexting
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.nodes import AgentNode, RecordAnswerNode, RecordQuestionNode, SubworkflowNode
from threadkeep.workflows.registry import Workflows
from threadkeep.workflows.resources import RunContext, RunOptions
from threadkeep.workflows.state import WorkflowState, last_text

OUTPUT_TOKENS = 7
"""The output tokens that each model call reports, so that a call that is counted twice is noticed."""

_POLICIES: tuple[DoubleTexting, ...] = ("enqueue", "interrupt", "reject", "coalesce")


class NotingModel(BaseChatModel):
    """A recording model that answers `re: QUESTION`; in the workflow `till` it first calls the tool `pay`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    notes: Notes
    seconds: float

    @property
    def _llm_type(self) -> str:
        return "noting"

    def bind_tools(self, tools: object, **_: Any) -> NotingModel:
        """Return the model unchanged, because it already knows the tools."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        question = next(message.text for message in reversed(messages) if isinstance(message, HumanMessage))
        self.notes.add("called", question.replace("\n", "+"))
        await asyncio.sleep(self.seconds)
        answer = _answer(question, messages[-1])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _answer(question: str, newest: BaseMessage) -> AIMessage:
    usage = UsageMetadata(input_tokens=10, output_tokens=OUTPUT_TOKENS, total_tokens=10 + OUTPUT_TOKENS)
    if question.startswith("till") and newest.type == "human":
        # Each tool call has a different id, as with real providers.
        call = {"name": "pay", "args": {"text": question}, "id": f"call{random.randrange(10**9)}"}
        return AIMessage("", tool_calls=[call], usage_metadata=usage)
    return AIMessage(f"re: {question}", usage_metadata=usage)


@dataclass(frozen=True)
class Graphs:
    """The workflows of a process: a step takes up to `seconds`, and a leaf of the deep tree `leaf_seconds`."""

    notes: Notes
    seconds: float = 0.05
    leaf_seconds: float = 60.0

    def workflows(self) -> Workflows:
        """Return the workflows: steps for each double-texting policy, a parent, an agent that pays, and a deep tree."""
        steps = [self._steps(policy) for policy in _POLICIES]
        return Workflows([*steps, self._parent(), self._till(), *self._tree()])

    def model(self) -> NotingModel:
        """Return the model of all workflows."""
        return NotingModel(notes=self.notes, seconds=self.seconds / 4)

    def _steps(self, policy: DoubleTexting) -> Workflow:
        async def work(state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]) -> WorkflowState:
            await self._work(state, runtime, random.random() * self.seconds)
            return {}

        builder = _graph(
            [("question", RecordQuestionNode()), ("first", work), ("second", work), ("answer", AgentNode())]
        )
        return python_workflow(policy, builder, version="1", options=RunOptions(double_texting=policy))

    def _parent(self) -> Workflow:
        async def before(state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]) -> WorkflowState:
            await self._work(state, runtime, random.random() * self.seconds)
            return {}

        nodes = [
            ("question", RecordQuestionNode()),
            ("before", before),
            ("help", SubworkflowNode(workflow="enqueue")),
            ("answer", RecordAnswerNode()),
        ]
        return python_workflow("parent", _graph(nodes), version="1")

    def _till(self) -> Workflow:
        return python_workflow("till", _graph([("till", AgentNode(tools=(self._pay(),)))]), version="1")

    def _pay(self) -> BaseTool:
        @not_idempotent
        @tool
        async def pay(text: str) -> str:
            """Pay for a question."""
            self.notes.add("paid", text)
            await asyncio.sleep(self.seconds)
            return "paid"

        return pay

    def _tree(self) -> list[Workflow]:
        async def leaf(state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]) -> WorkflowState:
            await self._work(state, runtime, self.leaf_seconds)
            return {}

        return [
            python_workflow("top", _graph([("down", SubworkflowNode(workflow="middle"))]), version="1"),
            python_workflow("middle", _graph([("down", SubworkflowNode(workflow="bottom"))]), version="1"),
            python_workflow("bottom", _graph([("down", SubworkflowNode(workflow="leaf"))]), version="1"),
            python_workflow("leaf", _graph([("leaf", leaf)]), version="1"),
        ]

    async def _work(self, state: WorkflowState, runtime: Runtime[RunContext], seconds: float) -> None:
        text = last_text(state).replace("\n", "+")
        with self.notes.during(text, runtime.context.run_id):
            await asyncio.sleep(seconds)


def _graph(nodes: Sequence[tuple[str, Any]]) -> StateGraph[WorkflowState, RunContext, Any, Any]:
    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    builder.add_sequence(nodes)
    builder.add_edge(START, nodes[0][0])
    return builder
