"""The time that a durable run adds to a turn with a waiting caller, compared with a plain call of the same graph."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from statistics import median
from uuid import uuid4

from bench.chat_texts import chats
from bench.lanes import Tell
from bench.run_desk import OWN_STEPS, STEPS, TILL, open_desk
from threadkeep.workflows.built_in import CHAT

_PAUSE_SECONDS = 0.02
_SESSIONS = 8

type Turn = Callable[[str, str, str, str], Awaitable[str]]


WORKFLOWS = {
    CHAT: "the built-in chat",
    STEPS: "a step and an agent with a tool",
    TILL: "the same with a call of the tool, which must not run twice",
    OWN_STEPS: "two custom steps and an agent",
}


@dataclass(frozen=True)
class Latency:
    """The median milliseconds of a turn of a workflow, as a run and as a plain call."""

    run: float
    plain: float

    @property
    def added(self) -> float:
        """The milliseconds that the run adds."""
        return self.run - self.plain


async def measure_latency(url: str, rounds: int, tell: Tell) -> dict[str, Latency]:
    """Measure turns of each workflow in a different order each round, after some warm-up turns."""
    times: dict[tuple[str, str], list[float]] = {(name, way): [] for name in WORKFLOWS for way in ("run", "plain")}
    questions, order = chats(seed=2), Random(1)
    async with open_desk(url) as desk:
        ways: dict[str, Turn] = {"run": desk.wait_for, "plain": desk.call_plainly}
        unmeasured = rounds // 5
        for number in range(-unmeasured, rounds):
            if number % 100 == 0:
                tell(f"latency, round {number + 1} of {rounds}")
            if number == 0:
                gc.collect()
                gc.freeze()
            for name, way in order.sample(list(times), len(times)):
                spent = await _timed(ways[way], f"{name}-{way}:{number % _SESSIONS}", next(questions).user, name)
                if number >= 0:
                    times[name, way].append(spent)
        gc.unfreeze()
    return {name: Latency(median(times[name, "run"]), median(times[name, "plain"])) for name in WORKFLOWS}


async def _timed(turn: Turn, session_id: str, text: str, workflow: str) -> float:
    started = time.perf_counter()
    await turn(session_id, text, str(uuid4()), workflow)
    spent = (time.perf_counter() - started) * 1_000
    # Pause like a caller that reads the answer, so that the cleanup of this run does not delay the next turn.
    await asyncio.sleep(_PAUSE_SECONDS)
    return spent
