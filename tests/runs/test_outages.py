"""Tests of a database outage during a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

from tests.recorded_events import RecordedEvents
from tests.runs.conftest import numbered
from tests.runs.desk import RunDesk
from tests.servers import Postgres
from threadkeep import MemoryOptions, open_memory
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.streams import retry_until_available
from threadkeep.store.address import parse_address
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.driver import StoreOptions
from threadkeep.testing import Gate
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.nodes import AgentNode, RecordQuestionNode
from threadkeep.workflows.resources import RunContext, RunOptions
from threadkeep.workflows.state import WorkflowState

pytestmark = pytest.mark.xdist_group("unsteady_postgres")

# Short, so that an outage is detected soon. On a busy machine a statement may time out; it is retried.
_IMPATIENT = StoreOptions(pool_timeout_seconds=0.2)
_LONG_FOR_A_STEP = 1.5


def halting(gate: Gate) -> Workflow:
    """Return a workflow that waits at a gate and is tried once."""

    async def halt(state: WorkflowState) -> WorkflowState:
        await gate.pass_through()
        return {}

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    nodes: list[tuple[str, Any]] = [("question", RecordQuestionNode()), ("halt", halt), ("answer", AgentNode())]
    builder.add_sequence(nodes)
    builder.add_edge(START, "question")
    return python_workflow("halting", builder, version="1", options=RunOptions(max_tries=1))


async def test_a_run_continues_after_an_outage(
    unsteady_postgres: Postgres, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    """A run whose checkpoint cannot be stored during an outage is done afterwards, after one attempt."""
    gate = Gate()
    options = replace(memory_options, store=_IMPATIENT)
    with unsteady_postgres.database() as url:
        async with (
            open_memory(url, observers=[events], options=options) as memory,
            open_checkpointer(parse_address(url), _IMPATIENT) as saver,
        ):
            desk = RunDesk(memory, numbered(), events, saver=saver)
            async with desk.open(halting(gate)) as service:
                request = RunRequest(workflow="halting", text="go", session_id="room", message_id="m1")
                run = await retry_until_available(lambda: service.submit(request))
                await gate.reached()
                await asyncio.to_thread(unsteady_postgres.stop, "immediate")
                gate.open()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(_LONG_FOR_A_STEP):
                        await service.result(run.run_id)
                await asyncio.to_thread(unsteady_postgres.start)
                result = await retry_until_available(lambda: service.result(run.run_id))
                assert (result.status, result.text, result.run.error) == ("done", "reply 1", None)
            assert await retry_until_available(lambda: desk.transcript("room")) == [
                ("user", "go"),
                ("assistant", "reply 1"),
            ]
