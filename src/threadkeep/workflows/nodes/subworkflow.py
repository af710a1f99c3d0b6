"""`subworkflow`: another workflow, which runs as a child and gets only the given input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar, Literal, cast

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.types import Command
from pydantic import Field

from threadkeep.agent.candidates import SOURCE, CandidateNodes, CandidateState
from threadkeep.agent.conversion import text_of
from threadkeep.agent.reducers import bounded_messages
from threadkeep.errors import ChildFailed
from threadkeep.records import Json
from threadkeep.workflows.nodes.base import END_NAME, Node, NodeKind, Step, found, sent_to
from threadkeep.workflows.resources import MAX_DEADLINE, MAX_DEPTH, ChildRequest, ChildResult, RunContext
from threadkeep.workflows.state import WorkflowState, answer_of, last_text


class SubworkflowNode(Node):
    """A node that runs another workflow to its end. Parent and child do not share messages.

    The child's input is `{text, parent_execution_id, user_context}`. The parent gets the child's output in
    `node_outputs`, and the child's summary as an assistant message.
    """

    node_kind: ClassVar[NodeKind] = "subworkflow"
    speaks: ClassVar[bool] = True

    workflow: str = Field(min_length=1, max_length=128, description="The name of the workflow to run.")
    input_source: str = Field(
        "last_message",
        description="The text for the child: last_message, node_output (of source_node_id), or another value for none.",
    )
    source_node_id: str | None = Field(None, description="The node whose output is the text, with node_output.")
    session: bool = Field(False, description="True to run the child in a new session.")
    deadline_seconds: float | None = Field(
        None, gt=0, le=MAX_DEADLINE, description="The child's time limit in seconds."
    )
    max_depth: int = Field(
        MAX_DEPTH,
        ge=0,
        le=20,
        description="The maximum depth of nested workflows, counted from this workflow's children.",
    )
    on_failure: Literal["raise", "continue"] = Field(
        "raise", description="What to do if a child has no result: end the run, or put its status in the result."
    )

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Run the child.

        Raises:
            ChildFailed: the child has no result and `on_failure` is `raise`, or it must not start, as in a cycle.
        """
        try:
            result = await self._run(step, state)
        except ChildFailed as error:
            if self.on_failure == "raise" or error.status == "refused":
                raise
            known: dict[str, Json] = {"status": error.status, "run_id": error.run_id, "output": None, "summary": ""}
            return found(step, None, known)
        update = found(step, result.output, dict(vars(result)))
        update["messages"] = [AIMessage(result.summary, id=step.message_id)]
        return update

    async def _run(self, step: Step, state: WorkflowState) -> ChildResult:
        context = step.context
        children = context.resources.children
        self._refuse(context)
        if children is None:
            raise self._refusal(
                f"Node {step.name!r} cannot start {self.workflow!r}: this run has no runner of children. "
                "Give its Resources `children`."
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
                f"The workflow {self.workflow!r} that node {step.name!r} started ended with status {result.status}; "
                "its own run says why.",
                workflow=self.workflow,
                status=result.status,
                run_id=result.run_id,
            )
        return result

    def child_input(self, state: WorkflowState, context: RunContext) -> dict[str, Json]:
        """Return the input of the child, which is all that it gets from its parent."""
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

    def _refusal(self, sentence: str) -> ChildFailed:
        return ChildFailed(sentence, workflow=self.workflow, status="refused")

    def _refuse(self, context: RunContext) -> None:
        above = (*context.ancestors, context.workflow)
        if self.workflow in above:
            way = " → ".join([*above[above.index(self.workflow) :], self.workflow])
            raise self._refusal(f"{self.workflow!r} would call itself in a cycle ({way}); remove one of these calls.")
        if context.depth + 1 > self.max_depth:
            raise self._refusal(
                f"{self.workflow!r} would run {context.depth + 1} levels below the first workflow, but only "
                f"{self.max_depth} are allowed: nest less deeply, or raise max_depth."
            )


def _text_of(output: Json) -> str:
    if output is None:
        return ""
    if isinstance(output, str):
        return output
    # If the output has only the field `text`, pass on this text instead of JSON.
    if isinstance(output, Mapping) and set(output) == {"text"} and isinstance(output["text"], str):
        return output["text"]
    return json.dumps(output, ensure_ascii=False)


class IngestPromptNode(Node):
    """A node that creates the run's question from an event's text and its annotations of the kind `prompt`.

    If the event has neither, the run continues with the node `skip`. The event is `inputs["event"]` or, if there is no
    such input, all inputs.
    """

    node_kind: ClassVar[NodeKind] = "ingest_prompt"

    max_messages: int = Field(8, description="The maximum number of messages in the run's memory; less than 1 means 1.")
    max_chars: int = Field(8000, ge=0, description="The most characters in these messages; 0 means no limit.")
    next: str = Field(description="The next node for an event with text or annotations.")
    skip: str = Field(END_NAME, description="The next node for an event with neither text nor annotations.")

    def targets(self) -> Mapping[str, str]:
        """Return the next node, and the node for events without a prompt."""
        return {self.next: "prompt", self.skip: "SKIP"} if self.next != self.skip else {self.next: ""}

    async def run(self, step: Step, state: WorkflowState) -> Command[str]:
        """Put the event's prompt into the state as the question, or continue with the node `skip`."""
        nodes = _candidate_nodes(step, self.max_messages, self.max_chars)
        update = await nodes.ingest_prompt(_candidate_state(state), step.config)
        if update.get("outcome") == "SKIP":
            return sent_to(self.skip, found(step, None, {"outcome": "SKIP", "combinedPrompt": None}))
        prompt = update.get("combinedPrompt")
        update_of_prompt = found(step, prompt, {"outcome": None, "combinedPrompt": prompt})
        messages = cast("list[AnyMessage]", update.get("messages") or [])
        return sent_to(self.next, {**update_of_prompt, "messages": messages, "text": prompt or ""})


class BuildCandidateNode(Node):
    """A node that returns the model's answer, unless it is empty, as a candidate (kind `text`, status `proposed`).

    The node's result has `outcome` (OK or ERROR), `candidate`, `errors`, `llmText` and `combinedPrompt`.
    """

    node_kind: ClassVar[NodeKind] = "build_candidate"

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Return the model's answer as a candidate. If the model did not answer, return the error of its node."""
        prompt, error = _result(state, "combinedPrompt"), _result(state, "error")
        if error is not None:
            sentence = f"The model did not answer ({error}). Send the event again, or check the model."
            made = step.context.resources.memory.clock().isoformat()
            errors: list[Json] = [{"source": SOURCE, "error": error, "message": sentence, "created_at": made}]
            known: dict[str, Json] = {"outcome": "ERROR", "candidate": None, "errors": errors, "llmText": None}
            return found(step, None, {**known, "combinedPrompt": prompt})
        answer = answer_of(state)
        text = text_of(answer) if answer is not None else ""
        given: CandidateState = {**_candidate_state(state), "llmText": text}
        update = await _candidate_nodes(step, 0, 0).build_candidate(given)
        candidate = update.get("candidate")
        proposed: Json = {name: str(value) for name, value in candidate.items()} if candidate is not None else None
        known = {"outcome": "OK", "candidate": proposed, "errors": [], "llmText": text, "combinedPrompt": prompt}
        return found(step, proposed, known)


def _candidate_state(state: WorkflowState) -> CandidateState:
    inputs = state.get("inputs") or {}
    event = inputs.get("event", inputs)
    return {"event": event if isinstance(event, dict) else {}, "messages": list(state.get("messages") or ())}


def _result(state: WorkflowState, name: str) -> Json:
    """Return the first value with this name in the results of the run's nodes."""
    for result in (state.get("results") or {}).values():
        if isinstance(result, Mapping) and result.get(name) is not None:
            return result[name]
    return None


def _candidate_nodes(step: Step, max_messages: int, max_chars: int) -> CandidateNodes:
    resources = step.context.resources
    return CandidateNodes(
        model=resources.model(None),
        system_prompt="",
        flat=False,
        timeout_seconds=None,
        reducer=bounded_messages(max_messages, max_chars),
        observer=resources.observer,
        clock=resources.memory.clock,
    )
