"""Tests of worker processes that are killed or paused: each run ends, and its effects are stored once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import ToolMessage

from tests.children import Child
from tests.limits import HANG_SECONDS
from tests.runs.run_workers import ASKING, Desk, opened, work
from tests.runs.workers import Notes
from threadkeep import Message
from threadkeep.records.runs import DELETE, RESET
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService
from threadkeep.store.address import parse_address
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.driver import StoreOptions
from threadkeep.store.tables import TableTranscripts

pytestmark = [pytest.mark.process, pytest.mark.slow]

_POLL_SECONDS = 0.02


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """Return the notes that all processes of a test share."""
    return Notes(tmp_path / "notes")


async def until(condition: Callable[[], bool], what: str) -> None:
    """Poll until a condition is true, and fail with `what` after a time limit."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(_POLL_SECONDS)


async def until_all_are_cancelled(service: RunService, run_id: str) -> None:
    """Wait until all runs of a tree are cancelled."""
    async with asyncio.timeout(HANG_SECONDS):
        while {run.status for run in await service.tree(run_id)} != {"cancelled"}:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)


@contextmanager
def working(*desks: Desk) -> Iterator[list[Child[None]]]:
    """Start a worker process for each desk, and kill the processes after the block."""
    children: list[Child[None]] = [Child(work, desk) for desk in desks]
    try:
        yield children
    finally:
        for child in children:
            child.kill()


def has_asked_for_all(notes: Notes, pid: int) -> bool:
    """Return whether a process has submitted all its runs and executes nodes."""
    return {"ready", "second"} <= {note.what for note in notes.read() if note.pid == pid}


async def test_runs_of_killed_workers_end(shared_url: str, notes: Notes) -> None:
    """After a worker is killed, all runs and their children end, and each turn is stored once."""
    mine, queued, parents = ([f"{kind}{number}" for number in range(4)] for kind in ("waited", "queued", "parent"))
    # The nodes of the first worker take so long that it is killed during them, even on a busy machine.
    first, second = Desk(shared_url, notes, 60.0, tuple(mine)), Desk(shared_url, notes, 0.05)
    async with opened(Desk(shared_url, notes), ASKING) as (memory, service):
        runs = {}
        for text in (*queued, *parents):
            workflow = "parent" if text in parents else "steps"
            request = RunRequest(workflow=workflow, text=text, session_id=text, message_id="m")
            runs[text] = (await service.submit(request, mode="background")).run_id
        with working(first, second) as children:
            await until(
                lambda: has_asked_for_all(notes, children[0].pid),
                "the first worker to have submitted its runs and to execute nodes",
            )
            children[0].kill()
            await until(lambda: notes.of("over") >= set(mine + queued + parents), "all nodes to be done")
            for text in mine:
                again = RunRequest(workflow="steps", text=text, session_id=text, message_id="m")
                runs[text] = (await service.submit(again)).run_id
            async with asyncio.timeout(HANG_SECONDS):
                results = {text: await service.result(run_id) for text, run_id in runs.items()}
        assert {text: result.status for text, result in results.items()} == dict.fromkeys(runs, "done")
        for text, run_id in runs.items():
            said = [(one.role, one.content) for one in await memory.session(text).tail(10)]
            assert said == [("user", text), ("assistant", f"re: {text}")]
            assert {run.status for run in await service.tree(run_id)} == {"done"}
    # A finished node is not repeated; a running one is.
    assert set(Counter(note.run_id for note in notes.read() if note.what == "first").values()) <= {1, 2}
    assert len([note for note in notes.read() if note.what == "second"]) > len(runs)


async def test_a_run_that_kills_its_processes_becomes_a_dead_letter(shared_url: str, notes: Notes) -> None:
    desk, runs = Desk(shared_url, notes), {}
    async with opened(desk, ASKING) as (_, service):
        for text in ("one", "two", "poison", "three", "four"):
            request = RunRequest(workflow="steps", text=text, session_id=text, message_id="m")
            runs[text] = (await service.submit(request, mode="background")).run_id
        with working(desk, desk) as children:

            async def all_are_over() -> bool:
                for index, child in enumerate(children):
                    if not child.process.is_alive():
                        children[index] = Child(work, desk)
                return all([(await service.run(run_id)).over for run_id in runs.values()])

            async with asyncio.timeout(HANG_SECONDS):
                while not await all_are_over():  # noqa: ASYNC110 - another process sets no event
                    await asyncio.sleep(_POLL_SECONDS)
        found = {text: await service.run(run_id) for text, run_id in runs.items()}
    poison = found.pop("poison")
    assert (poison.status, poison.error, poison.set_aside) == ("failed", "GaveUp", True)
    assert [note.what for note in notes.read()].count("killed") == 3
    assert {text: (run.status, run.error, run.attempts) for text, run in found.items() if run.status != "done"} == {}


async def test_a_killed_tool_call_is_not_repeated_without_a_person(shared_url: str, notes: Notes) -> None:
    """After a worker is killed in a tool that must not run twice, the next worker asks a person."""
    async with opened(Desk(shared_url, notes), ASKING) as (_, service):
        request = RunRequest(workflow="till", text="pay", session_id="till")
        with working(Desk(shared_url, notes, 60.0, progress_seconds=3600.0)) as children:
            run_id = (await service.submit(request, mode="background")).run_id
            await until(lambda: notes.of("paid") == {"7"}, "the tool to begin")
            children[0].kill()
            with working(Desk(shared_url, notes, 60.0)):
                async with asyncio.timeout(HANG_SECONDS):
                    result = await service.result(run_id)
                assert (result.status, len(result.interrupts)) == ("waiting", 1)
                await service.resume(run_id, "it went out", mode="background")
                async with asyncio.timeout(HANG_SECONDS):
                    result = await service.result(run_id)
    assert (result.text, [note.what for note in notes.read()].count("paid")) == ("re: it went out", 1)


async def test_an_answer_survives_the_process_that_received_it(shared_url: str, notes: Notes) -> None:
    """Each worker is killed after it resumed the run, before the step has used the answer; both answers are equal."""

    def asked(times: int) -> Callable[[], bool]:
        return lambda: [note.what for note in notes.read()].count("asking") >= times

    quick, slow = Desk(shared_url, notes), Desk(shared_url, notes, 60.0)
    async with opened(quick, ASKING) as (_, service):
        run_id = (await service.submit(RunRequest(workflow="form", text="hello"), mode="background")).run_id
        for answer, times in (("Ann", 1), ("Ann", 3)):
            with working(quick):
                async with asyncio.timeout(HANG_SECONDS):
                    assert (await service.result(run_id)).status == "waiting"
            with working(slow) as children:
                await service.resume(run_id, answer, mode="background")
                await until(asked(times + 1), "the resumed step")
                children[0].kill()
        with working(quick):
            async with asyncio.timeout(HANG_SECONDS):
                result = await service.result(run_id)
    assert (result.status, result.text) == ("done", "Ann is Ann")


async def test_an_agent_continues_after_its_last_tool_call(postgres_url: str, notes: Notes) -> None:
    """The worker that replaces one killed in a model call uses the stored tool result."""

    async def kept(run_id: str) -> bool:
        stored = [one async for one in saver.alist({"configurable": {"thread_id": run_id}})]
        said = [one.checkpoint["channel_values"].get("messages") or [None] for one in stored]
        return any(isinstance(messages[-1], ToolMessage) for messages in said)

    async with (
        opened(Desk(postgres_url, notes), ASKING) as (_, service),
        open_checkpointer(parse_address(postgres_url), StoreOptions()) as saver,
    ):
        request = RunRequest(workflow="window", text="look", session_id="window")
        with working(Desk(postgres_url, notes, 60.0)) as children:
            run_id = (await service.submit(request, mode="background")).run_id
            await until(lambda: "slow-sunrise" in notes.of("second"), "the model to be asked again")
            async with asyncio.timeout(HANG_SECONDS):
                while not await kept(run_id):  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(_POLL_SECONDS)
            children[0].kill()
            with working(Desk(postgres_url, notes)):
                async with asyncio.timeout(HANG_SECONDS):
                    result = await service.result(run_id)
    assert (result.text, [note.what for note in notes.read()].count("looked")) == ("re: slow-sunrise", 1)


async def test_a_tree_is_cancelled_from_another_process(shared_url: str, notes: Notes) -> None:
    """A cancel request ends all runs of a tree, whether their worker lives or is dead."""
    assert RunServiceOptions().watch_seconds <= 1.0
    async with opened(Desk(shared_url, notes), ASKING) as (_, service):
        with working(Desk(shared_url, notes, 60.0)) as children:
            run_id = (await service.submit(RunRequest(workflow="parent", text="go"), mode="background")).run_id
            await until(lambda: bool(notes.of("second")), "the child to be at work")
            await service.cancel(run_id)
            assert (await service.result(run_id)).status == "cancelled"
            await until_all_are_cancelled(service, run_id)
            run_id = (await service.submit(RunRequest(workflow="parent", text="more"), mode="background")).run_id
            await until(lambda: "more" in notes.of("second"), "the child to be at work")
            children[0].kill()
            await service.cancel(run_id)
            with working(Desk(shared_url, notes, 60.0)):
                async with asyncio.timeout(HANG_SECONDS):
                    assert (await service.result(run_id)).status == "cancelled"
                await until_all_are_cancelled(service, run_id)
    assert [note.what for note in notes.read()].count("second") == 2


def work_and_pause(desk: Desk) -> None:
    """Execute runs, but pause the process before it deletes or resets a session."""
    for name in ("delete", "reset"):
        original = getattr(TableTranscripts, name)

        async def pausing(*arguments: Any, original: Any = original, **options: Any) -> Any:
            desk.note("pauses", "")
            os.kill(os.getpid(), signal.SIGSTOP)
            try:
                return await original(*arguments, **options)
            finally:
                desk.note("woke", "")

        setattr(TableTranscripts, name, pausing)
    work(desk)


@pytest.mark.parametrize("workflow", [DELETE, RESET])
async def test_a_process_that_is_paused_before_it_changes_a_session(
    postgres_url: str, notes: Notes, workflow: str
) -> None:
    """A worker that wakes after another one executed its run does not change the session."""
    desk = Desk(postgres_url, notes)
    async with opened(desk, ASKING) as (memory, service):
        session, paused = memory.session("room"), Child(work_and_pause, desk)
        try:
            await session.append([Message("user", "old", id="1")])
            request = RunRequest(workflow=workflow, session_id="room", message_id="m")
            run_id = (await service.submit(request, mode="background")).run_id
            await until(lambda: notes.of("pauses") == {""}, "the first to be paused")
            with working(desk):
                async with asyncio.timeout(HANG_SECONDS):
                    while (run := await memory.runs.run(run_id)) is not None and not run.over:  # noqa: ASYNC110
                        await asyncio.sleep(_POLL_SECONDS)
            await session.append([Message("user", "new", id="2")])
            os.kill(paused.pid, signal.SIGCONT)
            await until(lambda: notes.of("woke") == {""}, "the first to continue")
        finally:
            paused.kill()
        assert [message.content for message in await session.tail(9)][-1:] == ["new"]
        info = await session.info()
        assert (info.last_seq, info.reset_seq) == ((1, 0) if workflow == DELETE else (2, 1))
