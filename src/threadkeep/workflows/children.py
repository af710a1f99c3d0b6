"""Child workflows in the process of their parent, and the results of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import Context
from dataclasses import replace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.utils.uuid import uuid7

from threadkeep.agent.conversion import text_of
from threadkeep.records import Json
from threadkeep.workflows.compiling import Compiler
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.registry import Workflows
from threadkeep.workflows.resources import ChildRequest, ChildResult, ChildStatus, Resources, RunContext
from threadkeep.workflows.state import answer_of, initial_state

_INTERRUPT = "__interrupt__"


class InProcessChildren:
    """A runner that executes children at once in the current process, without an engine: for the library and for tests.

    Only its request is passed to a child: no state, callbacks, streams or checkpoints of the parent. A child ends
    with its parent's process, and cannot wait for a person.
    """

    def __init__(self, workflows: Workflows, compiler: Compiler, resources: Resources) -> None:
        self._workflows = workflows
        self._compiler = compiler.without_checkpoints()
        self._resources = replace(resources, children=self)

    @property
    def resources(self) -> Resources:
        """The resources of parents whose children run here."""
        return self._resources

    async def run(self, request: ChildRequest, /) -> ChildResult:
        """Run a child to its end; a child that would wait for a person fails. Raises `WorkflowNotFound`."""
        workflow = self._workflows.get(request.workflow)
        run_id = str(uuid7())
        # A separate context: LangGraph passes the parent's callbacks and streams in context variables.
        work = asyncio.create_task(self._carry_out(workflow, run_id, request), context=Context())
        try:
            async with asyncio.timeout(request.deadline_seconds):
                return await work
        except TimeoutError:
            return ChildResult(run_id, None, "", "deadline" if work.cancelled() else "failed")
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait([work])
            raise
        except Exception:  # noqa: BLE001 - whatever a child raises, its parent is told by the status
            return ChildResult(run_id, None, "", "failed")

    async def _carry_out(self, workflow: Workflow, run_id: str, request: ChildRequest) -> ChildResult:
        context = RunContext(
            run_id=run_id,
            workflow=workflow.name,
            resources=self._resources,
            session_id=f"child:{run_id}" if request.with_session else None,
            trigger="child",
            depth=request.depth,
            user_context=_user_context(request.input),
            ancestors=request.ancestors,
        )
        config: RunnableConfig = {"recursion_limit": workflow.options.recursion_limit}
        graph = self._compiler.compiled(workflow)
        state = await graph.ainvoke(child_state(request.input), config, context=context)
        if _INTERRUPT in state:
            return ChildResult(run_id, None, "", "waiting")
        return result_of(workflow, run_id, state)


def child_state(given: Mapping[str, Json]) -> Any:
    """Return the initial state of a child: its given text as the question, and all given values as inputs."""
    text = given.get("text")
    return initial_state(text if isinstance(text, str) else "", inputs=given, user_context=_user_context(given))


def result_of(workflow: Workflow, run_id: str, state: Mapping[str, Any], status: ChildStatus = "done") -> ChildResult:
    """Return the result of a run: the output of the node that the workflow names, else the answer; and a text."""
    answer = answer_of(state)
    said = text_of(answer) if answer is not None else ""
    outputs = state.get("node_outputs") or {}
    if workflow.output is None:
        return ChildResult(run_id, {"text": said}, said, status)
    output: Json = outputs.get(workflow.output)
    return ChildResult(run_id, output, said or (output if isinstance(output, str) else ""), status)


def _user_context(given: Mapping[str, Json]) -> dict[str, Json]:
    known = given.get("user_context")
    return dict(known) if isinstance(known, Mapping) else {}
