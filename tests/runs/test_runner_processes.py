"""Processes that are killed in the middle of graphs: every run ends, and what was done or said is so once."""

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
    """What all processes of a test note."""
    return Notes(tmp_path / "notes")


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return when something has come true."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(_POLL_SECONDS)


async def until_all_are_cancelled(service: RunService, run_id: str) -> None:
    """Return when no run of a tree goes on."""
    async with asyncio.timeout(HANG_SECONDS):
        while {run.status for run in await service.tree(run_id)} != {"cancelled"}:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)


@contextmanager
def working(*desks: Desk) -> Iterator[list[Child[None]]]:
    """A process for each desk."""
    children: list[Child[None]] = [Child(work, desk) for desk in desks]
    try:
        yield children
    finally:
        for child in children:
            child.kill()


def has_asked_for_all(notes: Notes, pid: int) -> bool:
    """Whether a process has asked for all that it asks for, and begun with nodes."""
    return {"ready", "second"} <= {note.what for note in notes.read() if note.pid == pid}


async def test_processes_are_killed_in_the_middle_of_graphs(shared_url: str, notes: Notes) -> None:
    """Runs of callers who wait, of queues, and children: all end, each question and answer is stored once."""
    mine, queued, parents = ([f"{kind}{number}" for number in range(4)] for kind in ("waited", "queued", "parent"))
    # The first is at its nodes until it is killed, however busy the machine is.
    first, second = Desk(shared_url, notes, 60.0, tuple(mine)), Desk(shared_url, notes, 0.05)
    async with opened(Desk(shared_url, notes), ASKING) as (memory, service):
        runs = {}
        for text in (*queued, *parents):
            workflow = "parent" if text in parents else "steps"
            request = RunRequest(workflow=workflow, text=text, session_id=text, message_id="m")
            runs[text] = (await service.submit(request, mode="background")).run_id
        with working(first, second) as children:
            await until(
                lambda: has_asked_for_all(notes, children[0].pid), "the first to have asked for all, and be at it"
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
    # A node that was done is not run again; one that was at work is.
    assert set(Counter(note.run_id for note in notes.read() if note.what == "first").values()) <= {1, 2}
    assert len([note for note in notes.read() if note.what == "second"]) > len(runs)


async def test_a_run_that_kills_its_processes_is_set_aside(shared_url: str, notes: Notes) -> None:
    """After three processes; the runs that were beside it are done."""
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
                while not await all_are_over():  # noqa: ASYNC110 - another process tells nobody
                    await asyncio.sleep(_POLL_SECONDS)
        found = {text: await service.run(run_id) for text, run_id in runs.items()}
    poison = found.pop("poison")
    assert (poison.status, poison.error, poison.set_aside) == ("failed", "GaveUp", True)
    assert [note.what for note in notes.read()].count("killed") == 3
    assert {text: (run.status, run.error, run.attempts) for text, run in found.items() if run.status != "done"} == {}


async def test_a_tool_that_may_not_run_twice_and_a_kill(shared_url: str, notes: Notes) -> None:
    """The process dies in the tool: another comes to the same call, asks a person, and pays nothing."""
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


async def test_an_agent_goes_on_after_its_last_tool(postgres_url: str, notes: Notes) -> None:
    """The process dies in the model call that follows: what the tool gave was kept beside it."""

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
                while not await kept(run_id):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(_POLL_SECONDS)
            children[0].kill()
            with working(Desk(postgres_url, notes)):
                async with asyncio.timeout(HANG_SECONDS):
                    result = await service.result(run_id)
    assert (result.text, [note.what for note in notes.read()].count("looked")) == ("re: slow-sunrise", 1)


async def test_a_tree_is_cancelled_from_another_process(shared_url: str, notes: Notes) -> None:
    """Where it is at work, the next time that one looks; and when its process is dead, nothing of it goes on."""
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
    """Carry runs out, but pause the process right before it deletes or resets a session."""
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
    """Another one took the run over, and the person wrote again: the process that wakes up changes nothing."""
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
            await until(lambda: notes.of("woke") == {""}, "the first to go on")
        finally:
            paused.kill()
        assert [message.content for message in await session.tail(9)][-1:] == ["new"]
        info = await session.info()
        assert (info.last_seq, info.reset_seq) == ((1, 0) if workflow == DELETE else (2, 1))
