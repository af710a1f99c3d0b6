"""The workflow that is always there: `chat`, an agent in the memory of the session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from langchain_core.messages import SystemMessage
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, StateGraph

from threadkeep.graphs.building import add_node
from threadkeep.graphs.definition import Graph, Workflow, digest_of
from threadkeep.graphs.nodes import AgentNode
from threadkeep.graphs.options import RunOptions
from threadkeep.graphs.resources import RunContext
from threadkeep.graphs.state import WorkflowState
from threadkeep.workflow.chat_options import ChatOptions

CHAT = "chat"


class ChatNode(AgentNode):
    """An agent whose prompt is a setting: text as it stands, with no places in it."""

    def templates(self) -> Iterable[tuple[str, str]]:
        """None."""
        return ()

    def system_message(self, state: WorkflowState) -> SystemMessage | None:
        """The prompt, word for word."""
        return SystemMessage(self.system_prompt) if self.system_prompt.strip() else None


def chat_workflow(options: ChatOptions | None = None, tools: Sequence[BaseTool] = ()) -> Workflow:
    """The built-in chat as a workflow.

    Args:
        options: the limits and the prompt. The rest (what is found anew for each question, the window, the
            compression) comes from the resources of its runs.
        tools: what the agent may use.
    """
    options = options or ChatOptions()
    node = ChatNode(
        system_prompt=options.system_prompt,
        max_messages=options.max_messages,
        max_tokens=options.max_tokens,
        max_output_tokens=options.max_output_tokens,
        timeout_seconds=options.model_timeout_seconds,
        tools=tuple(tools),
        snippets=False,
    )
    builder: Graph = StateGraph(WorkflowState, context_schema=RunContext)
    add_node(builder, "answer", node)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return Workflow(
        CHAT,
        builder,
        version=digest_of(node.model_dump(mode="json", exclude={"tools"})),
        source="built-in",
        description="Answers in the memory of the session.",
        # Somebody waits: who is told of a failure at once can send the message again.
        options=RunOptions(max_tries=1),
    )
