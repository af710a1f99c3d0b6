"""`template`: a text rendered from values of the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from pydantic import Field

from threadkeep.workflows.nodes.base import Again, Node, NodeKind, Step, found, rendered
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState


class TemplateNode(Node):
    """Renders a text from a template: for later nodes, or as a message of the run."""

    node_kind: ClassVar[NodeKind] = "template"

    text: str = Field(min_length=1, description="The text; a template.")
    as_message: bool = Field(False, description="Whether the run says it: an assistant message.")

    @property
    def again(self) -> Again:
        """Return nothing."""
        return "nothing"

    def templates(self) -> Iterable[tuple[str, str]]:
        """Return the text."""
        yield "text", self.text

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> WorkflowState:
        """Render the text."""
        step = Step.of(config, runtime)
        text = rendered(self.text, state)
        update = found(step, text, {"text": text})
        if self.as_message and text.strip():
            update["messages"] = [AIMessage(text, id=step.message_id)]
        return update
