"""`subworkflow`: another workflow, which gets only the given input from its parent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar, Literal

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from pydantic import Field

from threadkeep.errors import ChildFailed
from threadkeep.records import Json
from threadkeep.workflows.nodes.base import Node, NodeKind, Step, found
from threadkeep.workflows.resources import MAX_DEPTH, ChildRequest, ChildResult, RunContext
from threadkeep.workflows.state import WorkflowState, last_text


class SubworkflowNode(Node):
    """A node that runs another workflow to its end. Messages are not shared in either direction.

    The child gets `{text, parent_execution_id, user_context}`; the parent gets its output in `node_outputs`, and one
    assistant message with its summary.
    """

    node_kind: ClassVar[NodeKind] = "subworkflow"
    speaks: ClassVar[bool] = True

    workflow: str = Field(min_length=1, max_length=128, description="The name of the workflow to run.")
    input_source: str = Field(
        "last_message",
        description="The text for the child: last_message, node_output (of source_node_id), or anything else for none.",
    )
    source_node_id: str | None = Field(None, description="The node whose output is the text, with node_output.")
    session: bool = Field(False, description="True to run the child in a session of its own.")
    deadline_seconds: float | None = Field(None, gt=0, description="The time limit of the child in seconds.")
    max_depth: int = Field(
        MAX_DEPTH, ge=0, le=20, description="The maximum depth of nested workflows, counted from this one's children."
    )
    on_failure: Literal["raise", "continue"] = Field(
        "raise", description="What to do if a child has no result: end the run, or put its status in the result."
    )

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> WorkflowState:
        """Run the child.

        Raises:
            ChildFailed: the child gave no result, or must not be started.
        """
        step = Step.of(config, runtime)
        try:
            result = await self._run(step, state)
        except ChildFailed as error:
            if self.on_failure == "raise" or error.status == "refused":
                raise
            known: dict[str, Json] = {"status": error.status, "run_id": error.run_id, "output": None, "summary": ""}
            return found(step, None, known)
        known = {
            "status": result.status,
            "run_id": result.run_id,
            "output": result.output,
            "summary": result.summary,
        }
        update = found(step, result.output, known)
        update["messages"] = [AIMessage(result.summary, id=step.message_id)]
        return update

    async def _run(self, step: Step, state: WorkflowState) -> ChildResult:
        context = step.context
        children = context.resources.children
        self._refuse(context)
        if children is None:
            raise ChildFailed(
                f"Node {step.name!r} cannot start {self.workflow!r}: this run has nobody to run children. "
                "Give its Resources `children`.",
                workflow=self.workflow,
                status="refused",
            )
        result = await children.run(
            ChildRequest(
                workflow=self.workflow,
                input=self.child_input(state, context),
                parent_run_id=context.run_id,
                node_id=step.name,
                depth=context.depth + 1,
                deadline_seconds=self.deadline_seconds,
                with_session=self.session,
                ancestors=(*context.ancestors, context.workflow),
            )
        )
        if result.status != "done":
            raise ChildFailed(
                f"The workflow {self.workflow!r} that node {step.name!r} started ended as {result.status}; "
                "its own run says why.",
                workflow=self.workflow,
                status=result.status,
                run_id=result.run_id,
            )
        return result

    def child_input(self, state: WorkflowState, context: RunContext) -> dict[str, Json]:
        """Return the whole input of the child."""
        known = state.get("user_context")
        return {
            "text": self._text(state),
            "parent_execution_id": context.run_id,
            "user_context": dict(known if known is not None else context.user_context),
        }

    def _text(self, state: WorkflowState) -> str:
        if self.input_source == "last_message":
            return last_text(state)
        if self.input_source == "node_output" and self.source_node_id is not None:
            return _text_of((state.get("node_outputs") or {}).get(self.source_node_id))
        return ""

    def _refuse(self, context: RunContext) -> None:
        above = (*context.ancestors, context.workflow)
        if self.workflow in above:
            way = " → ".join([*above[above.index(self.workflow) :], self.workflow])
            raise ChildFailed(
                f"{self.workflow!r} would call itself in a circle ({way}); take one of these calls away.",
                workflow=self.workflow,
                status="refused",
            )
        if context.depth + 1 > self.max_depth:
            raise ChildFailed(
                f"{self.workflow!r} would run {context.depth + 1} levels below the first workflow, and "
                f"{self.max_depth} are allowed: nest less deeply, or raise max_depth.",
                workflow=self.workflow,
                status="refused",
            )


def _text_of(output: Json) -> str:
    if output is None:
        return ""
    if isinstance(output, str):
        return output
    # If the output has a single text, use the text without its wrapper.
    if isinstance(output, Mapping) and set(output) == {"text"} and isinstance(output["text"], str):
        return output["text"]
    return json.dumps(output, ensure_ascii=False)
