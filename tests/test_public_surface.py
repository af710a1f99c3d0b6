"""Tests of the public names: they exist, have types and docstrings, and import little."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import threadkeep
import threadkeep.testing

PROMISED = {
    "BudgetTooSmall",
    "Evidence",
    "Fact",
    "FactLearning",
    "InvalidInput",
    "InvalidKey",
    "InvalidMessage",
    "InvalidSettings",
    "KnowledgeNotFound",
    "KnownFacts",
    "Memory",
    "MemoryOptions",
    "Message",
    "ModelCallFailed",
    "Page",
    "Person",
    "Procedure",
    "PromptTemplate",
    "RecalledTurns",
    "Receipt",
    "RetrievedSnippets",
    "SchemaTooNew",
    "Scope",
    "SearchHit",
    "SearchResult",
    "Session",
    "SessionInfo",
    "SessionMemory",
    "SessionNotFound",
    "Settings",
    "StoreError",
    "StoreUnavailable",
    "ThreadkeepError",
    "TurnOptions",
    "Window",
    "WrongUser",
    "__version__",
    "bounded_messages",
    "candidate_graph",
    "check_key",
    "context_window",
    "count_tokens",
    "counter_for",
    "counter_named",
    "create_checkpointer",
    "create_graph_store",
    "escape_key",
    "flatten_messages",
    "input_budget",
    "knowledge_tools",
    "load_settings",
    "memory_node",
    "open_memory",
    "rebuild",
    "resolve_key",
    "session_turn",
    "trim",
    "unescape_key",
}
HEAVY = {
    "aiosqlite",
    "anthropic",
    "fastapi",
    "httpx",
    "httpx2",
    "langchain",
    "langchain_core",
    "langchain_ollama",
    "langchain_openai",
    "langgraph",
    "numpy",
    "openai",
    "prometheus_client",
    "psycopg",
    "psycopg_pool",
    "pydantic",
    "pydantic_settings",
    "rich",
    "sqlite3",
    "starlette",
    "structlog",
    "tiktoken",
    "typer",
    "uvicorn",
}


def modules_after(code: str) -> set[str]:
    """Return the modules of a new process after it has executed some code."""
    script = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


def heavy_after(code: str) -> set[str]:
    """Return the heavy packages of a new process after it has executed some code."""
    return HEAVY & {name.partition(".")[0] for name in modules_after(code)}


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_every_promised_name_exists(name: str) -> None:
    assert name in threadkeep.__all__
    assert name in dir(threadkeep)
    value = getattr(threadkeep, name)
    assert name == "__version__" or value.__doc__


def test_every_listed_name_exists() -> None:
    for name in threadkeep.__all__:
        assert getattr(threadkeep, name) is not None


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = threadkeep.nonsense


def test_type_checkers_see_the_same_names() -> None:
    source = Path(threadkeep.__file__).read_text(encoding="utf-8")
    typed = {line.rsplit(" as ", 1)[1] for line in source.splitlines() if line.startswith("    from threadkeep")}
    assert typed == set(threadkeep.__all__)


def test_test_doubles_are_public() -> None:
    assert {"Gate", "ScriptedModel", "SettableClock", "TranscriptContract"} <= set(threadkeep.testing.__all__)
    for name in threadkeep.testing.__all__:
        assert getattr(threadkeep.testing, name).__doc__


def test_the_version_has_a_valid_form() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|[ab]\d+|rc\d+)?", threadkeep.__version__)


@pytest.mark.parametrize(
    "error",
    [
        threadkeep.InvalidKey("The key is empty.", reason="empty"),
        threadkeep.SessionNotFound("s1"),
        threadkeep.WrongUser("s1"),
        threadkeep.MessageNotFound("s1", "m1"),
        threadkeep.SchemaTooNew(found=3, known=2),
        threadkeep.ModelCallFailed("TimeoutError"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(error: threadkeep.ThreadkeepError) -> None:
    """A pool of processes pickles the errors of its workers: one that cannot be restored breaks the pool."""
    for restored in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):  # noqa: S301  pickled above
        assert (type(restored), str(restored), vars(restored)) == (type(error), str(error), vars(error))


def test_types_are_published() -> None:
    assert (Path(threadkeep.__file__).parent / "py.typed").exists()


def test_importing_threadkeep_imports_no_heavy_package() -> None:
    """Names are imported on first access."""
    assert heavy_after("import threadkeep") == set()


@pytest.mark.parametrize(
    "names",
    [
        "Message, Receipt, SessionInfo",
        "Scope, Fact, Person, KnowledgeNotFound",
        "ThreadkeepError, WrongUser",
        "resolve_key, escape_key, check_key",
        "context_window, input_budget, Window",
        "__version__",
    ],
)
def test_pure_names_import_no_heavy_package(names: str) -> None:
    assert heavy_after(f"from threadkeep import {names}") == set()


def test_a_memory_imports_no_agent_and_no_interface() -> None:
    """A memory on SQLite imports neither LangGraph's agents nor the driver of PostgreSQL."""
    code = (
        "import asyncio, threadkeep\n"
        "async def main():\n"
        "    async with threadkeep.open_memory('sqlite://') as memory:\n"
        "        await memory.session('room:1').append([threadkeep.Message(role='user', content='hi')])\n"
        "asyncio.run(main())"
    )
    assert (
        heavy_after(code)
        & {
            "fastapi",
            "langchain",
            "langgraph",
            "openai",
            "prometheus_client",
            "psycopg",
            "rich",
            "starlette",
            "typer",
            "uvicorn",
        }
        == set()
    )


@pytest.mark.slow
def test_an_agent_imports_no_interface_and_no_provider() -> None:
    assert (
        heavy_after("from threadkeep import SessionMemory, memory_node, session_turn")
        & {
            "aiosqlite",
            "fastapi",
            "langchain_openai",
            "openai",
            "prometheus_client",
            "psycopg",
            "starlette",
            "tiktoken",
            "typer",
            "uvicorn",
        }
        == set()
    )
