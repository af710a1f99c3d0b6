"""What users import: every promised name, typed and light."""

from __future__ import annotations

import json
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
    """The modules that a fresh process has after running some code."""
    script = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


def heavy_after(code: str) -> set[str]:
    """The heavy packages among them."""
    return HEAVY & {name.partition(".")[0] for name in modules_after(code)}


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_every_promised_name_is_there(name: str) -> None:
    """It can be imported, it is listed, and it is documented."""
    assert name in threadkeep.__all__
    assert name in dir(threadkeep)
    value = getattr(threadkeep, name)
    assert name == "__version__" or value.__doc__


def test_every_name_that_is_listed_is_there() -> None:
    """`from threadkeep import *` does not fail."""
    for name in threadkeep.__all__:
        assert getattr(threadkeep, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """As for any module."""
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = threadkeep.nonsense


def test_the_names_that_type_checkers_see_are_those_that_programs_get() -> None:
    """The two lists of the package's `__init__` say the same."""
    source = Path(threadkeep.__file__).read_text(encoding="utf-8")
    typed = {line.rsplit(" as ", 1)[1] for line in source.splitlines() if line.startswith("    from threadkeep")}
    assert typed == set(threadkeep.__all__)


def test_the_doubles_for_tests_are_there() -> None:
    """`threadkeep.testing` has its names, and no others are promised."""
    assert {"Gate", "ScriptedModel", "SettableClock", "TranscriptContract"} <= set(threadkeep.testing.__all__)
    for name in threadkeep.testing.__all__:
        assert getattr(threadkeep.testing, name).__doc__


def test_the_version_is_a_version() -> None:
    """Numbers with points between them."""
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|[ab]\d+|rc\d+)?", threadkeep.__version__)


def test_types_are_published() -> None:
    """The package says that it is typed."""
    assert (Path(threadkeep.__file__).parent / "py.typed").exists()


def test_the_import_alone_loads_nothing() -> None:
    """No framework, no driver, no provider, no face: names are imported when they are used."""
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
def test_pure_names_load_no_framework(names: str) -> None:
    """Whoever needs a record or a rule does not pay for an agent."""
    assert heavy_after(f"from threadkeep import {names}") == set()


def test_a_memory_loads_no_agent_and_no_face() -> None:
    """A program that reads and writes sessions loads neither LangGraph's agents nor the other database's driver."""
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
def test_an_agent_loads_no_face_and_no_provider() -> None:
    """The middleware needs LangChain and nothing of the service."""
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
