"""Tests of the types in checkpoints: reading a row executes no code."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import ormsgpack
import pytest

from threadkeep.cli import main
from threadkeep.store.address import parse_address
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.driver import StoreOptions

_CONSTRUCTOR = 0


async def test_a_row_that_names_a_function_calls_nothing(tmp_path: Path) -> None:
    """LangGraph's permissive default would call `os.system` in each process that reads the row."""
    marker = tmp_path / "marker"
    call = ormsgpack.packb(("os", "system", f"touch {marker}"))
    row = ormsgpack.packb(ormsgpack.Ext(_CONSTRUCTOR, call))
    async with open_checkpointer(parse_address(f"sqlite:///{tmp_path}/threadkeep.db"), StoreOptions()) as saver:
        read = saver.serde.loads_typed(("msgpack", row))
    assert read == f"touch {marker}"
    assert "marker" not in [path.name for path in tmp_path.iterdir()]  # noqa: ASYNC240 - a folder in memory


_READER = """
import asyncio, ormsgpack, sys
from dataclasses import dataclass
from threadkeep import create_checkpointer, load_settings

@dataclass
class Own:
    word: str

async def read(url, marker):
    row = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(("os", "system", f"touch {marker}"))))
    async with create_checkpointer(load_settings(database_url=url), types=[Own]) as saver:
        saver.serde.loads_typed(("msgpack", row))
        assert saver.serde.loads_typed(saver.serde.dumps_typed(Own("a"))) == Own("a")

for url in sys.argv[2:]:
    asyncio.run(read(url, sys.argv[1]))
"""


@pytest.mark.process
async def test_a_process_that_embeds_threadkeep_is_strict(tmp_path: Path, sqlite_url: str, postgres_url: str) -> None:
    """A process without the command line's environment variable is strict; types that the caller names are created."""
    marker = tmp_path / "marker"
    environment = {name: value for name, value in os.environ.items() if name != "LANGGRAPH_STRICT_MSGPACK"}
    command = (sys.executable, "-c", _READER, str(marker), sqlite_url, postgres_url)
    child = await asyncio.create_subprocess_exec(*command, env=environment)
    assert await child.wait() == 0
    assert not marker.exists()


def test_the_command_line_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANGGRAPH_STRICT_MSGPACK")
    assert main(["--version"]) == 0
    assert os.environ["LANGGRAPH_STRICT_MSGPACK"] == "true"
