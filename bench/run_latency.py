"""What a durable run adds to a turn that somebody waits for, beside a plain call of the same graph."""

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
from bench.run_desk import open_desk

_PAUSE_SECONDS = 0.02
_SESSIONS = 8

type Turn = Callable[[str, str, str], Awaitable[str]]


@dataclass(frozen=True)
class Latency:
    """The median milliseconds of a turn, by how it was asked for."""

    run: float
    plain: float

    @property
    def added(self) -> float:
        """What the run adds."""
        return self.run - self.plain


async def measure_latency(url: str, rounds: int, tell: Tell) -> Latency:
    """Take turns, in another order each round, after a few that do not count."""
    times: dict[str, list[float]] = {"run": [], "plain": []}
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
            for name in order.sample(list(ways), len(ways)):
                spent = await _timed(ways[name], f"{name}:{number % _SESSIONS}", next(questions).user)
                if number >= 0:
                    times[name].append(spent)
        gc.unfreeze()
    return Latency(median(times["run"]), median(times["plain"]))


async def _timed(turn: Turn, session_id: str, text: str) -> float:
    started = time.perf_counter()
    await turn(session_id, text, str(uuid4()))
    spent = (time.perf_counter() - started) * 1_000
    # Whoever has an answer reads it; what is cleared up meanwhile shall not stand in the next turn's way.
    await asyncio.sleep(_PAUSE_SECONDS)
    return spent
