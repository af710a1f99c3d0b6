"""Tests of child runs: isolation from the parent, failures, cancelling, questions to a person, and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, repeat
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from tests.limits import HANG_SECONDS
from tests.runs.desk import LEAVING, QUICK, RunDesk, asking_twice, carried_out, eventually, kinds
from threadkeep import Memory
from threadkeep.errors import InvalidInput, RunBusy
from threadkeep.records.runs import Run, RunQuery
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.definition import python_workflow
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState

CHILD = "schema: 1\nname: helper\nnodes:\n  think: {kind: agent, next: end}"
PARENT = """\
schema: 1
name: parent
nodes:
  ask: {kind: agent, next: help}
  help: {kind: subworkflow, workflow: helper, next: end%s}
"""
BESIDE = """\
schema: 1
name: parent
nodes:
  begin: {kind: template, text: x, next: [help, think]}
  help: {kind: subworkflow, workflow: form, next: end}
  think: {kind: agent, next: end}
"""
ASKED = RunRequest(workflow="parent", text="CANARY question", session_id="room", message_id="m1")


async def tree_of(service: RunService, run_id: str) -> tuple[Run, Run]:
    """Return a run and its only child."""
    parent, child = await service.tree(run_id)
    return parent, child


async def test_a_child_is_a_run_of_its_own(every_desk: RunDesk) -> None:
    """A child records its parent, depth and usage.

    The parent returns its output, and each call is counted once.
    """
    every_desk.model = ScriptedModel(["secret draft", "from the child"])
    async with every_desk.open(CHILD, PARENT % "") as service:
        result = await carried_out(service, ASKED)
        parent, child = await tree_of(service, result.run.run_id)
        [whole] = await service.usage(parent.run_id)
        [own] = await every_desk.memory.runs.trace.usage(parent.run_id, with_children=False)
        [below] = await service.usage(child.run_id)
        trace = await service.trace(parent.run_id)
    assert result.text == "from the child"
    assert (child.parent_run_id, child.node_id, child.depth, child.trigger) == (parent.run_id, "help", 1, "child")
    assert (child.session_id, child.status, child.version is not None) == (None, "done", True)
    assert (own.calls, below.calls, whole.calls) == (1, 1, 2)
    assert whole.tokens == own.tokens + below.tokens
    assert [kind for kind in kinds(trace) if kind.startswith("child")] == ["child_started", "child_finished"]
    assert await every_desk.transcript("room") == [("user", "CANARY question"), ("assistant", "from the child")]


async def test_parent_and_child_do_not_see_each_others_messages(desk: RunDesk) -> None:
    """The child does not see the parent's messages, and the parent's trace does not contain the child's."""
    desk.model = ScriptedModel(["what the child is given", "CANARY of the child"])
    parent = PARENT % "" + "  last: {kind: template, text: over, as_message: true, next: end}\n"
    parent = parent.replace("workflow: helper, next: end", "workflow: helper, next: last")
    async with desk.open(CHILD, parent) as service:
        result = await carried_out(service, ASKED)
        trace = await service.trace(result.run.run_id)
    assert [message.text for message in desk.model.calls[1]] == ["what the child is given"]
    assert "CANARY question" not in repr(desk.model.calls[1])
    told = [event for event in trace if event.node == "help"]
    assert "CANARY of the child" not in repr([event for event in told if event.kind != "node_finished"])


@pytest.mark.parametrize("status", ["failed", "deadline"])
async def test_a_child_that_fails_is_reported_as_such(desk: RunDesk, status: str) -> None:
    """A failed child fails its parent, or the parent continues with `on_failure`.

    A retry of the parent retries the child.
    """
    failure: list[ValueError | Gate | str] = [ValueError() if status == "failed" else Gate()]

    def reply(messages: Sequence[BaseMessage]) -> Sequence[ValueError | Gate | str]:
        return ["draft"] if "CANARY" in str(messages[-1].text) else tuple(failure)

    desk.model = ScriptedModel(repeat(reply))
    limit = ", deadline_seconds: 0.1" if status == "deadline" else ""
    async with desk.open(CHILD, PARENT % f"{limit}, on_failure: continue") as service:
        result = await carried_out(service, ASKED)
        parent, child = await tree_of(service, result.run.run_id)
        assert (result.status, child.status) == ("done", "failed")
        assert (child.error == "DeadlinePassed") == (status == "deadline")
    async with desk.open(CHILD, PARENT % limit) as service:
        result = await carried_out(service, replace(ASKED, message_id="m2"))
        assert (result.status, result.run.error) == ("failed", "ChildFailed")
        [ended] = [one for one in await service.trace(result.run.run_id) if one.kind == "child_finished"]
        assert (ended.data["error"] == "DeadlinePassed") == (status == "deadline")
        failure[:] = ["at last"]
        for _ in range(1 if status == "failed" else 100):
            await service.retry(result.run.run_id)
            result = await service.result(result.run.run_id)
            if result.status == "done":  # on a busy machine, a retry may pass the deadline too
                break
        assert result.text == "at last"
        parent, child = await tree_of(service, result.run.run_id)
    assert (parent.status, child.status) == ("done", "done")


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_cancel_goes_down_the_tree(every_desk: RunDesk, *, elsewhere: bool) -> None:
    """Cancelling a run cancels its child, also if another process requests it."""
    gate = Gate()
    every_desk.model = ScriptedModel(["draft", ["half", gate]])
    async with every_desk.open(CHILD, PARENT % "") as service:
        run_id = (await service.submit(ASKED)).run_id
        await gate.reached()
        if elsewhere:
            await every_desk.memory.runs.request_cancel(run_id)
        else:
            await service.cancel(run_id)
        async with asyncio.timeout(HANG_SECONDS):
            assert (await service.result(run_id)).status == "cancelled"
        assert await statuses(every_desk.memory, run_id) == ["cancelled", "cancelled"]


async def test_a_child_that_is_cancelled_alone_fails_its_parent(desk: RunDesk) -> None:
    gate = Gate()
    desk.model = ScriptedModel(["draft", ["half", gate]])
    async with desk.open(CHILD, PARENT % "") as service:
        run_id = (await service.submit(ASKED)).run_id
        await gate.reached()
        _, child = await tree_of(service, run_id)
        await service.cancel(child.run_id)
        result = await service.result(run_id)
        parent, child = await tree_of(service, run_id)
    assert (parent.status, result.run.error, child.status) == ("failed", "ChildFailed", "cancelled")


async def test_a_child_that_asks_a_person(every_desk: RunDesk) -> None:
    """A parent waits with its child, and an answer to either run reaches the child."""
    every_desk.model = ScriptedModel(["draft"])
    parent = (PARENT % "").replace("helper", "form")
    async with every_desk.open(asking_twice(), parent) as service:
        result = await carried_out(service, ASKED)
        above, child = await tree_of(service, result.run.run_id)
        assert (result.status, above.status, child.status) == ("waiting", "waiting", "waiting")
        asked = result.interrupts[0]["value"]
        assert isinstance(asked, Mapping)
        assert (asked["run_id"], asked["workflow"]) == (child.run_id, "form")
        await service.resume(result.run.run_id, "Ann")
        result = await service.result(result.run.run_id)
        assert result.status == "waiting"
        await service.resume(child.run_id, 30)
        assert (await service.result(result.run.run_id)).text == "Ann is 30"
        assert [run.status for run in await service.tree(child.run_id)] == ["done", "done"]
    assert len(every_desk.model.calls) == 1


async def test_a_waiting_child_that_is_cancelled_alone(every_desk: RunDesk) -> None:
    """The runs above it continue with its status: their question is gone, and a retry asks it again, once."""
    every_desk.model = ScriptedModel(["draft"] * 3)
    middle = (PARENT % ", on_failure: continue").replace("helper", "form").replace("parent", "middle")
    top = (PARENT % "").replace("helper", "middle")
    failing = (PARENT % "").replace("helper", "form").replace("parent", "failing")
    async with every_desk.open(asking_twice(), middle, top, failing) as service:
        above, _, below = await service.tree((await carried_out(service, ASKED)).run.run_id)
        assert above.status == "waiting"
        await service.cancel(below.run_id)
        assert (await service.result(above.run_id)).status == "done"
        assert await statuses(every_desk.memory, above.run_id) == ["done", "done", "cancelled"]
        request = replace(ASKED, workflow="failing", session_id="other")
        above, below = await service.tree((await carried_out(service, request)).run.run_id)
        await service.cancel(below.run_id)
        assert (await service.result(above.run_id)).run.error == "ChildFailed"
        await service.retry(above.run_id)
        for value in ("Ann", 30):
            assert (await service.result(above.run_id)).status == "waiting"
            await service.resume(above.run_id, value)
        assert (await service.result(above.run_id)).text == "Ann is 30"


async def begin_beside_a_child(service: RunService, gate: Gate) -> tuple[str, Run]:
    """Start a run of `BESIDE`; return its id and its child when the child waits and the run executes another node."""
    top = (await service.submit(ASKED)).run_id
    await gate.reached()

    async def child_waits() -> bool:
        return [run.status for run in await service.tree(top)] == ["running", "waiting"]

    await eventually(child_waits)
    _, child = await tree_of(service, top)
    return top, child


async def test_a_child_that_is_cancelled_before_its_parent_waits(every_desk: RunDesk) -> None:
    """Its parent has other work; then it does not wait for an answer to the child."""
    gate = Gate()
    every_desk.model = ScriptedModel([["draft", gate]])
    async with every_desk.open(asking_twice(), BESIDE) as service:
        top, child = await begin_beside_a_child(service, gate)
        await service.cancel(child.run_id)
        gate.open()

        async def is_over() -> bool:
            return (await service.run(top)).over

        await eventually(is_over)
        assert (await service.run(top)).error == "ChildFailed"


async def test_a_waiting_child_ends_with_its_parent(every_desk: RunDesk) -> None:
    """Its parent fails in another branch, so no answer can reach the child; a retry of the parent asks again."""
    gate = Gate()
    every_desk.model = ScriptedModel([["draft", gate, ValueError()], "well"])
    async with every_desk.open(asking_twice(), BESIDE) as service:
        top, child = await begin_beside_a_child(service, gate)
        gate.open()
        assert (await service.result(top)).run.error == "ValueError"
        assert await statuses(every_desk.memory, top) == ["failed", "cancelled"]
        with pytest.raises(InvalidInput, match="does not wait for an answer: it is cancelled"):
            await service.resume(child.run_id, "Ann")
        await service.retry(top)
        for value in ("Ann", 30):
            assert (await service.result(top)).status == "waiting"
            await service.resume(child.run_id, value)
        assert (await service.result(top)).status == "done"
        assert await statuses(every_desk.memory, top) == ["done", "done"]


async def test_a_waiting_tree_that_is_cancelled_and_retried(every_desk: RunDesk) -> None:
    """The tree asks its open question again, once, and each trace ends with the cancellation."""
    every_desk.model = ScriptedModel(["draft"])
    async with every_desk.open(asking_twice(), (PARENT % "").replace("helper", "form")) as service:
        top = (await carried_out(service, ASKED)).run.run_id
        for value in ("Ann", 30):
            await service.cancel(top)
            for run in await service.tree(top):
                assert kinds(await service.trace(run.run_id))[-1] == "status cancelled"
            await service.retry(top)
            assert (await service.result(top)).status == "waiting"
            await service.resume(top, value)
            await service.result(top)
        assert (await service.result(top)).text == "Ann is 30"


async def test_a_repeated_answer_to_a_child_changes_nothing(every_desk: RunDesk) -> None:
    """The message id of an answer counts in the parent's session, also after both runs are done."""
    every_desk.model = ScriptedModel(["draft"])
    async with every_desk.open(asking_twice(), (PARENT % "").replace("helper", "form")) as service:
        above, child = await tree_of(service, (await carried_out(service, ASKED)).run.run_id)
        for value, message_id in (("Ann", "m2"), ("Ann", "m2"), (30, "m3"), (30, "m3"), ("Ann", "m2")):
            await service.resume_once(child.run_id, value, message_id=message_id)
            await service.result(above.run_id)
        assert (await service.result(above.run_id)).text == "Ann is 30"
        with pytest.raises(InvalidInput):
            await service.resume_once(child.run_id, 30, message_id="m4")


async def test_an_answer_to_a_child_before_its_parent_waits_is_to_be_sent_again(every_desk: RunDesk) -> None:
    """An answer to a child whose parent still runs raises `RunBusy`.

    Sent again with the same id, it counts once.
    """
    gate = Gate()
    every_desk.model = ScriptedModel([["draft", gate]])
    async with every_desk.open(asking_twice(), BESIDE) as service:
        top, child = await begin_beside_a_child(service, gate)
        with pytest.raises(RunBusy, match="send the answer again"):
            await service.resume_once(child.run_id, "Ann", message_id="m2")
        with pytest.raises(RunBusy, match="send the answer again"):
            await service.resume(child.run_id, "Ann")
        gate.open()
        assert (await service.result(top)).status == "waiting"
        await asyncio.gather(*(service.resume_once(child.run_id, "Ann", message_id="m2") for _ in range(2)))
        assert (await service.result(top)).status == "waiting"
        await service.resume_once(child.run_id, 30, message_id="m3")
        assert (await service.result(top)).status == "done"


async def test_a_restarted_parent_continues_its_child(every_desk: RunDesk) -> None:
    gate, done, memory = asyncio.Event(), list[str](), every_desk.memory

    async def first(state: WorkflowState) -> WorkflowState:
        done.append("first")
        return {}

    async def second(state: WorkflowState) -> WorkflowState:
        done.append("second")
        there.set()
        await gate.wait()
        return {"messages": [AIMessage("well")]}

    there = asyncio.Event()
    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    builder.add_sequence([("first", first), ("second", second)])
    builder.add_edge(START, "first")
    helper = python_workflow("helper", builder)
    every_desk.model = ScriptedModel(["draft"])
    async with every_desk.open(helper, PARENT % "", options=LEAVING) as service:
        run_id = (await service.submit(ASKED)).run_id
        await there.wait()
    assert await statuses(memory, run_id) == ["queued", "running"]
    gate.set()
    async with every_desk.open(helper, PARENT % "") as service:
        assert (await service.result(run_id)).text == "well"
    assert await statuses(memory, run_id) == ["done", "done"]
    assert done == ["first", "second", "second"]


async def statuses(memory: Memory, run_id: str) -> list[str]:
    """Return the statuses of the runs of a tree."""
    return [run.status for run in await memory.runs.records.tree(run_id)]


async def test_the_graph_of_a_child_has_its_store_and_its_thread(desk: RunDesk) -> None:
    """A child's graph has a store and a checkpoint thread. The checkpoints are deleted when the child is done."""

    # LangGraph has no type for a node with both a config and a runtime.
    async def use(state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]) -> WorkflowState:
        assert runtime.store is not None
        thread = config["configurable"]["thread_id"]
        await runtime.store.aput(("seen",), thread, {"here": True})
        checkpoint = await desk.saver.aget_tuple({"configurable": {"thread_id": thread}})
        return {"messages": [AIMessage(f"{thread} {checkpoint is not None}")]}

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    node: Any = use
    builder.add_node("use", node)
    builder.add_edge(START, "use")
    desk.model = ScriptedModel(["draft"])
    async with desk.open(python_workflow("helper", builder), PARENT % "") as service:
        result = await carried_out(service, ASKED)
        _, child = await tree_of(service, result.run.run_id)
    assert result.text == f"{child.run_id} True"
    assert await desk.store.aget(("seen",), child.run_id) is not None
    assert await desk.saver.aget_tuple({"configurable": {"thread_id": child.run_id}}) is None


async def test_a_tree_whose_child_stops_first_is_cancelled(every_desk: RunDesk) -> None:
    """A child that ends before its parent sees the cancel request does not make the parent fail."""

    async def cancelled_from_elsewhere(_: Sequence[BaseMessage]) -> AIMessage:
        [parent] = (await every_desk.memory.runs.records.runs(RunQuery(workflow="parent")))[0]
        await every_desk.memory.runs.request_cancel(parent.run_id)
        raise ValueError

    every_desk.model = ScriptedModel(["draft", cancelled_from_elsewhere])
    async with every_desk.open(CHILD, PARENT % "", options=replace(QUICK, watch_seconds=3600.0)) as service:
        result = await carried_out(service, ASKED)
        tree = await tree_of(service, result.run.run_id)
    assert [(run.status, run.error) for run in tree] == [("cancelled", None)] * 2


@pytest.mark.parametrize("fails_at", [2, 3, 4])
async def test_a_retried_tree_asks_each_question_once(desk: RunDesk, fails_at: int) -> None:
    """The child fails before or after it has used an answer, and the parent is retried."""
    calls = count(1)

    async def ask(state: WorkflowState) -> WorkflowState:
        number = next(calls)
        if number == fails_at and number % 2 == 0:
            raise ValueError
        name = interrupt("name")
        if number == fails_at:
            raise ValueError
        return {"messages": [AIMessage(f"{name} is {interrupt('age')}")]}

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    desk.model = ScriptedModel(["draft"])
    asked: list[Any] = []
    async with desk.open(python_workflow("form", builder), (PARENT % "").replace("helper", "form")) as service:
        result = await carried_out(service, ASKED)
        while result.status != "done":
            if result.status == "failed":
                await service.retry(result.run.run_id)
            else:
                question: Any = result.interrupts[0]["value"]
                asked.append(question["interrupts"][0]["value"])
                await service.resume(result.run.run_id, "Ann" if asked[-1] == "name" else 30)
            result = await service.result(result.run.run_id)
            assert len(asked) < 5
    assert (result.text, asked) == ("Ann is 30", ["name", "age"])
