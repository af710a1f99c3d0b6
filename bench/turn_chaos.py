"""People who write to two services on one database while processes, databases and disks fail.

Every caller repeats its question until it is answered, also at the other service while the first request is open.
All answers, stored messages and model calls are recorded, and checked by `bench.turn_check`.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from psycopg.conninfo import conninfo_to_dict

from bench.postgres_server import postgres_server
from bench.turn_faults import Faults, TurnPlan
from bench.turn_history import Asked, Refused, Told, TurnHistory, question_text
from bench.turn_model import TurnModel, serving_model
from bench.turn_rows import open_runs, run_rows, stored_rows
from bench.turn_services import DatabaseProxy, Outages, Service, database_proxy, ready, small_disk

_HANG_SECONDS = 180.0
_REQUEST_SECONDS = 90.0
_REPEATS_AT_ONCE = 8
_DISK_MEGABYTES = 256


@dataclass
class Arena:
    """Two services with their databases, disks and model."""

    plan: TurnPlan
    url: str
    services: Sequence[Service]
    proxies: Sequence[DatabaseProxy]
    disk: Path | None
    model: TurnModel
    client: httpx2.AsyncClient


@asynccontextmanager
async def arena(plan: TurnPlan, folder: Path) -> AsyncIterator[Arena]:
    """Start a database, a model and two services; stop them after the block."""
    async with AsyncExitStack() as stack:
        chance = random.Random(f"{plan.seed}/model")
        model = await stack.enter_async_context(
            serving_model(TurnModel(chance, plan.model_seconds, plan.failing_calls))
        )
        disk = folder / "disk"
        disk.mkdir(parents=True)
        mounted = stack.enter_context(small_disk(disk, _DISK_MEGABYTES))
        urls, proxies = await _database(stack, plan, disk)
        services = []
        for number in range(2):
            pending = disk / ("pending" if plan.one_pending_folder else f"pending-{number}")
            environment = {
                **model.environment,
                "THREADKEEP_DATABASE_URL": urls[number],
                "THREADKEEP_TRANSCRIPTS": plan.transcripts,
                "THREADKEEP_PENDING_DIR": str(pending),
                # Processes are killed so often here that a run may lose several of them in a row.
                "THREADKEEP_RUN_MAX_ATTEMPTS": "100",
            }
            services.append(Service(f"{plan.kind}-{number}", plan.kind, folder / f"service-{number}", environment))
        client = await stack.enter_async_context(httpx2.AsyncClient(timeout=_REQUEST_SECONDS, trust_env=False))
        try:
            await asyncio.gather(*(service.start() for service in services))
            yield Arena(plan, urls[-1], services, proxies, disk if mounted else None, model, client)
        finally:
            for service in services:
                await service.kill()


async def _database(stack: AsyncExitStack, plan: TurnPlan, disk: Path) -> tuple[Sequence[str], Sequence[DatabaseProxy]]:
    """Return the address of the database for each service and for the bench, and the proxies between them."""
    if plan.engine == "sqlite":
        return [f"sqlite:///{disk}/threadkeep.db"] * 3, []
    server = await stack.enter_async_context(postgres_server())
    url = await server.database("chaos")
    parts = conninfo_to_dict(url)
    socket_path = f"{parts['host']}/.s.PGSQL.{parts.get('port', 5432)}"
    proxies = [await stack.enter_async_context(database_proxy(socket_path)) for _ in range(2)]
    through = [f"postgresql://{parts['user']}@127.0.0.1:{proxy.port}/{parts['dbname']}" for proxy in proxies]
    return [*through, url], proxies


async def run_turns(plan: TurnPlan, folder: Path, tell: Callable[[str], None]) -> TurnHistory:
    """Have people write until all turns are answered and all faults have happened; return the recorded history."""
    async with arena(plan, folder) as place:
        people = _People(place, tell)
        faults = Faults(place.services, place.proxies, place.disk, place.url, plan, Outages(place.client))
        failing = asyncio.create_task(faults.run(tell))
        watching = [asyncio.create_task(faults.outages.watch(service)) for service in place.services]
        try:
            await people.talk(until=failing.done)
            await failing
        finally:
            failing.cancel()
        tell("waiting until all is settled")
        errors = await _settle(place)
        errors += people.errors
        await faults.outages.end()
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        place.model.final = True
        tell("repeating every question")
        await people.repeat_all()
        return TurnHistory(
            asked=people.asked,
            told=people.told,
            refused=people.refused,
            calls=place.model.calls,
            stored=await stored_rows(place.url, plan.transcripts),
            runs=[] if plan.kind == "agent" else await run_rows(place.client, place.services[0].address, place.url),
            outages=faults.outages.found,
            errors=errors,
        )


async def _settle(place: Arena) -> list[str]:
    """Wait until there are no pending writes and no open runs; return a fault if they do not end."""
    deadline = time.monotonic() + _HANG_SECONDS
    while True:
        settled = [await ready(place.client, service) for service in place.services]
        still_open = await asyncio.to_thread(open_runs, place.url)
        if all(settled) and not still_open:
            return []
        if time.monotonic() > deadline:
            return [f"after {_HANG_SECONDS:.0f} s: services ready {settled}, open runs {still_open}"]
        await asyncio.sleep(0.2)


class _People:
    """The callers of both services, and all responses that they received."""

    def __init__(self, place: Arena, tell: Callable[[str], None]) -> None:
        self.asked: list[Asked] = []
        self.told: list[Told] = []
        self.refused: list[Refused] = []
        self.errors: list[str] = []
        self._place = place
        self._plan = place.plan
        self._tell = tell
        self._late: set[asyncio.Task[Told | None]] = set()
        self._begun_sessions = 0
        self._final = False

    async def talk(self, until: Callable[[], bool]) -> None:
        """Write in several sessions at once until all turns are answered and a condition holds."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._plan.sessions):
                tasks.create_task(self._sessions(until))
        if self._late:
            await asyncio.wait(self._late, timeout=_REQUEST_SECONDS)

    async def _sessions(self, until: Callable[[], bool]) -> None:
        while len(self.asked) < self._plan.turns or not until():
            self._begun_sessions += 1
            session_id = f"s-{self._begun_sessions}"
            chance = random.Random(f"{self._plan.seed}/{session_id}")
            for number in range(1, self._plan.turns_of_session + 1):
                await self._turn(session_id, f"{session_id}/{number}", chance)

    async def _turn(self, session_id: str, message_id: str, chance: random.Random) -> None:
        self.asked.append(Asked(session_id, message_id, time.monotonic()))
        if len(self.asked) % 100 == 0:
            self._tell(f"{len(self.asked)} turns asked, {len(self.told)} answers told")
        if not await self._insist(session_id, message_id, chance):
            return
        if chance.random() < 0.25:
            _ = self._begin(session_id, message_id, chance)
        await asyncio.sleep(chance.random() * 0.2)

    async def _insist(self, session_id: str, message_id: str, chance: random.Random) -> bool:
        """Send a question until it is answered; return False if it is not answered within three minutes."""
        deadline = time.monotonic() + _HANG_SECONDS
        waiting: set[asyncio.Task[Told | None]] = set()
        while time.monotonic() < deadline:
            if len(waiting) < 3:
                waiting.add(self._begin(session_id, message_id, chance))
            done, waiting = await asyncio.wait(
                waiting, timeout=chance.uniform(0.5, 9.0), return_when=asyncio.FIRST_COMPLETED
            )
            if any(task.result() for task in done):
                return True
            if done:
                await asyncio.sleep(chance.uniform(0.1, 0.5))
        return False

    def _begin(self, session_id: str, message_id: str, chance: random.Random) -> asyncio.Task[Told | None]:
        service = chance.choice(self._place.services)
        stream = chance.random() < 0.5 and self._plan.kind == "service"
        task = asyncio.create_task(self._send(service, session_id, message_id, stream=stream))
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        return task

    async def repeat_all(self) -> None:
        """Send every question to both services once more."""
        self._final = True
        gate = asyncio.Semaphore(_REPEATS_AT_ONCE)

        async def repeat(service: Service, asked: Asked) -> None:
            async with gate:
                if await self._send(service, asked.session_id, asked.message_id, stream=False) is None:
                    self.errors.append(f"{asked.message_id}: its repeat is not answered by {service.name}")

        async with asyncio.TaskGroup() as tasks:
            for asked in self.asked:
                for service in self._place.services:
                    tasks.create_task(repeat(service, asked))

    async def _send(self, service: Service, session_id: str, message_id: str, *, stream: bool) -> Told | None:
        """Send a question; record and return the answer, or None if there is none."""
        body = {"session_id": session_id, "message_id": message_id, "message": question_text(message_id)}
        begun_at = time.monotonic()
        try:
            answer, pieces = await (self._stream(service, body) if stream else self._post(service, body))
        except httpx2.ReadTimeout:
            self.errors.append(f"{message_id}: no answer of {service.name} within {_REQUEST_SECONDS:.0f} s")
            return None
        except (httpx2.HTTPError, OSError, json.JSONDecodeError):
            return None
        if answer is None:
            return None
        told = Told(
            session_id,
            message_id,
            answer["response"],
            service.name,
            begun_at,
            time.monotonic(),
            answer["run_id"],
            pieces,
            bool(answer.get("replaced")),
            self._final,
        )
        self.told.append(told)
        if (answer["session_id"], answer["message_id"]) != (session_id, message_id):
            self.errors.append(f"{message_id}: the answer names {answer['session_id']} {answer['message_id']}")
        return told

    async def _post(self, service: Service, body: dict[str, str]) -> tuple[dict[str, str] | None, None]:
        response = await self._place.client.post(f"{service.address}/api/v1/chat", json=body)
        self._note_refusal(service, body["message_id"], response.status_code)
        return (response.json() if response.status_code == 200 else None), None

    async def _stream(self, service: Service, body: dict[str, str]) -> tuple[dict[str, str] | None, str | None]:
        address = f"{service.address}/api/v1/chat/stream"
        name, pieces = "", ""
        async with self._place.client.stream("POST", address, json=body) as response:
            self._note_refusal(service, body["message_id"], response.status_code)
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: ") and name == "token":
                    pieces += json.loads(line.removeprefix("data: "))["text"]
                elif line.startswith("data: ") and name == "end":
                    return json.loads(line.removeprefix("data: ")), pieces
                elif line.startswith("data: ") and name == "error":
                    status = json.loads(line.removeprefix("data: "))["status"]
                    self._note_refusal(service, body["message_id"], status)
        return None, None

    def _note_refusal(self, service: Service, message_id: str, status: int) -> None:
        if status == 200:
            return
        self.refused.append(Refused(message_id, service.name, time.monotonic(), status))
        # These may happen in an outage; a person sends the message again.
        if status not in (409, 502, 503, 504):
            self.errors.append(f"{message_id}: HTTP status {status} of {service.name}")
