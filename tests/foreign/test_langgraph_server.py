"""Tests of an agent with memory on LangGraph's own server: threads are sessions, owned by their users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from tests.limits import HANG_SECONDS
from tests.ports import free_port
from threadkeep import open_memory_sync

pytestmark = pytest.mark.foreign

ROOT = Path(__file__).parents[2]
COMMAND = ROOT / ".venv-deepagents" / "bin" / "langgraph"
AGENT = Path(__file__).with_name("langgraph_server_agent.py")
ANONYMOUS: dict[str, Any] = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}


@contextmanager
def serving(folder: Path, configuration: dict[str, Any]) -> Iterator[str]:
    """Run the server in a folder; yield its address."""
    if not COMMAND.exists():
        pytest.skip("LangGraph's server needs a separate environment: run `make foreign`.")
    shutil.copy(AGENT, folder / "agent.py")
    (folder / "langgraph.json").write_text(json.dumps(configuration))
    port = free_port()
    quiet = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    environment = {**os.environ, **quiet, "PYTHONPATH": str(ROOT), "MEMORY_URL": url_in(folder)}
    # Detecting blocking calls needs a package without a wheel.
    command = [str(COMMAND), "dev", "--no-browser", "--no-reload", "--allow-blocking", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + HANG_SECONDS
    try:
        while not is_ready(address):
            assert server.poll() is None, (folder / "log").read_text()[-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield address
    finally:
        server.kill()
        server.wait()


def is_ready(address: str) -> bool:
    """Return whether a server answers."""
    try:
        return httpx.get(f"{address}/ok").is_success
    except httpx.TransportError:
        return False


def url_in(folder: Path) -> str:
    """Return the URL of the agent's memory."""
    return f"sqlite:///{folder}/memory.db"


def ask(client: SyncLangGraphClient, thread_id: str, text: str, **options: Any) -> Any:
    """Send a message to the agent in a thread; return the state at the end of the run."""
    given: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    return client.runs.wait(thread_id, "agent", input=given, **options)


def stored(folder: Path, thread_id: str) -> list[str]:
    """Return the roles and texts of a session."""
    with open_memory_sync(url_in(folder)) as memory:
        return [f"{one.role}: {one.content}" for one in memory.session(thread_id).tail(50)]


def test_a_thread_without_users_is_a_session(tmp_path: Path) -> None:
    """Without authentication, the server passes an empty user."""
    with serving(tmp_path, ANONYMOUS) as address, get_sync_client(url=address) as client:
        thread_id = client.threads.create()["thread_id"]
        ask(client, thread_id, "one")
        state = ask(client, thread_id, "two")
    assert [message["content"] for message in state["messages"]] == ["one", "one", "two", "one, two"]
    assert stored(tmp_path, thread_id) == ["user: one", "assistant: one", "user: two", "assistant: one, two"]


def test_a_caller_owns_the_sessions_of_their_threads(tmp_path: Path) -> None:
    """An answer after an approval is stored once; a message that interrupts a run is answered after it."""
    with (
        serving(tmp_path, {**ANONYMOUS, "auth": {"path": "./agent.py:auth"}}) as address,
        get_sync_client(url=address, headers={"authorization": "Bearer ann"}) as client,
    ):
        asked = client.threads.create()["thread_id"]
        assert ask(client, asked, "send")["__interrupt__"]
        approval: Any = {"resume": {"decisions": [{"type": "approve"}]}}
        client.runs.wait(asked, "agent", command=approval)
        interrupted = client.threads.create()["thread_id"]
        slow: dict[str, Any] = {"messages": [{"role": "user", "content": "slow"}]}
        client.runs.create(interrupted, "agent", input=slow)
        deadline = time.monotonic() + HANG_SECONDS
        while stored(tmp_path, interrupted) != ["user: slow"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        ask(client, interrupted, "quick", multitask_strategy="interrupt")
    assert stored(tmp_path, asked) == ["user: send", "assistant: send"]
    assert stored(tmp_path, interrupted) == ["user: slow", "user: quick", "assistant: slow, quick"]
    with open_memory_sync(url_in(tmp_path)) as memory:
        assert {info.user_id for info in memory.sessions()} == {"ann"}
