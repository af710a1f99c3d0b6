"""The service as a process of its own: started, asked over HTTP, stopped by a signal, its output kept."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from tests.web.services import PATIENCE_SECONDS, until

_PROGRAM = """
import asyncio
from threadkeep.settings import load_settings
from threadkeep.web.service import serve
asyncio.run(serve(load_settings()))
"""


class ServiceProcess:
    """A service that runs somewhere else."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        self._output = folder / "stdout"
        self._log = folder / "stderr"
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        with self._output.open("a") as output, self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                env={**inherited, "HOME": str(folder), "THREADKEEP_PORT": "0", **environment},
                cwd=folder,
                stdout=output,
                stderr=log,
            )

    @property
    def written(self) -> str:
        """All that it wrote so far."""
        return self._output.read_text() + self._log.read_text()

    @property
    def address(self) -> str | None:
        """Where it listens, once it does."""
        assert self.process.poll() is None, self.written
        found = re.findall(r"listens on (http://\S+)", self._output.read_text())
        return found[-1] if found else None

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end; answers the exit status."""
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, PATIENCE_SECONDS)


@asynccontextmanager
async def running(
    folder: Path, environment: Mapping[str, str]
) -> AsyncIterator[tuple[httpx2.AsyncClient, ServiceProcess]]:
    """A process that listens, and a client of it; it is killed at the end if it still runs."""
    service = ServiceProcess(folder, environment)
    try:
        await until(lambda: service.address is not None)
        address = str(service.address)
        async with httpx2.AsyncClient(base_url=address, timeout=PATIENCE_SECONDS, trust_env=False) as client:
            yield client, service
    finally:
        service.process.kill()
        service.process.wait()
