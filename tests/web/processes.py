"""The service in its own process: started, called over HTTP and stopped by a signal, with its output recorded."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from tests.children import Child
from tests.limits import HANG_SECONDS
from tests.web.services import until
from threadkeep.settings import load_settings
from threadkeep.web.service import serve


class ServiceProcess:
    """A service in another process, with its own environment and folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str], work: Callable[..., None] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self._output = folder / "stdout"
        self._log = folder / "stderr"
        for file in (self._output, self._log):
            file.touch()
        own = {"PATH": os.environ["PATH"], "HOME": str(folder), "THREADKEEP_PORT": "0", **environment}
        self.child: Child[None] = Child(work or serve_in, folder, own)

    @property
    def written(self) -> str:
        """Return its output so far."""
        return self._output.read_text() + self._log.read_text()

    @property
    def address(self) -> str | None:
        """Return its address, or None before it listens."""
        assert self.child.process.is_alive(), self.written
        found = re.findall(r"listens on (http://\S+)", self._output.read_text())
        return found[-1] if found else None

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int | None:
        """Send a signal, wait for the end of the process, and return its exit status."""
        os.kill(self.child.pid, number)
        await asyncio.to_thread(self.child.process.join, HANG_SECONDS)
        return self.child.process.exitcode


@asynccontextmanager
async def running(
    folder: Path, environment: Mapping[str, str], work: Callable[..., None] | None = None
) -> AsyncIterator[tuple[httpx2.AsyncClient, ServiceProcess]]:
    """Start a process that serves, and yield a client and the process. A running process is killed after the block.

    If `work` is given, the process calls it instead of serving; it must call `serve_in` at the end.
    """
    service = ServiceProcess(folder, environment, work)
    try:
        await until(lambda: service.address is not None)
        address = str(service.address)
        async with httpx2.AsyncClient(base_url=address, timeout=HANG_SECONDS, trust_env=False) as client:
            yield client, service
    finally:
        service.child.kill()


def serve_in(folder: Path, environment: Mapping[str, str]) -> None:
    """Serve as `threadkeep serve` does. The start of that command is tested with the other commands."""
    # Tests send this signal, but `nohup` lets children ignore it, too.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        with (folder / name).open("a") as file:
            os.dup2(file.fileno(), descriptor)
    asyncio.run(serve(load_settings()))
