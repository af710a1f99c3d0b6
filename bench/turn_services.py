"""Services as processes that are paused and killed, with databases and disks that fail."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Literal

import httpx2

from bench.chaos_processes import PROCESSES
from bench.endings import end_with_parent
from bench.turn_history import Outage

type Kind = Literal["service", "agent"]
type ProxyState = Literal["open", "stalled", "slow", "cut"]

PRELOADED = (
    "bench.turn_agent",
    "langchain_openai",
    "threadkeep.app",
    "threadkeep.web.service",
    "threadkeep.settings",
    __name__,
)
_START_SECONDS = 240.0
_SLOW_SECONDS = 0.1
_RECOVERY_SECONDS = 1.0
_WRITE_SECONDS = 6.0
"""The write timeout of a service and some slack, in seconds."""


class Service:
    """A `threadkeep serve`, or an agent of the library, in a process that can be started again after a kill."""

    def __init__(self, name: str, kind: Kind, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._kind = kind
        self.folder = folder
        self.address = ""
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "THREADKEEP_PORT": "0", **environment}
        self._process: ForkServerProcess | None = None
        self._starts = 0
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """The newest log of the process."""
        file = self.folder / f"log-{self._starts}"
        return file.read_text() if file.exists() else ""

    async def start(self) -> None:
        """Start the process and wait until it listens; start it again if it ends early, as without its database."""
        deadline = time.monotonic() + _START_SECONDS
        self._spawn()
        while not (found := re.findall(r"listens on (http://\S+)", self.log)):
            assert self._process is not None
            if not self._process.is_alive():
                await asyncio.sleep(0.2)
                self._spawn()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} does not listen: {self.log[-2000:]}")
            await asyncio.sleep(0.02)
        self.address = found[-1]

    async def kill(self) -> None:
        """End the process with SIGKILL, if there is one, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.join)

    def pause(self) -> None:
        """Pause the process."""
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Resume the process."""
        os.kill(self.pid, signal.SIGCONT)

    def limit_files(self, size: int | None) -> None:
        """Limit the size of the process's files in bytes, as on a full disk."""
        hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def _spawn(self) -> None:
        self._starts += 1
        self.address = ""
        arguments = (self._kind, self.folder, self.folder / f"log-{self._starts}", self._environment)
        self._process = PROCESSES.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()


def _serve(kind: Kind, folder: Path, log: Path, environment: Mapping[str, str]) -> None:
    from bench.turn_agent import serve_agent
    from threadkeep.settings import load_settings
    from threadkeep.web.service import serve

    end_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # A write beyond the limit raises an error, as on a full disk, instead of ending the process.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if kind == "agent":
        serve_agent()
    else:
        asyncio.run(serve(load_settings()))


class DatabaseProxy:
    """A TCP proxy in front of PostgreSQL's socket, for one service, that can stall, be slow, or be cut."""

    def __init__(self, socket_path: str) -> None:
        self.port = 0
        self._socket_path = socket_path
        self._state: ProxyState = "open"
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._committed = b""

    def stall_after_commit(self, text: bytes) -> None:
        """Stall after a connection that sent this text has committed, before its client gets the reply."""
        self._committed = text

    def set(self, state: ProxyState) -> None:
        """Set how the proxy forwards bytes."""
        self._state = state
        if state == "stalled":
            self._open.clear()
        else:
            self._open.set()
        if state == "cut":
            for writer in self._writers:
                writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the bytes of a connection in both directions."""
        if self._state == "cut":
            writer.transport.abort()
            return
        await self._open.wait()
        try:
            theirs, ours = await asyncio.open_unix_connection(self._socket_path)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, ours}
        try:
            sent: list[bytes] = []
            await asyncio.gather(self._pass(reader, ours, sent=sent), self._pass(theirs, writer, received=sent))
        finally:
            self._writers -= {writer, ours}

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        sent: list[bytes] | None = None,
        received: Sequence[bytes] = (),
    ) -> None:
        try:
            while data := await reader.read(65536):
                if self._committed and sent is not None and self._committed in data:
                    sent.append(data)
                if received and b"COMMIT\0" in data:
                    self.set("stalled")
                if self._state == "slow":
                    await asyncio.sleep(_SLOW_SECONDS)
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def database_proxy(socket_path: str) -> AsyncIterator[DatabaseProxy]:
    """Run a proxy on a free port inside the block."""
    proxy = DatabaseProxy(socket_path)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        proxy.set("cut")
        server.close()


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """Mount a small disk on a folder inside the block; yield False if this user may not mount one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "threadkeep-chaos", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


class Outages:
    """The recorded outages. Each lasts until its services have written the turns that waited meanwhile."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.found: list[Outage] = []
        self._client = client
        self._recovering: set[asyncio.Task[None]] = set()

    @contextmanager
    def during(self, what: str, *services: Service) -> Iterator[None]:
        """Record the period of the block for some services, including the time that they need to recover."""
        begun_at = time.monotonic()
        try:
            yield
        finally:
            for service in services:
                self._recovering.add(asyncio.create_task(self._record(service, begun_at, what)))

    async def end(self) -> None:
        """Wait until all outages are recorded; the outage of a service that does not recover is not recorded."""
        if self._recovering:
            _, late = await asyncio.wait(self._recovering, timeout=_START_SECONDS)
            for task in late:
                task.cancel()

    async def watch(self, service: Service) -> None:
        """Record each period in which turns of a service are pending, for any reason (such as a busy machine).

        A period that has not ended when the task is cancelled ends then.
        """
        ready_at = time.monotonic()
        begun_at: float | None = None
        try:
            while True:
                await asyncio.sleep(_RECOVERY_SECONDS / 4)
                waiting = await pending_writes(self._client, service)
                if waiting and begun_at is None:
                    begun_at = ready_at - _WRITE_SECONDS
                if waiting == 0:
                    ready_at = time.monotonic()
                    if begun_at is not None:
                        self.found.append(Outage(service.name, begun_at, ready_at, "writes waited"))
                        begun_at = None
        finally:
            if begun_at is not None:
                self.found.append(Outage(service.name, begun_at, time.monotonic(), "writes waited"))

    async def _record(self, service: Service, begun_at: float, what: str) -> None:
        await asyncio.sleep(_RECOVERY_SECONDS)
        while not await ready(self._client, service):  # noqa: ASYNC110 - another process sends no signal
            await asyncio.sleep(_RECOVERY_SECONDS / 4)
        self.found.append(Outage(service.name, begun_at, time.monotonic(), what))


async def ready(client: httpx2.AsyncClient, service: Service) -> bool:
    """Return whether a service responds, reaches its database and has no pending turns."""
    return await pending_writes(client, service) == 0


async def pending_writes(client: httpx2.AsyncClient, service: Service) -> int | None:
    """Return the number of pending turns; None if the service does not respond or is not ready."""
    try:
        response = await client.get(f"{service.address}/readyz", timeout=5.0)
        waiting = response.json().get("pending_writes")
    except (httpx2.HTTPError, OSError, ValueError):
        return None
    if not isinstance(waiting, int):
        return None
    return waiting if waiting or response.status_code == 200 else None
