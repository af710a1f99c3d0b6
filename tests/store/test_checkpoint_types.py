"""A checkpoint row runs no code: only objects of known types are created from it."""

from __future__ import annotations

import os
from pathlib import Path

import ormsgpack
import pytest

from threadkeep.cli.entry import main
from threadkeep.store.address import parse_address
from threadkeep.store.driver import StoreOptions
from threadkeep.store.opening import open_checkpointer

_CONSTRUCTOR = 0


async def test_a_row_that_names_a_function_calls_nothing(tmp_path: Path) -> None:
    """LangGraph's permissive default would call `os.system` in every process that reads the row."""
    marker = tmp_path / "marker"
    call = ormsgpack.packb(("os", "system", f"touch {marker}"))
    row = ormsgpack.packb(ormsgpack.Ext(_CONSTRUCTOR, call))
    async with open_checkpointer(parse_address(f"sqlite:///{tmp_path}/threadkeep.db"), StoreOptions()) as saver:
        read = saver.serde.loads_typed(("msgpack", row))
    assert read == f"touch {marker}"
    assert "marker" not in [path.name for path in tmp_path.iterdir()]  # noqa: ASYNC240 - a folder in memory


def test_the_command_line_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything imports LangGraph; an operator may say otherwise."""
    monkeypatch.delenv("LANGGRAPH_STRICT_MSGPACK")
    assert main(["--version"]) == 0
    assert os.environ["LANGGRAPH_STRICT_MSGPACK"] == "true"
