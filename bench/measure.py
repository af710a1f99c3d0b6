"""Measurements: the operations of all contenders in turn, then bursts of many writers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from bench.contenders import Conversation, Engine, Measure, TurnTexts
from bench.lanes import Lane, Tell
from bench.plan import TAIL_MESSAGES, Plan
from bench.results import Cell
from bench.texts import turns

_ROUNDS_BETWEEN_NEWS = 20


@dataclass
class Track:
    """A contender at a session length, with the times of its operation so far, in milliseconds."""

    lane: Lane
    stored: int
    times: list[float] = field(default_factory=list)

    async def run(self, measure: Measure, number: int, plan: Plan, texts: Iterator[TurnTexts]) -> None:
        """Perform the operation a few times, unless its time is used up."""
        conversations = self.lane.conversations[self.stored]
        for repeat in range(plan.repeats):
            if sum(self.times) > plan.seconds * 1000:
                return
            if measure == "tail":
                self.times.append(await _tail_time(conversations[number % len(conversations)]))
            elif self.stored:
                self.times.append(await _append_time(conversations[number % len(conversations)], next(texts)))
            else:
                async with self.lane.contender.conversation(f"new:{number}:{repeat}") as conversation:
                    await conversation.tail(TAIL_MESSAGES)  # the first use opens connections
                    self.times.append(await _append_time(conversation, next(texts)))


async def measure_operation(engine: Engine, measure: Measure, lanes: list[Lane], plan: Plan, tell: Tell) -> list[Cell]:
    """Return the median time of an operation for each contender and session length.

    All lengths and contenders take turns in each round, so that a slow moment of the machine affects all of them. The
    order differs each time, because a contender may find libraries warm that the previous one uses.
    """
    tracks = [Track(lane, stored) for stored in plan.stored for lane in lanes if lane.takes_part(measure)]
    texts = turns()
    order = Random(engine)
    for number in range(plan.rounds):
        if number % _ROUNDS_BETWEEN_NEWS == 0:
            tell(f"{engine}: {measure}, round {number + 1} of {plan.rounds}")
        for track in order.sample(tracks, len(tracks)):
            await track.run(measure, number, plan, texts)
    return [
        Cell.of(engine, track.lane.entry.name, measure, stored=track.stored, values=track.times) for track in tracks
    ]


async def measure_throughput(
    engine: Engine, lanes: list[Lane], plan: Plan, tell: Tell
) -> tuple[list[Cell], dict[str, int]]:
    """Return turns per second of many writers, each with its own session, and the failed turns of each contender."""
    running = [lane for lane in lanes if lane.takes_part("throughput")]
    rates: dict[str, list[float]] = {lane.entry.name: [] for lane in running}
    failures: dict[str, int] = {}
    texts = turns()
    order = Random(engine)
    for lane in running:
        for conversation in lane.writers:
            await conversation.append(next(texts))
    for number in range(plan.burst_rounds):
        tell(f"{engine}: throughput, round {number + 1} of {plan.burst_rounds}")
        for lane in order.sample(running, len(running)):
            burst = await _burst(lane, plan.burst_seconds, texts)
            rates[lane.entry.name].append(burst.stored / burst.seconds)
            failures[lane.entry.name] = failures.get(lane.entry.name, 0) + burst.failed
            await lane.contender.settle()
    cells = [Cell.of(engine, name, "throughput", stored=None, values=values) for name, values in rates.items()]
    return cells, {name: count for name, count in failures.items() if count}


@dataclass
class Burst:
    """The turns of many writers until the time was up, including those that were still being stored."""

    stored: int = 0
    failed: int = 0
    seconds: float = 0.0


async def _burst(lane: Lane, seconds: float, texts: Iterator[TurnTexts]) -> Burst:
    burst = Burst()
    started = time.perf_counter()

    async def write(conversation: Conversation) -> None:
        while time.perf_counter() - started < seconds:
            try:
                await conversation.append(next(texts))
            except Exception:  # noqa: BLE001 - some contenders fail if the file is locked; this is counted
                burst.failed += 1
            else:
                burst.stored += 1

    await asyncio.gather(*(write(conversation) for conversation in lane.writers))
    burst.seconds = time.perf_counter() - started
    return burst


async def _append_time(conversation: Conversation, turn: TurnTexts) -> float:
    started = time.perf_counter()
    await conversation.append(turn)
    return (time.perf_counter() - started) * 1000


async def _tail_time(conversation: Conversation) -> float:
    started = time.perf_counter()
    await conversation.tail(TAIL_MESSAGES)
    return (time.perf_counter() - started) * 1000
