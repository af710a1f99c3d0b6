"""Tests of the maintenance of runs: forgotten runs, runs of dead processes, and leftover checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from tests.databases import execute, query
from tests.limits import HANG_SECONDS
from tests.runs.desk import QUICK, RunDesk, asking_twice, carried_out, eventually, living_process
from threadkeep import MemoryOptions, open_memory
from threadkeep.errors import RecordUnreadable, StoreUnavailable
from threadkeep.observe import RunFinished, RunTakenOver, RunTrouble, TurnFinished
from threadkeep.records.runs import NewRun, Run, RunQuery
from threadkeep.runs.engine.engine import Engine, EngineOptions
from threadkeep.runs.engine.opening import open_engine
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.run_workflows import RunWorkflows
from threadkeep.runs.streams import changed
from threadkeep.runs.worker import RunMaintenance
from threadkeep.store.address import parse_address
from threadkeep.store.runs.runs import Runs
from threadkeep.testing import Gate, ScriptedModel, SettableClock
from threadkeep.workflows.definition import Workflow

AGENT = "schema: 1\nname: desk\nnodes:\n  answer: {kind: agent, next: end}"
BUSY = replace(QUICK, reap_seconds=0.02, upkeep_seconds=0.02, forgotten_seconds=0.0)


def _blob(database_url: str) -> str:
    """Return damaged bytes as an SQL expression."""
    return "X'01ff'" if database_url.startswith("sqlite") else "decode('01ff', 'hex')"


async def left_checkpoint(desk: RunDesk) -> RunnableConfig:
    """Store a checkpoint of a done run whose process has died; return its config."""
    await desk.memory.runs.order.add(NewRun(run_id="run", workflow="desk", input={}), owner="dead")
    thread: RunnableConfig = {"configurable": {"thread_id": "run", "checkpoint_ns": ""}}
    await desk.memory.runs.records.checkpoints_expected("run")
    await desk.saver.aput(thread, empty_checkpoint(), {}, {})
    assert await desk.memory.runs.finish("run", "dead", "done")
    return thread


async def test_runs_without_a_living_process_are_executed(every_desk: RunDesk) -> None:
    """Maintenance executes a run that was never begun and a run of a dead process, but not one of a living process."""
    order = every_desk.memory.runs.order
    for name, owner in (("forgotten", None), ("dead", "dead")):
        new = NewRun(run_id=name, workflow="desk", input={"text": name}, session_id=name, message_id="m")
        await order.add(new, owner=owner)
    async with living_process() as owner, every_desk.open(AGENT, options=BUSY) as service:
        await order.add(NewRun(run_id="alive", workflow="desk", input={"text": "hi"}), owner=owner)
        results = [await service.result(run_id) for run_id in ("forgotten", "dead")]
        assert [(result.status, result.run.attempts) for result in results] == [("done", 1), ("done", 2)]
        assert (await service.run("alive")).status == "running"
    assert [(event.run_id, event.attempt) for event in every_desk.events.of(RunTakenOver)] == [("dead", 2)]
    # The order of the two model calls is not defined.
    (question, answer), (other_question, other_answer) = [
        await every_desk.transcript(name) for name in ("forgotten", "dead")
    ]
    assert [question, other_question] == [("user", "forgotten"), ("user", "dead")]
    assert {answer, other_answer} == {("assistant", "reply 1"), ("assistant", "reply 2")}


async def test_a_damaged_run_does_not_stop_the_recovery_of_others(every_desk: RunDesk, database_url: str) -> None:
    """Runs whose records cannot be read are set aside, and the later runs are executed, also of the same session."""
    order = every_desk.memory.runs.order
    for name, session_id, owner in (
        ("forgotten", "room", None),
        ("dead", "hall", "dead"),
        ("behind", "room", None),
        ("other", "den", None),
    ):
        new = NewRun(run_id=name, workflow="desk", input={"text": name}, session_id=session_id, message_id=name)
        await order.add(new, owner=owner)
    execute(database_url, f"UPDATE chat_runs SET input = {_blob(database_url)} WHERE run_id IN ('forgotten', 'dead')")
    async with every_desk.open(AGENT, options=BUSY) as service:

        async def all_over() -> bool:
            return all(run.over for run in (await service.list(RunQuery()))[0])

        await eventually(all_over)
        listed, _ = await service.list(RunQuery())
    assert {run.run_id: (run.status, run.error, run.set_aside) for run in listed} == {
        "dead": ("failed", "RecordUnreadable", True),
        "forgotten": ("failed", "RecordUnreadable", True),
        "behind": ("done", None, False),
        "other": ("done", None, False),
    }
    assert RunTrouble(error="RecordUnreadable", work="upkeep") in every_desk.events.of(RunTrouble)


async def test_the_runs_behind_a_damaged_run_begin_at_once(every_desk: RunDesk, database_url: str) -> None:
    """The next run begins before maintenance looks for forgotten runs. The end of the damaged run is reported."""
    order = every_desk.memory.runs.order
    for name, owner in (("dead", "dead"), ("behind", None)):
        new = NewRun(run_id=name, workflow="desk", input={"text": name}, session_id="room", message_id=name)
        await order.add(new, owner=owner)
    execute(database_url, f"UPDATE chat_runs SET input = {_blob(database_url)} WHERE run_id = 'dead'")
    async with every_desk.open(AGENT, options=replace(BUSY, forgotten_seconds=3600.0)):

        async def is_done() -> bool:
            run = await every_desk.memory.runs.run("behind")
            return run is not None and run.status == "done"

        await eventually(is_done)
    ended = [(one.run_id, one.status, one.error, one.set_aside) for one in every_desk.events.of(RunFinished)]
    assert ended == [("dead", "failed", "RecordUnreadable", True), ("behind", "done", None, False)]
    assert [one.status for one in every_desk.events.of(TurnFinished)] == ["failed", "complete"]


@pytest.mark.parametrize("column", ["events", "usage"])
async def test_a_run_with_a_damaged_trace_ends(every_desk: RunDesk, database_url: str, column: str) -> None:
    """A retried run ends, and the next turn of its session begins. The damaged trace stays for a restore."""
    every_desk.model = ScriptedModel([ValueError(), "well", "next"])
    request = RunRequest(workflow="desk", text="hello", session_id="room", message_id="m1")
    async with every_desk.open(AGENT) as service:
        failed = await carried_out(service, request)
        damaged = "'[1'" if column == "usage" else _blob(database_url)
        execute(database_url, f"UPDATE chat_run_traces SET {column} = {damaged}")
        again = await carried_out(service, request)
        following = await carried_out(service, replace(request, message_id="m2"))
        assert (again.run.run_id, again.text, following.text) == (failed.run.run_id, "well", "next")
        with pytest.raises(RecordUnreadable):
            await (service.trace if column == "events" else service.usage)(failed.run.run_id)


@pytest.mark.parametrize("damage", ["UPDATE chat_run_traces SET events", "UPDATE chat_runs SET input"])
async def test_a_damaged_run_that_waits_for_a_person_is_cancelled(
    every_desk: RunDesk, database_url: str, damage: str
) -> None:
    """A waiting run whose trace or input cannot be read can be cancelled, because it cannot be resumed."""
    async with every_desk.open(asking_twice()) as service:
        asked = await carried_out(service, RunRequest(workflow="form", text="register me", session_id="room"))
        execute(database_url, f"{damage} = {_blob(database_url)}")
        assert await service.cancel(asked.run.run_id) == [asked.run.run_id]
        [run], _ = await service.list(RunQuery())
        assert run.status == "cancelled"


async def test_a_run_that_is_damaged_while_it_runs_ends(every_desk: RunDesk, database_url: str) -> None:
    """A failed run ends although its input cannot be read any more, and the next turn of its session begins."""
    gate = Gate()
    every_desk.model = ScriptedModel([[gate, ValueError()], "next"])
    request = RunRequest(workflow="desk", text="hello", session_id="room", message_id="m1")
    async with every_desk.open(AGENT) as service:
        broken = await service.submit(request)
        await gate.reached()
        execute(database_url, f"UPDATE chat_runs SET input = {_blob(database_url)}")
        gate.open()
        assert (await carried_out(service, replace(request, message_id="m2"))).text == "next"
        ended = await service.run(broken.run_id, damaged=True)
        assert (ended.status, ended.error) == ("failed", "RecordUnreadable")
    assert [role for role, _ in await every_desk.transcript("room")] == ["user", "user", "assistant"]


async def test_a_record_of_a_newer_version_is_left_to_its_processes(every_desk: RunDesk, database_url: str) -> None:
    """A zstd frame that names an unknown dictionary is not damaged. Other runs are executed."""
    for name, session_id in (("newer", "room"), ("other", "den")):
        new = NewRun(run_id=name, workflow="desk", input={"text": name}, session_id=session_id, message_id=name)
        await every_desk.memory.runs.order.add(new)
    frame = "28b52ffd22429c00"
    blob = f"X'{frame}'" if database_url.startswith("sqlite") else f"decode('{frame}', 'hex')"
    execute(database_url, f"UPDATE chat_runs SET input = {blob} WHERE run_id = 'newer'")
    async with every_desk.open(AGENT, options=BUSY) as service:
        assert (await service.result("other")).status == "done"

        async def is_reported() -> bool:
            return RunTrouble(error="RecordTooNew", work="upkeep") in every_desk.events.of(RunTrouble)

        await eventually(is_reported)
        [newer], _ = await service.list(RunQuery(session_id="room"))
    assert (newer.status, newer.error) == ("queued", "RecordTooNew")


async def test_a_damaged_child_of_a_dead_process_stops_no_recovery(every_desk: RunDesk, database_url: str) -> None:
    order = every_desk.memory.runs.order
    await order.add(NewRun(run_id="over", workflow="none", input={}), owner="dead")
    await order.add(NewRun(run_id="child", workflow="none", input={}, parent_run_id="over"), owner="dead")
    await order.add(NewRun(run_id="other", workflow="desk", input={"text": "hi"}), owner="dead")
    await every_desk.memory.runs.finish("over", "dead", "failed")
    execute(database_url, f"UPDATE chat_runs SET input = {_blob(database_url)} WHERE run_id = 'child'")
    async with every_desk.open(AGENT, options=BUSY) as service, asyncio.timeout(HANG_SECONDS):
        assert (await service.result("other")).status == "done"


async def test_children_of_dead_processes_end(desk: RunDesk) -> None:
    """A child of a dead process ends with its parent, or is ended because its parent is over."""
    order, runs = desk.memory.runs.order, desk.memory.runs
    for name in ("over", "queued"):
        await order.add(NewRun(run_id=name, workflow="none", input={}), owner="dead")
        await order.add(NewRun(run_id=f"child of {name}", workflow="none", input={}, parent_run_id=name), owner="dead")
    await runs.finish("over", "dead", "failed")
    async with desk.open(AGENT, options=BUSY) as service:
        await service.cancel("queued")

        async def both_ended() -> bool:
            children = [await service.run(f"child of {name}") for name in ("over", "queued")]
            return all(child.over for child in children)

        await eventually(both_ended)
        child = await service.run("child of over")
        assert (child.status, child.error) == ("cancelled", "ParentOver")
        parent = await service.run("queued")
    assert parent.status == "cancelled"


async def test_a_run_without_its_workflow_waits_for_a_process_that_has_it(every_desk: RunDesk) -> None:
    """A queued run, and one of a dead process, whose workflow only a later process has."""
    order, runs = every_desk.memory.runs.order, every_desk.memory.runs
    every_desk.model = ScriptedModel(["one", "two"])
    await order.add(NewRun(run_id="queued", workflow="desk", input={"text": "hi"}, session_id="room"))
    await order.add(NewRun(run_id="begun", workflow="desk", input={"text": "hi"}, session_id="hall"), owner="dead")
    async with every_desk.open(AGENT.replace("name: desk", "name: other"), options=BUSY) as old:
        for run_id in ("queued", "begun"):

            async def is_noted(run_id: str = run_id) -> bool:
                await old._worker.engine.enqueue(run_id)  # noqa: SLF001 - as another process does
                return (await old.run(run_id)).error == "WorkflowGone"

            await eventually(is_noted)
        found = [await old.run(run_id) for run_id in ("queued", "begun")]
        assert [(run.status, run.attempts) for run in found] == [("queued", 0), ("running", 1)]
    async with every_desk.open(AGENT, options=BUSY) as new, asyncio.timeout(HANG_SECONDS):
        for run_id in ("queued", "begun"):
            result = await new.result(run_id)
            assert (result.status, result.run.error) == ("done", None)
    assert await runs.owners() == set()


async def test_a_run_of_a_dead_process_whose_workflow_is_gone_says_why_it_waits(every_desk: RunDesk) -> None:
    """No process enqueues such a run again, so maintenance notes it."""
    for name, owner in (("begun", "dead"), ("forgotten", None)):
        new = NewRun(run_id=name, workflow="gone", input={"text": "hi"}, session_id=name)
        await every_desk.memory.runs.order.add(new, owner=owner)
    async with every_desk.open(AGENT, options=BUSY) as service:

        async def are_noted() -> bool:
            return {(await service.run(name)).error for name in ("begun", "forgotten")} == {"WorkflowGone"}

        await eventually(are_noted)
    assert {run_id for run_id, _ in await every_desk.memory.runs.records.without_workflow()} == {"begun", "forgotten"}


async def test_a_run_without_its_workflow_is_noted_once(desk: RunDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance looks at the run again and again, but does not write each time."""
    note, noted, looks = Runs.note_workflow_gone, list[str](), list[str]()
    of = RunWorkflows.of

    async def noting(runs: Runs, run_id: str) -> None:
        noted.append(run_id)
        await note(runs, run_id)

    async def looking(workflows: RunWorkflows, run: Run) -> Workflow:
        looks.append(run.run_id)
        return await of(workflows, run)

    monkeypatch.setattr(Runs, "note_workflow_gone", noting)
    monkeypatch.setattr(RunWorkflows, "of", looking)
    await desk.memory.runs.order.add(NewRun(run_id="r1", workflow="gone", input={"text": "hi"}), owner="dead")
    async with desk.open(AGENT, options=BUSY):

        async def are_many() -> bool:
            return len(looks) > 5

        await eventually(are_many)
    assert noted == ["r1"]


async def test_a_run_whose_workflow_is_gone_for_good_ends(every_desk: RunDesk) -> None:
    """The run ends as interrupted, with its question stored; the session's next turn begins, and a retry works."""
    order = every_desk.memory.runs.order
    for number, owner in enumerate((None, "dead")):
        gone = NewRun(run_id=f"gone {number}", workflow="gone", input={"text": "one"}, session_id=f"room {number}")
        await order.add(gone, owner=owner)
        later = NewRun(run_id=f"later {number}", workflow="desk", input={"text": "two"}, session_id=f"room {number}")
        await order.add(later)
    impatient = replace(BUSY, workflow_gone_seconds=0.0)
    async with every_desk.open(AGENT, options=impatient) as service, asyncio.timeout(HANG_SECONDS):
        for number in range(2):
            assert (await service.result(f"later {number}")).status == "done"
            run = await service.run(f"gone {number}")
            assert (run.status, run.error, run.set_aside) == ("interrupted", "WorkflowGone", False)
    async with every_desk.open(AGENT.replace("name: desk", "name: gone"), options=BUSY) as service:
        await service.retry("gone 0")
        assert (await service.result("gone 0")).status == "done"


async def test_a_restart_does_not_prolong_the_wait_for_a_workflow(every_desk: RunDesk, clock: SettableClock) -> None:
    await every_desk.memory.runs.order.add(NewRun(run_id="gone", workflow="gone", input={"text": "hi"}))
    async with every_desk.open(AGENT, options=BUSY) as service:

        async def is_noted() -> bool:
            return (await service.run("gone")).error == "WorkflowGone"

        await eventually(is_noted)
    clock.advance(BUSY.workflow_gone_seconds + 1)
    async with every_desk.open(AGENT, options=BUSY) as service, asyncio.timeout(HANG_SECONDS):
        assert (await service.result("gone")).status == "interrupted"


async def test_an_error_that_continues_is_reported_once(desk: RunDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is down for hours does not fill the log; the error is reported again after a minute."""
    rounds = 0

    async def fail(_: Runs) -> set[str]:
        nonlocal rounds
        rounds += 1
        raise StoreUnavailable("The database is down.")

    monkeypatch.setattr(Runs, "owners", fail)
    async with desk.open(AGENT, options=BUSY):

        async def are_many() -> bool:
            return rounds > 5

        await eventually(are_many)
    reports = [event for event in desk.events.of(RunTrouble) if event.work == "takeover"]
    assert [event.error for event in reports] == ["StoreUnavailable"]


async def test_runs_without_their_workflow_do_not_hide_later_runs(every_desk: RunDesk) -> None:
    """A process finds a forgotten run behind more runs of other workflows than it looks at in one round."""
    order = every_desk.memory.runs.order
    for number in range(60):
        await order.add(NewRun(run_id=f"gone {number}", workflow="gone", input={"text": "hi"}, session_id=f"s{number}"))
        owned = NewRun(run_id=f"begun {number}", workflow="gone", input={"text": "hi"}, session_id=f"b{number}")
        await order.add(owned, owner="dead")
    await order.add(NewRun(run_id="later", workflow="desk", input={"text": "hi"}, session_id="room"))
    async with every_desk.open(AGENT, options=BUSY) as service, asyncio.timeout(20):

        async def is_done() -> bool:
            return (await service.run("later")).status == "done"

        await eventually(is_done)


async def test_a_process_without_the_workflow_notes_nothing_in_a_run_of_another_one(every_desk: RunDesk) -> None:
    """The other process executes the run, and the run then waits for a person."""
    order, runs = every_desk.memory.runs.order, every_desk.memory.runs
    async with living_process() as owner:
        await order.add(NewRun(run_id="alive", workflow="gone", input={"text": "hi"}), owner=owner)
        await runs.note_workflow_gone("alive")
        run = await runs.run("alive")
        assert run is not None
        assert run.error is None


async def test_a_waiting_run_without_its_workflow_is_cancelled(every_desk: RunDesk) -> None:
    await every_desk.memory.runs.order.add(
        NewRun(run_id="queued", workflow="gone", input={"text": "hi"}, session_id="room")
    )
    async with every_desk.open(AGENT, options=BUSY) as service, asyncio.timeout(HANG_SECONDS):
        assert await service.cancel("queued") == ["queued"]
        assert (await service.result("queued")).status == "cancelled"


async def test_the_run_behind_a_cancelled_child_begins(desk: RunDesk) -> None:
    order = desk.memory.runs.order
    await order.add(NewRun(run_id="parent", workflow="none", input={}, session_id="room"), owner="other")
    child = NewRun(run_id="child", workflow="none", input={}, session_id="hall", parent_run_id="parent")
    await order.add(child)
    await order.add(NewRun(run_id="behind", workflow="desk", input={"text": "hi"}, session_id="hall"))
    await desk.memory.runs.wait("parent", "other", {})
    async with desk.open(AGENT) as service:
        assert sorted(await service.cancel("parent")) == ["child", "parent"]

        async def done() -> bool:
            return (await service.run("behind")).status == "done"

        await eventually(done)


async def test_checkpoints_of_finished_runs_are_deleted(desk: RunDesk, clock: SettableClock) -> None:
    """The checkpoints of a run are deleted at once if it is done, and after a day if it could be retried."""
    desk.model = ScriptedModel(["well", ValueError()])
    async with desk.open(AGENT, options=BUSY) as service:
        runs = [(await carried_out(service, RunRequest(workflow="desk", text="hi"))).run for _ in range(2)]
        assert [run.status for run in runs] == ["done", "failed"]

        async def kept() -> list[bool]:
            threads = [{"configurable": {"thread_id": run.run_id}} for run in runs]
            return [await desk.saver.aget_tuple(one) is not None for one in threads]  # type: ignore[arg-type]

        async def only_the_failed() -> bool:
            return await kept() == [False, True]

        await eventually(only_the_failed)
        clock.advance(90_000)

        async def none() -> bool:
            return await kept() == [False, False]

        await eventually(none)


async def test_a_process_that_dies_when_its_run_is_done_leaves_no_checkpoints(desk: RunDesk) -> None:
    """Maintenance deletes the checkpoints of a done run whose process died, without the delay for failed runs."""
    thread = await left_checkpoint(desk)
    async with desk.open(AGENT, options=BUSY):

        async def none() -> bool:
            return await desk.saver.aget_tuple(thread) is None

        await eventually(none)


async def test_maintenance_begins_with_the_engine(desk: RunDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def slowly(*arguments: Any, **options: Any) -> AsyncIterator[Engine]:
        assert not await changed(asyncio.Event(), 0.1)
        async with open_engine(*arguments, **options) as engine:
            yield engine

    monkeypatch.setattr("threadkeep.runs.service.open_engine", slowly)
    await desk.memory.runs.order.add(NewRun(run_id="left", workflow="desk", input={"text": "hi"}))
    async with desk.open(AGENT, options=BUSY) as service:

        async def done() -> bool:
            return (await service.run("left")).over

        await eventually(done)


async def test_a_round_that_fails_is_reported(desk: RunDesk) -> None:
    async def down(**_: object) -> list[str]:
        raise StoreUnavailable("down")

    async with desk.open(AGENT, options=BUSY):
        order = desk.memory.runs.order
        order.ready = down  # type: ignore[method-assign]
        await desk.events.until(lambda: len(desk.events.of(RunTrouble)) >= 2)
    assert {(event.work, event.error) for event in desk.events.of(RunTrouble)} == {("upkeep", "StoreUnavailable")}


async def test_maintenance_continues_after_the_process_was_declared_dead(
    postgres_url: str, memory_options: MemoryOptions, desk: RunDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a process cannot register again, its maintenance fails; after that, it removes checkpoints as before."""
    looks: list[None] = []
    recover = RunMaintenance.recover

    async def counted(maintenance: RunMaintenance) -> None:
        looks.append(None)
        await recover(maintenance)

    monkeypatch.setattr(RunMaintenance, "recover", counted)
    options = replace(BUSY, engine=EngineOptions(works=False, dead_seconds=2.0))
    async with open_memory(postgres_url, options=memory_options) as desk.memory:
        desk.engine = parse_address(postgres_url)
        async with desk.open(AGENT, options=options) as service:
            await service.ready()
            with psycopg.connect(postgres_url) as blocking:
                # Another process declares this one dead, and holds the lock that this one needs to register.
                blocking.execute("SELECT pg_advisory_xact_lock(7310865114)")
                execute(postgres_url, "DELETE FROM threadkeep_engine.processes")

                async def registers() -> bool:
                    waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                    return bool(query(postgres_url, waits))

                await eventually(registers)
                before = len(looks)

                async def looked_again() -> bool:
                    return len(looks) > before + 1

                await eventually(looked_again)
            thread = await left_checkpoint(desk)

            async def none() -> bool:
                return await desk.saver.aget_tuple(thread) is None

            await eventually(none)


@pytest.mark.parametrize("dead", [8.0, 2.0])
async def test_a_short_lease_is_checked_more_often(dead: float) -> None:
    """Leases are checked at least twice per lease time, or a dead process is never detected on PostgreSQL."""
    options = RunServiceOptions(engine=EngineOptions(dead_seconds=dead))
    assert options.owner_check_seconds < dead / 2


async def test_a_long_lease_is_checked_every_two_seconds() -> None:
    """On SQLite a dead process is detected at once, however long its lease is."""
    assert RunServiceOptions(engine=EngineOptions(dead_seconds=3600.0)).owner_check_seconds == 2.0
