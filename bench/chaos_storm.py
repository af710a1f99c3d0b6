"""Trees of runs with three levels below the root, cancelled by any process at random, while processes are killed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bench.chaos_history import History
from bench.chaos_notes import Note
from bench.chaos_processes import Place
from bench.chaos_soak import Crowd, Plan, Told, crowd, kill_now_and_then
from threadkeep.runs.requests import RunRequest

STOPPED_WITHIN_SECONDS = 2.0
_AT_ONCE = 4
_LONGEST_LIFE_SECONDS = 0.8


@dataclass(frozen=True)
class Storm:
    """A cancelled tree: the times of the request, of its response, of the tree's end and of the next turn's end."""

    text: str
    run_id: str
    asked: float
    answered: float
    over: float
    next_over: float


@dataclass(frozen=True)
class Weather:
    """All storms of a part, and the messages of callers."""

    told: Told
    storms: list[Storm] = field(default_factory=list)

    def faults(self, notes: Sequence[Note], history: History) -> list[str]:
        """Return a sentence for each broken guarantee."""
        found = [*self.told.faults]
        late = [(storm.text, seconds) for storm in self.storms if (seconds := stopped_after(storm, notes))]
        found += [f"{text} was still at work {seconds:.1f} s after it was cancelled" for text, seconds in late]
        for run in history.runs:
            if run.workflow in ("top", "middle", "bottom", "leaf") and run.status not in ("cancelled", "done"):
                found.append(f"{run.workflow} {run.run_id} ended as {run.status}: {run.error}")
            elif run.workflow == "enqueue" and run.status != "done":
                found.append(f"{run.message_id}, which came after a tree, is {run.status}: {run.error}")
        return found


def stopped_after(storm: Storm, notes: Sequence[Note]) -> float | None:
    """Return how many seconds after its cancellation a tree was still working; None if at most two seconds.

    The time of the response counts, because the process that got the request may have been killed before it stored it.
    """
    limit = storm.answered + STOPPED_WITHIN_SECONDS
    at_work: dict[int, int] = {}
    latest: float | None = None
    for note in notes:
        if note.seconds > limit and (any(at_work.values()) or (note.text == storm.text and note.what == "begin")):
            latest = note.seconds
        if note.what == "dead":
            at_work.pop(note.pid, None)
        elif note.text == storm.text and note.what == "begin":
            at_work[note.pid] = at_work.get(note.pid, 0) + 1
        elif note.text == storm.text and note.what == "end" and note.pid in at_work:
            at_work[note.pid] -= 1
    return None if latest is None else latest - storm.answered


async def storms(place: Place, plan: Plan) -> Weather:
    """Start trees and cancel them for a time, while processes are killed."""
    chance, weather = random.Random(plan.seed), Weather(Told())
    async with crowd(place, plan, chance) as workers, asyncio.TaskGroup() as tasks:
        until = time.monotonic() + plan.seconds
        for number in range(_AT_ONCE):
            tasks.create_task(_trees(workers, weather, random.Random(f"{plan.seed}/{number}"), number, until))
        tasks.create_task(kill_now_and_then(workers, plan, chance, weather.told, until))
    return weather


async def _trees(workers: Crowd, weather: Weather, chance: random.Random, session: int, until: float) -> None:
    number = 0
    while time.monotonic() < until:
        number += 1
        text = f"storm-{session}/{number}"
        request = RunRequest(workflow="top", text=text, session_id=f"storm-{session}", message_id=text)
        run_id, _ = await workers.surely("submit", request, chance.choice(("wait", "background")))
        await asyncio.sleep(chance.random() * _LONGEST_LIFE_SECONDS)
        asked = time.monotonic()
        await workers.surely("cancel", run_id)
        answered = time.monotonic()
        after = replace(request, workflow="enqueue", text=f"{text}-next", message_id=f"{text}-next")
        following, _ = await workers.surely("submit", after, chance.choice(("wait", "background")))
        try:
            async with asyncio.timeout(60.0):
                if (status := await workers.surely("result", run_id)) != "cancelled":
                    weather.told.faults.append(f"{text} was cancelled and is {status}")
                over = time.monotonic()
                if (status := await workers.surely("result", following)) != "done":
                    weather.told.faults.append(f"{text}-next is {status}")
        except TimeoutError:
            weather.told.faults.append(f"{text} or what came after it did not end")
            return
        weather.storms.append(Storm(text, run_id, asked, answered, over, time.monotonic()))
