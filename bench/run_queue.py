"""Turns per second of queued and of awaited runs, compared with plain calls of the same graph and of a simple one."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from uuid import uuid4

from bench.chat_texts import chats
from bench.contenders import Place
from bench.lanes import Tell
from bench.langgraph_saver import GraphContender, open_postgres_saver, open_sqlite_saver
from bench.run_desk import RunDesk, open_desk
from threadkeep.records.runs import RunQuery
from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.runs.requests import RunRequest
from threadkeep.workflows.built_in import CHAT

AT_ONCE = 16
"""The number of sessions that run at the same time."""

ONE_WORKER, TWO_WORKERS = "queue, one worker", "queue, two workers"
WAITED_FOR, PLAIN, SAVER = "awaited runs", "the same graph, `ainvoke`", "`MessagesState` and a node, `ainvoke`"
CONTENDERS = (ONE_WORKER, TWO_WORKERS, WAITED_FOR, PLAIN, SAVER)

_POLL_SECONDS = 0.05
_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class QueuePlan:
    """The number of turns of each contender in each round, each in its own session."""

    rounds: int = 3
    turns: int = 80
    contenders: tuple[str, ...] = CONTENDERS


async def measure_queue(place: Place, saver_place: Place, plan: QueuePlan, tell: Tell) -> dict[str, float]:
    """Return the turns per second of each contender, as the median of the rounds."""
    found: dict[str, list[float]] = {name: [] for name in plan.contenders}
    async with AsyncExitStack() as stack:
        opening = open_postgres_saver(saver_place) if saver_place.dsn else open_sqlite_saver(saver_place)
        saver = await stack.enter_async_context(opening)
        desk = await stack.enter_async_context(open_desk(place.url, engine=EngineOptions(works=False)))
        ways: dict[str, Callable[[], Awaitable[float]]] = {
            ONE_WORKER: lambda: _by_workers(desk, place.url, 1, plan.turns),
            TWO_WORKERS: lambda: _by_workers(desk, place.url, 2, plan.turns),
            WAITED_FOR: lambda: _at_once(desk.wait_for, plan.turns),
            PLAIN: lambda: _at_once(desk.call_plainly, plan.turns),
            SAVER: lambda: _at_once(_saved(saver), plan.turns),
        }
        for number in range(plan.rounds):
            for name in plan.contenders:
                tell(f"runs a second, round {number + 1} of {plan.rounds}: {name}")
                found[name].append(await ways[name]())
    return {name: median(rates) for name, rates in found.items()}


async def _at_once(turn: Callable[[str, str, str], Awaitable[object]], turns: int) -> float:
    """Return the turns per second of sessions that run at the same time."""
    questions = [one.user for one in islice(chats(seed=3), turns)]

    async def go_on() -> None:
        while questions:
            await turn(f"at-once:{uuid4()}", questions.pop(), str(uuid4()))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(go_on())
    return turns / (time.perf_counter() - started)


def _saved(saver: GraphContender) -> Callable[[str, str, str], Awaitable[object]]:
    answers = chats(seed=4)

    async def turn(session_id: str, text: str, _: str) -> None:
        async with saver.conversation(session_id) as conversation:
            await conversation.append(next(answers)._replace(user=text))

    return turn


async def _by_workers(desk: RunDesk, url: str, workers: int, turns: int) -> float:
    """Return turns per second from a filled queue, from the start of the first run to the end of the last."""
    async with AsyncExitStack() as stack:
        processes = [await _worker(url, stack) for _ in range(workers)]
        run_ids = [await _enqueue(desk, question.user) for question in islice(chats(seed=5), turns)]
        for process in processes:
            _tell(process, b"go\n")
        left = set(run_ids)
        while left:
            await asyncio.sleep(_POLL_SECONDS)
            queued, _ = await desk.service.list(RunQuery(status="queued", limit=1_000))
            running, _ = await desk.service.list(RunQuery(status="running", limit=1_000))
            left = {run.run_id for run in (*queued, *running)} & left
        runs = [await desk.service.run(run_id) for run_id in run_ids]
    began = min(run.started_at for run in runs if run.started_at is not None)
    ended = max(run.ended_at for run in runs if run.ended_at is not None)
    assert all(run.status == "done" for run in runs)
    return turns / (ended - began).total_seconds()


async def _enqueue(desk: RunDesk, text: str) -> str:
    request = RunRequest(workflow=CHAT, text=text, session_id=f"queued:{uuid4()}", message_id=str(uuid4()))
    return (await desk.service.submit(request, mode="background")).run_id


async def _worker(url: str, stack: AsyncExitStack) -> asyncio.subprocess.Process:
    """Start a process that has imported everything and executes runs on a command; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.run_worker",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=_ROOT,
        env={**os.environ, "THREADKEEP_BENCH_URL": url},
    )  # fmt: skip

    async def end() -> None:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()

    stack.push_async_callback(end)
    assert process.stdout is not None
    await process.stdout.readline()
    return process


def _tell(process: asyncio.subprocess.Process, line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line)
