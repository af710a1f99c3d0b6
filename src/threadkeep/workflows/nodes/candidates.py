"""`ingest_prompt` and `build_candidate`: the first and last step of a graph that proposes answers to events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import Field

from threadkeep.agent.candidates import SOURCE, CandidateNodes, CandidateState
from threadkeep.agent.conversion import text_of
from threadkeep.agent.reducers import bounded_messages
from threadkeep.records import Json
from threadkeep.workflows.nodes.base import END_NAME, Node, NodeKind, Step, found, sent_to
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState, answer_of


class IngestPromptNode(Node):
    """A node that creates the run's question from an event: its text, then its prompt annotations.

    An event without a question is skipped. The event is `inputs.event`, or the inputs themselves.
    """

    node_kind: ClassVar[NodeKind] = "ingest_prompt"

    max_messages: int = Field(8, description="The maximum number of messages in the run's memory; less than 1 means 1.")
    max_chars: int = Field(8000, ge=0, description="The maximum of characters of these messages; 0 means no limit.")
    next: str = Field(description="The node that answers.")
    skip: str = Field(END_NAME, description="The next node for an event without a question.")

    def targets(self) -> Mapping[str, str]:
        """Return the next node, and the node for events without a question."""
        return {self.next: "prompt", self.skip: "SKIP"} if self.next != self.skip else {self.next: ""}

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> Command[str]:
        """Store the prompt in the state."""
        step = Step.of(config, runtime)
        nodes = _nodes(step, self.max_messages, self.max_chars)
        update = await nodes.ingest_prompt(_candidate_state(state), config)
        if update.get("outcome") == "SKIP":
            return sent_to(self.skip, found(step, None, {"outcome": "SKIP", "combinedPrompt": None}))
        prompt = update.get("combinedPrompt")
        update_of_prompt = found(step, prompt, {"outcome": None, "combinedPrompt": prompt})
        messages = cast("list[AnyMessage]", update.get("messages") or [])
        return sent_to(self.next, {**update_of_prompt, "messages": messages, "text": prompt or ""})


class BuildCandidateNode(Node):
    """A node that proposes the model's answer, unless it is empty, as a candidate of kind `text`, status `proposed`.

    Its result has `outcome` (OK or ERROR), `candidate`, `errors`, `llmText` and `combinedPrompt`.
    """

    node_kind: ClassVar[NodeKind] = "build_candidate"

    async def __call__(
        self, state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]
    ) -> WorkflowState:
        """Build the candidate."""
        step = Step.of(config, runtime)
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
        update = await _nodes(step, 0, 0).build_candidate(given)
        candidate = update.get("candidate")
        proposed: Json = {name: str(value) for name, value in candidate.items()} if candidate is not None else None
        known = {"outcome": "OK", "candidate": proposed, "errors": [], "llmText": text, "combinedPrompt": prompt}
        return found(step, proposed, known)


def _candidate_state(state: WorkflowState) -> CandidateState:
    inputs = state.get("inputs") or {}
    event = inputs.get("event", inputs)
    return {"event": event if isinstance(event, dict) else {}, "messages": list(state.get("messages") or ())}


def _result(state: WorkflowState, name: str) -> Json:
    """Return the value with this name from the result of any node of the run."""
    for result in (state.get("results") or {}).values():
        if isinstance(result, Mapping) and result.get(name) is not None:
            return result[name]
    return None


def _nodes(step: Step, max_messages: int, max_chars: int) -> CandidateNodes:
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
