"""Tests of services that are paused or killed during a turn: every caller gets the stored answer.

The model is in another process and answers differently at every call. `THREADKEEP_RUN_DEAD_SECONDS` is short here.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from psycopg.conninfo import conninfo_to_dict
from starlette.requests import Request
from starlette.responses import Response

from bench.turn_history import question_text
from bench.turn_model import TurnModel, serving_model
from bench.turn_rows import stored_rows
from bench.turn_services import DatabaseProxy, Service, database_proxy
from tests.limits import HANG_SECONDS

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

_DEAD_SECONDS = 2
_PAUSED_SECONDS = 2 * _DEAD_SECONDS
ID = "telegram:42"
ROOM = "room:1"


class HeldModel(TurnModel):
    """A model whose first call does not return before `release` is set."""

    def __init__(self) -> None:
        super().__init__(random.Random(0), (0.0, 0.0))
        self.release = asyncio.Event()

    async def answer(self, request: Request) -> Response:
        """Answer a call; hold the first one."""
        response = await super().answer(request)
        if len(self.calls) == 1:
            await self.release.wait()
        return response


class Place:
    """Two services on one database and a model. The first service may lose its connection."""

    def __init__(self, url: str, model: HeldModel, client: httpx2.AsyncClient) -> None:
        self.url = url
        self.model = model
        self.services: list[Service] = []
        self.proxy: DatabaseProxy | None = None
        self._client = client

    async def ask(self, index: int) -> str | None:
        """Send the message to a service; return the answer, or None if there is none yet."""
        body = {"session_id": ROOM, "message_id": ID, "message": question_text(ID)}
        try:
            response = await self._client.post(f"{self.services[index].address}/api/v1/chat", json=body)
        except httpx2.HTTPError:
            return None
        return str(response.json()["response"]).partition(" ")[0] if response.status_code == 200 else None

    async def ask_until_answered(self, index: int) -> str:
        """Send the message until it is answered."""
        async with asyncio.timeout(HANG_SECONDS):
            while (answer := await self.ask(index)) is None:  # noqa: ASYNC110 - another process sets no event
                await asyncio.sleep(0.1)
        return answer

    async def begin(self, index: int) -> asyncio.Task[str | None]:
        """Send the message, and return when the model is called for it."""
        asking = asyncio.create_task(self.ask(index))
        await until(lambda: len(self.model.calls) == 1)
        return asking

    async def answers(self) -> list[str]:
        """Return the stored complete answers; a minus precedes the superseded ones."""
        rows = [row for row in await stored_rows(self.url, "tables") if row.role == "assistant"]
        rows = [row for row in rows if row.status == "complete"]
        return [f"{'-' if row.superseded else ''}{row.content.partition(' ')[0]}" for row in rows]

    async def stored(self, *answers: str) -> None:
        """Wait until these answers are stored."""
        await eventually(lambda: self._has(list(answers)))

    async def _has(self, answers: list[str]) -> bool:
        return sorted(await self.answers()) == sorted(answers)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():  # noqa: ASYNC110 - another process sets no event
            await asyncio.sleep(0.02)


async def eventually(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Wait until a condition is true in another process."""
    async with asyncio.timeout(HANG_SECONDS):
        while not await condition():  # noqa: ASYNC110 - another process sets no event
            await asyncio.sleep(0.1)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Return an exit stack that is closed after the test."""
    async with AsyncExitStack() as entered:
        yield entered


async def opened(stack: AsyncExitStack, folder: Path, url: str, *, write_timeout: float = 1) -> Place:
    """Start two services. On PostgreSQL the first has a proxy before the database."""
    model = HeldModel()
    await stack.enter_async_context(serving_model(model))
    client = await stack.enter_async_context(httpx2.AsyncClient(timeout=HANG_SECONDS, trust_env=False))
    place, urls = Place(url, model, client), [url, url]
    if url.startswith("postgres"):
        parts = conninfo_to_dict(url)
        port = parts.get("port", 5432)
        place.proxy = await stack.enter_async_context(database_proxy(f"{parts['host']}/.s.PGSQL.{port}"))
        urls[0] = f"postgresql://{parts['user']}@127.0.0.1:{place.proxy.port}/{parts['dbname']}"
    for index, each in enumerate(urls):
        environment = {
            **model.environment,
            "THREADKEEP_DATABASE_URL": each,
            "THREADKEEP_PENDING_DIR": str(folder / f"pending-{index}"),
            "THREADKEEP_RUN_DEAD_SECONDS": str(_DEAD_SECONDS),
            "THREADKEEP_WRITE_TIMEOUT": str(write_timeout),
        }
        service = Service(f"service-{index}", "service", folder / f"service-{index}", environment)
        stack.push_async_callback(service.kill)
        place.services.append(service)
    await asyncio.gather(*(service.start() for service in place.services))
    return place


async def test_a_service_that_is_paused_in_its_model_call(
    stack: AsyncExitStack, tmp_path: Path, postgres_url: str
) -> None:
    """The caller of a paused service gets the answer of the service that took over the run.

    The write timeout is long: on a busy machine a slow write must not count as an outage, in which the caller gets
    the answer of the pending file.
    """
    place = await opened(stack, tmp_path, postgres_url, write_timeout=HANG_SECONDS)
    first = await place.begin(0)
    place.services[0].pause()
    stack.callback(place.services[0].wake)
    assert await place.ask_until_answered(1) == "#2"
    place.model.release.set()
    place.services[0].wake()
    assert await first == "#2"
    assert [await place.ask(index) for index in (0, 1)] == ["#2", "#2"]
    assert await place.answers() == ["#2"]


async def test_a_service_that_is_paused_after_its_answer_is_stored(
    stack: AsyncExitStack, tmp_path: Path, postgres_url: str
) -> None:
    """A service that is paused before it learns of its commit and the other service return the same stored answer."""
    place = await opened(stack, tmp_path, postgres_url)
    assert place.proxy is not None
    place.proxy.stall_after_commit(b"#1 ")
    first = await place.begin(0)
    place.model.release.set()
    await place.stored("#1")
    place.services[0].pause()
    stack.callback(place.services[0].wake)
    place.proxy.set("open")
    paused_at = time.monotonic()
    await until(lambda: time.monotonic() - paused_at > _PAUSED_SECONDS)
    assert not first.done()
    assert await place.ask_until_answered(1) == "#1"
    place.services[0].wake()
    assert await first == "#1"
    assert (await place.answers(), len(place.model.calls)) == (["#1"], 1)


async def test_a_service_that_is_killed_during_a_turn(stack: AsyncExitStack, tmp_path: Path, shared_url: str) -> None:
    """After a service is killed during a turn, both services return the one stored answer."""
    place = await opened(stack, tmp_path, shared_url)
    first = await place.begin(0)
    await place.services[0].kill()
    assert await first is None
    assert await place.ask_until_answered(1) == "#2"
    await place.services[1].kill()
    await asyncio.gather(*(service.start() for service in place.services))
    assert [await place.ask_until_answered(index) for index in (0, 1)] == ["#2", "#2"]
    assert (await place.answers(), len(place.model.calls)) == (["#2"], 2)


@pytest.mark.parametrize("repeated", [False, True])
async def test_an_answer_from_the_pending_folder_of_a_killed_process(
    stack: AsyncExitStack, tmp_path: Path, postgres_url: str, repeated: bool
) -> None:
    """A pending answer that was returned supersedes the other service's, unless a repeat got that one before."""
    place = await opened(stack, tmp_path, postgres_url)
    assert place.proxy is not None
    first = await place.begin(0)
    place.proxy.set("cut")
    place.model.release.set()
    assert await first == "#1"
    await place.services[0].kill()
    await place.stored("#2")
    if repeated:
        assert await place.ask_until_answered(1) == "#2"
    place.proxy.set("open")
    await place.services[0].start()
    await place.stored(*(["-#1", "#2"] if repeated else ["#1", "-#2"]))
    expected = "#2" if repeated else "#1"
    assert [await place.ask_until_answered(index) for index in (0, 1)] == [expected, expected]
    assert len(place.model.calls) == 2


async def test_a_paused_process_on_a_file_keeps_its_turn(
    stack: AsyncExitStack, tmp_path: Path, sqlite_url: str
) -> None:
    """On SQLite the run of a paused service is not taken over; a repeat at the other service waits for its answer."""
    place = await opened(stack, tmp_path, sqlite_url)
    first = await place.begin(0)
    place.services[0].pause()
    stack.callback(place.services[0].wake)
    repeat = asyncio.create_task(place.ask(1))
    paused_at = time.monotonic()
    await until(lambda: time.monotonic() - paused_at > _PAUSED_SECONDS)
    assert not repeat.done()
    place.model.release.set()
    place.services[0].wake()
    assert (await first, await repeat) == ("#1", "#1")
    assert (await place.answers(), len(place.model.calls)) == (["#1"], 1)
