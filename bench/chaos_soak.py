"""People who write to sessions through processes that are killed at random; their answers are checked afterwards."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from bench.chaos_processes import Gone, Place, Refused, Verb, Worker
from threadkeep.runs.requests import RunRequest

KINDS = ("enqueue", "parent", "till", "interrupt", "coalesce", "reject")
"""The workflows to which people write; a session such as `till-2` uses the workflow `till`."""

_ANSWERS = ("skip", "it went out")
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Plan:
    """The amount of work: by default half a minute, with a kill about every second."""

    seed: int
    seconds: float = 30.0
    sessions: int = 2
    workers: int = 2
    between_kills: tuple[float, float] = (0.3, 1.5)
    patience_seconds: float = 60.0
    clocks_wrong_by_hours: tuple[float, ...] = (0.0,)
    pauses_seconds: float = 0.0


@dataclass(frozen=True)
class Accepted:
    """A message that a process accepted, and the outcome (`by`); messages of a session are in order of acceptance."""

    session_id: str
    message_id: str
    run_id: str
    by: str


@dataclass
class Told:
    """The messages that processes accepted, and the responses that cannot be right (`faults`), as callers saw them."""

    accepted: list[Accepted] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    kills: int = 0


class Crowd:
    """The worker processes; a killed process is replaced at once."""

    def __init__(self, place: Place, plan: Plan, chance: random.Random) -> None:
        self._place = place
        self._plan = plan
        self._chance = chance
        self._workers = [Worker(self._some_place()) for _ in range(plan.workers)]

    async def ready(self) -> None:
        """Wait until all worker processes have opened the database."""
        for worker in self._workers:
            await worker.ask("ready")

    async def ask(self, verb: Verb, *arguments: object) -> Any:
        """Send a command to one of the processes; raise `Gone` if it is killed before it responds."""
        return await self._chance.choice(self._workers).ask(verb, *arguments)

    async def surely(self, verb: Verb, *arguments: object) -> Any:
        """Send a command to a random process, and again until one responds."""
        while True:
            try:
                return await self.ask(verb, *arguments)
            except Gone:
                await asyncio.sleep(_POLL_SECONDS)

    async def kill_one(self) -> None:
        """Kill one of the worker processes, and start another."""
        index = self._chance.randrange(len(self._workers))
        dead, self._workers[index] = self._workers[index], Worker(self._some_place())
        await dead.kill()

    async def pause_one(self) -> None:
        """Pause one of the worker processes for so long that it is declared dead."""
        await self._chance.choice(self._workers).pause(self._plan.pauses_seconds)

    def _some_place(self) -> Place:
        hours = self._chance.choice(self._plan.clocks_wrong_by_hours)
        return replace(self._place, clock_is_wrong_by=timedelta(hours=hours))

    async def end(self) -> None:
        """Kill all worker processes."""
        for worker in self._workers:
            await worker.kill()


@asynccontextmanager
async def crowd(place: Place, plan: Plan, chance: random.Random) -> AsyncIterator[Crowd]:
    """Run worker processes inside the block."""
    found = Crowd(place, plan, chance)
    try:
        await found.ready()
        yield found
    finally:
        await found.end()


async def soak(place: Place, plan: Plan) -> Told:
    """Write messages and kill processes, then wait until everything has ended."""
    chance, told = random.Random(plan.seed), Told()
    async with crowd(place, plan, chance) as workers:
        until = time.monotonic() + plan.seconds
        people = [
            _Person(f"{kind}-{number}", kind, workers, told, random.Random(f"{plan.seed}/{kind}/{number}"))
            for kind in KINDS
            for number in range(plan.sessions)
        ]
        async with asyncio.TaskGroup() as tasks:
            for person in people:
                tasks.create_task(person.talk(until))
            tasks.create_task(kill_now_and_then(workers, plan, chance, told, until))
        try:
            async with asyncio.timeout(plan.patience_seconds):
                for one in told.accepted:
                    await _ended(workers, one, told)
        except TimeoutError:
            told.faults.append("not all runs came to an end")
    return told


async def kill_now_and_then(workers: Crowd, plan: Plan, chance: random.Random, told: Told, until: float) -> None:
    """Kill processes at random moments; if the plan has pauses, pause some instead."""
    while time.monotonic() < until:
        await asyncio.sleep(chance.uniform(*plan.between_kills))
        if plan.pauses_seconds and chance.random() < 0.5:
            await workers.pause_one()
        else:
            await workers.kill_one()
        told.kills += 1


async def _ended(workers: Crowd, one: Accepted, told: Told) -> None:
    status = await workers.surely("result", one.run_id)
    while status == "waiting":
        await workers.surely("resume", one.run_id, _ANSWERS[0])
        status = await workers.surely("result", one.run_id)
    if isinstance(status, Refused):
        told.faults.append(f"{one.message_id}: its run cannot be read ({status.error})")


class _Person:
    """A person who writes to one session, and sends a message again if no process confirmed it."""

    def __init__(self, session_id: str, workflow: str, workers: Crowd, told: Told, chance: random.Random) -> None:
        self._session_id = session_id
        self._workflow = workflow
        self._workers = workers
        self._told = told
        self._chance = chance

    async def talk(self, until: float) -> None:
        number = 0
        while time.monotonic() < until:
            number += 1
            accepted = await self._send(f"{self._session_id}/{number}")
            if accepted is not None and (self._workflow == "till" or self._chance.random() < 0.6):
                await self._wait(accepted)
            elif self._chance.random() < 0.5:
                await asyncio.sleep(self._chance.random() / 5)

    async def _send(self, text: str) -> Accepted | None:
        request = RunRequest(workflow=self._workflow, text=text, session_id=self._session_id, message_id=text)
        while True:
            mode = self._chance.choice(("wait", "background"))
            try:
                answer = await self._workers.ask("submit", request, mode)
            except Gone:
                await asyncio.sleep(_POLL_SECONDS)
                continue
            if isinstance(answer, Refused):
                if answer.error != "SessionBusy":
                    self._told.faults.append(f"{text} was refused: {answer.error}")
                return None
            accepted = Accepted(self._session_id, text, *answer)
            self._told.accepted.append(accepted)
            if self._chance.random() < 0.2:
                await self._repeat(request, accepted)
            return accepted

    async def _repeat(self, request: RunRequest, accepted: Accepted) -> None:
        """Send a request again, in either mode, and check that it is recognised as the same run."""
        try:
            answer = await self._workers.ask("submit", request, self._chance.choice(("wait", "background")))
        except Gone:
            return
        if answer != (accepted.run_id, "known"):
            self._told.faults.append(f"{accepted.message_id} was taken twice: {answer}")

    async def _wait(self, accepted: Accepted) -> None:
        """Wait until a run is over. If a process dies, go on waiting only in the workflow `till`, which asks people."""
        while True:
            try:
                return await self._waited(accepted)
            except Gone:
                if self._workflow != "till":
                    return None
            await asyncio.sleep(_POLL_SECONDS)

    async def _waited(self, accepted: Accepted) -> None:
        """Wait for a run and answer its questions, some of them twice."""
        status = await self._workers.ask("result", accepted.run_id)
        while status == "waiting":
            for _ in range(self._chance.choice((1, 2))):
                given = await self._workers.ask("resume", accepted.run_id, self._chance.choice(_ANSWERS))
                if isinstance(given, Refused) and given.error != "InvalidInput":
                    self._told.faults.append(f"{accepted.message_id}: its answer was refused ({given.error})")
            status = await self._workers.ask("result", accepted.run_id)
