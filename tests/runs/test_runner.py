"""Tests of run execution: cancelling, questions to a person, retries, dead letters, and restarts of the service."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from tests.limits import HANG_SECONDS
from tests.runs.desk import LEAVING, RunDesk, asking_both, asking_twice, asking_with, carried_out, eventually, kinds
from threadkeep import InvalidInput
from threadkeep.errors import RunBusy, StoreUnavailable
from threadkeep.observe import RunFinished, RunRetried, RunTrouble
from threadkeep.records import Json
from threadkeep.records.runs import RunQuery
from threadkeep.runs.endings import RunEndings
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import Mode, RunService
from threadkeep.store.runs import Outcome
from threadkeep.testing import Gate, ScriptedModel, SettableClock
from threadkeep.workflows.definition import python_workflow
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState

AGENT = "schema: 1\nname: desk\nnodes:\n  answer: {kind: agent, next: end}"
HELLO = RunRequest(workflow="desk", text="hello", session_id="room", message_id="m1")


async def test_a_run_is_cancelled(every_desk: RunDesk) -> None:
    """A cancelled run stores its partial answer as interrupted, the next turn begins, and the run can be retried."""
    gate = Gate()
    every_desk.model = ScriptedModel([["half an ", gate, "answer"], "two", "whole"])
    async with every_desk.open(AGENT) as service:
        first = await service.submit(replace(HELLO, stream=True))
        second = await service.submit(RunRequest(workflow="desk", text="next", session_id="room"))
        third = await service.submit(RunRequest(workflow="desk", text="never", session_id="room"))
        await gate.reached()
        assert await service.cancel(third.run_id) == [third.run_id]
        assert await service.cancel(first.run_id) == [first.run_id]
        assert (await service.result(first.run_id)).status == "cancelled"
        assert (await service.result(third.run_id)).status == "cancelled"
        assert (await service.result(second.run_id)).text == "two"
        assert await service.cancel(first.run_id) == []
        assert kinds(await service.trace(first.run_id))[-1] == "status cancelled"
        assert [one.status for one in await every_desk.memory.session("room").tail(2)] == ["complete", "complete"]
        await service.retry(first.run_id)
        assert (await service.result(first.run_id)).status == "done"
    said = await every_desk.transcript("room")
    assert said == [
        ("user", "hello"),
        ("user", "next"),
        ("assistant", "two"),
        ("user", "never"),
        ("assistant", "whole"),
    ]
    partial = (await every_desk.memory.session("room").tail(9, view="history"))[1]
    assert (partial.content, partial.status) == ("half an ", "interrupted")


async def test_a_new_message_may_cancel_the_running_turn(desk: RunDesk) -> None:
    """With `double_texting: interrupt`, a new message cancels the running turn and records the reason."""
    gate = Gate()
    desk.model = ScriptedModel([["half", gate], "two"])
    async with desk.open(f"{AGENT}\noptions: {{double_texting: interrupt}}") as service:
        first = await service.submit(HELLO)
        await gate.reached()
        second = await service.submit(RunRequest(workflow="desk", text="no, this", session_id="room"))
        assert (await service.result(second.run_id)).text == "two"
        cancelled = await service.run(first.run_id)
    assert (cancelled.status, cancelled.cancel_reason) == ("cancelled", "interrupted_by_message")


async def test_a_run_waits_for_a_person(every_desk: RunDesk) -> None:
    async with every_desk.open(AGENT, asking_twice()) as service:
        form = await service.submit(RunRequest(workflow="form", text="register me", session_id="room"))
        asked = await service.result(form.run_id)
        assert (asked.status, [one["value"] for one in asked.interrupts]) == ("waiting", [{"ask": "name"}])
        assert (await carried_out(service, HELLO)).status == "done"
        await service.resume(form.run_id, "Ann")
        asked = await service.result(form.run_id)
        assert (asked.status, [one["value"] for one in asked.interrupts]) == ("waiting", [{"ask": "age"}])
        with pytest.raises(InvalidInput):
            await service.retry(form.run_id)
        await service.resume(form.run_id, 30, mode="background")
        assert (await service.result(form.run_id)).text == "Ann is 30"
        with pytest.raises(InvalidInput):
            await service.resume(form.run_id, "again")
        statuses = [kind for kind in kinds(await service.trace(form.run_id)) if kind.startswith("status")]
    assert statuses == ["status running", "status waiting"] * 2 + ["status running", "status done"]


async def test_a_run_waits_although_the_reply_of_the_database_was_lost(
    every_desk: RunDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is reported, and the next turn of the session begins before maintenance looks for forgotten runs."""
    wait, calls, queued = every_desk.memory.runs.wait, count(1), asyncio.Event()

    async def with_lost_reply(run_id: str, owner: str, asked: Json) -> bool:
        await queued.wait()
        waits = await wait(run_id, owner, asked)
        if next(calls) == 1:
            raise StoreUnavailable("The connection was lost.")
        return waits

    monkeypatch.setattr(every_desk.memory.runs, "wait", with_lost_reply)
    async with every_desk.open(AGENT, asking_twice()) as service:
        form = await service.submit(RunRequest(workflow="form", text="register me", session_id="room"))
        following = await service.submit(HELLO, mode="background")
        queued.set()

        async def is_done() -> bool:
            return (await service.run(following.run_id)).status == "done"

        await eventually(is_done)
        assert (await service.run(form.run_id)).status == "waiting"
    finished = [(event.run_id, event.status) for event in every_desk.events.of(RunFinished)]
    assert sorted(finished) == sorted([(form.run_id, "waiting"), (following.run_id, "done")])


async def test_refusals_of_concurrent_answers_name_the_status_of_the_run(every_desk: RunDesk) -> None:
    """The refusal of a concurrent answer names the status that the run has by then, not `waiting`."""
    async with every_desk.open(asking_twice()) as service:
        run_id = (await carried_out(service, RunRequest(workflow="form", text="register me"))).run.run_id
        answers = [service.resume(run_id, "Ann", mode="background") for _ in range(4)]
        refusals = [one for one in await asyncio.gather(*answers, return_exceptions=True) if one is not None]
    assert len(refusals) >= 2  # the form asks two questions
    for refusal in refusals:
        assert isinstance(refusal, InvalidInput)
        assert not str(refusal).endswith("it is waiting.")


@pytest.mark.parametrize("failure", [ValueError(), ConnectionError()])
async def test_an_answer_is_not_used_for_the_next_question_after_a_retry(
    every_desk: RunDesk, failure: Exception
) -> None:
    failures = [failure]

    async def ask(state: WorkflowState) -> WorkflowState:
        first = interrupt("May I refund it?")
        if failures:
            raise failures.pop()
        return {"messages": [AIMessage(f"{first}, {interrupt('May I delete it?')}")]}

    async with every_desk.open(asking_with(ask)) as service:
        run_id = (await carried_out(service, RunRequest(workflow="form", text="my parcel"))).run.run_id
        await service.resume(run_id, "yes")
        if isinstance(failure, ValueError):  # a connection error is retried without a person
            assert (await service.result(run_id)).status == "failed"
            await service.retry(run_id)
        assert [one["value"] for one in (await service.result(run_id)).interrupts] == ["May I delete it?"]
        await service.resume(run_id, "no")
        assert (await service.result(run_id)).text == "yes, no"


async def test_a_retry_uses_the_answer_that_a_failed_run_had_not_used(every_desk: RunDesk) -> None:
    """Neither question is asked again, although the step fails after each answer, before it uses the answer."""
    calls = count(1)

    async def ask(state: WorkflowState) -> WorkflowState:
        if next(calls) in (2, 4):
            raise ValueError
        return {"messages": [AIMessage(f"{interrupt('name')} is {interrupt('age')}")]}

    async with every_desk.open(asking_with(ask)) as service:
        run_id = (await carried_out(service, RunRequest(workflow="form", text="register me"))).run.run_id
        for answer in ("Ann", "Ann"):
            await service.resume(run_id, answer)
            assert (await service.result(run_id)).status == "failed"
            await service.retry(run_id)
            await service.result(run_id)
        assert (await service.result(run_id)).text == "Ann is Ann"


async def test_an_answer_is_not_used_for_the_next_question_if_recording_that_fails(
    every_desk: RunDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph has asked its second question, but the run's record still has the first one."""
    end, failures = RunEndings.end, iter([False, True])

    async def failing(self: RunEndings, *arguments: Any) -> Outcome | None:
        if next(failures, False):
            raise ValueError
        return await end(self, *arguments)

    monkeypatch.setattr(RunEndings, "end", failing)
    async with every_desk.open(asking_twice()) as service:
        run_id = (await carried_out(service, RunRequest(workflow="form", text="register me"))).run.run_id
        await service.resume(run_id, "Ann")
        assert [one["value"] for one in (await service.result(run_id)).interrupts] == [{"ask": "age"}]
        await service.resume(run_id, 30)
        assert (await service.result(run_id)).text == "Ann is 30"


async def test_a_message_answers_one_question_once(every_desk: RunDesk) -> None:
    async with every_desk.open(asking_twice()) as service:
        request = RunRequest(workflow="form", text="register me", session_id="room", message_id="m1")
        run_id = (await carried_out(service, request)).run.run_id
        answers = [service.resume(run_id, "Ann", message_id="m2") for _ in range(3)]
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        assert sorted(type(one).__name__ for one in outcomes) == ["InvalidInput", "InvalidInput", "NoneType"]
        asked = await service.result(run_id)
        assert (asked.interrupts[0]["value"], asked.run.newest_message_id) == ({"ask": "age"}, "m2")
        for known in ("m1", "m2"):
            with pytest.raises(InvalidInput):
                await service.resume(run_id, "Ann", message_id=known)
        await service.resume(run_id, 30, message_id="m3")
        assert (await service.result(run_id)).text == "Ann is 30"
        assert (await service.submit(replace(request, text="Ann", message_id="m2"))).run_id == run_id


async def test_a_repeat_of_a_request_answers_no_further_question(every_desk: RunDesk) -> None:
    """A repeated `resume_once` changes nothing, even with another answer. The id of another message is refused."""
    async with every_desk.open(asking_twice()) as service:
        request = RunRequest(workflow="form", text="register me", session_id="room", message_id="m1")
        run_id = (await carried_out(service, request)).run.run_id
        await asyncio.gather(*(service.resume_once(run_id, "Ann", message_id="m2") for _ in range(3)))
        asked = await service.result(run_id)
        assert (asked.interrupts[0]["value"], asked.run.newest_message_id) == ({"ask": "age"}, "m1")
        await service.resume_once(run_id, 99, message_id="m2")
        assert (await service.result(run_id)).status == "waiting"
        with pytest.raises(InvalidInput, match="'m1' was used"):
            await service.resume_once(run_id, 30, message_id="m1")
        for _ in range(2):
            await service.resume_once(run_id, 30, message_id="m3")
            assert (await service.result(run_id)).text == "Ann is 30"
        with pytest.raises(InvalidInput):
            await service.resume_once(run_id, 30, message_id="m4")


async def answer_again(service: RunService, run_id: str, value: str, questions: list[str]) -> None:
    """Answer a run; repeat it while the run above a child continues with another answer, as `resume` documents."""
    while True:
        try:
            return await service.resume(run_id, value, questions=questions)
        except RunBusy:
            if (await service.run(run_id)).parent_run_id is None:
                raise
            await asyncio.sleep(0.01)


async def test_an_answer_to_named_questions_answers_no_other_question(every_desk: RunDesk) -> None:
    """A repeated answer with question ids is refused, with and without a session, and for a child run."""
    parent = "schema: 1\nname: parent\nnodes:\n  help: {kind: subworkflow, workflow: form, next: end}\n"
    async with every_desk.open(asking_twice(), parent) as service:
        for workflow, session_id in (("form", None), ("form", "room"), ("parent", "room:2")):
            request = RunRequest(workflow=workflow, text="Hi", session_id=session_id, sessionless=session_id is None)
            top = (await carried_out(service, request)).run.run_id
            run_id = (await service.tree(top))[-1].run_id
            asked = [one["id"] for one in (await service.result(run_id)).interrupts]
            questions = [str(one) for one in asked]
            answers = [answer_again(service, run_id, "Ann", questions) for _ in range(3)]
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
            assert sorted(type(one).__name__ for one in outcomes) == ["InvalidInput", "InvalidInput", "NoneType"]
            assert (await service.result(top)).status == "waiting"
            with pytest.raises(InvalidInput, match="does not ask this"):
                await service.resume(run_id, "Ann", questions=questions)
            [second] = (await service.result(run_id)).interrupts
            await service.resume(run_id, 30, questions=[str(second["id"])])
            assert (await service.result(top)).text == "Ann is 30"


async def test_several_questions_at_once(desk: RunDesk) -> None:
    """Simultaneous questions are answered together, each by its id; other answers are refused with the ids."""

    def asker(name: str) -> Any:
        async def ask(state: WorkflowState) -> WorkflowState:
            return {"results": {name: interrupt(name)}}

        return ask

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    for name in ("name", "age"):
        builder.add_node(name, asker(name))
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    async with desk.open(python_workflow("form", builder)) as service:
        asked = await carried_out(service, RunRequest(workflow="form", text="register me"))
        ids = [str(one["id"]) for one in asked.interrupts]
        wrong: tuple[Any, ...] = ("Ann", {}, {"name": "Ann"}, {ids[0]: "Ann", "age": 30})
        for value in wrong:
            with pytest.raises(InvalidInput, match=f"asks 2 questions.*{ids[0]}, {ids[1]}"):
                await service.resume(asked.run.run_id, value)
        answers = {str(one["id"]): f"my {one['value']}" for one in asked.interrupts}
        await service.resume(asked.run.run_id, {**answers})
        assert (await service.result(asked.run.run_id)).status == "done"
        events = await service.trace(asked.run.run_id)
    assert sorted(answers.values()) == ["my age", "my name"]
    finished = [event.node for event in events if event.kind == "node_finished" and event.data == {}]
    assert sorted(map(str, finished)) == ["age", "name", "record_answer", "record_question"]


@pytest.mark.parametrize("below", [False, True])
async def test_a_repeated_answer_is_not_the_answer_to_another_question(every_desk: RunDesk, *, below: bool) -> None:
    """An answer to a question that is answered already is refused, also for a child run, and the run still waits."""
    parent = "schema: 1\nname: parent\nnodes:\n  help: {kind: subworkflow, workflow: both, next: end}"
    async with every_desk.open(asking_both(), parent) as service:
        asked = await carried_out(service, RunRequest(workflow="parent" if below else "both", text="register me"))
        run_id = asked.run.run_id

        def ids(questions: Any) -> dict[str, str]:
            own = questions[0]["value"]["interrupts"] if below else questions
            return {str(one["value"]): str(one["id"]) for one in own}

        first = ids(asked.interrupts)
        with pytest.raises(InvalidInput, match="asks 2 questions"):
            await service.resume(run_id, "Ann")
        await service.resume(run_id, {first["age"]: 30})
        rest = ids((await service.result(run_id)).interrupts)
        assert rest == {"name": first["name"]}
        with pytest.raises(InvalidInput, match="does not ask this any more"):
            await service.resume(run_id, {first["age"]: 40})
        await service.resume(run_id, {rest["name"]: "Ann"})
        assert (await service.result(run_id)).text == "name: Ann"


async def test_a_transient_failure_is_retried(every_desk: RunDesk) -> None:
    """A run with a transient failure is retried from its checkpoint, and stores the user message once."""
    every_desk.model = ScriptedModel([TimeoutError(), ConnectionError(), "at last"])
    async with every_desk.open(AGENT) as service:
        result = await carried_out(service, HELLO)
        events = await service.trace(result.run.run_id)
    assert result.text == "at last"
    assert [event.data for event in events if event.kind == "retried"] == [
        {"error": "TimeoutError", "try": 2},
        {"error": "ConnectionError", "try": 3},
    ]
    told = [(event.workflow, event.error, event.attempt) for event in every_desk.events.of(RunRetried)]
    assert told == [("desk", "TimeoutError", 2), ("desk", "ConnectionError", 3)]
    assert await every_desk.transcript("room") == [("user", "hello"), ("assistant", "at last")]


async def test_a_run_that_fails_repeatedly_becomes_a_dead_letter(desk: RunDesk) -> None:
    """A run that fails `max_tries` times becomes a dead letter until a person retries it.

    The next turn of the session runs.
    """
    desk.model = ScriptedModel([*[TimeoutError()] * 2, "two", "at last"])
    async with desk.open(f"{AGENT}\noptions: {{max_tries: 2}}") as service:
        result = await carried_out(service, HELLO)
        assert (result.status, result.run.error, result.run.set_aside) == ("failed", "TimeoutError", True)
        assert (await carried_out(service, RunRequest(workflow="desk", text="more", session_id="room"))).text == "two"
        again = await service.submit(HELLO)
        assert (await service.result(again.run_id)).status == "failed"
        found, _ = await service.list(RunQuery(set_aside=True))
        assert [run.run_id for run in found] == [result.run.run_id]
        finished = [(event.workflow, event.status, event.set_aside) for event in desk.events.of(RunFinished)]
        assert finished == [("desk", "failed", True), ("desk", "done", False)]
        await service.retry(result.run.run_id)
        assert (await service.result(result.run.run_id)).text == "at last"


async def test_an_unexpected_error_of_the_worker_is_not_the_end_of_a_run(
    desk: RunDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is executed again, and becomes a dead letter if the error persists.

    The next turn of the session runs.
    """
    end, failures = RunEndings.end, iter([True, False, True, True, True, False])

    async def failing(self: RunEndings, *arguments: Any) -> Outcome | None:
        if next(failures):
            raise ValueError("secret words")
        return await end(self, *arguments)

    monkeypatch.setattr(RunEndings, "end", failing)
    async with desk.open(AGENT) as service:
        first = await carried_out(service, HELLO)
        second = await carried_out(service, RunRequest(workflow="desk", text="two", session_id="room"))
        third = await carried_out(service, RunRequest(workflow="desk", text="three", session_id="room"))
    assert [result.status for result in (first, second, third)] == ["done", "failed", "done"]
    assert (second.run.error, second.run.set_aside) == ("GaveUp", True)
    assert [(event.work, event.error) for event in desk.events.of(RunTrouble)] == [("engine", "ValueError")] * 4
    assert [role for role, _ in await desk.transcript("room")][-2:] == ["user", "assistant"]


async def test_a_permanent_failure_ends_the_run_at_once(desk: RunDesk) -> None:
    """A permanent failure ends the run with the kind of the error only; the same message again retries the run."""
    desk.model = ScriptedModel([ValueError("secret words"), "better"])
    async with desk.open(AGENT) as service:
        result = await carried_out(service, HELLO)
        events = await service.trace(result.run.run_id)
        assert (result.status, result.run.error, result.run.set_aside) == ("failed", "ValueError", False)
        assert "secret" not in repr((events, desk.events.all, result))
        again = await carried_out(service, HELLO)
    assert (again.run.run_id, again.text) == (result.run.run_id, "better")
    assert await desk.transcript("room") == [("user", "hello"), ("assistant", "better")]


async def test_an_appended_message_is_not_the_answer_of_a_retried_run(every_desk: RunDesk) -> None:
    """If the agent after an `append_message` node fails, a repeat of the message calls its model again."""
    every_desk.model = ScriptedModel([ValueError(), "the answer"])
    nodes = "note: {kind: append_message, text: One moment., next: answer}, answer: {kind: agent, next: end}"
    async with every_desk.open(f"{{schema: 1, name: desk, nodes: {{{nodes}}}}}") as service:
        failed, again = await carried_out(service, HELLO), await carried_out(service, HELLO)
    assert (failed.status, again.status, again.text) == ("failed", "done", "the answer")
    said = [("user", "hello"), ("assistant", "One moment."), ("assistant", "the answer")]
    assert await every_desk.transcript("room") == said


async def test_a_run_has_a_deadline(desk: RunDesk) -> None:
    desk.model = ScriptedModel([["never", Gate()]])
    async with desk.open(AGENT) as service:
        result = await carried_out(service, replace(HELLO, deadline_seconds=0.05))
    assert (result.status, result.run.error) == ("failed", "DeadlinePassed")


async def test_a_deadline_is_not_later_because_a_clock_was_ahead(desk: RunDesk, clock: SettableClock) -> None:
    """A run has at most its `deadline_seconds`, even if it was stored by a process whose clock was an hour ahead."""
    desk.model = ScriptedModel([["never", Gate()]])
    async with desk.open(AGENT) as service, asyncio.timeout(HANG_SECONDS):
        clock.advance(3600.0)
        stored = await service.submit(replace(HELLO, deadline_seconds=0.05), mode="later")
        clock.advance(-3600.0)
        result = await service.result(stored.run_id)
    assert (result.status, result.run.error) == ("failed", "DeadlinePassed")


async def test_a_service_that_closes_leaves_its_runs_to_the_next(every_desk: RunDesk) -> None:
    """The next service continues the run from its checkpoint and does not repeat finished nodes."""
    done: list[str] = []
    there, gate = asyncio.Event(), asyncio.Event()

    async def first(state: WorkflowState) -> WorkflowState:
        done.append("first")
        return {}

    async def second(state: WorkflowState) -> WorkflowState:
        done.append("second")
        there.set()
        await gate.wait()
        return {"messages": [AIMessage("well")]}

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    builder.add_sequence([("first", first), ("second", second)])
    builder.add_edge(START, "first")
    workflow = python_workflow("two", builder)
    async with every_desk.open(workflow, options=LEAVING) as service:
        run_id = (await service.submit(RunRequest(workflow="two", text="go", session_id="room"))).run_id
        await there.wait()
    run = await every_desk.memory.runs.run(run_id)
    assert run is not None
    assert (run.status, run.owner) == ("queued", None)
    gate.set()
    async with every_desk.open(workflow) as service:
        assert (await service.result(run_id)).text == "well"
    assert done == ["first", "second", "second"]


@pytest.mark.parametrize("way", ["wait", "background"])
async def test_every_graph_has_its_store_and_its_thread(every_desk: RunDesk, way: Mode) -> None:
    """The graph of a run has a store and a checkpoint thread. The checkpoints are deleted when the run is done."""

    # LangGraph has no type for a node with both a config and a runtime.
    async def use(state: WorkflowState, config: RunnableConfig, runtime: Runtime[RunContext]) -> WorkflowState:
        assert runtime.store is not None
        thread = config["configurable"]["thread_id"]
        await runtime.store.aput(("seen",), thread, {"here": True})
        checkpoint = await every_desk.saver.aget_tuple({"configurable": {"thread_id": thread}})
        return {"messages": [AIMessage(f"{thread} {checkpoint is not None}")]}

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    node: Any = use
    builder.add_node("use", node)
    builder.add_edge(START, "use")
    async with every_desk.open(python_workflow("one", builder)) as service:
        run_id = (await service.submit(RunRequest(workflow="one", text="go"), mode=way)).run_id
        assert (await service.result(run_id)).text == f"{run_id} True"
    assert await every_desk.store.aget(("seen",), run_id) is not None
    assert await every_desk.saver.aget_tuple({"configurable": {"thread_id": run_id}}) is None
